"""
What must hold of key lanes, seen from the members and from the log.

The laws: a key has one listener at a time, by the leases that members count themselves; messages of a key begin in
their order; the committed offset passes nothing that no listener has finished; a parked lane is not handed out before its
time, by the clock of the leader that does it; numbers of attempts rise; a key that fails stops no other; and when all is done,
no lane is left; retention takes nothing that is owed.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orderlymq.oracle.verdict import Kind
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.lanes.lanerecords import LanesFetched
from orderlymq_broker.state.records import Record

if TYPE_CHECKING:
    from tests.sim.laws import Laws
    from tests.sim.replica import Replica

GROUP: Final = "shippers"

_Lane = tuple[int, str]


@dataclass(slots=True)
class _Working:
    """Who works on a lane, until when at most, in simulated time."""

    client: str
    until_us: int


class LaneLaws:
    """What members have done, and what the log lets them do."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._working: dict[_Lane, _Working] = {}
        self._begun: defaultdict[_Lane, set[int]] = defaultdict(set)
        self.finished: set[tuple[int, int]] = set()
        self._serials: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._parked: dict[tuple[int, int], int] = {}
        # What the broker has looked at, by queue and offset: it is owed until a listener has finished it.
        self._seen: set[tuple[int, int]] = set()
        # Keys of what was sent, and how much of the history was read for them.
        self._keys: dict[str, str] = {}
        self._events = 0

    # -- members

    def begins(self, client: str, lane: _Lane, offset: int, until_us: int) -> None:
        """Check that a listener may see a message: it is alone with its key, and nothing was overtaken."""
        laws, now = self._laws, self._laws.world.timeline.now
        queue, key = lane
        if not key:
            return
        other = self._working.get(lane)
        laws.ensure(
            other is None or other.client == client or other.until_us <= now,
            "lane holder",
            f"{client} begins {key} {queue}@{offset}, {other} works on it until then, now is {now}",
        )
        self._working[lane] = _Working(client, until_us)
        later = sorted(each for each in self._begun[lane] if each > offset)
        laws.ensure(
            not later or (queue, offset) in self.finished,
            "lane order",
            f"{client} begins {key} {queue}@{offset} for the first time to its end, {later} were begun before",
        )
        self._begun[lane].add(offset)

    def ends(self, client: str, lane: _Lane, offset: int, *, good: bool) -> None:
        """Note that a listener has ended."""
        other = self._working.get(lane)
        if other is not None and other.client == client:
            del self._working[lane]
        if good:
            self.finished.add((lane[0], offset))

    def gone(self, client: str) -> None:
        """Note that a member has died: it works on nothing."""
        self._working = {
            lane: each for lane, each in self._working.items() if each.client != client
        }

    # -- the log

    def applied(self, record: Record, wall_ms: int) -> None:
        """Check what a record about lanes says."""
        if isinstance(record, LanesFetched) and record.group == GROUP:
            for part in record.queues:
                self._seen |= {
                    (part.queue_id, offset) for each in part.found for offset in each.offsets
                }
                for each in part.hand_outs:
                    due_ms = self._parked.get((part.queue_id, each.lane), 0)
                    self._laws.ensure(
                        not each.take or due_ms <= wall_ms,
                        "lane parked",
                        f"lane {each.lane} of queue {part.queue_id} is handed out at {wall_ms}, it is "
                        f"parked until {due_ms}",
                    )

    def dropped(self, queue_id: int, start: int, end: int) -> None:
        """Check what retention takes: nothing that a lane owes."""
        lost = [
            each
            for each in range(start, end)
            if (queue_id, each) in self._seen and (queue_id, each) not in self.finished
        ]
        self._laws.ensure(
            not lost, "lane retention", f"queue {queue_id}: {lost} are owed and were dropped"
        )

    def compare(self, replica: "Replica") -> None:
        """Check the table of the replica that has applied most."""
        topic = self._laws.world.topic
        for queue_id, queue in replica.state.lanes.queues_of(GROUP, topic).items():
            self._laws.ensure(
                queue.serial >= self._serials.get(queue_id, 0),
                "lane numbers",
                f"queue {queue_id} is at number {queue.serial}, it was at {self._serials.get(queue_id)}",
            )
            self._serials[queue_id] = queue.serial
            for lane in queue.lanes.values():
                self._parked.pop((queue_id, lane.number), None)
                if lane.state == LaneState.PARKED:
                    self._parked[queue_id, lane.number] = lane.due_ms
            self._moved(queue_id, replica.state.offsets.get(GROUP, topic, queue_id) or 0)

    def _moved(self, queue_id: int, offset: int) -> None:
        """Check that what the committed offset passes was finished, or dropped before anybody looked at it."""
        laws = self._laws
        before = self._committed.get(queue_id, 0)
        laws.ensure(
            offset >= before, "lane offset", f"queue {queue_id} fell from {before} to {offset}"
        )
        floor = laws.model.floors[laws.topic_id, queue_id]
        lost = [
            each
            for each in range(before, offset)
            if (queue_id, each) not in self.finished
            and (each >= floor or (queue_id, each) in self._seen)
        ]
        laws.ensure(
            not lost,
            "lane lost",
            f"queue {queue_id} is committed to {offset}, nobody finished {lost}",
        )
        self._committed[queue_id] = offset

    # -- the end

    def is_done(self, queue_id: int, end: int) -> bool:
        """Tell whether everything of a queue was consumed."""
        return self._committed.get(queue_id, 0) >= end

    def is_rest(self, failing: str) -> bool:
        """Tell whether one key alone has messages that nobody has finished."""
        laws = self._laws
        events = laws.world.history.events
        for event in events[self._events :]:
            if event.kind is Kind.SEND:
                self._keys[event.message] = event.key
        self._events = len(events)
        return not any(
            topic_id == laws.topic_id
            and (queue, offset) not in self.finished
            and offset >= laws.model.floors[topic_id, queue]
            and self._keys.get(unique) != failing
            for (topic_id, queue, offset), unique in laws.model.at.items()
        )

    def conclude(self, replica: "Replica") -> None:
        """Check that nothing is left when all is done."""
        left = replica.state.lanes.count_of(GROUP)
        self._laws.ensure(left == 0, "lane left", f"{replica.name} keeps {left} lanes of nobody")
