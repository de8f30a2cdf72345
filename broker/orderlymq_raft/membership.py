"""
Membership of the raft group, and its changes by one server at a time (thesis chapter 4).

Rules:
- A membership is effective as soon as its entry is in the log, committed or not. It is undone if the entry is
  truncated.
- The next change waits until the last is committed, so that any two majorities share a voter.
- A new leader waits for its first own commit before it changes anything (the correction of 2015 to thesis 4.1).
- A raft group that has not begun changes nothing, because its replicas elect each other only while their logs hold
  only the no-op entries that open terms.
"""

from typing import assert_never

from orderlymq_raft.log import LogStorage
from orderlymq_raft.progress import Progress, ProgressState
from orderlymq_raft.quorum import has_majority
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import (
    AddLearner,
    AddVoter,
    Entry,
    EntryKind,
    Index,
    Membership,
    MembershipChange,
    NotLeader,
    PromoteLearner,
    ProposalRefused,
    RemoveNode,
    Role,
    SnapshotMeta,
)

_LOAD_BYTES_MAX = 4 * 1024 * 1024
"""The bytes of the log that are read in one piece at the start; entries that are not memberships are dropped."""


def propose(state: RaftState, change: MembershipChange) -> Index:
    """Append *change*; raises NotLeader, or ProposalRefused if the change is not possible now."""
    if state.role is not Role.LEADER:
        raise NotLeader(state.leader)
    if state.transferee is not None:
        raise ProposalRefused(
            "leadership is being transferred; send the request to the next leader"
        )
    if state.recovering:
        raise ProposalRefused("the group has not started yet; retry shortly")
    if state.configs[-1][0] > state.log.commit:
        raise ProposalRefused("another membership change is not committed yet; retry when it is")
    if state.log.commit < state.term_start:
        raise ProposalRefused("the leader is new and has committed nothing yet; retry shortly")

    if any(progress.counts_from_round for progress in state.progress.values()):
        raise ProposalRefused("a replica has lost its log and does not count yet; retry shortly")

    membership = changed(state.membership, change)
    if isinstance(change, PromoteLearner):
        _require_caught_up(state, change)
    if isinstance(change, RemoveNode):
        _require_majority(state, membership)
    index = state.append_entry(membership.encode(), EntryKind.CONFIG)
    _put_in_force(state, index, membership)
    return index


def changed(membership: Membership, change: MembershipChange) -> Membership:
    """Return *membership* after *change*; raises ProposalRefused if the change is invalid."""
    voters, learners, node = membership.voters, membership.learners, change.node
    match change:
        case AddVoter() | AddLearner() if node in membership.members:
            raise ProposalRefused(f"node {node} is a member already; promote it if it is a learner")
        case AddVoter():
            voters = voters | {node}
        case AddLearner():
            learners = learners | {node}
        case PromoteLearner():
            if node not in learners:
                raise ProposalRefused(f"node {node} is not a learner; add it as a learner first")
            voters, learners = voters | {node}, learners - {node}
        case RemoveNode():
            if node not in membership.members:
                raise ProposalRefused(f"node {node} is not a member of the group")
            voters, learners = voters - {node}, learners - {node}
        case _:
            assert_never(change)
    if not voters:
        raise ProposalRefused(f"node {node} is the last voter; a group without voters is lost")
    try:
        return Membership(voters, learners)
    except ValueError as error:
        raise ProposalRefused(str(error)) from error


def note_appended(state: RaftState, entries: tuple[Entry, ...]) -> None:
    """Make the memberships among the newly appended *entries* effective."""
    for entry in entries:
        if entry.kind == EntryKind.CONFIG:
            _put_in_force(state, entry.index, Membership.decode(entry.data))


def truncate(state: RaftState, index: Index) -> None:
    """Return to the membership before *index*, because the entries from there on were dropped."""
    while state.configs[-1][0] >= index:
        state.configs.pop()
    state.membership = state.configs[-1][1]


def restore(state: RaftState, meta: SnapshotMeta) -> None:
    """Replace all memberships by the one of a snapshot."""
    state.configs[:] = [(meta.index, meta.membership)]
    state.membership = meta.membership


def settle(state: RaftState) -> bool:
    """
    Drop memberships from before the commit index; return whether the leader must leave.

    The leader must leave if it is not a voter in the settled membership: it was removed, or it is a learner.
    """
    configs = state.configs
    commit = state.log.commit
    while len(configs) > 1 and configs[1][0] <= commit:
        del configs[0]
    for peer in state.leaving.keys() - state.former_voters:
        del state.leaving[peer]
    return state.role is Role.LEADER and len(configs) == 1 and not state.is_voter


def load(storage: LogStorage, applied: Index) -> list[tuple[Index, Membership]]:
    """Return the membership at *applied*, then those that the stored log adds after it."""
    _, membership = storage.initial_state()
    configs = [(applied, membership)]
    low, end = Index(applied + 1), Index(storage.last_index() + 1)
    while low < end:
        for entry in storage.entries(low, end, _LOAD_BYTES_MAX):
            if entry.kind == EntryKind.CONFIG:
                configs.append((entry.index, Membership.decode(entry.data)))
            low = Index(entry.index + 1)
    return configs


def _put_in_force(state: RaftState, index: Index, membership: Membership) -> None:
    state.configs.append((index, membership))
    state.membership = membership
    if state.role is not Role.LEADER:
        return
    # The lease rests on voters, some of which may no longer count. The next round shows for how long the others
    # stick.
    state.lease_tick = None
    for peer in membership.members.difference(state.progress):
        state.track(peer, index)
    for peer in state.progress.keys() - membership.members:
        progress = state.progress.pop(peer)
        if peer in state.former_voters:
            state.leaving[peer] = progress


def _require_caught_up(state: RaftState, change: PromoteLearner) -> None:
    """Refuse a learner that every commit would have to wait for (thesis 4.2.1)."""
    progress = state.progress[change.node]
    if not _has_caught_up(state, progress):
        lag = state.log.last_index - progress.match
        raise ProposalRefused(
            f"learner {change.node} lacks {lag} entries and is in state {progress.state.value}; "
            "retry when it has caught up"
        )


def _has_caught_up(state: RaftState, progress: Progress) -> bool:
    lag = state.log.last_index - progress.match
    limit = state.config.promotion_lag_entries_max
    return progress.state is ProgressState.REPLICATE and lag <= limit


def _require_majority(state: RaftState, membership: Membership) -> None:
    """
    Refuse a removal that the remaining members cannot commit now; if one of them then lost its log, no member could.

    A replica that copies the log again after such a loss does not vote yet, so a leader that restarts might
    not be elected again.
    """
    present = {
        peer
        for peer, progress in state.progress.items()
        if progress.is_alive and _has_caught_up(state, progress)
    }
    if not has_majority(membership.voters, present | {state.id}):
        raise ProposalRefused(
            "most of the voters that would remain are unreachable or have not caught up; retry "
            "when they have"
        )
