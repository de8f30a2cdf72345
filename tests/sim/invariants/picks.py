"""
Lanes of topics that are deleted and made again: a report about a former life does not count in the next one.

Laws: an attempt's number is given once, even across deletions of its topic. Only attempts of the present life end.
The messages of a key come in order. The committed offset passes no message that is owed in this life, and retention
drops none. All messages of these topics have one key; ``clients/picker.py`` works on them.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orderlymq_broker.state.lanes.lanerecords import (
    LanesFetched,
    LanesGranted,
    LanesMoved,
    LanesReported,
    ReportKind,
)
from orderlymq_broker.state.records import Outcome, Record, TopicDeleted

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws

GROUP: Final = "pickers"

_Queue = tuple[str, int]


@dataclass(slots=True)
class _Life:
    """The state of a queue since its topic was made.

    Attributes:
        attempts: the offsets of each attempt.
        seen: offsets that the broker has scanned.
        finished: offsets that an attempt has completed.
    """

    attempts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    committed: int = 0


class PickLaws:
    """The laws of the lanes of these topics, by the log."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._queues: defaultdict[_Queue, _Life] = defaultdict(_Life)
        self._given: set[tuple[_Queue, int]] = set()

    def read(self, record: Record, outcome: Outcome) -> None:
        """Check the effects of a record."""
        match record:
            case TopicDeleted(name=name):
                self._deleted(name)
            case LanesFetched(group=group) if group == GROUP and isinstance(outcome, LanesGranted):
                self._fetched(record, outcome)
            case LanesReported(group=group) if group == GROUP and isinstance(outcome, LanesMoved):
                self._reported(record, outcome)

    def _deleted(self, topic: str) -> None:
        for queue in [each for each in self._queues if each[0] == topic]:
            self._laws.world.coverage["topic with lanes deleted"] += 1
            del self._queues[queue]

    def _fetched(self, record: LanesFetched, outcome: LanesGranted) -> None:
        for part in record.queues:
            life = self._queues[record.topic, part.queue_id]
            life.seen.update(offset for found in part.found for offset in found.offsets)
        for granted in outcome.granted:
            queue = (record.topic, granted.queue_id)
            self._laws.ensure(
                (queue, granted.attempt) not in self._given,
                "lane numbers",
                f"attempt {granted.attempt} of {queue} is given for the second time",
            )
            self._given.add((queue, granted.attempt))
            life = self._queues[queue]
            life.attempts[granted.attempt] = granted.offsets
            earlier = [o for o in life.seen - life.finished if o < granted.offsets[0]]
            self._laws.ensure(
                not earlier,
                "lane order",
                f"{granted.offsets} of {queue} are handed out, nobody has finished {earlier}",
            )

    def _reported(self, record: LanesReported, outcome: LanesMoved) -> None:
        said = {(each.queue_id, each.attempt): each.kind for each in record.reports}
        for _, topic, queue_id, _, attempt in outcome.ended:
            life = self._queues[topic, queue_id]
            self._laws.ensure(
                attempt in life.attempts,
                "lives",
                f"attempt {attempt} of queue {queue_id} of {topic} ends, it is of a former life",
            )
            if said[queue_id, attempt] == ReportKind.DONE:
                life.finished.update(life.attempts[attempt])

    def compare(self, replica: "Replica") -> None:
        """Check that the committed offsets pass no unfinished message."""
        for queue, life in self._queues.items():
            offset = replica.state.offsets.get(GROUP, *queue) or 0
            lost = [
                each
                for each in range(life.committed, offset)
                if each in life.seen and each not in life.finished
            ]
            self._laws.ensure(
                not lost, "lane lost", f"{queue} is committed to {offset}, {lost} are owed"
            )
            life.committed = max(life.committed, offset)

    def dropped(self, queue: _Queue, below: int) -> None:
        """Check that retention drops no unfinished message."""
        life = self._queues[queue]
        lost = [each for each in life.seen - life.finished if each < below]
        self._laws.ensure(
            not lost, "lane retention", f"{lost} of {queue} are owed and were dropped"
        )
