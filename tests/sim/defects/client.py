"""Defects of the SDK's ordered consumer and of its knowledge about a send."""

from typing import Any

from orderlymq.consumer.core import parkedkeys as holding
from orderlymq.consumer.core.events import Deliver, OrderedResult, StartFound
from orderlymq.consumer.core.locks import LockedQueues
from orderlymq.consumer.core.ordered import OrderedConsumer
from orderlymq.consumer.core.processqueue import ProcessQueue
from orderlymq.consumer.core.queuestate import QueueState
from orderlymq.producer.sendoutcome import Attempts
from tests.sim.defects.defect import Bed, Catalogue
from tests.sim.plan import STORMS

CONSUMER = Catalogue("SDK consumer")
PRODUCER = Catalogue("SDK producer")


@CONSUMER.defect(
    "keep a lease longer than the broker",
    "two epochs never overlap",
    STORMS["consumers"],
)
def _long_lease(bed: Bed) -> None:
    real = LockedQueues._granted

    def granted(self: LockedQueues, state: QueueState, *rest: Any) -> None:
        real(self, state, *rest)
        state.lease_until_ms += 20_000

    bed.put(LockedQueues, "_granted", granted)


@CONSUMER.defect(
    "start a listener without a check of the lease",
    "messages are delivered only under a valid lease",
    # Deliveries of four queues wait for two workers while their consumer is paused beyond its lease.
    {
        "queues": 4,
        "producers": 3,
        "consumers": 1,
        "growths": (),
        "think_max_us": 60_000,
        "listener_max_us": 150_000,
        "long_listener": 0.3,
        "every_us": 1_000_000,
        "ruthless": True,
        "troubles": ("consumer pause",),
    },
)
def _no_look(bed: Bed) -> None:
    def maybe_start(self: OrderedConsumer, deliver: Deliver, _now_ms: int) -> bool:
        state = self.queues.get(deliver.queue)
        if state is None or state.delivery != deliver.delivery:
            return False
        state.begun = True
        return True

    bed.put(OrderedConsumer, "maybe_start", maybe_start)


@CONSUMER.defect("keep cached messages in a new epoch", "an epoch starts at the committed offset")
def _keep_cache(bed: Bed) -> None:
    real = LockedQueues._granted

    def granted(
        self: LockedQueues, state: QueueState, epoch: Any, asked_at_ms: int, now_ms: int
    ) -> None:
        if state.fetcher.next_offset >= 0:
            state.epoch = epoch
            if epoch is None:
                state.lease_until_ms = max(state.lease_until_ms, now_ms + 1)
        real(self, state, epoch, asked_at_ms, now_ms)

    bed.put(LockedQueues, "_granted", granted)


@CONSUMER.defect("start after the committed offset", "no message is skipped")
def _begin_later(bed: Bed) -> None:
    real = OrderedConsumer._start_found

    def start_found(self: OrderedConsumer, event: StartFound) -> None:
        real(self, StartFound(event.queue, event.generation, event.offset + 1))

    bed.put(OrderedConsumer, "_start_found", start_found)


@CONSUMER.defect("treat ROLLBACK as COMMIT", "a rolled back message is delivered again")
def _rollback_commits(bed: Bed) -> None:
    real = OrderedConsumer._apply_result

    def apply_result(self: OrderedConsumer, state: Any, event: Any, now_ms: int) -> None:
        if event.result is OrderedResult.ROLLBACK:
            self._commit(state)
            state.delivered = ()
            return
        real(self, state, event, now_ms)

    bed.put(OrderedConsumer, "_apply_result", apply_result)


@CONSUMER.defect(
    "continue with the next message after a failure", "a failed message keeps its queue waiting"
)
def _skip_failed(bed: Bed) -> None:
    def failed(
        self: OrderedConsumer, state: Any, messages: Any, suspend_ms: int, now_ms: int
    ) -> None:
        self._commit(state)

    bed.put(OrderedConsumer, "_failed", failed)


@CONSUMER.defect("call two listeners of one queue at once", "one listener call per queue at a time")
def _two_at_once(bed: Bed) -> None:
    bed.put(QueueState, "is_busy", property(lambda self: self.copying))


@CONSUMER.defect(
    "put failed messages at the end", "messages are delivered in the order of their offsets"
)
def _to_the_end(bed: Bed) -> None:
    def again(self: ProcessQueue, offsets: Any) -> None:
        back = set(offsets).intersection(self._taken)
        self._taken = [offset for offset in self._taken if offset not in back]
        self._waiting = [*self._waiting, *sorted(back)]

    bed.put(ProcessQueue, "again", again)


@CONSUMER.defect(
    "consume the messages after a dead letter of a held key", "a parked key stays held"
)
def _pass_held(bed: Bed) -> None:
    bed.put(holding, "parked_from", lambda state, message: None)


@PRODUCER.defect(
    "report a send as refused although it may be stored", "a refused send is never stored"
)
def _forget_first_try(bed: Bed) -> None:
    real = Attempts.note_refusal

    def note_refusal(self: Attempts, address: str, answer: Any) -> None:
        self._maybe_stored = False
        real(self, address, answer)

    bed.put(Attempts, "note_refusal", note_refusal)
