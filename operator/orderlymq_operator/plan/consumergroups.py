"""
The assigner of one consumer group: it keeps the stored assignment current and notifies members if that helps.

The assigner remembers what no broker reports: how long the members have been the same, and how long a queue has had
no owner. A restart of the operator clears both, which only makes it wait longer. Pure: the caller gives the time and
performs the steps.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orderlymq_operator.plan.assignment import (
    AssignmentInput,
    AssignmentState,
    Holding,
    Member,
    assign_queues,
    examine,
)
from orderlymq_operator.resources.consumergroup import Assignment
from orderlymq_protocol.body.messagequeue import MessageQueue

# A notice makes every member ask for members, routes and locks, so frequent notices would be a load themselves.
NOTIFY_PAUSE_MS: Final = 15_000

Owners = tuple[tuple[str, int, str], ...]
"""Broker name, queue and client id."""


@dataclass(frozen=True, slots=True)
class SetAssignment:
    """Store the owners of a topic's queues on every raft group; an empty list of owners ends the decision."""

    consumer_group: str
    topic: str
    owners: Owners


@dataclass(frozen=True, slots=True)
class NotifyMembers:
    """Ask the members of a consumer group to assign and lock again."""

    consumer_group: str


@dataclass(frozen=True, slots=True)
class AssignmentView:
    """A consumer group as its raft groups report it at one moment.

    Attributes:
        members: members by raft group.
        queues: queues of the topics that it reads.
        holders: client id by locked queue.
        stored: stored decisions by raft group and topic.
        zones: zone of each raft group's leader, if known.
        wanted: the member that was refused a queue a moment ago, by queue.
        topics: topics of each raft group.
    """

    ordered: bool
    members: Mapping[str, Sequence[Member]]
    queues: Sequence[MessageQueue]
    holders: Mapping[MessageQueue, str] = field(default_factory=dict)
    stored: Mapping[str, Mapping[str, Owners]] = field(default_factory=dict)
    zones: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[MessageQueue, str] = field(default_factory=dict)
    topics: Mapping[str, Collection[str]] = field(default_factory=dict)


class GroupAssigner:
    """Assigns the queues of one consumer group; call `decide` as often as its members should be served."""

    def __init__(self, consumer_group: str) -> None:
        self._group = consumer_group
        self._members: frozenset[str] = frozenset()
        self._changed_ms: int | None = None
        self._holders: dict[MessageQueue, tuple[str, int]] = {}
        self._notified_ms: int | None = None

    def decide(
        self, spec: Assignment, view: AssignmentView, now_ms: int
    ) -> list[SetAssignment | NotifyMembers]:
        """Return the steps to take now."""
        names = frozenset(member.client_id for found in view.members.values() for member in found)
        if self._changed_ms is None or names != self._members:
            self._members, self._changed_ms = names, now_ms
        calm = now_ms - self._changed_ms >= spec.rebalance_delay.milliseconds
        steps: list[SetAssignment | NotifyMembers] = []
        decided: dict[MessageQueue, str] = {}
        if spec.strategy in ("Averagely", "AveragelyByCircle"):
            steps += self._end_decisions(view)
        else:
            queues: dict[str, list[MessageQueue]] = {}
            for queue in view.queues:
                queues.setdefault(queue.topic, []).append(queue)
            for topic in sorted(queues):
                found = self._assign(spec, view, topic, queues[topic], calm=calm)
                decided |= found
                steps += self._store(view, topic, found)
        holdings = self._holdings(view, now_ms)
        world = AssignmentState(
            view.ordered, view.members, view.queues, holdings, decided, view.wanted, view.topics
        )
        waited = self._notified_ms is None or now_ms - self._notified_ms >= NOTIFY_PAUSE_MS
        if examine(world).notify and waited:
            self._notified_ms = now_ms
            steps.append(NotifyMembers(self._group))
        return steps

    def _assign(
        self,
        spec: Assignment,
        view: AssignmentView,
        topic: str,
        queues: Sequence[MessageQueue],
        *,
        calm: bool,
    ) -> dict[MessageQueue, str]:
        members = {member.client_id: member for found in view.members.values() for member in found}
        # A member that does not subscribe to the topic could take its queues and never read them.
        wanting = [
            member
            for member in members.values()
            if any(name == topic for name, _ in member.subscriptions)
        ]
        # Use the first raft group that has a decision: all get the same one, and the first gets it first.
        present = next((found[topic] for found in view.stored.values() if topic in found), ())
        owners = {MessageQueue(topic, broker, number): owner for broker, number, owner in present}
        first = not present
        return assign_queues(
            spec.strategy,
            self._group,
            AssignmentInput(queues, wanting, owners, view.zones, calm=calm or first),
        )

    def _store(
        self, view: AssignmentView, topic: str, found: Mapping[MessageQueue, str]
    ) -> list[SetAssignment]:
        owners = tuple(sorted((q.broker_name, q.queue_id, owner) for q, owner in found.items()))
        stale = any(decisions.get(topic, ()) != owners for decisions in view.stored.values())
        return [SetAssignment(self._group, topic, owners)] if owners and stale else []

    def _end_decisions(self, view: AssignmentView) -> list[SetAssignment]:
        topics = {topic for decisions in view.stored.values() for topic in decisions}
        return [SetAssignment(self._group, topic, ()) for topic in sorted(topics)]

    def _holdings(self, view: AssignmentView, now_ms: int) -> dict[MessageQueue, Holding]:
        """Return the holder of each queue and for how long, as far as this assigner has observed it."""
        known = self._holders
        self._holders = {}
        for queue in view.queues:
            holder = view.holders.get(queue, "")
            before = known.get(queue)
            since = before[1] if before is not None and before[0] == holder else now_ms
            # After a change of members, queues are handed over: none of them is late yet.
            self._holders[queue] = (holder, max(since, self._changed_ms or 0))
        return {q: Holding(h, now_ms - since) for q, (h, since) in self._holders.items()}
