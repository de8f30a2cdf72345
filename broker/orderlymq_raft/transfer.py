"""
Leadership transfer: the leader asks one voter to run for election (thesis 3.10).

Rules:
- The target runs only once its log is complete.
- The leader gives up its lease before it asks, because the target may win at any time from then on.

Only Node calls `begin`; replication calls `ask_target`.
"""

from orderlymq_raft.messages import TimeoutNow
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import NodeId, NotLeader, ProposalRefused, Role


def begin(state: RaftState, target: NodeId) -> bool:
    """Begin a transfer to *target*; return whether *target* still lacks entries. Raises as Node.transfer_leadership."""
    if state.role is not Role.LEADER:
        raise NotLeader(state.leader)
    if target not in state.membership.voters:
        raise ProposalRefused(f"node {target} is not a voter; choose one of the voters")
    if target == state.id:
        raise ProposalRefused(f"node {target} is the leader already; choose another voter")
    if state.transferee == target:
        return False
    state.transferee = target
    state.transfer_sent = False
    state.election_elapsed = 0
    ask_target(state)
    return not state.transfer_sent


def ask_target(state: RaftState) -> None:
    """Ask the target of a transfer to run, if its log is complete."""
    target = state.transferee
    if target is None or state.transfer_sent:
        return
    # The membership does not change while a transfer is under way.
    if state.progress[target].match == state.log.last_index:
        state.transfer_sent = True
        state.lease_revoked = state.config.lease_reads
        state.now.append(TimeoutNow(state.id, target, state.term))
