"""
Replication: the leader sends its log to its peers and advances the commit index.

Rules:
- Only entries of the leader's own term are committed by counting replicas; older ones are committed with them
  (raft paper section 5.4.2).
- The leader counts itself like any voter, once its own copy is durable.

flush() builds the appends when the shell asks for a Ready, so that all proposals since the last Ready share
an append.
"""

from typing import Final, assert_never

from orderlymq_raft import membership, reads, transfer
from orderlymq_raft.log import Compacted, Unavailable
from orderlymq_raft.messages import (
    Append,
    AppendResponse,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    TimeoutNow,
)
from orderlymq_raft.progress import Progress, ProgressState
from orderlymq_raft.quorum import committed_index
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import NO_INDEX, Entry, Index, NodeId, Term

# An append of a new leader usually holds no more than this, so that probing costs no extra round trip.
PROBE_BYTES_MAX: Final = 64 * 1024

_Slices = dict[Index, tuple[Term, tuple[Entry, ...], int]]


def flush(state: RaftState) -> None:
    """Put everything that may be sent now into the outbox."""
    if state.heartbeat_wanted:
        reads.broadcast_heartbeat(state)
        _count_again(state)
    if not state.append_wanted:
        return
    state.append_wanted = False
    last_index = state.log.last_index
    # Peers are usually at the same point, so the slice is built once for all of them.
    slices: _Slices = {}
    for peer, progress in state.progress.items():
        if peer == state.id:
            continue
        while progress.next <= last_index and progress.may_send():
            if not _send_append(state, peer, progress, slices):
                break
        if state.config.eager_commit and _owes_commit(state, progress):
            _send_empty(state, peer, progress)


def handle_append_response(state: RaftState, message: AppendResponse) -> None:
    """Continue after an accepted append, or step back to where the logs may match."""
    progress = state.progress.get(message.sender)
    if progress is None:
        return
    progress.recently_active = True
    if message.reject:
        hint = _meeting_point(state, progress, message)
        if progress.reject(message.index, hint):
            state.append_wanted = True
        return
    _acknowledge(state, message.sender, progress, message.index)


def handle_install_snapshot_response(state: RaftState, message: InstallSnapshotResponse) -> None:
    """Continue after the snapshot that the peer has installed."""
    progress = state.progress.get(message.sender)
    if progress is None:
        return
    progress.recently_active = True
    # The peer has received no commit index since it installed the state: see the end of
    # handle_heartbeat_response.
    progress.sent_commit = NO_INDEX
    _acknowledge(state, message.sender, progress, message.index)


def handle_heartbeat_response(state: RaftState, message: HeartbeatResponse) -> None:
    """Note that the peer follows this leader, and detect lost appends."""
    leaving = state.leaving.get(message.sender)
    if leaving is not None:
        leaving.acked_round = max(leaving.acked_round, message.context)
        _count_again(state)
        return
    progress = state.progress.get(message.sender)
    if progress is None:
        return
    progress.recently_active = True
    if message.context > progress.acked_round:
        progress.acked_round = message.context
        reads.settle(state)

    if progress.match < state.log.last_index or progress.state is ProgressState.PROBE:
        # A peer whose connection broke may have restarted. After a restart it needs an append before it accepts a
        # commit index.
        state.append_wanted = True
        if _is_stuck(state, progress):
            _send_empty(state, message.sender, progress)
    if progress.sent_commit == NO_INDEX and _owes_commit(state, progress):
        # A replica that lost its log learns only from an append that its log is complete.
        _send_empty(state, message.sender, progress)
    progress.match_at_heartbeat = progress.match
    _count_again(state)


def broadcast_commit(state: RaftState) -> None:
    """Send the commit index immediately to every peer that was not sent it yet."""
    for peer, progress in state.progress.items():
        if peer != state.id and _owes_commit(state, progress):
            _send_empty(state, peer, progress)


def maybe_commit(state: RaftState) -> None:
    """Commit the entries that a majority holds."""
    acked = {peer: progress.counted_match for peer, progress in state.progress.items()}
    index = Index(committed_index(state.membership.voters, acked))
    # Terms never fall along the log, so every entry from our no-op on is of our own term.
    if index < state.term_start or not state.log.commit_to(index):
        return
    if state.round_trip_ticks is None:
        state.round_trip_ticks = state.ticks - state.led_since_tick
    if state.reads_next:
        state.heartbeat_wanted = True
    if state.config.eager_commit:
        state.append_wanted = True
    if membership.settle(state):
        leave(state)


def probe_lost_appends(state: RaftState, peer: NodeId) -> None:
    """Find out immediately what *peer* lacks, instead of with the next heartbeat."""
    progress = state.progress[peer]
    if progress.state is ProgressState.REPLICATE:
        _send_empty(state, peer, progress)


def _acknowledge(state: RaftState, peer: NodeId, progress: Progress, index: Index) -> None:
    news = progress.acknowledge(index)
    if progress.state is ProgressState.PROBE:
        if index >= progress.match:
            progress.become_replicate()
    elif progress.snapshot is not None and progress.match >= progress.snapshot.index:
        progress.become_replicate()
    if progress.next <= state.log.last_index:
        state.append_wanted = True
    if news:
        if state.transferee == peer:
            transfer.ask_target(state)
        if index > state.log.commit:
            maybe_commit(state)


def _meeting_point(state: RaftState, progress: Progress, message: AppendResponse) -> Index:
    """Return the highest index at which the peer's log can equal ours."""
    log = state.log
    # A peer that no longer has what it acknowledged may have any entries: there may be another leader's entry at
    # match.
    certain = NO_INDEX if message.index == progress.match else progress.match
    low = max(certain, Index(log.first_index() - 1))
    high = min(message.hint_index, log.last_index)
    if high <= low:
        return high
    return log.highest_with_term(low, high, message.hint_term)


def _send_append(state: RaftState, peer: NodeId, progress: Progress, slices: _Slices) -> bool:
    """Send the next entries, or the snapshot that replaces them; return whether entries were sent."""
    log = state.log
    low = progress.next
    found = slices.get(low)
    if found is None:
        try:
            term = log.term(Index(low - 1))
            entries = log.entries(low, state.config.entries_per_append_bytes_max)
        except Compacted:
            _send_snapshot(state, peer, progress)
            return False
        slices[low] = found = (term, entries, size_of(entries))
    term, entries, size = found
    if progress.state is ProgressState.PROBE and size > PROBE_BYTES_MAX:
        # If the logs do not match here, sending the entries is wasted. Send them after the peer has confirmed the
        # position.
        _send_empty(state, peer, progress)
        progress.probe_sent = True
        return False
    commit = _may_know(state, progress)
    state.now.append(Append(state.id, peer, state.term, Index(low - 1), term, commit, entries))
    progress.sent(entries[-1].index, size)
    progress.sent_commit = commit
    return True


def size_of(entries: tuple[Entry, ...]) -> int:
    """Return the bytes of the entries' data."""
    return sum([len(entry.data) for entry in entries])


def _send_empty(state: RaftState, peer: NodeId, progress: Progress) -> None:
    """Send an append without entries, at the end of the sent entries: it carries the commit index and asks for an answer."""
    log = state.log
    prev = Index(progress.next - 1)
    try:
        # The log may be compacted beyond a snapshot that is still under way.
        term = log.term(prev) if progress.snapshot is None else progress.snapshot.term
    except Compacted:
        _send_snapshot(state, peer, progress)
        return
    commit = _may_know(state, progress)
    state.now.append(Append(state.id, peer, state.term, prev, term, commit))
    progress.sent_commit = commit


def _send_snapshot(state: RaftState, peer: NodeId, progress: Progress) -> None:
    if not progress.is_alive:
        # The peer is away. The first heartbeat answer makes the leader try again.
        return
    try:
        meta = state.log.storage.snapshot()
    except Unavailable:
        # The next heartbeat answer makes the leader try again.
        progress.probe_sent = True
        return
    progress.become_snapshot(meta)
    state.now.append(InstallSnapshot(state.id, peer, state.term, meta))


def _is_stuck(state: RaftState, progress: Progress) -> bool:
    """
    Return whether only an empty append can show the end of the peer's log.

    The peer refuses an append at the end of the sent entries if an earlier one was lost. It accepts it if
    only the answers were lost.
    """
    match progress.state:
        case ProgressState.REPLICATE:
            # No answer for a whole heartbeat, though appends are in flight.
            return progress.match == progress.match_at_heartbeat
        case ProgressState.PROBE:
            # Heartbeats overtake entries, so the probe may still be in flight. It is sent once; later only its
            # answer is asked for.
            return progress.probe_sent or progress.next > state.log.last_index
        case ProgressState.SNAPSHOT:
            # If the answer to the snapshot was lost, this shows that the peer has it.
            return progress.match == progress.match_at_heartbeat
        case _:
            assert_never(progress.state)


def _owes_commit(state: RaftState, progress: Progress) -> bool:
    behind = progress.sent_commit < _may_know(state, progress)
    return behind and progress.state is ProgressState.REPLICATE


def _may_know(state: RaftState, progress: Progress) -> Index:
    """
    Return the commit index to send to a peer, or 0 if the peer must not learn it yet.

    It is 0 in three cases:

    - The peer may have followed a later leader.
    - The raft group is only beginning: a replica that receives a commit index concludes that the group has begun.
    - The first entry of this leader's own term is not committed yet. The previous leader may have committed more than
      this one knows, and a replica that lost its log takes it for complete when it has everything up to this index.
    """
    if progress.counts_from_round or state.recovering or not reads.may_read(state):
        return NO_INDEX
    return state.log.commit


def _count_again(state: RaftState) -> None:
    """Let peers that lost their logs count again, once it is proven that they have followed no later leader."""
    proven = [peer for peer in state.progress if reads.proves_leadership_since_loss(state, peer)]
    for peer in proven:
        progress = state.progress[peer]
        progress.counts_from_round = 0
        state.append_wanted = True
        # The peer learns only from an append that its log is complete.
        _send_empty(state, peer, progress)
    if proven:
        maybe_commit(state)


def leave(state: RaftState) -> None:
    """
    Step down, and ask the most up-to-date of the other voters to run.

    Called when the removal of this leader is committed (section 6), when it is a learner, or when its disk
    hangs.
    """
    state.append_wanted = True
    flush(state)
    # The others then need not find out the commit index after an election.
    broadcast_commit(state)
    voters = sorted(state.membership.voters - {state.id})
    progress = state.progress
    target = max(voters, key=lambda voter: (progress[voter].is_alive, progress[voter].match))
    state.now.append(TimeoutNow(state.id, target, state.term))
    state.become_follower(state.term, None)
