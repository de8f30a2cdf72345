"""Context of a listener call, and of hooks around it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from orderlymq.consumer.core.events import ConcurrentResult, OrderedResult
from orderlymq.durations import Duration
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue


@dataclass(frozen=True, slots=True)
class LaneContext:
    """The lane of a listener's messages, in a consumer by key.

    Attributes:
        key: the sharding key, or the value of the consumer group's laneKeyProperty; empty for a message without one,
            shortened if it is very long.
        tries: how often the first message has failed before.
        waiting_since_ms: time at which the first message was stored, ms since the epoch.
        behind: number of messages of the lane that brokers have seen and that wait behind those of this call.
        attempt: number of this hand-out of the lane; it is never given again in its queue.
    """

    key: str
    tries: int
    waiting_since_ms: int
    behind: int
    attempt: int


@dataclass(slots=True)
class OrderedContext:
    """Context of one call of an ordered listener.

    Attributes:
        auto_commit: False makes SUCCESS provisional until a later call returns COMMIT.
        suspend_current_queue_time: how long to wait after a failure, 0.01 to 30 seconds; None means the consumer's
            setting. By key, only the lane waits, up to a day; None means the consumer group's pauses.
        still_holds: returns whether this consumer still holds the queue's lock, or the lane; call it before an outside
            effect.
        lane: the lane of the messages; None unless the consumer is by key.
    """

    queue: MessageQueue
    auto_commit: bool = True
    suspend_current_queue_time: Duration | None = None
    still_holds: Callable[[], bool] = lambda: True
    lane: LaneContext | None = None


@dataclass(slots=True)
class ConcurrentContext:
    """Context of one call of a concurrent listener.

    Attributes:
        ack_index: with SUCCESS, index of the last message that succeeded; the messages after it are delivered again.
        delay_level_when_next_consume: 0 leaves the delay to the broker (10 s, 30 s, 1 min, ...), -1 sends the message
            to the dead-letter queue immediately, 1 to 18 are delay levels.
    """

    queue: MessageQueue
    ack_index: int = 2**31 - 1
    delay_level_when_next_consume: int = 0


class NotBegun(Exception):  # noqa: N818 - says what happened
    """Raised by a listener that passes its messages on, if none was begun: they come again, and no try is counted."""


OrderedListener: TypeAlias = Callable[
    [Sequence[ReceivedMessage], OrderedContext],
    Awaitable[OrderedResult | None] | OrderedResult | None,
]
ConcurrentListener: TypeAlias = Callable[
    [Sequence[ReceivedMessage], ConcurrentContext],
    Awaitable[ConcurrentResult | None] | ConcurrentResult | None,
]
Listener: TypeAlias = OrderedListener | ConcurrentListener


class ConsumeReturn(Enum):
    """How a listener call ended (RocketMQ's ConsumeReturnType)."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    FAILED = "FAILED"


@dataclass(slots=True)
class ConsumeContext:
    """Context of hooks: before the call with `success` False, after the call with the outcome.

    Attributes:
        lane: the lane of the messages, in a consumer by key.
    """

    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    success: bool = False
    status: str = ""
    returned: ConsumeReturn | None = None
    ordered: bool = False
    lane: LaneContext | None = None
    properties: dict[str, str] = field(default_factory=dict)


class ConsumeHook:
    """Runs before and after every listener call; errors of a hook are logged and dropped."""

    def before(self, context: ConsumeContext) -> None:
        """Run before the listener."""

    def after(self, context: ConsumeContext) -> None:
        """Run after the listener."""


def classify(
    result: OrderedResult | ConcurrentResult | None, *, duration_ms: int, timeout_ms: int
) -> ConsumeReturn:
    """Return how a call ended; None stands for a call that raised. TIME_OUT takes precedence over any returned result."""
    if result is None:
        return ConsumeReturn.EXCEPTION
    if duration_ms >= timeout_ms:
        return ConsumeReturn.TIME_OUT
    if result in (OrderedResult.SUSPEND, ConcurrentResult.RECONSUME_LATER):
        return ConsumeReturn.FAILED
    return ConsumeReturn.SUCCESS
