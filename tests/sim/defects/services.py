"""Defects around the log: transactions, delays, retention, permissions, expansion, routes, disks."""

from collections.abc import Sequence
from typing import Any

from orderlymq_broker.core import operators
from orderlymq_broker.core.effects import Now
from orderlymq_broker.core.messageage import MessageAge
from orderlymq_broker.core.requestcontext import answer
from orderlymq_broker.processors.admin.access import AccessControl
from orderlymq_broker.processors.schedule.delaylevels import DelayService
from orderlymq_broker.processors.schedule.timers import TimerService
from orderlymq_broker.processors.send import sends as sending
from orderlymq_broker.processors.topics import expansionrequests as growing
from orderlymq_broker.processors.topics.retention import RetentionService
from orderlymq_broker.processors.transactions import halves as transacting
from orderlymq_broker.processors.transactions.halves import TransactionProcessor
from orderlymq_broker.replication.groupclock import GroupClock
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.state.topics import expansionphases
from orderlymq_broker.state.transactions.halves import TransactionTable
from orderlymq_broker.store.kv import Family
from orderlymq_nameserver.answers import Answers
from tests.broker.store.memory import MemoryStore
from tests.sim.broker.disk import SimulatedStore
from tests.sim.defects.defect import Bed, Catalogue
from tests.sim.plan import STORMS, WRONG_CLOCKS

SERVICES = Catalogue("services")
DISKS = Catalogue("disk")
NAMES = Catalogue("name server")

# Leaders change, and sometimes one has a wrong clock.
_CLOCKS = {**STORMS["group"], **WRONG_CLOCKS, "troubles": ("crash", "transfer", "wrong clock")}


@SERVICES.defect(
    "use the leader's own clock instead of the group's",
    "nothing is deleted by one clock alone",
    changes=_CLOCKS,
)
def _own_clock(bed: Bed) -> None:
    bed.put(GroupClock, "now", lambda self: self._own.now())


@SERVICES.defect(
    "delete by an unconfirmed time", "nothing is deleted by one clock alone", changes=_CLOCKS
)
def _unconfirmed_time(bed: Bed) -> None:
    real = MessageAge.certain

    def certain(self: MessageAge, now: Now, age_ms: int) -> Now:
        return real(self, Now(now.wall_ms, now.monotonic_ms), age_ms)

    bed.put(MessageAge, "certain", certain)


@SERVICES.defect("append a copy of the half message for each end request", "one commit, one copy")
def _commit_each_end(bed: Bed) -> None:
    real = TransactionTable.end

    def end(self: TransactionTable, record: Any, writes: Any) -> Any:
        half = self.get(record.offset)
        outcome = real(self, record, writes)
        if record.committed and half is not None:
            # The half message stays open, so that the next end finds it.
            self._put(half, writes)
        return outcome

    bed.put(TransactionTable, "end", end)


@SERVICES.defect(
    "report a transaction's commit as stored when it is proposed",
    "acknowledged entries are committed",
)
def _end_early(bed: Bed) -> None:
    real = TransactionProcessor.end

    def end(self: TransactionProcessor, request: Any, peer: Any, now: Any) -> Any:
        return [*answer(request, peer), *real(self, request, peer, now)]

    bed.put(TransactionProcessor, "end", end)


@SERVICES.defect(
    "commit a transaction that was rolled back", "a rolled back message is never delivered"
)
def _rollback_commits(bed: Bed) -> None:
    bed.put(transacting, "TRANSACTION_ROLLBACK", -1)
    real = TransactionProcessor.end

    def end(self: TransactionProcessor, request: Any, peer: Any, now: Any) -> Any:
        if request.ext.get("commitOrRollback") == "12":
            request.ext["commitOrRollback"] = "8"
        return real(self, request, peer, now)

    bed.put(TransactionProcessor, "end", end)


@SERVICES.defect(
    "deliver a delayed message before its time", "no message is early by the leader's clock"
)
def _early(bed: Bed) -> None:
    real = DelayService.tick

    def tick(self: DelayService, now: Now) -> Any:
        return real(self, Now(now.wall_ms + 500, now.monotonic_ms))

    bed.put(DelayService, "tick", tick)


@SERVICES.defect(
    "deliver a timer message before its time", "no message is early by the leader's clock"
)
def _timer_early(bed: Bed) -> None:
    real = TimerService.tick

    def tick(self: TimerService, now: Now) -> Any:
        return real(self, Now(now.wall_ms + 500, now.monotonic_ms))

    bed.put(TimerService, "tick", tick)


@SERVICES.defect("deliver a cancelled message", "an acknowledged cancellation is final")
def _cancel_nothing(bed: Bed) -> None:
    bed.put(TimerService, "cancelled", lambda self, topic, unique_key, wall_ms: None)


@SERVICES.defect(
    "let retention remove messages that wait for their delay",
    "messages that wait for their delay are kept",
    {"delayed": 0.2, "retention_size": 3_000},
)
def _take_waiting(bed: Bed) -> None:
    real = RetentionService.find_floor

    def find_floor(self: RetentionService, wall_ms: int) -> int:
        waiting, self._waiting = self._waiting, ()
        try:
            return real(self, wall_ms)
        finally:
            self._waiting = waiting

    bed.put(RetentionService, "find_floor", find_floor)


@SERVICES.defect(
    "serve a client that has lost its rights", "a confirmed removal of rights is effective"
)
def _admit_all(bed: Bed) -> None:
    bed.put(AccessControl, "admit", lambda self, request, peer: None)


@SERVICES.defect(
    "accept sends behind the fence of a queue expansion", "no client writes behind the fence"
)
def _no_growth_fence(bed: Bed) -> None:
    bed.put(sending, "check_send", lambda context, topic, ext: None)


@SERVICES.defect(
    "switch to the new queues before the groups have consumed the old ones",
    "all old messages are consumed before the switch",
)
def _switch_early(bed: Bed) -> None:
    # In the state machine, and where an operator learns what blocks the switch.
    for module in (expansionphases, growing):
        bed.put(module, "group_blockers", lambda state, group, topic, ends: iter(()))
        bed.put(module, "open_transactions", lambda state, topic: [])


@SERVICES.defect(
    "obey an operator that was replaced",
    "the token of a replaced operator is refused",
    {"growths": (5, 7), "hold_keys": False, "every_us": 400_000, "troubles": ("operator",)},
)
def _obey_all(bed: Bed) -> None:
    bed.put(operators, "_greatest", lambda context: context.state.operator_token)
    bed.put(StateMachine, "_stale", lambda self, token: None)


@DISKS.defect(
    "read corrupt values",
    "checksums detect flipped bits",
    STORMS["rebuild"],
)
def _no_checksums(bed: Bed) -> None:
    def flipped(self: SimulatedStore, family: Family, key: bytes, value: bytes | None) -> Any:
        if value and (family, key) in self.rotten:
            return value[:-1] + bytes([value[-1] ^ 1])
        return value

    def base_get(self: SimulatedStore, family: Family, key: bytes) -> Any:
        return flipped(self, family, key, MemoryStore.base_get(self, family, key))

    def base_multi_get(self: SimulatedStore, family: Family, keys: list[bytes]) -> Any:
        values = MemoryStore.base_multi_get(self, family, keys)
        return [flipped(self, family, key, value) for key, value in zip(keys, values, strict=True)]

    def base_scan(
        self: SimulatedStore, family: Family, start: bytes, end: bytes, limit: int, *, reverse: bool
    ) -> Any:
        pairs = MemoryStore.base_scan(self, family, start, end, limit, reverse=reverse)
        return [(key, flipped(self, family, key, value)) for key, value in pairs]

    bed.put(SimulatedStore, "base_get", base_get)
    bed.put(SimulatedStore, "base_multi_get", base_multi_get)
    bed.put(SimulatedStore, "base_scan", base_scan)
    bed.put(SimulatedStore, "check_all", lambda self: None)


@DISKS.defect("keep one half of a torn write", "a write is complete or absent after a crash")
def _half_a_ticket(bed: Bed) -> None:
    real = SimulatedStore.crash

    def crash(self: SimulatedStore, kept: int = 0) -> SimulatedStore:
        survivor = real(self, kept)
        torn: Sequence[Any] = self._tickets_at_risk()[kept : kept + 1]
        for layer in torn:
            for family in Family:
                for number, (key, value) in enumerate(layer.values[family].items()):
                    if number % 2 == 0 and value is not None:
                        survivor._durable[family].put(key, value)
                        survivor._visible[family].put(key, value)
        return survivor

    bed.put(SimulatedStore, "crash", crash)


@NAMES.defect(
    "drop the route of an ordered topic when its broker group is down",
    "the queue list does not depend on which brokers are alive",
    {"every_us": 1_000_000, "troubles": ("crash all", "name server")},
)
def _forget_ordered(bed: Bed) -> None:
    real = Answers.route

    def route(self: Answers, topic: str) -> Any:
        found = real(self, topic)
        living = [name for name, _ in self._living()]
        if found is None or living:
            return found
        return type(found)((), (), None, {})

    bed.put(Answers, "route", route)
