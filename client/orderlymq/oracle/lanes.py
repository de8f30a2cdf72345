"""
The order oracle for groups that consume by key: it judges each lane separately. Pure.

Rules of a lane (group, topic, queue, key): one attempt works at a time, and attempt numbers rise. A message is
delivered only when those before it are done or dead. A message that was reported complete is not delivered again. When
the group has drained the topic, no delivered message is left unfinished. A group is by key if its deliveries name
attempts. If its deliveries also name lanes, only they say which messages a lane has.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from orderlymq.oracle.events import Defect, Event, Finding, Kind

_LaneId: TypeAlias = tuple[str, str, str, str]


def groups_by_key(history: Iterable[Event]) -> set[str]:
    """Return the groups whose deliveries name attempts."""
    return {each.group for each in history if each.kind is Kind.DELIVER and each.attempt >= 0}


def groups_by_property(history: Iterable[Event]) -> set[str]:
    """Return the groups by key whose lanes go by another property than the message's key."""
    return {each.group for each in history if each.lane}


def judge_lanes(history: Sequence[Event]) -> list[Finding]:
    """Judge the lanes of all groups by key; *history* is in the order of time."""
    groups = groups_by_key(history)

    return _Lanes(history, groups).findings if groups else []


@dataclass(slots=True)
class _Lane:
    """One lane; *pending* has the offsets known to be in it, rising, without the settled ones at its front."""

    pending: deque[int] = field(default_factory=deque)
    open: dict[int, Event] = field(default_factory=dict)  # offset -> delivery under way
    delivered: dict[int, Event] = field(default_factory=dict)  # offset -> its first delivery
    settled: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)  # reported, and not delivered since
    first: int = 2**63
    may_jump: bool = False  # true once after an administrator moves the group
    newest: Event | None = None  # delivery with the highest attempt
    complete: Event | None = None


class _Lanes:
    """Reads a history once and collects the findings."""

    def __init__(self, history: Sequence[Event], groups: set[str]) -> None:
        self.findings: list[Finding] = []
        self._groups = groups
        self._by_property = groups_by_property(history)
        # The messages of each lane. Lanes that go by the message's key are the same for all groups and stand under the
        # group "".
        self._known: dict[_LaneId, dict[int, Event]] = defaultdict(dict)
        # The lane keys of messages that retention took, with the same use of groups.
        self._dropped: dict[tuple[str, str, str, int], str] = {}
        places = {(e.topic, e.queue, e.offset) for e in history if e.kind is Kind.DROPPED}
        for event in history:
            is_own = event.kind is Kind.DELIVER and event.group in self._by_property
            if (is_own or event.kind in (Kind.ACK, Kind.STORED)) and event.offset >= 0:
                lane_id = (event.group, event.topic, event.queue, _key(event))
                self._known[lane_id].setdefault(event.offset, event)
                place = event.topic, event.queue, event.offset
                if place in places:
                    self._dropped[event.group, *place] = _key(event)
        self._lanes: dict[_LaneId, _Lane] = {}
        for event in history:
            self._read(event)

    def _read(self, event: Event) -> None:
        match event.kind:
            case Kind.GONE:
                _end_work_of(event.client, self._lanes.values())
            case Kind.DROPPED:
                for group in self._groups:
                    self._drop(group, event)
            case Kind.DRAINED if event.group in self._groups:
                self._drained(event)
            case Kind.LAPSED if event.group in self._groups and event.attempt < 0:
                # The history shows only the client: the event covers all keys that it works on in this queue.
                _end_work_of(event.client, self._lanes_of(event))
            case Kind.RESET if event.group in self._groups:
                for lane in self._lanes_of(event):
                    lane.complete = None
                    lane.may_jump = event.offset < 0
                    known = (*lane.pending, *lane.delivered)
                    lane.settled.update(offset for offset in known if offset < event.offset)
                    if event.offset >= 0:
                        self._want_again(lane, event.offset)
            case _ if event.group in self._groups and event.queue:
                self._read_lane(self._lane(event.group, event), event)

    def _read_lane(self, lane: _Lane, event: Event) -> None:
        match event.kind:
            case Kind.DELIVER:
                self._deliver(lane, event)
            case Kind.DONE | Kind.DEAD:
                self._settle(lane, event)
            case Kind.FAILED:
                lane.open.pop(event.offset, None)
            case Kind.LAPSED:
                lane.open = {o: e for o, e in lane.open.items() if e.attempt != event.attempt}
            case Kind.COMMIT if event.attempt >= 0:
                if lane.complete is None or event.offset > lane.complete.offset:
                    lane.complete = event
            case _:
                pass

    @staticmethod
    def _want_again(lane: _Lane, offset: int) -> None:
        """Mark the messages from the offset of a reset on as owed again; running deliveries may still end as done."""
        again = {each for each in lane.settled if each >= offset}
        lane.settled -= again
        lane.delivered = {o: e for o, e in lane.delivered.items() if o not in again}

    def _settle(self, lane: _Lane, event: Event) -> None:
        lane.open.pop(event.offset, None)
        lane.settled.add(event.offset)

    def _drop(self, group: str, event: Event) -> None:
        """Settle a message that retention took; the event names neither its key nor its lane."""
        whose = group if group in self._by_property else ""
        place = event.topic, event.queue, event.offset
        lane = self._dropped.get((whose, *place), _key(event))
        self._settle(self._lane(group, replace(event, lane=lane)), event)

    def _deliver(self, lane: _Lane, event: Event) -> None:
        other = next((e for e in lane.open.values() if e.attempt != event.attempt), None)
        newest = lane.newest
        if other is not None:
            why = f"attempt {other.attempt} of {other.client} still works on the lane"
            self._add(Defect.OVERLAPPED, event, why, other)
        elif newest is not None and event.attempt < newest.attempt:
            why = f"attempt {event.attempt} delivers after attempt {newest.attempt} has begun"
            self._add(Defect.OVERLAPPED, event, why, newest)
        elif (
            newest is not None and newest.attempt == event.attempt and newest.client != event.client
        ):
            why = f"attempt {event.attempt} was given to {newest.client}"
            self._add(Defect.OVERLAPPED, event, why, newest)
        if newest is None or event.attempt >= newest.attempt:
            lane.newest = event
        self._check_order(lane, event)
        if lane.complete is not None and event.offset <= lane.complete.offset:
            why = f"delivered again although everything up to {lane.complete.offset} is complete"
            self._add(Defect.ROLLED_BACK, event, why, lane.complete)
        lane.open[event.offset] = event
        lane.delivered.setdefault(event.offset, event)

    def _check_order(self, lane: _Lane, event: Event) -> None:
        while lane.pending and lane.pending[0] in lane.settled:
            lane.pending.popleft()
        # The start of a group is not judged: messages before its first delivery in the lane are not owed.
        lane.first = min(lane.first, event.offset)
        overtaken = self._overtaken(lane, event)
        if overtaken is not None and lane.may_jump:
            lane.settled.update(offset for offset in lane.pending if offset < event.offset)
            lane.may_jump = False
        elif overtaken is not None:
            lane.told.update(offset for offset in lane.pending if offset < event.offset)
            self._add(*overtaken)
        lane.told.discard(event.offset)

    def _overtaken(self, lane: _Lane, event: Event) -> tuple[Defect, Event, str, Event] | None:
        """Return the finding if *event* is delivered before a message that is due earlier."""
        for offset in lane.pending:
            if offset >= event.offset:
                break
            if offset in lane.settled or offset in lane.told:
                continue
            before = lane.delivered.get(offset)
            if before is None:
                if offset < lane.first:
                    continue
                why = f"offset {offset} of the lane was never delivered before {event.offset}"
                return Defect.SKIPPED, event, why, self._known_in(event.group, event)[offset]
            under_way = lane.open.get(offset)
            if under_way is None or under_way.attempt != event.attempt:
                why = f"delivered while offset {offset} is neither done nor dead-lettered"
                return Defect.OVERTAKEN, event, why, before
        return None

    def _drained(self, event: Event) -> None:
        for (group, topic, _, _), lane in self._lanes.items():
            if (group, topic) != (event.group, event.topic):
                continue
            for offset, delivery in lane.delivered.items():
                if offset not in lane.settled:
                    why = "delivered, and neither done nor dead-lettered when the group had drained"
                    finding = Finding(
                        Defect.LOST, delivery.message, delivery.queue, why, (delivery, event)
                    )
                    self.findings.append(finding)

    def _lanes_of(self, event: Event) -> list[_Lane]:
        place = (event.group, event.topic, event.queue)
        return [lane for key, lane in self._lanes.items() if key[:3] == place]

    def _lane(self, group: str, event: Event) -> _Lane:
        lane_id = (group, event.topic, event.queue, _key(event))
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lanes[lane_id] = _Lane(deque(sorted(self._known_in(group, event))))
        return lane

    def _known_in(self, group: str, event: Event) -> dict[int, Event]:
        """Return the messages that are known to be in the lane of an event."""
        whose = group if group in self._by_property else ""

        return self._known.get((whose, event.topic, event.queue, _key(event)), {})

    def _add(self, defect: Defect, event: Event, explanation: str, other: Event) -> None:
        self.findings.append(
            Finding(defect, event.message, event.queue, explanation, (other, event))
        )


def _end_work_of(client: str, lanes: Iterable[_Lane]) -> None:
    for lane in lanes:
        lane.open = {o: e for o, e in lane.open.items() if e.client != client}


def _key(event: Event) -> str:
    """Return the key of a lane; a message without a key is its own lane."""
    return event.lane or event.key or f"offset {event.offset}"
