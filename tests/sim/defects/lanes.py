"""Defects of key lanes: holders, order, leases, parked lanes, and messages that are owed."""

from dataclasses import replace
from typing import Any, Final

from orderlymq_broker.core.deadlines import DeadlineQueue
from orderlymq_broker.processors.admin.groups import GroupAdministration
from orderlymq_broker.processors.lanes.deadletters import DeadLetterService
from orderlymq_broker.processors.lanes.leases import LaneLeases
from orderlymq_broker.processors.lanes.overview import LaneOverview
from orderlymq_broker.processors.lanes.planner import Round, _Part
from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.groups.offsets import OffsetTable
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import Report
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.lanes.table import LaneTable
from tests.sim.defects.defect import Bed, Catalogue
from tests.sim.invariants.lanes import GROUP
from tests.sim.plan import STORMS

LANES = Catalogue("lanes")
# Members that share the queues of a group by key, in every run.
_MEMBERS: Final = {"lanes": 3}
# Slow listeners, so that two of one key are seen at the same time.
_SLOW: Final = {**_MEMBERS, "listener_max_us": 600_000}
_LONG: Final = {**_SLOW, **STORMS["group"]}
_LETTERS: Final = {**_MEMBERS, "lane_letters": "Continue"}
_DEADLY: Final = {**_LETTERS, "lane_deadly": True}
_HOLDS: Final = {**_MEMBERS, "lane_letters": "HoldKey"}
_STOPS: Final = {**_MEMBERS, "lane_letters": "StopQueue"}
_CHANGES: Final = {**_SLOW, "lane_changes": True}
_RECYCLED: Final = {"lanes": 1, "recycled": True}
_LAST: Final = {**_MEMBERS, "lane_changes": True, "lane_last": True, "retention_size": 3_000}


@LANES.defect("end the leases of lanes early", "one listener per key at a time", _SLOW)
def _early(bed: Bed) -> None:
    real = DeadlineQueue.set

    def set_earlier(self: DeadlineQueue[Any], key: Any, end_ms: int) -> None:
        is_lane = len(key) == 5  # group, topic, queue, lane, attempt; locks have fewer
        real(self, key, end_ms - 1_800 if is_lane else end_ms)

    bed.put(DeadlineQueue, "set", set_earlier)


@LANES.defect(
    "confirm the renewal of a lane's lease without renewing it",
    "one listener per key at a time",
    _SLOW,
)
def _forget_renewals(bed: Bed) -> None:
    def renew(self: LaneLeases, attempt: Any, lease_ms: int, now: Any) -> bool:
        return True

    bed.put(LaneLeases, "renew", renew)


@LANES.defect(
    "treat the leases of all lanes as ended when a leader starts",
    "one listener per key at a time",
    _LONG,
)
def _over_at_start(bed: Bed) -> None:
    real = LaneLeases.start

    def start(self: LaneLeases, now: Any) -> list[Any]:
        effects = real(self, now)
        for attempt in list(self._deadlines.ends):
            self._deadlines.set(attempt, now.monotonic_ms)
        return effects

    bed.put(LaneLeases, "start", start)


@LANES.defect(
    "hand out a parked lane before its time", "a parked lane stays parked until it is due", _MEMBERS
)
def _due_at_once(bed: Bed) -> None:
    def due(self: LaneLeases, queue: LaneQueue, wall_ms: int) -> list[Lane]:
        return list(queue.in_state(LaneState.PARKED))

    bed.put(LaneLeases, "due", due)


@LANES.defect("treat a failed message as complete", "no message is lost", _MEMBERS)
def _failed_is_done(bed: Bed) -> None:
    real = LaneQueue.__dict__["_fail"]

    def fail(self: LaneQueue, lane: Lane, report: Report, wall_ms: int, writes: Any) -> Any:
        if len(lane.head) > 1:
            self._pop(lane, 1)
        return real(self, lane, report, wall_ms, writes)

    bed.put(LaneQueue, "_fail", fail)


@LANES.defect("commit up to the position of the scan", "no message is lost", _MEMBERS)
def _commit_scanned(bed: Bed) -> None:
    def low_water(self: LaneQueue) -> int:
        return self.scanned

    bed.put(LaneQueue, "low_water", low_water)


@LANES.defect("skip messages whose key is busy", "no message is lost", _MEMBERS)
def _pass_over(bed: Bed) -> None:
    real = Round.__dict__["_take"]

    def take(self: Round, plan: Any, part: Any, fetch: Any, *place: Any) -> Any:
        before = {key: list(offsets) for key, (offsets, _) in part.found.items()}
        found = real(self, plan, part, fetch, *place)
        for key, (offsets, count) in list(part.found.items()):
            if key not in before and count == 0:
                del part.found[key]
            elif len(offsets) > count > 0:
                del offsets[count:]
        return found

    bed.put(Round, "_take", take)


@LANES.defect("let a failing lane stop its queue", "a failing key stops no other key", _MEMBERS)
def _failed_stops(bed: Bed) -> None:
    real = LaneQueue.__dict__["_fail"]

    def fail(self: LaneQueue, lane: Lane, report: Report, wall_ms: int, writes: Any) -> Any:
        answer = real(self, lane, report, wall_ms, writes)
        self.stopping += not lane.stops
        lane.stops = True
        self._store(lane, writes)
        return answer

    bed.put(LaneQueue, "_fail", fail)


@LANES.defect("never end the lease of a lane", "all messages are delivered in the end", _MEMBERS)
def _never_over(bed: Bed) -> None:
    def tick(self: LaneLeases, now: Any) -> Any:
        return []

    bed.put(LaneLeases, "tick", tick)


@LANES.defect(
    "forget the lanes that members work on at a restart", "replicas have the same state", _MEMBERS
)
def _forget_at_load(bed: Bed) -> None:
    real = LaneTable.__init__

    def read(self: LaneTable, reader: Any) -> None:
        real(self, reader)
        for queue in self.all():
            for lane in list(queue.in_state(LaneState.IN_HAND)):
                lane.state = LaneState.READY
                lane.taken = 0
                queue._leave(LaneState.IN_HAND, lane.number)
                queue._enter(LaneState.READY, lane.number)
        self._holders.clear()

    bed.put(LaneTable, "__init__", read)


@LANES.defect(
    "do not count a try when a member dies", "all messages are delivered in the end", _DEADLY
)
def _no_try(bed: Bed) -> None:
    def lose(self: LaneQueue, lane: Lane, reason: str, config: Any, *more: Any) -> None:
        self.end(lane, *more)

    bed.put(LaneQueue, "lose", lose)


@LANES.defect(
    "hand out several messages of a lane after a member died with it",
    "a message gets all its tries before it becomes a dead letter",
    _DEADLY,
)
def _suspects_in_company(bed: Bed) -> None:
    real = Round.__dict__["_hand_out"]

    def hand_out(self: Round, plan: Any, fetch: Any, queue: LaneQueue, lane: Lane) -> None:
        lost, lane.lost = lane.lost, 0
        real(self, plan, fetch, queue, lane)
        lane.lost = lost

    bed.put(Round, "_hand_out", hand_out)


@LANES.defect(
    "make a dead letter of every lane of a dead member",
    "a message gets all its tries before it becomes a dead letter",
    _LETTERS,
)
def _dead_at_once(bed: Bed) -> None:
    def lose(
        self: LaneQueue, lane: Lane, reason: str, config: Any, wall_ms: int, writes: Any
    ) -> None:
        if not lane.taken:
            self.end(lane, wall_ms, writes)
            return
        lane.taken = 0
        lane.tries += 1
        self._park(lane, wall_ms, DeadPolicy.CONTINUE, wall_ms, writes)

    bed.put(LaneQueue, "lose", lose)


@LANES.defect(
    "continue after a dead letter that is not stored", "every dead letter is stored", _LETTERS
)
def _no_letter(bed: Bed) -> None:
    real = DeadLetterService.__dict__["_letter"]

    def letter(self: DeadLetterService, queue: LaneQueue, lane: Lane) -> Any:
        found = real(self, queue, lane)
        return replace(found, records=found.records[-1:])

    bed.put(DeadLetterService, "_letter", letter)


@LANES.defect(
    "let a held lane continue after its held message", "a parked key waits for its release", _HOLDS
)
def _held_goes_on(bed: Bed) -> None:
    real = LaneQueue.__dict__["_park"]

    def park(self: LaneQueue, lane: Lane, due_ms: int, policy: Any, *more: Any) -> None:
        if policy == DeadPolicy.HOLD and len(lane.head) > 1:
            self._pop(lane, 1)
        real(self, lane, due_ms, None if policy == DeadPolicy.HOLD else policy, *more)

    bed.put(LaneQueue, "_park", park)


@LANES.defect("never release a held lane", "all messages are delivered in the end", _HOLDS)
def _free_nothing(bed: Bed) -> None:
    def free(self: LaneQueue, lane: Lane, **more: Any) -> None:
        pass

    bed.put(LaneQueue, "free", free)


@LANES.defect(
    "stop a queue also for the message that stopped it",
    "all messages are delivered in the end",
    _STOPS,
)
def _stopped_for_good(bed: Bed) -> None:
    real = Round.__dict__["_ready_of"]

    def ready_of(self: Round, queue: LaneQueue) -> Any:
        return [] if queue.stopping else real(self, queue)

    bed.put(Round, "_ready_of", ready_of)


@LANES.defect(
    "keep the lanes of a queue after a reset of its offset", "no message is lost", _CHANGES
)
def _reset_nothing(bed: Bed) -> None:
    def reset(self: LaneTable, commits: Any, writes: Any) -> None:
        pass

    bed.put(LaneTable, "reset", reset)


@LANES.defect(
    "reuse the lane numbers of a deleted consumer group", "lane numbers always rise", _CHANGES
)
def _numbers_again(bed: Bed) -> None:
    real = LaneTable.__dict__["_drop"]

    def drop(self: LaneTable, group: str, topic: str) -> None:
        floor = self._floor
        real(self, group, topic)
        self._floor = floor

    bed.put(LaneTable, "_drop", drop)


@LANES.defect(
    "delete a consumer group whose members work on lanes",
    "one listener per key at a time",
    {**_CHANGES, "recycled": False},
)
def _delete_in_hand(bed: Bed) -> None:
    def check_unused(self: GroupAdministration, group: str) -> None:
        pass

    bed.put(GroupAdministration, "_check_unused", check_unused)


@LANES.defect(
    "keep the offsets of a deleted consumer group by key",
    "nothing of a deleted group is kept",
    _CHANGES,
)
def _offsets_outlive(bed: Bed) -> None:
    real = OffsetTable.drop_group

    def drop_group(self: OffsetTable, group: str, writes: Any) -> None:
        if group != GROUP:
            real(self, group, writes)

    bed.put(OffsetTable, "drop_group", drop_group)


@LANES.defect(
    "keep the lanes of a deleted topic",
    "a new topic or group keeps nothing of a deleted one",
    _RECYCLED,
)
def _outlive_topic(bed: Bed) -> None:
    real = LaneTable.drop

    def drop(self: LaneTable, writes: Any, *, group: str | None = None, topic: Any = None) -> None:
        if topic is None:
            real(self, writes, group=group)

    bed.put(LaneTable, "drop", drop)


@LANES.defect(
    "reuse the lane numbers of a deleted topic", "an attempt's number is used once", _RECYCLED
)
def _topic_numbers_again(bed: Bed) -> None:
    real = LaneTable.drop

    def drop(self: LaneTable, writes: Any, *, group: str | None = None, topic: Any = None) -> None:
        floor = self._floor
        real(self, writes, group=group, topic=topic)
        if topic is not None:
            self._floor = floor

    bed.put(LaneTable, "drop", drop)


@LANES.defect(
    "do not store the start of a queue if the scan found nothing",
    "all messages are delivered in the end",
    _LAST,
)
def _begin_later(bed: Bed) -> None:
    real = _Part.__dict__["record"]

    def record(self: _Part, queue_id: int) -> Any:
        is_empty = not self.hand_outs and self.scanned == self.start
        return None if is_empty else real(self, queue_id)

    bed.put(_Part, "record", record)


@LANES.defect(
    "change the mode of a group while members work on lanes",
    "one listener per key at a time",
    _CHANGES,
)
def _change_at_once(bed: Bed) -> None:
    def refuse_change(self: LaneTable, *_: Any) -> str:
        return ""

    bed.put(LaneTable, "refuse_change", refuse_change)


@LANES.defect(
    "let retention remove messages that lanes still need",
    "no message is lost",
    {**_SLOW, "retention_size": 3_000},
)
def _drop_owed(bed: Bed) -> None:
    def nothing(self: Any, *_: Any) -> None:
        return None

    bed.put(LaneOverview, "owed", lambda self: iter(()))
    bed.put(LaneTable, "first_owed", nothing)
