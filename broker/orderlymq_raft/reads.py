"""
Linearizable reads without a log entry (thesis 6.4).

A read waits until the leader has committed in its own term, then takes the commit index. It is answered when
a majority has answered a heartbeat that was sent after the read arrived: then no other replica had become
leader before. One round of heartbeats serves all waiting reads. A lease (6.4.1) makes the round unnecessary:
voters that answered promised not to elect another leader for their own election_ticks, which may be fewer
than ours.
"""

from orderlymq_raft.messages import Heartbeat
from orderlymq_raft.quorum import committed_index, has_majority
from orderlymq_raft.state import PendingRead, RaftState
from orderlymq_raft.types import NO_INDEX, Index, NodeId, NotLeader, ReadState, Role

LEASE_MARGIN_TICKS = 2
LEASE_MARGIN_DIVISOR = 100
"""
The margin by which a lease is shorter than E ticks of stickiness.

A voter that hears its leader at the end of a tick sticks for E - 1 whole ticks. The lease ends E - 2 - E // 100 ticks
after the tick in which the heartbeat left, or earlier. So a voter's clock may be faster by (1 + E // 100) / (E - 2 - E // 100):
a sixth at 8 ticks, and more than a hundredth however long the time-out is. Quartz and a daemon that corrects it differ by 0.1 %.
"""


def read_index(state: RaftState, context: int) -> None:
    """Request that ReadState(context, ...) appears in a later Ready; raises NotLeader."""
    if state.role is not Role.LEADER:
        raise NotLeader(state.leader)
    state.reads_next.append(context)
    if may_read(state):
        state.heartbeat_wanted = True


def may_read(state: RaftState) -> bool:
    """Return whether the leader knows all committed entries (section 8)."""
    return state.log.commit >= state.term_start


def lease_valid(state: RaftState) -> bool:
    """Return whether the leader may answer reads at its commit index right now."""
    if state.role is not Role.LEADER or not state.config.lease_reads:
        return False
    # A transfer asks a voter to break its promise, and that request may arrive late.
    if state.lease_revoked or state.lease_tick is None or not may_read(state):
        return False
    sticks = min(state.config.election_ticks, state.lease_ticks)
    margin = LEASE_MARGIN_TICKS + sticks // LEASE_MARGIN_DIVISOR
    return state.ticks - state.lease_tick < sticks - margin


def broadcast_heartbeat(state: RaftState) -> None:
    """Start a round of heartbeats, which also serves the waiting reads."""
    state.heartbeat_wanted = False
    state.round += 1
    state.round_ticks.append((state.round, state.ticks))
    log = state.log
    if state.reads_next and may_read(state):
        state.reads_pending.append(PendingRead(state.round, log.commit, tuple(state.reads_next)))
        state.reads_next.clear()
    for peer, progress in (*state.progress.items(), *state.leaving.items()):
        if peer == state.id:
            progress.acked_round = state.round
            continue
        commit = NO_INDEX if state.recovering else Index(min(progress.match, log.commit))
        state.now.append(Heartbeat(state.id, peer, state.term, commit, state.round))
    settle(state)


def settle(state: RaftState) -> None:
    """Answer the reads and extend the lease for the rounds that a majority has answered."""
    acked = {peer: progress.counted_round for peer, progress in state.progress.items()}
    reached = committed_index(state.membership.voters, acked)

    rounds = state.round_ticks
    while rounds and rounds[0][0] <= reached:
        state.lease_tick = rounds.popleft()[1]
        state.lease_ticks = _sticks_ticks(state, acked, reached)
        state.round_trip_ticks = state.ticks - state.lease_tick

    pending = state.reads_pending
    while pending and pending[0].round <= reached:
        read = pending.popleft()
        state.read_states.extend(ReadState(context, read.index) for context in read.contexts)


def _sticks_ticks(state: RaftState, acked: dict[NodeId, int], reached: int) -> int:
    """Return how long a majority of the voters sticks to this leader, counting those that answered round *reached*; in ticks."""
    ticks = {peer: state.stickiness.get(peer, 0) for peer, last in acked.items() if last >= reached}
    return committed_index(state.membership.voters, ticks)


def proves_leadership_since_loss(state: RaftState, peer: NodeId) -> bool:
    """
    Return whether a round of heartbeats shows that *peer*, which lost its log, has followed no later leader.

    The peer may have helped to elect the next leader and to commit its entries, and have lost all trace of
    it. A majority of replicas that lost nothing, and that answer heartbeats sent after the loss, has elected
    no other leader. The same holds if all members answer, provided that a majority of the disks is intact. A
    membership that is not committed proves nothing alone: a deposed leader could leave out the voter that
    followed its successor.
    """
    first_round = state.progress[peer].counts_from_round
    if not first_round:
        return False
    tracked = {**state.progress, **state.leaving}
    answered = {each for each, progress in tracked.items() if progress.acked_round >= first_round}
    certain = {each for each in answered if not tracked[each].counts_from_round}
    if state.round >= first_round:
        # A leader that is being removed counts as an answer, too, and it has lost nothing.
        answered.add(state.id)
        certain.add(state.id)
    return all(
        has_majority(each.voters, certain) or each.voters <= answered for _, each in state.configs
    )
