"""A queue of messages with keys, and a leader that hands its lanes out in the simplest way."""

from collections.abc import Sequence

import msgspec

from orderlymq_broker.state.lanes.lane import RUN_MAX, Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    Found,
    Granted,
    HandOut,
    LanesFetched,
    LanesGranted,
    LanesMoved,
    LanesReported,
    QueueFetch,
    Report,
    ReportKind,
)
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.records import GroupSet, MemberSeen, Outcome, Record, TopicSet
from orderlymq_broker.store.kv import Family
from orderlymq_broker.store.layout import Table, table_bounds
from tests.broker.state.entries import Replica

GROUP, TOPIC = "g", "t"
TRIES_MAX = 3


class LaneWorld:
    """A replica with one queue whose messages have the given *keys*, and the members a and b."""

    def __init__(self, keys: Sequence[str], queues: int = 1) -> None:
        self.keys = list(keys)
        self.replica = Replica()
        self.replica.take(TopicSet(TOPIC, queues, queues))
        self.create()
        for _ in keys:
            self.replica.append(self.replica.topic_id(TOPIC))

    def create(self) -> None:
        """Create the consumer group by key with its members."""
        self.replica.take(
            GroupSet(GROUP, concurrency="Key", retry_max_times=TRIES_MAX),
            *(MemberSeen(GROUP, each, "h:1") for each in "ab"),
        )

    def take(self, record: Record) -> Outcome:
        return self.replica.take(record)[0]

    @property
    def queue(self) -> LaneQueue:
        return self.replica.state.lanes.queues_of(GROUP, TOPIC)[0]

    @property
    def committed(self) -> int | None:
        return self.replica.state.offsets.get(GROUP, TOPIC, 0)

    def lane(self, key: str) -> Lane:
        lane = self.queue.of_key(key)
        assert lane is not None, f"{key} is idle"
        return lane

    def runs(self, number: int) -> list[tuple[int, ...]]:
        """Return the runs of a lane's index in the store."""
        bounds = table_bounds(Table.LANE_OFFSETS, GROUP, TOPIC, 0, number)
        pairs = self.replica.store.scan(Family.TABLES, *bounds, limit=100_000)
        return [msgspec.msgpack.decode(value, type=tuple[int, ...]) for _, value in pairs]

    def owed(self, lane: Lane) -> list[int]:
        """Return the owed offsets of a lane, from its head and its index."""
        return [*lane.head, *(offset for run in self.runs(lane.number) for offset in run)]

    def check(self) -> None:
        """Check the invariants, and that a replica started from the store has the same state."""
        state = self.replica.state
        state.check_invariants()
        again = self.replica.restarted().state
        again.check_invariants()
        assert again.digest() == state.digest()
        for lane in self.queue.lanes.values():
            runs = self.runs(lane.number)
            assert (sum(map(len, runs)), runs[0][0] if runs else -1) == (lane.behind, lane.then)

    # -- the leader --------------------------------------------------------------------------------

    def plan(
        self, client: str, *, scan: int, take: int = 1, ready: int = 100, sequence: int = 1
    ) -> LanesFetched:
        """Return a fetch that hands out *ready* lanes and scans *scan* more messages."""
        queues = self.replica.state.lanes.queues_of(GROUP, TOPIC)
        start = queues[0].scanned if 0 in queues else self.committed or 0
        free = list(queues[0].in_state(LaneState.READY)) if 0 in queues else []
        free += list(queues[0].in_state(LaneState.PARKED)) if 0 in queues else []
        free.sort(key=lambda lane: lane.first)
        hand_outs = tuple(self._hand_out(lane, take) for lane in free[:ready])
        end = min(start + scan, len(self.keys))
        found: dict[str, list[int]] = {}
        alone = []
        for offset in range(start, end):
            if self.keys[offset]:
                found.setdefault(self.keys[offset], []).append(offset)
            else:
                alone.append(Found("", (offset,), take))
        part = QueueFetch(
            0,
            start,
            end,
            hand_outs,
            (*(Found(key, tuple(each), take) for key, each in found.items()), *alone),
            0 not in queues,
        )

        return LanesFetched(GROUP, TOPIC, client, sequence, 1_000, (part,))

    def plan_in_two(self) -> LanesFetched:
        """Append the key of queue 0 to queue 1, too; return a fetch of both by a, who begins them."""
        self.replica.append(self.replica.topic_id(TOPIC), 1)
        plan = self.plan("a", scan=1)
        (part,) = plan.queues

        return msgspec.structs.replace(
            plan, queues=(part, msgspec.structs.replace(part, queue_id=1))
        )

    def _hand_out(self, lane: Lane, take: int) -> HandOut:
        if lane.head:
            return HandOut(lane.number, take)
        runs = self.runs(lane.number)
        load: tuple[int, ...] = ()
        while runs and len(load) + len(runs[0]) <= RUN_MAX:
            load += runs.pop(0)

        return HandOut(lane.number, take, load, runs[0][0] if runs else -1)

    def fetch(
        self, client: str = "a", *, scan: int = 0, take: int = 1, ready: int = 100
    ) -> tuple[Granted, ...]:
        outcome = self.take(self.plan(client, scan=scan, take=take, ready=ready))
        assert isinstance(outcome, LanesGranted), outcome
        return outcome.granted

    def say(
        self, client: str, kind: ReportKind, granted: Granted, offset: int = -1, **more: int | str
    ) -> str:
        report = Report(0, granted.lane, granted.attempt, kind, offset)
        report = msgspec.structs.replace(report, **more)
        outcome = self.take(LanesReported(GROUP, TOPIC, client, (report,)))
        assert isinstance(outcome, LanesMoved), outcome
        return outcome.answers[0].verdict

    def done(self, granted: Granted, client: str = "a") -> str:
        return self.say(client, ReportKind.DONE, granted, granted.offsets[-1])
