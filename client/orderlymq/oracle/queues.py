"""
The order oracle for groups that consume by queue: it judges each queue separately. Pure.

Rules of a queue: one client owns it, no message is passed over, and no committed offset falls. A group is by queue if
it reports that listeners are done, and its deliveries name no attempts.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

from orderlymq.oracle.events import Defect, Event, Finding, Kind
from orderlymq.oracle.facts import Facts
from orderlymq.oracle.lanes import groups_by_key


def judge_queues(facts: Facts) -> list[Finding]:
    """Judge the queues of all groups that consume by queue."""
    return _Queues(facts).findings


@dataclass(slots=True)
class _Line:
    """One queue from the view of one ordered group."""

    open: dict[str, Event] = field(default_factory=dict)  # client -> delivery under way
    delivered: dict[int, Event] = field(default_factory=dict)  # offset -> its first delivery
    settled: set[int] = field(default_factory=set)  # offsets done or dead-lettered
    owed: set[int] = field(default_factory=set)  # delivered, not settled, and not reported yet
    again: set[int] = field(
        default_factory=set
    )  # offsets settled before a reset that wants them again
    highest: int = -1
    may_jump: bool = False  # true once after an administrator moves the group
    newest: Event | None = None  # delivery with the highest epoch
    committed: Event | None = None


class _Queues:
    """Checks each queue: one owner, no gaps, no committed offset that falls."""

    def __init__(self, facts: Facts) -> None:
        self.findings: list[Finding] = []
        self._lines: dict[tuple[str, str, str], _Line] = defaultdict(_Line)
        self._known: dict[tuple[str, str], dict[int, Event]] = defaultdict(dict)
        self._dropped: dict[tuple[str, str], set[int]] = defaultdict(set)
        # A group that never reports DONE is a concurrent one: its queues have no single owner. A group by key is judged
        # lane by lane.
        ordered = {event.group for event in facts.history if event.kind is Kind.DONE}
        self._ordered = ordered - groups_by_key(facts.history)
        for events in (facts.acks.values(), *facts.stored.values()):
            for event in events:
                self._known[event.topic, event.queue].setdefault(event.offset, event)
        self._offsets = {place: sorted(known) for place, known in self._known.items()}
        for event in facts.history:
            self._read(event)

    def _read(self, event: Event) -> None:
        line = self._lines[event.group, event.topic, event.queue]
        match event.kind:
            case Kind.DELIVER if event.group in self._ordered:
                self._deliver(line, event)
            case Kind.DONE | Kind.DEAD:
                line.open.pop(event.client, None)
                line.settled.add(event.offset)
                line.owed.discard(event.offset)
                line.again.discard(event.offset)
            case Kind.FAILED | Kind.LAPSED:
                line.open.pop(event.client, None)
            case Kind.GONE:
                for other in self._lines.values():
                    other.open.pop(event.client, None)
            case Kind.COMMIT if event.attempt < 0:
                self._commit(line, event)
            case Kind.DROPPED:
                self._dropped[event.topic, event.queue].add(event.offset)
            case Kind.DRAINED:
                self._drained(event)
            case Kind.RESET if event.offset < 0:
                line.committed = None
                line.may_jump = True
            case Kind.RESET:
                line.committed = None
                line.highest = event.offset - 1
                line.owed = {offset for offset in line.owed if offset >= event.offset}
                line.again = {offset for offset in line.settled if offset >= event.offset}
                line.newest = None
            case _:
                pass

    def _deliver(self, line: _Line, event: Event) -> None:
        for client, other in line.open.items():
            if client != event.client:
                self._add(Defect.OVERLAPPED, event, f"{client} still works on the queue", other)
        newest = line.newest
        if newest is not None and 0 <= event.epoch < newest.epoch:
            why = f"epoch {event.epoch} delivers after epoch {newest.epoch} has begun"
            self._add(Defect.OVERLAPPED, event, why, newest)
        elif (
            newest is not None
            and 0 <= event.epoch == newest.epoch
            and event.client != newest.client
            and newest.client not in line.open  # a client that still works is reported above
        ):
            why = f"epoch {event.epoch} was given to {newest.client}"
            self._add(Defect.OVERLAPPED, event, why, newest)
        if newest is None or event.epoch >= newest.epoch:
            line.newest = event

        self._check_gap(line, event)
        committed = line.committed
        # A later holder begins at the last commit of the former one. A holder's own commit may still be on its way
        # while it asks where to restart: that is a redelivery and no defect.
        later = committed is not None and 0 <= committed.epoch < event.epoch
        if committed is not None and later and event.offset < committed.offset:
            why = f"delivered again although everything before {committed.offset} is committed"
            self._add(Defect.ROLLED_BACK, event, why, committed)
        line.open[event.client] = event
        line.delivered.setdefault(event.offset, event)
        if event.offset not in line.settled or event.offset in line.again:
            line.owed.add(event.offset)
        line.highest = max(line.highest, event.offset)

    def _check_gap(self, line: _Line, event: Event) -> None:
        found = self._skipped(line, event) or self._overtaken(line, event)
        if found is None:
            return
        if not line.may_jump:
            self._add(*found)
        line.may_jump = False
        line.owed = {offset for offset in line.owed if offset >= event.offset}

    def _skipped(self, line: _Line, event: Event) -> tuple[Defect, Event, str, Event] | None:
        # Only offsets between the highest one seen and this one can have been jumped over now. A first delivery may
        # start anywhere, because the group's start position decides.
        if not line.delivered:
            return None
        place = event.topic, event.queue
        offsets = self._offsets.get(place, [])
        first, end = (bisect_left(offsets, each) for each in (line.highest + 1, event.offset))
        for offset in map(offsets.__getitem__, range(first, end)):
            # Messages after a dead letter of a parked key are handed over without a delivery.
            if offset not in self._dropped[place] and offset not in line.settled:
                why = f"offset {offset} was never delivered before {event.offset}"
                return Defect.SKIPPED, event, why, self._known[place][offset]
        return None

    def _overtaken(self, line: _Line, event: Event) -> tuple[Defect, Event, str, Event] | None:
        owed = line.owed - self._dropped[event.topic, event.queue]
        offset = max((offset for offset in owed if offset < event.offset), default=None)
        if offset is None:
            return None
        why = f"delivered while offset {offset} is neither done nor dead-lettered"
        return Defect.OVERTAKEN, event, why, line.delivered[offset]

    def _drained(self, event: Event) -> None:
        """Find losses that no later delivery shows: acknowledged messages at the end of a queue that were begun and not done."""
        for (group, topic, queue), line in self._lines.items():
            if (group, topic) != (event.group, event.topic) or line.may_jump:
                continue
            known = self._known[topic, queue]
            for offset in sorted(line.owed - self._dropped[topic, queue]):
                ack = known.get(offset)
                if ack is None or ack.kind is not Kind.ACK or ack.at > event.at:
                    continue
                delivery = line.delivered[offset]
                why = "delivered, and neither done nor dead-lettered when the group had drained"
                self._add(Defect.LOST, delivery, why, event)

    def _commit(self, line: _Line, event: Event) -> None:
        if line.committed is not None and event.offset < line.committed.offset:
            why = f"committed offset fell from {line.committed.offset} to {event.offset}"
            self._add(Defect.ROLLED_BACK, event, why, line.committed)
        line.committed = event

    def _add(self, defect: Defect, event: Event, explanation: str, other: Event) -> None:
        self.findings.append(
            Finding(defect, event.message, event.queue, explanation, (other, event))
        )
