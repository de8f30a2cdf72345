"""
Building the record of a message: the one place where offsets are given.

The rules: the stored bytes are built once, with queue offset and physical offset in place; store
timestamps never fall within a queue, whatever the clock does, so that a search by time can bisect;
nothing is handed out before the record is complete, so a message that cannot be encoded leaves no
hole. Senders, send-backs and the delay service append through here.
"""

from dataclasses import dataclass
from typing import Final

from orderlymq_broker.processors.context import Context, RequestRefused
from orderlymq_broker.state.records import Append
from orderlymq_broker.state.topics import Topic
from orderlymq_protocol import properties as props
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.names import SCHEDULE_TOPIC
from orderlymq_protocol.properties import append_property, find_property
from orderlymq_protocol.record import RecordTemplate, encode_with_positions
from orderlymq_protocol.tags import tags_code

_LEVEL_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_KEYS_PATTERN: Final = b"KEYS\x01"
# REAL_TOPIC and REAL_QID with their separators and a queue number of ten digits.
_DELAYED_SIZE: Final = len(b"\x02REAL_TOPIC\x01\x02REAL_QID\x01\x02") + 10


@dataclass(slots=True)
class Draft:
    """A message on its way into a queue; fields as in the stored record.

    Attributes:
        born_host: packed address of the producer.
        store_host: packed address that the record names, None for our own.
    """

    topic: Topic
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int = 0
    unique_key: str = ""
    identity: bytes = b""
    store_host: bytes | None = None


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


def delay_level(properties: bytes) -> int:
    """Return the DELAY property as a number, 0 when there is none or it is not positive.

    Raises:
        RequestRefused: it is no number; stored at once it would be delivered too early.
    """
    text = find_property(properties, b"DELAY")
    if text is None:
        return 0
    try:
        return max(0, int(text))
    except ValueError as error:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"the delay level {text[:20]!r} is no number"
        ) from error


class Appender:
    """Gives messages their places in the leader's view."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.delays = parse_delay_levels(context.settings.timers.delay_levels)

    def append(self, draft: Draft, wall_ms: int) -> Appended:
        """Give the message the next place of its queue; return its record and stored bytes."""
        tag = find_property(draft.properties, b"TAGS")

        return self._place(draft, draft.topic, draft.queue_id, wall_ms, tags_code(tag), None)

    def append_delayed(self, draft: Draft, level: int, wall_ms: int) -> Appended:
        """Put the message where it waits for its time; levels above the highest count as that.

        The record names topic and queue it belongs to in properties that the consumer will see.
        """
        level = min(level, len(self.delays))
        schedule = self._context.state.topics.by_name[SCHEDULE_TOPIC]
        draft.properties = append_property(
            append_property(draft.properties, props.REAL_TOPIC, draft.topic.name),
            props.REAL_QID,
            str(draft.queue_id),
        )

        return self._place(draft, schedule, level - 1, wall_ms, None, self.delays[level - 1])

    def delayed_size(self, draft: Draft) -> int:
        """Return how many bytes of properties ``append_delayed`` adds at most."""
        return _DELAYED_SIZE + len(draft.topic.name_bytes)

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
        template = RecordTemplate(
            topic=topic.name_bytes,
            queue_id=queue_id,
            body=draft.body,
            properties=draft.properties,
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            born_timestamp=draft.born_timestamp,
            born_host=draft.born_host,
            store_timestamp=timestamp,
            store_host=draft.store_host or context.store_host,
            reconsume_times=draft.reconsume_times,
        )
        queue_offset, physical = head.next_offset, view.next_physical
        message = encode_with_positions(template, queue_offset, physical)
        keys = draft.properties
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
            (find_property(keys, b"KEYS") or "") if _KEYS_PATTERN in keys else "",
            draft.identity,
            draft.queue_id,
        )
        head.next_offset = queue_offset + 1
        head.timestamp = timestamp
        view.next_physical = physical + size
        view.uncommitted += size

        return record, message
