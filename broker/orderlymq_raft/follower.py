"""
Handles messages of the leader: entries, heartbeats, snapshots.

Rules kept: an append is taken only where the logs meet (raft paper section 5.3); a conflict
is resolved in the leader's favour and never below the commit index; an answer is a promise
and leaves only after the entries are durable, hence through the *after* outbox.
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
    """Take the entries, or say where the logs may meet."""
    _follow(state, message.sender)
    log = state.log
    prev_index = message.prev_index
    entries = message.entries
    last = Index(prev_index + len(entries))

    if prev_index < log.commit:
        # What is committed equals the leader's, and may be compacted here: look only beyond.
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
    Stick to the leader, and learn how far the group has committed.

    What this replica had acknowledged, where entries are not synced, may be gone with the power, and what a former leader
    had sent be there again. So *commit* counts as far as an append has shown that the logs are equal.
    """
    _follow(state, message.sender)
    log = state.log
    if message.commit > log.last_index:
        # The leader names only what this replica has acknowledged: our disk was replaced.
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
    """Replace the log by the snapshot, unless it holds nothing new (section 7)."""
    _follow(state, message.sender)
    _adopt(state, message.meta)
    commit = state.log.commit
    state.after.append(InstallSnapshotResponse(state.id, message.sender, state.term, commit))


def adopt_former(state: RaftState, meta: SnapshotMeta) -> None:
    """
    Take over the snapshot of a leader of an older term: its transfer may outlast an election.

    A snapshot holds committed entries only, which every later leader has (leader completeness, 5.4). Where this log has
    another entry at *meta.index*, that one and all behind it can never be committed: nothing that counts is dropped.
    A candidate keeps its log, because it has asked for votes by it.
    """
    if state.role is Role.FOLLOWER and meta.term <= state.term:
        _adopt(state, meta)


def _adopt(state: RaftState, meta: SnapshotMeta) -> None:
    log = state.log
    if meta.index <= log.commit:
        return
    if log.matches(meta.index, meta.term):
        # The log holds all of it already, and more behind it that must stay.
        log.commit_to(meta.index)
        membership.settle(state)
    else:
        log.restore(meta)
        membership.restore(state, meta)


def _follow(state: RaftState, leader: NodeId) -> None:
    assert state.role is not Role.LEADER, f"nodes {state.id} and {leader} both lead {state.term}"
    if state.role is not Role.FOLLOWER or state.leader != leader:
        state.become_follower(state.term, leader)
    state.sticks_until = max(state.sticks_until, state.ticks + state.config.election_ticks)
    state.election_elapsed = 0
    state.hurry_ticks = 0


def _merge(state: RaftState, entries: tuple[Entry, ...]) -> None:
    """Add the new ones of *entries*, whose predecessor is in the log."""
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
            # An old append that arrives late: it must not shorten the log (section 5.3).
            return
    log.append(entries)
    membership.note_appended(state, entries)


def _reject(state: RaftState, message: Append) -> None:
    """Return to the leader the highest index at which the logs can still be equal."""
    log = state.log
    # Both logs' terms rise, so none of our entries above prev_term can be the leader's; what
    # is committed certainly is.
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
