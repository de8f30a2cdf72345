"""
Which queue a message is stored in: the one where it belongs, or the one where it waits.

The rules: what waits names topic and queue it belongs to in properties that its consumer will see; a delay level
beats a time. Senders, send-backs, transactions and the delay service append through here. The message gets its
place later, with the entry that it stands in: ``entrybuilder.py``.
"""

from dataclasses import dataclass
from typing import Final

from orderlymq_broker.processors.context import Context, RequestRefused
from orderlymq_broker.processors.draft import Draft
from orderlymq_broker.processors.scanning import (
    DELAY,
    REAL_QID,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    extended,
    find_text,
    without,
)
from orderlymq_broker.state.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN, read_integer
from orderlymq_protocol.message.sysflag import TRANSACTION_MASK
from orderlymq_protocol.message.tags import tags_code
from orderlymq_protocol.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
)

_LEVEL_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# REAL_TOPIC and REAL_QID with their separators and a queue number of ten digits.
_DELAYED_SIZE: Final = len(b"\x02REAL_TOPIC\x01\x02REAL_QID\x01\x02") + 10
_TIMED_SIZE: Final = len(b"TIMER_OUT_MS\x01\x02") + 20


def real_queue(topic: Topic, properties: str) -> int:
    """Return the queue of *topic* for a message that has waited in another topic."""
    try:
        queue_id = read_integer(find_text(properties, REAL_QID) or "0", 0, INT32_MAX)
    except ValueError:
        return 0

    # The topic may have shrunk meanwhile; a message nobody reads would be lost.
    return queue_id if queue_id < max(1, topic.config.read_queues) else 0


@dataclass(frozen=True, slots=True)
class Wait:
    """For what a message waits before it goes where it belongs: a level, a time, or nothing.

    Attributes:
        level: number of the delay level, 0 for none.
        due_ms: wall ms at which a timer message is due, 0 for none.
        cancels: unique key of the timer message that this one cancels, empty for none.
    """

    level: int = 0
    due_ms: int = 0
    cancels: str = ""


NO_WAIT: Final = Wait()


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ms of a text like ``1s 5m 2h``; the first is level 1.

    Raises:
        ValueError: a part is no number with one of the units s, m, h, d.
    """
    levels = []
    for part in text.split():
        if part[-1] not in _LEVEL_UNITS or not part[:-1].isdigit():
            raise ValueError(f"delay level {part!r}: write a number and s, m, h or d, such as 30s")
        levels.append(int(part[:-1]) * _LEVEL_UNITS[part[-1]])

    return tuple(levels)


def delay_level(properties: str) -> int:
    """Return the DELAY property as a number, 0 when there is none or it is not positive.

    Raises:
        RequestRefused: it is no number; stored at once it would be delivered too early.
    """
    text = find_text(properties, DELAY)
    if text is None:
        return 0
    try:
        return max(0, read_integer(text, INT32_MIN, INT32_MAX))
    except ValueError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"the delay level {text[:20]!r} is no number"
        ) from error


def timer_wait(properties: str, wall_ms: int, delay_max_ms: int) -> Wait:
    """Return for which time a timer message waits; none when that is over already.

    One that has TIMER_OUT_MS has waited before: a consumer has handed on what it got.

    Raises:
        RequestRefused: the time is no number or too far away, or a cancellation comes too late.
    """
    due_ms = 0
    try:
        # In RocketMQ's order (HookUtils.transformTimerMessage): the first that is there counts.
        if find_text(properties, TIMER_OUT_MS) is not None:
            return NO_WAIT
        if (text := find_text(properties, TIMER_DELAY_SEC)) is not None:
            due_ms = wall_ms + read_integer(text) * 1_000
        elif (text := find_text(properties, TIMER_DELAY_MS)) is not None:
            due_ms = wall_ms + read_integer(text)
        elif (text := find_text(properties, TIMER_DELIVER_MS)) is not None:
            due_ms = read_integer(text)
        else:
            return NO_WAIT
    except ValueError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"the time of a timer message is no number: {error}"
        ) from error
    cancels = find_text(properties, TIMER_DEL_UNIQKEY) or ""
    if due_ms - wall_ms > delay_max_ms or (cancels and due_ms <= wall_ms):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{delay_max_ms}ms; or if set del msg, the delay time should be bigger than the "
            "current time",
        )

    return Wait(due_ms=due_ms, cancels=cancels) if due_ms > wall_ms else NO_WAIT


class Appender:
    """Aims messages at queues."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.delays = parse_delay_levels(context.settings.timers.delay_levels)

    def append(self, draft: Draft) -> Draft:
        """Put the message into the queue where it belongs."""
        # Set here instead of by `_into`: this is the way of nearly every message.
        draft.into, draft.into_queue = draft.topic, draft.queue_id
        draft.code = tags_code(find_text(draft.properties, TAGS))

        return draft

    def append_delayed(self, draft: Draft, level: int) -> Draft:
        """Put the message where it waits for its time; levels above the highest count as that.

        The record names topic and queue it belongs to in properties that the consumer will see.
        """
        if level > len(self.delays):
            level = len(self.delays)
            draft.properties = extended(without(draft.properties, DELAY), DELAY.name, str(level))
        schedule = self._context.state.topics.by_name[SCHEDULE_TOPIC]
        self._aim(draft)
        draft.delay_ms = self.delays[level - 1]

        return _into(draft, schedule, level - 1, 0)

    def append_timer(self, draft: Draft, due_ms: int) -> Draft:
        """Put the message where it waits for a time of its own."""
        self._aim(draft)
        draft.properties = extended(draft.properties, TIMER_OUT_MS.name, str(due_ms))

        return _into(draft, self._context.state.topics.by_name[TIMER_TOPIC], 0, due_ms)

    def append_waiting(self, draft: Draft, wait: Wait) -> Draft:
        """Put the message where it waits, or where it belongs if it does not."""
        if wait.level:
            return self.append_delayed(draft, wait.level)
        if wait.due_ms:
            return self.append_timer(draft, wait.due_ms)

        return self.append(draft)

    def wait_of(self, draft: Draft, wall_ms: int) -> Wait:
        """Return for what the message waits; a delay level beats a time, whose properties go.

        Raises:
            RequestRefused: what it says of its level or time makes no sense.
        """
        level = delay_level(draft.properties)
        if "TIMER_D" not in draft.properties:
            return Wait(level) if level else NO_WAIT
        if level:
            for name in (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS):
                draft.properties = without(draft.properties, name)
            return Wait(level)
        timers = self._context.settings.timers
        if not timers.timer_enable:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )

        return timer_wait(draft.properties, wall_ms, timers.timer_delay_max_ms)

    def append_half(self, draft: Draft) -> Draft:
        """Put the message where it waits for the end of its transaction.

        As with a delay the record names topic and queue it belongs to; the transaction bits are
        taken off, as RocketMQ does (TransactionalMessageBridge.parseHalfMessageInner).
        """
        self._aim(draft)
        draft.sys_flag &= ~TRANSACTION_MASK

        return _into(draft, self._context.state.topics.by_name[TRANS_HALF_TOPIC], 0, 0)

    def append_given_up(self, draft: Draft) -> Draft:
        """Put a half message where people look for transactions that nobody ended."""
        given_up = self._context.state.topics.by_name[TRANS_CHECK_MAX_TIME_TOPIC]

        return _into(draft, given_up, 0, tags_code(find_text(draft.properties, TAGS)))

    def delayed_size(self, draft: Draft) -> int:
        """Return how many bytes of properties are added at most when a message has to wait."""
        return _DELAYED_SIZE + _TIMED_SIZE + len(draft.topic.name_bytes)

    @staticmethod
    def _aim(draft: Draft) -> None:
        """Note in the properties where the message belongs."""
        draft.properties = extended(
            extended(draft.properties, "REAL_TOPIC", draft.topic.name),
            "REAL_QID",
            str(draft.queue_id),
        )


def _into(draft: Draft, topic: Topic, queue_id: int, code: int) -> Draft:
    draft.into, draft.into_queue, draft.code = topic, queue_id, code

    return draft
