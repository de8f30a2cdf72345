"""
Building the record of a message: the one place where offsets are given.

The rules: the stored bytes are built once, with queue offset and physical offset in place; store
timestamps never fall within a queue, whatever the clock does, so that a search by time can bisect;
nothing is handed out before the record is complete, so a message that cannot be encoded leaves no
hole. Senders, send-backs, transactions and the delay service append through here.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from orderlymq_broker.processors.context import Context, RequestRefused
from orderlymq_broker.processors.scanning import (
    DELAY,
    KEYS,
    REAL_QID,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    extended,
    find_text,
    without,
)
from orderlymq_broker.state.records import Append
from orderlymq_broker.state.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
)
from orderlymq_protocol.record import (
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_BYTES_MAX,
    RecordTemplate,
    StoredMessage,
    body_crc,
    encode_with_positions,
    pack_host,
)
from orderlymq_protocol.sysflag import BORN_HOST_IPV6, STORE_HOST_IPV6, TRANSACTION_MASK
from orderlymq_protocol.tags import tags_code

_LEVEL_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HEAD: Final = Struct(">IIIiiqqiq8sq8siqi")
_HEAD_SIZE: Final = _HEAD.size
_UINT16: Final = Struct(">H")
_IPV4_SIZE: Final = 8
_HOST_BITS: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
# REAL_TOPIC and REAL_QID with their separators and a queue number of ten digits.
_DELAYED_SIZE: Final = len(b"\x02REAL_TOPIC\x01\x02REAL_QID\x01\x02") + 10
_TIMED_SIZE: Final = len(b"TIMER_OUT_MS\x01\x02") + 20


@dataclass(slots=True)
class Draft:
    """A message on its way into a queue; fields as in the stored record.

    Attributes:
        properties: as text; they are encoded when the record is built.
        born_host: packed address of the producer.
        store_host: packed address that the record names, None for our own.
        body_crc: checksum of the body, -1 when it is not known yet.
        prepared_offset: physical offset of the half message that this is the commit of, else 0.
    """

    topic: Topic
    queue_id: int
    body: bytes
    properties: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int = 0
    unique_key: str = ""
    identity: bytes = b""
    store_host: bytes | None = None
    body_crc: int = -1
    prepared_offset: int = 0

    @classmethod
    def of_stored(
        cls, message: StoredMessage, topic: Topic, queue_id: int, properties: str
    ) -> "Draft":
        """Return a copy of a stored message that goes to another queue with other properties."""
        return cls(
            topic,
            queue_id,
            message.body,
            properties,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            pack_host(*message.born_host),
            message.reconsume_times,
            find_text(properties, UNIQ_KEY) or "",
            store_host=pack_host(*message.store_host),
            body_crc=message.body_crc,
        )


def real_queue(topic: Topic, properties: str) -> int:
    """Return the queue of *topic* for a message that has waited in another topic."""
    queue_id = int(find_text(properties, REAL_QID) or "0")

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

Appended = tuple[Append, bytes]


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
        return max(0, int(text))
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
            due_ms = wall_ms + int(text) * 1_000
        elif (text := find_text(properties, TIMER_DELAY_MS)) is not None:
            due_ms = wall_ms + int(text)
        elif (text := find_text(properties, TIMER_DELIVER_MS)) is not None:
            due_ms = int(text)
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
    """Gives messages their places in the leader's view."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.delays = parse_delay_levels(context.settings.timers.delay_levels)

    def append(self, draft: Draft, wall_ms: int) -> Appended:
        """Give the message the next place of its queue; return its record and stored bytes."""
        tag = find_text(draft.properties, TAGS)

        return self._place(draft, draft.topic, draft.queue_id, wall_ms, tags_code(tag), None)

    def append_delayed(self, draft: Draft, level: int, wall_ms: int) -> Appended:
        """Put the message where it waits for its time; levels above the highest count as that.

        The record names topic and queue it belongs to in properties that the consumer will see.
        """
        level = min(level, len(self.delays))
        schedule = self._context.state.topics.by_name[SCHEDULE_TOPIC]
        self._aim(draft)

        return self._place(draft, schedule, level - 1, wall_ms, None, self.delays[level - 1])

    def append_timer(self, draft: Draft, due_ms: int, wall_ms: int) -> Appended:
        """Put the message where it waits for a time of its own."""
        self._aim(draft)
        draft.properties = extended(draft.properties, TIMER_OUT_MS.name, str(due_ms))
        timers = self._context.state.topics.by_name[TIMER_TOPIC]

        return self._place(draft, timers, 0, wall_ms, due_ms, None)

    def append_waiting(self, draft: Draft, wait: Wait, wall_ms: int) -> Appended:
        """Put the message where it waits, or where it belongs if it does not."""
        if wait.level:
            return self.append_delayed(draft, wait.level, wall_ms)
        if wait.due_ms:
            return self.append_timer(draft, wait.due_ms, wall_ms)

        return self.append(draft, wall_ms)

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

    def append_half(self, draft: Draft, wall_ms: int) -> Appended:
        """Put the message where it waits for the end of its transaction.

        As with a delay the record names topic and queue it belongs to; the transaction bits are
        taken off, as RocketMQ does (TransactionalMessageBridge.parseHalfMessageInner).
        """
        self._aim(draft)
        draft.sys_flag &= ~TRANSACTION_MASK
        halves = self._context.state.topics.by_name[TRANS_HALF_TOPIC]

        return self._place(draft, halves, 0, wall_ms, 0, None)

    def append_given_up(self, draft: Draft, wall_ms: int) -> Appended:
        """Put a half message where people look for transactions that nobody ended."""
        given_up = self._context.state.topics.by_name[TRANS_CHECK_MAX_TIME_TOPIC]
        tag = find_text(draft.properties, TAGS)

        return self._place(draft, given_up, 0, wall_ms, tags_code(tag), None)

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

    def _place(
        self,
        draft: Draft,
        topic: Topic,
        queue_id: int,
        wall_ms: int,
        code: int | None,
        delay_ms: int | None,
    ) -> Appended:
        context = self._context
        view = context.view
        head = view.head(topic.queues.get(queue_id) or topic.queue(queue_id))
        timestamp = wall_ms if wall_ms > head.timestamp else head.timestamp
        queue_offset, physical = head.next_offset, view.next_physical
        message = _encode(
            draft,
            topic,
            queue_id,
            queue_offset,
            physical,
            timestamp,
            draft.store_host or context.store_host,
        )
        size = len(message)
        record = Append(
            topic.id,
            queue_id,
            queue_offset,
            physical,
            size,
            timestamp + delay_ms if code is None and delay_ms is not None else code or 0,
            timestamp,
            draft.unique_key,
            find_text(draft.properties, KEYS) or "",
            draft.identity,
            draft.queue_id,
        )
        head.next_offset = queue_offset + 1
        head.timestamp = timestamp
        view.next_physical = physical + size
        view.uncommitted += size

        return record, message


def _encode(
    draft: Draft,
    topic: Topic,
    queue_id: int,
    queue_offset: int,
    physical: int,
    timestamp: int,
    store_host: bytes,
) -> bytes:
    """Return the stored record.

    The usual case, IPv4 and a short topic, is laid out here in one go: built from a template it
    would be a fifth of the time that a send takes. A test compares the two.
    """
    name, body, properties = topic.name_bytes, draft.body, draft.properties.encode()
    name_size, body_size, properties_size = len(name), len(body), len(properties)
    if (
        len(draft.born_host) != _IPV4_SIZE
        or len(store_host) != _IPV4_SIZE
        or name_size > TOPIC_V1_BYTES_MAX
        or properties_size > PROPERTIES_BYTES_MAX
    ):
        template = RecordTemplate(
            topic=name,
            queue_id=queue_id,
            body=body,
            properties=properties,
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            born_timestamp=draft.born_timestamp,
            born_host=draft.born_host,
            store_timestamp=timestamp,
            store_host=store_host,
            reconsume_times=draft.reconsume_times,
            prepared_transaction_offset=draft.prepared_offset,
        )
        return encode_with_positions(template, queue_offset, physical)
    head = _HEAD.pack(
        _HEAD_SIZE + body_size + 1 + name_size + 2 + properties_size,
        MAGIC_V1,
        draft.body_crc if draft.body_crc >= 0 else body_crc(body),
        queue_id,
        draft.flag,
        queue_offset,
        physical,
        draft.sys_flag & ~_HOST_BITS,
        draft.born_timestamp,
        draft.born_host,
        timestamp,
        store_host,
        draft.reconsume_times,
        draft.prepared_offset,
        body_size,
    )
    return b"".join(
        (head, body, topic.name_prefix, name, _UINT16.pack(properties_size), properties)
    )
