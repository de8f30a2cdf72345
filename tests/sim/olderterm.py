"""
Entries of an earlier term on a majority: figure 8 of the raft paper, reproduced step by step.

A leader is left alone with an entry that no other replica has. Its successor is elected and crashes with its own
entry, which no other replica has. The first leader leads again and replicates its old entry to a majority, but no
entry of its new term. Then it crashes, and the successor, whose log is newer, truncates that entry. A replica that
had committed it by counting replicas has applied an entry that is in no log any more.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.state.records import GroupSet
from orderlymq_raft import Message
from orderlymq_raft.messages import Append
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.world import World

LOOK_US: Final = 5 * MS
STEP_MAX_US: Final = 4 * SECOND
# An answer takes less than this, including the application of what it commits.
COUNTED_US: Final = 30 * MS


class OlderTerm:
    """One such sequence of events; it gives up if a step does not happen in time."""

    def __init__(self, world: "World", leader: "Replica", over: Callable[[], bool]) -> None:
        self._world = world
        self._first = leader
        self._over = over
        self._others = [each for each in world.replicas.values() if each is not leader]

    def begin(self) -> None:
        """Leave the leader alone with an entry."""
        world, first = self._world, self._first
        replicas = [first, *self._others]
        if world.network.loses is not None or len(self._others) != 2:
            return
        if any(not each.alive or each.paused or each.is_recovering for each in replicas):
            return
        self._term = first.node.term
        world.network.loses = self._loses_alone
        first.loop.submit([Propose([GroupSet("older-term")])])
        self._wait(self._is_alone, self._elect)

    def _loses_alone(self, message: Message) -> bool:
        names = (message.sender, message.target)
        return self._first.id in names or isinstance(message, Append)

    def _is_alone(self) -> bool:
        self._end = self._first.log.last_index()
        return self._is_durable(self._first, self._term) and all(
            each.log.last_index() < self._end for each in self._others
        )

    def _elect(self) -> None:
        self._wait(self._has_successor, self._return_first)

    def _has_successor(self) -> bool:
        leaders = [each for each in self._others if each.alive and each.node.is_leader]
        if not leaders or not self._is_durable(leaders[0], leaders[0].node.term):
            return False
        self._second = leaders[0]
        (self._third,) = (each for each in self._others if each is not self._second)
        return self._third.log.last_index() < self._end

    def _return_first(self) -> None:
        """Make the first leader lead again, without replicating an entry of its new term."""
        self._world.network.loses = self._loses_own
        self._second.crash()
        self._wait(self._is_on_majority, self._count)

    def _loses_own(self, message: Message) -> bool:
        """Return whether a message would bring an entry of its leader's own term to a replica that can append it."""
        if not isinstance(message, Append) or not message.entries:
            return False
        target = self._world.replicas[message.target]
        own = message.entries[-1].term == message.term
        return own and target.alive and message.prev_index <= target.log.last_index()

    def _is_on_majority(self) -> bool:
        first, third = self._first, self._third
        return (
            first.alive
            and first.node.is_leader
            and third.alive
            and third.log.last_index() == self._end
            and self._is_durable(third, self._term)
        )

    def _count(self) -> None:
        self._world.coverage["entry of an earlier term on a majority"] += 1
        self._world.timeline.after(COUNTED_US, "counted", self._cut)

    def _cut(self) -> None:
        """Make the successor lead again."""
        if not self._over():
            self._first.crash()
            self._world.restart_after(SECOND, self._first)
        self._stop()

    def _stop(self) -> None:
        if self._over():
            return
        self._world.network.loses = None
        for each in self._others:
            if not each.alive:
                self._world.restart_after(0, each)

    @staticmethod
    def _is_durable(replica: "Replica", term: int) -> bool:
        """Return whether the last entry of a replica is of *term* and survives a crash."""
        if not replica.alive or replica.store.at_risk:
            return False
        return replica.log.term(replica.log.last_index()) == term

    def _wait(self, done: Callable[[], bool], then: Callable[[], None]) -> None:
        timeline = self._world.timeline
        deadline = timeline.now + STEP_MAX_US

        def look() -> None:
            if self._over() or timeline.now > deadline:
                self._stop()
            elif done():
                then()
            else:
                timeline.after(LOOK_US, "older term", look)

        look()
