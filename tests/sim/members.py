"""
Membership changes of the raft group.

Rule: no change leaves fewer voters than the raft group began with, because then no replica could lose its disk.
Operators change one member at a time: a learner joins, catches up and votes. A raft group allows more, and it is
tested here: several learners at the same time, a voter that was no learner before, the removal of any member, and
changes by a deposed leader while its successor makes others at the same index of the log.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq_raft import (
    AddLearner,
    AddVoter,
    Membership,
    NotLeader,
    PromoteLearner,
    ProposalRefused,
    RemoveNode,
)
from orderlymq_raft.types import MembershipChange, NodeId
from tests.sim.timeline import MS

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.world import World

# In addition to the founding members.
MORE_MAX: Final = 3


class MemberChanges:
    """Proposes membership changes to leaders."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = world.timeline.random
        self._newest = max(world.founders)

    def next(self, leader: "Replica | None") -> None:
        """Make a replica join as a learner, vote, or be removed, as operators do."""
        if leader is None or leader.paused:
            return
        membership = leader.node.status().membership
        if membership.learners:
            self._propose(leader, PromoteLearner(min(membership.learners)))
        elif len(membership.voters) > len(self._world.founders):
            gone = self._random.choice(sorted(membership.voters))
            if not self._is_rebuilt():
                self._propose(leader, RemoveNode(gone))
        else:
            self._propose(leader, AddLearner(self._new()))

    def remove_and_lose(self, leader: "Replica | None") -> None:
        """
        Remove one of three when another loses its disk, which is restarted before its leader gives up.

        Two members are left then, and the leader needs all votes: also that of the removed one, until
        its removal is committed.
        """
        world = self._world
        if leader is None or leader.paused or self._is_rebuilt():
            return
        if len(world.members) != 3 or leader.node.status().membership.learners:
            self.next(leader)
            return
        others = [world.replicas[each] for each in sorted(world.members - {leader.id})]
        if not all(each.alive for each in others):
            return
        gone, lost = self._random.sample(others, 2)
        world.timeline.after(
            self._random.randrange(40 * MS), "disk lost", partial(self._lose, lost)
        )
        world.timeline.after(
            self._random.randrange(40 * MS), "removed", partial(self._remove, leader, gone.id)
        )

    def _lose(self, replica: "Replica") -> None:
        replica.crash(wipe=True, silent=self._random.random() < 0.5)
        self._world.restart_after(self._random.randrange(1, 40 * MS), replica)

    def _remove(self, leader: "Replica", gone: NodeId) -> None:
        if self._propose(leader, RemoveNode(gone)) and self._is_rebuilt():
            self._world.coverage["members: one removed when another lost its disk"] += 1

    def any(self, leader: "Replica") -> None:
        """Make one of all changes that the raft group allows."""
        membership = leader.node.status().membership
        choices = self._choices(membership)
        if not choices:
            return
        # More voters than the founding number do not stay long: their removal is the rare case.
        name = "voter removed" if self._random.random() < 0.5 else ""
        if name not in choices:
            name = self._random.choice(sorted(choices))
        change = choices[name]()
        if self._propose(leader, change):
            self._world.coverage[f"members: {name}"] += 1
            if len(membership.learners) > 1:
                self._world.coverage["members: several learners"] += 1

    def _choices(self, membership: Membership) -> dict[str, Callable[[], MembershipChange]]:
        random, founders = self._random, len(self._world.founders)
        voters, learners = sorted(membership.voters), sorted(membership.learners)
        choices: dict[str, Callable[[], MembershipChange]] = {}
        is_rebuilt = self._is_rebuilt()
        if len(membership.members) < founders + MORE_MAX:
            choices["learner added"] = lambda: AddLearner(self._new())
            # Until it has caught up it counts as a voter without voting, like one that has lost its disk.
            if not is_rebuilt:
                choices["voter added"] = lambda: AddVoter(self._new())
        if learners:
            choices["learner promoted"] = lambda: PromoteLearner(random.choice(learners))
            choices["learner removed"] = lambda: RemoveNode(random.choice(learners))
        if len(voters) > founders and not is_rebuilt:
            choices["voter removed"] = lambda: RemoveNode(random.choice(voters))
        return choices

    def _is_rebuilt(self) -> bool:
        """Return whether a replica lacks what the raft group has stored on its disk."""
        return any(each.is_recovering for each in self._world.replicas.values())

    def _new(self) -> NodeId:
        self._newest += 1
        return NodeId(self._newest)

    def _propose(self, leader: "Replica", change: MembershipChange) -> bool:
        """Return whether the leader accepted the change; a replica that joins is then started."""
        try:
            leader.loop.change_membership(change)
        except (NotLeader, ProposalRefused):
            return False
        if isinstance(change, AddLearner | AddVoter):
            self._world.join(change.node)
        return True
