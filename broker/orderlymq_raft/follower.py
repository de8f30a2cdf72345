"""
Handles the leader's messages: entries, heartbeats, snapshots.

Rules:
- A follower accepts an append only at a point where the logs match (raft paper section 5.3).
- The leader's entries win a conflict, which never lies below the commit index.
- An answer is a promise and leaves only after the entries are durable, so it goes through the *after* outbox.
"""

from orderlymq_raft import membership
from orderlymq_raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
)
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import Entry, Index, NodeId, Role, SnapshotMeta


def handle_append(state: RaftState, message: Append) -> None:
    """Append the entries, or answer where the logs may match."""
    _follow(state, message.sender)
    log = state.log
    prev_index = message.prev_index
    entries = message.entries
    last = Index(prev_index + len(entries))

    if prev_index < log.commit:
        # Committed entries equal the leader's, and may be compacted here: compare only the entries after them.
        entries = entries[log.commit - prev_index :]
        last = max(last, log.commit)
    elif not log.matches(prev_index, message.prev_term):
        _reject(state, message)
        return

    if entries:
        _merge(state, entries)
    state.matched = max(state.matched, last)
    if log.commit_to(Index(min(message.commit, last))):
        membership.settle(state)
    state.after.append(AppendResponse(state.id, message.sender, state.term, last))


def handle_heartbeat(state: RaftState, message: Heartbeat) -> None:
    """
    Stick to the leader, and learn how far the raft group has committed.

    If entries are not synced, a power loss may remove entries that this replica had acknowledged, and bring
    back entries of an earlier leader. So *commit* counts only as far as an append has shown that the logs are
    equal.
    """
    _follow(state, message.sender)
    log = state.log
    if message.commit > log.last_index:
        # The leader never sends more than this replica has acknowledged, so our disk was replaced.
        state.after.append(
            AppendResponse(
                state.id,
                message.sender,
                state.term,
                message.commit,
                reject=True,
                hint_index=log.last_index,
                hint_term=log.last_term,
            )
        )
    elif log.commit_to(min(message.commit, state.matched)):
        membership.settle(state)
    state.after.append(HeartbeatResponse(state.id, message.sender, state.term, message.context))


def handle_install_snapshot(state: RaftState, message: InstallSnapshot) -> None:
    """Replace the log by the snapshot, unless the snapshot holds nothing new (section 7)."""
    _follow(state, message.sender)
    _adopt(state, message.meta)
    commit = state.log.commit
    state.after.append(InstallSnapshotResponse(state.id, message.sender, state.term, commit))


def adopt_former(state: RaftState, meta: SnapshotMeta) -> None:
    """
    Install a snapshot from a leader of an older term, because its transfer may outlast an election.

    A snapshot holds only committed entries, and every later leader has them (leader completeness, 5.4). If
    this log has another entry at *meta.index*, that entry and all after it can never be committed, so
    dropping them is safe. A candidate keeps its log, because it has asked for votes based on it.
    """
    if state.role is Role.FOLLOWER and meta.term <= state.term:
        _adopt(state, meta)


def _adopt(state: RaftState, meta: SnapshotMeta) -> None:
    log = state.log
    if meta.index <= log.commit:
        return
    if log.matches(meta.index, meta.term):
        # The log holds the whole snapshot already, and more after it that must stay.
        log.commit_to(meta.index)
        membership.settle(state)
    else:
        log.restore(meta)
        membership.restore(state, meta)


def _follow(state: RaftState, leader: NodeId) -> None:
    assert state.role is not Role.LEADER, (
        f"nodes {state.id} and {leader} both lead term {state.term}"
    )
    if state.role is not Role.FOLLOWER or state.leader != leader:
        state.become_follower(state.term, leader)
    state.sticks_until = max(state.sticks_until, state.ticks + state.config.election_ticks)
    state.election_elapsed = 0
    state.hurry_ticks = 0


def _merge(state: RaftState, entries: tuple[Entry, ...]) -> None:
    """Add those of *entries* that are new; the entry before the first one is in the log."""
    log = state.log
    first = entries[0].index
    if first <= log.last_index:
        for position, entry in enumerate(entries):
            if log.matches(entry.index, entry.term):
                continue
            if entry.index <= log.last_index:
                log.truncate(entry.index)
                membership.truncate(state, entry.index)
            entries = entries[position:]
            break
        else:
            # An old append that arrives late. It must not shorten the log (section 5.3).
            return
    log.append(entries)
    membership.note_appended(state, entries)


def _reject(state: RaftState, message: Append) -> None:
    """Answer the leader with the highest index at which the logs can still be equal."""
    log = state.log
    # Terms rise along both logs, so none of our entries above prev_term can be the leader's. The committed ones
    # certainly are.
    high = Index(min(message.prev_index, log.last_index))
    hint = log.highest_with_term(log.commit, high, message.prev_term)
    state.after.append(
        AppendResponse(
            state.id,
            message.sender,
            state.term,
            message.prev_index,
            reject=True,
            hint_index=hint,
            hint_term=log.term(hint),
        )
    )
