"""
Replication: a leader brings its log to its peers, and decides the commit index.

Rules kept: only entries of the leader's own term are committed by counting replicas, older
ones with them (raft paper section 5.4.2); a leader counts itself as any voter, once its own
copy is durable. Appends are built in flush(), when the shell asks for a Ready: all that was
proposed since the last one shares an append.
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

# What a new leader begins with has no more, so that it costs no further round trip.
PROBE_BYTES_MAX: Final = 64 * 1024

_Slices = dict[Index, tuple[Term, tuple[Entry, ...], int]]


def flush(state: RaftState) -> None:
    """Put all that may leave now into the outbox."""
    if state.heartbeat_wanted:
        reads.broadcast_heartbeat(state)
        _count_again(state)
    if not state.append_wanted:
        return
    state.append_wanted = False
    last_index = state.log.last_index
    # Peers usually are at the same point: the slice is cut once for all of them.
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
    """Go on after an answer, or step back to where the logs may meet."""
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
    """Go on behind the snapshot that the peer has installed."""
    progress = state.progress.get(message.sender)
    if progress is None:
        return
    progress.recently_active = True
    # The peer has heard of no commit since it put the state in place: see the end of handle_heartbeat_response.
    progress.sent_commit = NO_INDEX
    _acknowledge(state, message.sender, progress, message.index)


def handle_heartbeat_response(state: RaftState, message: HeartbeatResponse) -> None:
    """Note that the peer follows, and notice when appends to it were lost."""
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
        # One whose connection broke may have begun again, and takes a commit index from an append first.
        state.append_wanted = True
        if _is_stuck(state, progress):
            _send_empty(state, message.sender, progress)
    if progress.sent_commit == NO_INDEX and _owes_commit(state, progress):
        # Only an append shows a replica that lost its log that it is complete.
        _send_empty(state, message.sender, progress)
    progress.match_at_heartbeat = progress.match
    _count_again(state)


def broadcast_commit(state: RaftState) -> None:
    """Send the commit index immediately to every peer that does not have it."""
    for peer, progress in state.progress.items():
        if peer != state.id and _owes_commit(state, progress):
            _send_empty(state, peer, progress)


def maybe_commit(state: RaftState) -> None:
    """Commit the entries that a majority holds."""
    acked = {peer: progress.counted_match for peer, progress in state.progress.items()}
    index = Index(committed_index(state.membership.voters, acked))
    # Terms never fall along the log, so everything from our no-op on is of our own term.
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
    # Nothing is certain of a peer that denies what it acknowledged: it may have another leader's entry there again.
    certain = NO_INDEX if message.index == progress.match else progress.match
    low = max(certain, Index(log.first_index() - 1))
    high = min(message.hint_index, log.last_index)
    if high <= low:
        return high
    return log.highest_with_term(low, high, message.hint_term)


def _send_append(state: RaftState, peer: NodeId, progress: Progress, slices: _Slices) -> bool:
    """Send the next entries, or the snapshot that replaces them; return whether any left."""
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
        # Where the logs do not meet it would be in vain: it follows when the peer has said that it fits.
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
    """Send an append without entries at the end of the sent entries: commit index and question."""
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
        # Nobody is there to receive it; the first heartbeat answer brings us back here.
        return
    try:
        meta = state.log.storage.snapshot()
    except Unavailable:
        # The next heartbeat answer brings us back here.
        progress.probe_sent = True
        return
    progress.become_snapshot(meta)
    state.now.append(InstallSnapshot(state.id, peer, state.term, meta))


def _is_stuck(state: RaftState, progress: Progress) -> bool:
    """
    Return whether only an empty append can show the end of the peer's log.

    One at the end of the sent entries is refused when something before it was lost, and accepted
    when only the answers were.
    """
    match progress.state:
        case ProgressState.REPLICATE:
            # A whole heartbeat without an answer, though something is under way.
            return progress.match == progress.match_at_heartbeat
        case ProgressState.PROBE:
            # Heartbeats overtake entries, so the probe may still be on its way: it leaves once, and is asked about.
            return progress.probe_sent or progress.next > state.log.last_index
        case ProgressState.SNAPSHOT:
            # Finds out that the snapshot is there when the answer to it was lost.
            return progress.match == progress.match_at_heartbeat
        case _:
            assert_never(progress.state)


def _owes_commit(state: RaftState, progress: Progress) -> bool:
    behind = progress.sent_commit < _may_know(state, progress)
    return behind and progress.state is ProgressState.REPLICATE


def _may_know(state: RaftState, progress: Progress) -> Index:
    """Return the commit index for a peer: none while it may have followed a later leader.

    None while the group begins, either: a replica that hears of one knows that the group has begun. And none before the
    first entry of this leader's own term is committed: the one before may have committed more than is known here, and
    who lost its log takes it for complete when it has everything up to here.
    """
    if progress.counts_from_round or state.recovering or not reads.may_read(state):
        return NO_INDEX
    return state.log.commit


def _count_again(state: RaftState) -> None:
    """Let those count that have lost their logs, once nobody can have led after this leader then."""
    proven = [peer for peer in state.progress if reads.proves_leadership_since_loss(state, peer)]
    for peer in proven:
        progress = state.progress[peer]
        progress.counts_from_round = 0
        state.append_wanted = True
        # Only an append shows it that its log is complete.
        _send_empty(state, peer, progress)
    if proven:
        maybe_commit(state)


def leave(state: RaftState) -> None:
    """
    Step down, and ask the most complete of the other voters to run.

    The removal of this leader is committed (section 6), it is a learner, or its disk hangs.
    """
    state.append_wanted = True
    flush(state)
    # So that nobody has to find out after an election.
    broadcast_commit(state)
    voters = sorted(state.membership.voters - {state.id})
    progress = state.progress
    target = max(voters, key=lambda voter: (progress[voter].is_alive, progress[voter].match))
    state.now.append(TimeoutNow(state.id, target, state.term))
    state.become_follower(state.term, None)
