"""
The laws of a topic's queue expansion: an operator's steps, the fence, the switch, and the lists in routes.

Rules: no send passes the fence. At a switch, every consumer group that has come has consumed everything. The number
of queues never falls. An operator that another has succeeded is not obeyed. A route names one of the lists that the
topic had, or has announced to its readers.
"""

from typing import TYPE_CHECKING, Final

from orderlymq.connection.routes import Routes
from orderlymq.oracle.verdict import Kind
from orderlymq_broker.state.integerranges import NO_TOKEN
from orderlymq_broker.state.records import Append, Record
from orderlymq_broker.state.topics.expansionrecords import (
    ExpansionAborted,
    ExpansionFenced,
    ExpansionPhase,
    ExpansionPropagated,
    ExpansionSwitched,
)
from orderlymq_broker.state.topics.expansiontable import Expansion

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws

# The steps of an operator in an expansion, or of the leader acting for it.
_STEPS: Final = (ExpansionFenced, ExpansionAborted, ExpansionSwitched, ExpansionPropagated)


class GrowthLaws:
    """The laws that hold while the topic of a run gets more queues."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._world = laws.world
        # The numbers of queues that the topic had, the present one last, and the expansion's state
        # after the last entry.
        self._totals = [laws.world.plan.queues]
        self._announced: set[int] = set()
        self._growth: Expansion | None = None
        self._token = 0

    @property
    def queues(self) -> int:
        """Return the number of queues of the topic."""
        return self._totals[-1]

    def applied(self, replica: "Replica", records: list[Record]) -> None:
        """Check the steps of an expansion by comparing its state before and after one entry."""
        laws, world = self._laws, self._world
        before, after = self._growth, replica.state.expansions.by_topic.get(world.topic)
        self._growth = after
        steps = [each for each in records if isinstance(each, _STEPS)]
        if after != before and len(steps) == 1:  # of several it is unknown which was carried out
            laws.ensure(
                steps[0].token == NO_TOKEN or steps[0].token >= self._token,
                "operator",
                f"{steps[0]} of an operator was obeyed, {self._token} has followed it",
            )
        self._token = max([self._token, *(getattr(each, "token", NO_TOKEN) for each in records)])
        if after is None or after == before:
            return
        self._announced.add(after.next_total)
        world.coverage[f"growth: {after.phase.value}"] += 1
        if after.phase is ExpansionPhase.OPEN and after.reason:
            world.coverage["growth given up"] += 1
        if after.total in (0, self.queues):
            return
        laws.ensure(
            after.total > self.queues, "growth", f"{self.queues} queues become {after.total}"
        )
        self._check_drained(replica)
        self._totals.append(after.total)
        world.history.event(Kind.GROWN, topic=world.topic, detail=str(after.total))

    def _check_drained(self, replica: "Replica") -> None:
        """Check that every consumer group that has come had consumed everything from before the switch."""
        laws, world, model = self._laws, self._world, self._laws.model
        for group in sorted({consumer.group for consumer in world.consumers}):
            has_locked = any(key[0] == group for key in model.locks)
            if not (has_locked or replica.state.members.of_group(group)):
                # A group that comes later reads both lists at the same time (docs/explanation/guarantees.md, clause
                # 12).
                world.coverage["growth before a group came"] += 1
                continue
            for queue in range(self.queues):
                end = model.ends[laws.topic_id, queue]
                key = (group, world.topic, queue)
                done = model.offsets.get(key, 0)
                lock = model.locks.get(key)
                if key not in model.offsets or lock is None or not lock.client:
                    # A consumer that begins there now begins after the messages that retention dropped.
                    done = max(done, model.floors[laws.topic_id, queue])
                laws.ensure(
                    done >= end,
                    "growth",
                    f"switched while {group} is at {done} of {end} in queue {queue}",
                )

    def appended(self, record: Append) -> None:
        """Check that no send passes the fence, except those accepted before it."""
        if self._growth is not None and self._growth.phase is ExpansionPhase.FENCED:
            accepted = record.unique_key in self._laws.model.due
            self._laws.ensure(
                accepted or record.unique_key in self._world.deals,
                "growth",
                f"{record} was written behind the fence",
            )

    def route_answered(self, routes: Routes) -> None:
        """Check law 9: the queue list of an ordered topic does not change by itself."""
        route = routes.get(self._world.topic)
        assert route is not None
        # Announced queues can be read before any producer may write to them.
        for queues, totals in (
            (route.publish, self._totals),
            (route.subscribe, [*self._totals, *self._announced]),
        ):
            self._laws.ensure(
                route.is_ordered
                and [queue.queue_id for queue in queues] == list(range(len(queues)))
                and len(queues) in totals,
                "route",
                f"a name server answers {route}, the topic had {self._totals} queues",
            )
