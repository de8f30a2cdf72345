"""
Messages that fail again and again: poison for their consumers.

The rules: a failure is known by the message coming to the group's retry topic, or to its dead letters, so it
does not matter which client failed and how; the message itself is read later and not on the path of a
send; only the last hour and a bounded number are remembered. Who shows it: ``watch.py``.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Final

from orderlymq_broker.core.context import Context
from orderlymq_broker.core.effects import Now
from orderlymq_broker.processors.fetch.read import read_message
from orderlymq_broker.state.records import Append
from orderlymq_protocol.message.properties import (
    KEYS,
    RETRY_TOPIC,
    SHARDING_KEY,
    UNIQ_KEY,
    decode_properties,
)
from orderlymq_protocol.message.record import decode_record
from orderlymq_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_dlq_topic

# The first tries of a message often fail for reasons that pass by themselves.
TRIES_MIN: Final = 3
REMEMBERED_MAX: Final = 1_000
REMEMBERED_MS: Final = 3_600_000
# Messages that wait to be read; more come only when everything fails, and then these tell enough.
WAITING_MAX: Final = 2_000
READ_PER_TICK: Final = 50


class Failures:
    """Remembers failing messages, the last to fail at the end."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[tuple[str, bool, int]] = deque(maxlen=WAITING_MAX)
        # By group and message: when it failed last (monotonic ms), and the row that is shown.
        self._rows: OrderedDict[tuple[str, str], tuple[int, dict[str, Any]]] = OrderedDict()

    def appended(self, records: Sequence[Append]) -> None:
        """Note messages that come to a retry topic or to dead letters."""
        topics = self._context.state.topics.by_id
        for topic_id in {record.topic_id for record in records}:
            topic = topics.get(topic_id)
            if topic is None or not topic.name.startswith("%"):
                continue
            dead = is_dlq_topic(topic.name)
            group = topic.name.removeprefix(DLQ_PREFIX if dead else RETRY_PREFIX)
            self._waiting.extend(
                (group, dead, record.physical) for record in records if record.topic_id == topic_id
            )

    def tick(self, now: Now) -> None:
        """Read some of the noted messages and forget what is long ago."""
        for _ in range(min(READ_PER_TICK, len(self._waiting))):
            self._read(*self._waiting.popleft(), now)
        while self._rows:
            failed_ms, _ = next(iter(self._rows.values()))
            if failed_ms + REMEMBERED_MS > now.monotonic_ms and len(self._rows) <= REMEMBERED_MAX:
                break
            self._rows.popitem(last=False)

    def ended(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._rows.clear()

    def rows(self) -> list[dict[str, Any]]:
        """Return the failing messages, the most tried first."""
        found = [row for _, row in self._rows.values()]

        return sorted(found, key=lambda row: (not row["dead"], -row["tries"], row["group"]))

    def counts(self) -> list[tuple[str, int]]:
        """Return how many messages fail in each group, the most first."""
        return Counter(group for group, _ in self._rows).most_common()

    def _read(self, group: str, dead: bool, physical: int, now: Now) -> None:
        stored = read_message(self._context.reader, physical)
        if stored is None:
            return
        message = decode_record(stored)
        if not dead and message.reconsume_times < TRIES_MIN:
            return
        said = decode_properties(message.properties)
        message_id = said.get(UNIQ_KEY) or self._context.message_id(physical)
        self._rows.pop((group, message_id), None)
        self._rows[group, message_id] = (
            now.monotonic_ms,
            {
                "group": group,
                "topic": said.get(RETRY_TOPIC, message.topic),
                "messageId": message_id,
                "offsetId": self._context.message_id(physical),
                "key": said.get(SHARDING_KEY) or said.get(KEYS),
                "tries": message.reconsume_times,
                "dead": dead,
                "lastFailed": now.wall_ms,
            },
        )
