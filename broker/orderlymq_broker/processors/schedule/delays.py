"""
The delay of a message before it goes to its topic, and the queue in which it waits.

The rules: a waiting message names its topic and queue in properties that its consumer will see. A delay level takes
precedence over a time. Sends, retries and commits of transactions use this module. ``delaylevels.py`` and ``timers.py``
pass due messages on.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN, read_integer
from orderlymq_protocol.message.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from orderlymq_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

_TIMER_NAMES: Final = frozenset(
    {TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_DEL_UNIQKEY}
)
# The properties of a message that may have to wait.
WAIT_NAMES: Final = _TIMER_NAMES | {DELAY}
_LEVEL_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# REAL_TOPIC and REAL_QID with their separators and a queue number of ten digits.
_DELAYED_SIZE: Final = len(b"\x02REAL_TOPIC\x01\x02REAL_QID\x01\x02") + 10
_TIMED_SIZE: Final = len(b"TIMER_OUT_MS\x01\x02") + 20


def real_queue(topic: Topic, properties: Properties) -> int:
    """Return the queue of *topic* for a message that has waited in another topic."""
    try:
        queue_id = read_integer(properties.by_name.get(REAL_QID, "0"), 0, INT32_MAX)
    except ValueError:
        return 0

    # The topic may have fewer queues by now; in a removed queue the message would never be read.
    return queue_id if queue_id < max(1, topic.config.read_queues) else 0


@dataclass(frozen=True, slots=True)
class Wait:
    """The delay of a message before it goes to its topic: a level, a time, or none.

    Attributes:
        level: the number of the delay level, 0 for none.
        due_ms: the wall time in ms at which a timer message is due, 0 for none.
        cancels: the unique key of the timer message that this one cancels, empty for none.
    """

    level: int = 0
    due_ms: int = 0
    cancels: str = ""


NO_WAIT: Final = Wait()


@lru_cache(maxsize=4)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ms of a text such as ``1s 5m 2h``; the first is level 1.

    Raises:
        ValueError: a part is not a number with one of the units s, m, h, d.
    """
    levels = []
    for part in text.split():
        if part[-1] not in _LEVEL_UNITS or not part[:-1].isdigit():
            raise ValueError(f"delay level {part!r}: write a number and s, m, h or d, such as 30s")
        levels.append(int(part[:-1]) * _LEVEL_UNITS[part[-1]])

    return tuple(levels)


def delay_level(properties: Properties) -> int:
    """Return the DELAY property as a number, or 0 if it is missing or not positive.

    Raises:
        RequestRefused: it is not a number; if the message were stored now, it would be delivered too early.
    """
    text = properties.by_name.get(DELAY)
    if text is None:
        return 0
    try:
        return max(0, read_integer(text, INT32_MIN, INT32_MAX))
    except ValueError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"the delay level {text[:20]!r} is not a number"
        ) from error


def timer_wait(properties: Properties, wall_ms: int, delay_max_ms: int) -> Wait:
    """Return the time for which a timer message waits, or `NO_WAIT` if that is over already.

    A message with TIMER_OUT_MS has waited before: a consumer has sent it on.

    Raises:
        RequestRefused: the time is not a number or too far away, or a cancellation comes too late.
    """
    due_ms = 0
    by_name = properties.by_name
    try:
        # In RocketMQ's order (HookUtils.transformTimerMessage): the first property that is present counts.
        if TIMER_OUT_MS in by_name:
            return NO_WAIT
        if (text := by_name.get(TIMER_DELAY_SEC)) is not None:
            due_ms = wall_ms + read_integer(text) * 1_000
        elif (text := by_name.get(TIMER_DELAY_MS)) is not None:
            due_ms = wall_ms + read_integer(text)
        elif (text := by_name.get(TIMER_DELIVER_MS)) is not None:
            due_ms = read_integer(text)
        else:
            return NO_WAIT
    except ValueError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"the time of a timer message is not a number: {error}"
        ) from error
    cancels = by_name.get(TIMER_DEL_UNIQKEY, "")
    if due_ms - wall_ms > delay_max_ms or (cancels and due_ms <= wall_ms):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{delay_max_ms}ms; or if set del msg, the delay time should be bigger than the "
            "current time",
        )

    return Wait(due_ms=due_ms, cancels=cancels) if due_ms > wall_ms else NO_WAIT


def wait_of(context: Context, properties: Properties, wall_ms: int) -> Wait:
    """Return the delay of a message; a delay level takes precedence over a time, whose properties are then removed.

    Raises:
        RequestRefused: its level or time is invalid.
    """
    level = delay_level(properties)
    if level:
        properties.drop(TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
        return Wait(level)
    if _TIMER_NAMES.isdisjoint(properties.by_name):
        return NO_WAIT
    timers = context.settings.timers
    if not timers.timer_enable:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )

    return timer_wait(properties, wall_ms, timers.timer_delay_max_ms)


def put(context: Context, draft: MessageDraft, wait: Wait) -> MessageDraft:
    """Put a message into the topic in which it waits; a message without a delay stays in its own topic."""
    if wait.level:
        return delay(context, draft, wait.level)
    if wait.due_ms:
        name_target(draft)
        draft.properties.add(TIMER_OUT_MS, str(wait.due_ms))
        return draft.wait_in(context.state.topics.by_name[TIMER_TOPIC], 0, wait.due_ms)

    return draft


def delay(context: Context, draft: MessageDraft, level: int) -> MessageDraft:
    """Put a message into a delay level; a level above the highest counts as the highest."""
    delays = parse_delay_levels(context.settings.timers.delay_levels)
    if level > len(delays):
        level = len(delays)
        draft.properties.drop(DELAY)
        draft.properties.add(DELAY, str(level))
    name_target(draft)
    draft.delay_ms = delays[level - 1]

    return draft.wait_in(context.state.topics.by_name[SCHEDULE_TOPIC], level - 1, 0)


def name_target(draft: MessageDraft) -> None:
    """Name, in the properties of a message that will wait elsewhere, its own topic and queue."""
    draft.properties.add(REAL_TOPIC, draft.topic.name)
    draft.properties.add(REAL_QID, str(draft.queue_id))


def added_size(topic: Topic) -> int:
    """Return the most bytes of properties that are added if a message of *topic* has to wait."""
    return _DELAYED_SIZE + _TIMED_SIZE + len(topic.name_bytes)
