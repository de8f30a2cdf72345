"""
The vocabulary between the consumer cores and their shell: what happened, and what to do.

Rules: both unions are closed; times are milliseconds of one monotonic clock and are given to `handle`
beside the event. Every assignment of a queue has a *generation*; an event that carries an old one is about
a queue that was lost meanwhile and changes nothing but "the listener is free again".
The cores are `ordered` and `concurrent`; the shell is `push`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue


class OrderedResult(Enum):
    """Results of an ordered listener; nothing (None) is SUCCESS, and an exception is SUSPEND.

    COMMIT and ROLLBACK are for listeners that switched `context.auto_commit` off: SUCCESS then only goes
    on, COMMIT makes everything since the last COMMIT final, ROLLBACK delivers it again.
    """

    SUCCESS = "SUCCESS"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class ConcurrentResult(Enum):
    """Results of a concurrent listener; nothing is SUCCESS, an exception is RECONSUME_LATER."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


# -- events


@dataclass(frozen=True, slots=True)
class Assigned:
    """The rebalance gave this consumer exactly these queues."""

    queues: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class ParkedFrom:
    """A key is parked from a message on.

    Attributes:
        offset: of its first dead letter in the queue.
        message_id: of that message.
    """

    offset: int
    message_id: str

    def precedes(self, offset: int) -> bool:
        """Return whether a message of the key follows the dead letter."""
        return self.offset < offset


@dataclass(frozen=True, slots=True)
class LocksAnswered:
    """A broker answered a lock request; `granted` maps to epochs (None from a RocketMQ broker).

    `parked` are the parked keys of the granted queues.
    """

    asked: tuple[MessageQueue, ...]
    granted: Mapping[MessageQueue, int | None]
    asked_at_ms: int
    parked: Mapping[MessageQueue, Mapping[str, ParkedFrom]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocksFailed:
    """A lock request had no answer; the locks may or may not be held."""

    asked: tuple[MessageQueue, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OfQueue:
    """The queue that an event or an instruction is about."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class OfFetcher(OfQueue):
    """The generation of a queue that one is about: from one start of its fetcher to the next."""

    generation: int


@dataclass(frozen=True, slots=True)
class OfDelivery(OfFetcher):
    """The delivery to the listener that one is about."""

    delivery: int


@dataclass(frozen=True, slots=True)
class StartFound(OfFetcher):
    """The committed offset, or where the group begins that has none: *is_new*."""

    offset: int
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class StartFailed(OfFetcher):
    """The offset could not be asked; nothing is assumed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pulled(OfFetcher):
    """A pull was answered; no messages means that none is there or none matched."""

    messages: tuple[ReceivedMessage, ...]
    next_offset: int


@dataclass(frozen=True, slots=True)
class PullFailed(OfFetcher):
    """A pull was refused (`refused`) or had no answer."""

    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class OffsetIllegal(OfFetcher):
    """The offset lies outside the queue; the broker says where to go on."""

    next_offset: int


@dataclass(frozen=True, slots=True)
class ListenerStarted(OfDelivery):
    """The listener was called; until then a delivery only waits for a free worker."""


@dataclass(frozen=True, slots=True)
class ListenerDone(OfDelivery):
    """The listener returned or raised.

    Attributes:
        result: its return value; None when it raised.
        raised: the exception's text, without the message's content.
        suspend_ms, auto_commit: from the ordered context; -1 means the consumer's setting.
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
    """A worker was free, but `maybe_start` said no: the listener was not called."""


@dataclass(frozen=True, slots=True)
class CopySent(OfFetcher):
    """A message was handed back to the broker, as a retry or a dead letter, or it was refused.

    Attributes:
        parked: the message's key is parked, or may be: the answer was lost.
        released: it was not sent because its key is not parked any more.
    """

    offset: int
    ok: bool
    reason: str = ""
    parked: ParkedFrom | None = None
    released: bool = False


@dataclass(frozen=True, slots=True)
class Released(OfQueue):
    """A `Release` is done: offset committed, lock given back, as far as that was possible."""


@dataclass(frozen=True, slots=True)
class OffsetsReset:
    """An administrator moved offsets; consumption goes on there."""

    offsets: Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class Paused:
    """Start no listener and no pull until `Resumed`."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Go on after `Paused`."""


@dataclass(frozen=True, slots=True)
class Closing:
    """Finish what runs, start nothing, give everything back."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent at the latest when `next_wake_ms` is reached."""


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
    | CopySent
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
    """Ask for or renew the locks of these queues, one request per broker; answer each."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class FindStart(OfFetcher):
    """Find where the queue is to be consumed from; answer with StartFound or StartFailed."""


@dataclass(frozen=True, slots=True)
class Pull(OfFetcher):
    """Pull; at most one per queue is wanted, so an older one of the queue is to be given up."""

    offset: int
    commit_offset: int | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Deliver(OfDelivery):
    """Call the listener as soon as a worker is free, if `maybe_start` still says so then."""

    messages: tuple[ReceivedMessage, ...]
    epoch: int | None


@dataclass(frozen=True, slots=True)
class SendBack(OfFetcher):
    """Give a message back for a later retry (concurrent); answer with CopySent."""

    message: ReceivedMessage
    delay_level: int


@dataclass(frozen=True, slots=True)
class DeadLetter(OfFetcher):
    """Hand a message over to the dead-letter queue (ordered); answer with CopySent.

    The broker is asked first what is to become of it, and of what follows it, if it knows epochs.

    Attributes:
        parked: what the message follows, or what it began itself, unsent as far as is known.
    """

    message: ReceivedMessage
    reconsume_max: int
    epoch: int | None = None
    parked: ParkedFrom | None = None

    @property
    def presumed(self) -> ParkedFrom | None:
        """The mark that holds the key until the broker answers: nothing may pass a message of unknown outcome."""
        message = self.message
        return self.parked or (
            ParkedFrom(message.queue_offset, message.message_id) if message.key else None
        )


@dataclass(frozen=True, slots=True)
class SetOffset(OfQueue):
    """Remember an offset to commit; it leaves with the next pull or the next persist."""

    offset: int
    epoch: int | None
    increase_only: bool


@dataclass(frozen=True, slots=True)
class Release(OfQueue):
    """The queue is given up: commit when `commit`, then unlock when `unlock`; answer with Released.

    The order matters, and so does the answer: the next holder begins at the committed offset, and an
    unlock that overtakes a later lock request of ours would free a queue that we believe to hold.
    """

    epoch: int | None
    commit: bool
    unlock: bool


@dataclass(frozen=True, slots=True)
class StopPull(OfQueue):
    """The queue is lost or restarts: an answer to its pull is not wanted any more."""


@dataclass(frozen=True, slots=True)
class Persist(OfQueue):
    """Commit this queue's offset now."""

    epoch: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """One line for the log; never with the body of a message."""

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
    """Return the event that answers an instruction whose work ended without one; None where none is awaited.

    Whatever ended the work, the queue goes on: a core that waited for the answer for ever would keep its
    lock all that time.
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
            return CopySent(queue, generation, message.queue_offset, False, reason)
        case DeadLetter(queue, generation, message):
            parked = instruction.presumed
            return CopySent(queue, generation, message.queue_offset, False, reason, parked)
        case SetOffset() | Release() | StopPull() | Persist() | Report():
            return None
