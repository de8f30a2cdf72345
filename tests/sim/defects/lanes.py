"""Defects of key lanes: holders, order, leases, parked lanes, and what is owed."""

from typing import Any, Final

from orderlymq_broker.processors.lanes.leases import LaneLeases
from orderlymq_broker.processors.lanes.planner import Round
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import Report
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.lanes.table import LaneTable
from tests.sim.defects.planting import Bed, Catalogue
from tests.sim.plan import STORMS

LANES = Catalogue("lanes")
# Members that share the queues of a group by key, in every run.
_MEMBERS: Final = {"lanes": 3}
# Listeners that take their time, so that two of one key are seen together.
_SLOW: Final = {**_MEMBERS, "listener_max_us": 600_000}
_LONG: Final = {**_SLOW, **STORMS["group"]}


@LANES.defect("end the leases of lanes early", "one listener per key", _SLOW)
def _early(bed: Bed) -> None:
    real = LaneLeases.__dict__["_run"]

    def run(self: LaneLeases, attempt: Any, end_ms: int) -> None:
        real(self, attempt, end_ms - 1_800)

    bed.put(LaneLeases, "_run", run)


@LANES.defect("say that a lane's lease is renewed and forget it", "one listener per key", _SLOW)
def _forget_renewals(bed: Bed) -> None:
    def renew(self: LaneLeases, attempt: Any, lease_ms: int, now: Any) -> bool:
        return True

    bed.put(LaneLeases, "renew", renew)


@LANES.defect(
    "take every lane's lease for over when a leader begins", "one listener per key", _LONG
)
def _over_at_start(bed: Bed) -> None:
    real = LaneLeases.start

    def start(self: LaneLeases, now: Any) -> None:
        real(self, now)
        for attempt in self._ends:
            self._run(attempt, now.monotonic_ms)

    bed.put(LaneLeases, "start", start)


@LANES.defect("hand a parked lane out before its time", "parked stays parked", _MEMBERS)
def _due_at_once(bed: Bed) -> None:
    real = Round.__dict__["_ready_of"]

    def ready_of(self: Round, queue: LaneQueue) -> Any:
        parked = list(queue.in_state(LaneState.PARKED))
        due = [lane.due_ms for lane in parked]
        for lane in parked:
            lane.due_ms = 0
        found = real(self, queue)
        for lane, due_ms in zip(parked, due, strict=True):
            lane.due_ms = due_ms
        return found

    bed.put(Round, "_ready_of", ready_of)


@LANES.defect("take a message that failed for complete", "nothing is lost", _MEMBERS)
def _failed_is_done(bed: Bed) -> None:
    real = LaneQueue.__dict__["_fail"]

    def fail(self: LaneQueue, lane: Lane, report: Report, wall_ms: int, writes: Any) -> Any:
        if len(lane.head) > 1:
            self._pop(lane, 1)
        return real(self, lane, report, wall_ms, writes)

    bed.put(LaneQueue, "_fail", fail)


@LANES.defect("commit where the scan stands", "nothing is lost", _MEMBERS)
def _commit_scanned(bed: Bed) -> None:
    def low_water(self: LaneQueue) -> int:
        return self.scanned

    bed.put(LaneQueue, "low_water", low_water)


@LANES.defect("pass over messages whose key is busy", "nothing is lost", _MEMBERS)
def _pass_over(bed: Bed) -> None:
    real = Round.__dict__["_take"]

    def take(self: Round, plan: Any, part: Any, wish: Any, *place: Any) -> Any:
        before = {key: list(offsets) for key, (offsets, _) in part.found.items()}
        found = real(self, plan, part, wish, *place)
        for key, (offsets, count) in list(part.found.items()):
            if key not in before and count == 0:
                del part.found[key]
            elif len(offsets) > count > 0:
                del offsets[count:]
        return found

    bed.put(Round, "_take", take)


@LANES.defect("let a lane that fails stop its queue", "a healthy lane goes on", _MEMBERS)
def _failed_stops(bed: Bed) -> None:
    real = LaneQueue.__dict__["_fail"]

    def fail(self: LaneQueue, lane: Lane, report: Report, wall_ms: int, writes: Any) -> Any:
        answer = real(self, lane, report, wall_ms, writes)
        self.stopping += not lane.stops
        lane.stops = True
        self._store(lane, writes)
        return answer

    bed.put(LaneQueue, "_fail", fail)


@LANES.defect("end no lease of a lane", "all is delivered in the end", _MEMBERS)
def _never_over(bed: Bed) -> None:
    def tick(self: LaneLeases, now: Any) -> Any:
        return []

    bed.put(LaneLeases, "tick", tick)


@LANES.defect("forget what members have in hand at a restart", "replicas agree", _MEMBERS)
def _forget_at_load(bed: Bed) -> None:
    real = LaneTable.__dict__["load"].__func__

    def load(cls: type[LaneTable], reader: Any) -> LaneTable:
        table: LaneTable = real(cls, reader)
        for queue in table.all():
            for lane in list(queue.in_state(LaneState.IN_HAND)):
                lane.state = LaneState.READY
                lane.taken = 0
                del queue.by_state[LaneState.IN_HAND][lane.number]
                queue.by_state[LaneState.READY][lane.number] = None
        table._holders.clear()
        return table

    bed.put(LaneTable, "load", classmethod(load))
