"""
The vocabulary between the consumer cores and their shell: what happened, and what to do.

Rules: both unions are closed. Times are milliseconds of one monotonic clock; `handle` gets the time in addition to the
event. Every assignment of a queue has a *generation*. An event with an old generation is about a queue that has been
lost since; it only tells the core that the listener is free again. The cores are `ordered` and `concurrent`; the shell
is `push`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue


class OrderedResult(Enum):
    """Results of an ordered listener; returning None means SUCCESS, and an exception means SUSPEND.

    COMMIT and ROLLBACK are for listeners that switched `context.auto_commit` off. SUCCESS then only continues, COMMIT
    makes all messages since the last COMMIT final, and ROLLBACK delivers those messages again.
    """

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class ConcurrentResult(Enum):
    """Results of a concurrent listener; returning None means SUCCESS, and an exception means RECONSUME_LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


# -- events


@dataclass(frozen=True, slots=True)
class Assigned:
    """The rebalance assigned exactly these queues to this consumer."""

    queues: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class ParkedFrom:
    """The first dead letter of a parked key.

    Attributes:
        offset: its offset in the queue.
        message_id: its id.
    """

    offset: int
    message_id: str

    def precedes(self, offset: int) -> bool:
        """Return whether a message of the key at *offset* follows the dead letter."""
        return self.offset < offset


@dataclass(frozen=True, slots=True)
class LocksAnswered:
    """A broker answered a lock request; `granted` maps queues to epochs (None from a RocketMQ broker).

    `parked` has the parked keys of the granted queues.
    """

    asked: tuple[MessageQueue, ...]
    granted: Mapping[MessageQueue, int | None]
    asked_at_ms: int
    parked: Mapping[MessageQueue, Mapping[str, ParkedFrom]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocksFailed:
    """A lock request had no answer; the consumer may or may not hold the locks."""

    asked: tuple[MessageQueue, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OfQueue:
    """An event or instruction about one queue."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class OfFetcher(OfQueue):
    """An event or instruction about one generation of a queue, from one start of its fetcher to the next."""

    generation: int


@dataclass(frozen=True, slots=True)
class OfDelivery(OfFetcher):
    """An event or instruction about one delivery to the listener."""

    delivery: int


@dataclass(frozen=True, slots=True)
class StartFound(OfFetcher):
    """The committed offset of the consumer group, or with *is_new*, the offset at which a group without one begins."""

    offset: int
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class StartFailed(OfFetcher):
    """The query for the start offset failed; nothing is assumed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pulled(OfFetcher):
    """A pull was answered; no messages means that there are none or that none matched."""

    messages: tuple[ReceivedMessage, ...]
    next_offset: int


@dataclass(frozen=True, slots=True)
class PullFailed(OfFetcher):
    """A pull was refused (`refused`) or had no answer."""

    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class OffsetIllegal(OfFetcher):
    """The offset lies outside the queue; the broker says where to continue."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class ListenerStarted(OfDelivery):
    """The listener was called; before that, a delivery only waits for a free worker."""


@dataclass(frozen=True, slots=True)
class ListenerDone(OfDelivery):
    """The listener returned or raised.

    Attributes:
        result: its return value; None if it raised.
        raised: the text of the exception, without the message's content.
        suspend_ms, auto_commit: from the ordered context; a suspend_ms of -1 means the consumer's setting.
        ack_index, delay_level: from the concurrent context.
    """

    result: OrderedResult | ConcurrentResult | None
    raised: str | None = None
    suspend_ms: int = -1
    auto_commit: bool = True
    ack_index: int = 2**31 - 1
    delay_level: int = 0


@dataclass(frozen=True, slots=True)
class DeliveryDropped(OfDelivery):
    """A worker was free, but `maybe_start` returned False: the listener was not called."""


@dataclass(frozen=True, slots=True)
class SendBackResult(OfFetcher):
    """A message was handed back to the broker, as a retry or a dead letter; or that failed.

    Attributes:
        parked: the first dead letter of the message's key, if the key is parked, or may be parked because the answer
            was lost.
        released: true if the message was not sent because its key is no longer parked.
    """

    offset: int
    ok: bool
    reason: str = ""
    parked: ParkedFrom | None = None
    released: bool = False


@dataclass(frozen=True, slots=True)
class Released(OfQueue):
    """A `Release` is done: the offset is committed and the lock is given back, as far as that was possible."""


@dataclass(frozen=True, slots=True)
class OffsetsReset:
    """An administrator moved offsets; consumption continues there."""

    offsets: Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class Paused:
    """Start no listener and no pull until `Resumed`."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Continue after `Paused`."""


@dataclass(frozen=True, slots=True)
class Closing:
    """Finish what runs, start nothing new, give all queues back."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent no later than at `next_wake_ms`."""


Event: TypeAlias = (
    Assigned
    | LocksAnswered
    | LocksFailed
    | StartFound
    | StartFailed
    | Pulled
    | PullFailed
    | OffsetIllegal
    | ListenerStarted
    | ListenerDone
    | DeliveryDropped
    | SendBackResult
    | Released
    | OffsetsReset
    | Paused
    | Resumed
    | Closing
    | Tick
)


# -- instructions


@dataclass(frozen=True, slots=True)
class AskLocks:
    """Ask for the locks of these queues or renew them, one request per broker; the shell answers for each queue."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class FindStart(OfFetcher):
    """Find the offset at which to start the queue; the shell answers with StartFound or StartFailed."""


@dataclass(frozen=True, slots=True)
class Pull(OfFetcher):
    """Pull messages; at most one pull per queue is wanted, so this one replaces an older one of the queue."""

    offset: int
    commit_offset: int | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Deliver(OfDelivery):
    """Call the listener as soon as a worker is free, if `maybe_start` then still allows it."""

    messages: tuple[ReceivedMessage, ...]
    epoch: int | None


@dataclass(frozen=True, slots=True)
class SendBack(OfFetcher):
    """Give a message back for a later retry (concurrent); the shell answers with `SendBackResult`."""

    message: ReceivedMessage
    delay_level: int


@dataclass(frozen=True, slots=True)
class DeadLetter(OfFetcher):
    """Hand a message over to the dead-letter queue (ordered); the shell answers with `SendBackResult`.

    If the broker knows epochs, it is asked first what to do with the message and with those that follow it.

    Attributes:
        parked: the dead letter that this message follows; or this message itself, if it parks the key and is not known
            to be sent.
    """

    message: ReceivedMessage
    reconsume_max: int
    epoch: int | None = None
    parked: ParkedFrom | None = None

    @property
    def presumed(self) -> ParkedFrom | None:
        """The mark that holds the key until the broker answers: no message may pass one of unknown outcome."""
        message = self.message
        return self.parked or (
            ParkedFrom(message.queue_offset, message.message_id) if message.key else None
        )


@dataclass(frozen=True, slots=True)
class SetOffset(OfQueue):
    """Remember an offset to commit; the next pull or the next persist sends it."""

    offset: int
    epoch: int | None
    increase_only: bool


@dataclass(frozen=True, slots=True)
class Release(OfQueue):
    """Give the queue up: commit if `commit`, then unlock if `unlock`; the shell answers with Released.

    The order and the answer both matter. The next holder begins at the committed offset, and an unlock that overtakes
    our own later lock request would free a queue that we believe we hold.
    """

    epoch: int | None
    commit: bool
    unlock: bool


@dataclass(frozen=True, slots=True)
class StopPull(OfQueue):
    """The queue is lost or restarts: the answer to its pull is no longer wanted."""


@dataclass(frozen=True, slots=True)
class Persist(OfQueue):
    """Commit this queue's offset now."""

    epoch: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """One line for the log; it never contains the body of a message."""

    level: Literal["debug", "info", "warning", "error"]
    text: str


Instruction: TypeAlias = (
    AskLocks
    | FindStart
    | Pull
    | Deliver
    | SendBack
    | DeadLetter
    | SetOffset
    | Release
    | StopPull
    | Persist
    | Report
)


def failure(instruction: Instruction, reason: str) -> Event | None:
    """Return the event that answers an instruction whose work ended without one; None if no answer is expected.

    The queue must continue after any such end: a core that waited for the answer for ever would keep its lock all that
    time.
    """
    match instruction:
        case Deliver(queue, generation, delivery):
            return ListenerDone(queue, generation, delivery, None, reason)
        case Pull(queue, generation):
            return PullFailed(queue, generation, reason)
        case AskLocks(queues):
            return LocksFailed(queues, reason)
        case FindStart(queue, generation):
            return StartFailed(queue, generation, reason)
        case SendBack(queue, generation, message):
            return SendBackResult(queue, generation, message.queue_offset, False, reason)
        case DeadLetter(queue, generation, message):
            parked = instruction.presumed
            return SendBackResult(queue, generation, message.queue_offset, False, reason, parked)
        case SetOffset() | Release() | StopPull() | Persist() | Report():
            return None
