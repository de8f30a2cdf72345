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
    """The lane that a listener's messages are from, in a consumer by key.

    Attributes:
        key: the sharding key, or the value of the group's laneKeyProperty; empty for a message without one, shortened when it
            is very long.
        tries: how often the first message has failed before.
        waiting_since_ms: when the first message was stored, ms since the epoch.
        behind: messages of the lane that brokers have seen and that wait behind those of this call.
        attempt: number of this hand-out of the lane; in its queue none is given twice.
    """

    key: str
    tries: int
    waiting_since_ms: int
    behind: int
    attempt: int


@dataclass(slots=True)
class OrderedContext:
    """Of one call of an ordered listener.

    Attributes:
        auto_commit: False makes SUCCESS provisional until a later call returns COMMIT.
        suspend_current_queue_time: how long to wait after a failure, 0.01 to 30 seconds; None takes the
            consumer's setting. By key it is the lane that waits, up to a day; None takes the group's pauses.
        still_holds: returns whether the queue's lock, or the lane, is still ours; ask before an effect outside.
        lane: the lane of the messages; None unless the consumer is by key.
    """

    queue: MessageQueue
    auto_commit: bool = True
    suspend_current_queue_time: Duration | None = None
    still_holds: Callable[[], bool] = lambda: True
    lane: LaneContext | None = None


@dataclass(slots=True)
class ConcurrentContext:
    """Of one call of a concurrent listener.

    Attributes:
        ack_index: with SUCCESS, index of the last message that succeeded; the others come again.
        delay_level_when_next_consume: 0 leaves the delay to the broker (10 s, 30 s, 1 min, ...), -1 is
            the dead-letter queue immediately, 1 to 18 are delay levels.
    """

    queue: MessageQueue
    ack_index: int = 2**31 - 1
    delay_level_when_next_consume: int = 0


class NotBegun(Exception):  # noqa: N818 - says what happened
    """A listener that hands its messages on raises this when nobody has begun them: they come again, and no try is counted."""


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
    """Context of hooks: before the call with `success` False, after it with the outcome.

    Attributes:
        lane: of a consumer by key.
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
    """Runs before and after every listener call; its errors are logged and dropped."""

    def before(self, context: ConsumeContext) -> None:
        """Run before the listener."""

    def after(self, context: ConsumeContext) -> None:
        """Run after the listener."""


def classify(
    result: OrderedResult | ConcurrentResult | None, *, duration_ms: int, timeout_ms: int
) -> ConsumeReturn:
    """Return how a call ended, None being one that raised; too slow wins over all that was returned."""
    if result is None:
        return ConsumeReturn.EXCEPTION
    if duration_ms >= timeout_ms:
        return ConsumeReturn.TIME_OUT
    if result in (OrderedResult.SUSPEND, ConcurrentResult.RECONSUME_LATER):
        return ConsumeReturn.FAILED
    return ConsumeReturn.SUCCESS
