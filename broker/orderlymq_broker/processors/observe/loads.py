"""
Where the messages of a topic go: queues that get far more than their share, and keys that fill them.

The rules: a message costs one addition, every sixteenth a look at its sharding key (or its first index key);
a minute is closed at a time and judged as a whole; of the keys only as many are counted as a frequent one
needs to be found for certain (Misra and Gries). Who shows it: ``watch.py``.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from orderlymq_broker.core.context import Context
from orderlymq_broker.core.effects import Now
from orderlymq_broker.state.records import Append
from orderlymq_protocol.message.properties import SHARDING_KEY, find_property
from orderlymq_protocol.message.record import record_properties
from orderlymq_protocol.names import is_dlq_topic, is_system_topic

WINDOW_MS: Final = 60_000
# Fewer messages a minute fill no queue, however they are spread.
MESSAGES_MIN: Final = 600
# A queue is hot when it gets three times its share, and with few queues when it gets most of all.
HOT_FACTOR: Final = 3.0
HOT_SHARE_MAX: Final = 0.7
# One key with this share of a topic decides how fast the topic can be consumed in order.
HOT_KEY_SHARE: Final = 0.2
SAMPLE_EVERY: Final = 16
# Any key with more than one part in so many of the samples is surely among those that are counted.
KEYS_COUNTED: Final = 32
KEY_LENGTH_SHOWN: Final = 128
SHOWN_MAX: Final = 100

Item = TypeVar("Item", bound=Hashable)


class Frequent(Generic[Item]):
    """The most frequent of many items in little room.

    The count of an item is never too high, and too low by at most the number of all items divided by the
    room: each key with a greater share than that is here.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self.counts: dict[Item, int] = {}
        self.total = 0

    def add(self, item: Item) -> None:
        """Count an item."""
        counts = self.counts
        self.total += 1
        if item in counts:
            counts[item] += 1
        elif len(counts) < self._room:
            counts[item] = 1
        else:
            self.counts = {each: count - 1 for each, count in counts.items() if count > 1}


@dataclass(frozen=True, slots=True)
class HotQueue:
    """A queue that got far more than its share in the last minute."""

    topic: str
    queue_id: int
    messages: int
    share: float
    queues: int


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with a great share of its topic's messages; *share* is an estimate from samples."""

    topic: str
    key: str
    share: float


class Loads:
    """Counts what is applied, a minute at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queues: Counter[tuple[int, int]] = Counter()
        self._keys: dict[int, Frequent[str]] = {}
        self._seen = 0
        self._ends_ms = 0
        self.hot_queues: list[HotQueue] = []
        self.hot_keys: list[HotKey] = []
        self.shares: dict[str, tuple[float, float]] = {}

    def appended(self, records: Sequence[Append]) -> None:
        """Count applied messages."""
        queues = self._queues
        for record in records:
            queues[record.topic_id, record.queue_id] += 1
        for record in records[-self._seen % SAMPLE_EVERY :: SAMPLE_EVERY]:
            self._sample(record)
        self._seen += len(records)

    def tick(self, now: Now) -> None:
        """Close the minute when it is over."""
        if now.monotonic_ms < self._ends_ms:
            return
        if self._ends_ms:
            self._judge()
        self._queues.clear()
        self._keys.clear()
        self._ends_ms = now.monotonic_ms + WINDOW_MS

    def ended(self) -> None:
        """Forget everything: the sends of another leader are not seen."""
        self._queues.clear()
        self._keys.clear()
        self._ends_ms = 0
        self.hot_queues, self.hot_keys, self.shares = [], [], {}

    # -- parts -------------------------------------------------------------------------------------

    def _sample(self, record: Append) -> None:
        key = record.keys.partition(" ")[0]
        topic = self._context.state.topics.by_id.get(record.topic_id)
        queue = None if topic is None else topic.queues.get(record.queue_id)
        if queue is not None and record.queue_offset >= queue.tail_start:
            entry = queue.tail[record.queue_offset - queue.tail_start]
            key = find_property(record_properties(entry.message), SHARDING_KEY) or key
        if key:
            counted = self._keys.setdefault(record.topic_id, Frequent(KEYS_COUNTED))
            counted.add(key[:KEY_LENGTH_SHOWN])

    def _judge(self) -> None:
        topics: dict[int, dict[int, int]] = {}
        for (topic_id, queue_id), count in self._queues.items():
            topics.setdefault(topic_id, {})[queue_id] = count
        self.hot_queues, self.hot_keys, self.shares = [], [], {}
        for topic_id, queues in topics.items():
            topic = self._context.state.topics.by_id.get(topic_id)
            total = sum(queues.values())
            if topic is None or total < MESSAGES_MIN or not _is_of_users(topic.name):
                continue
            number, most = max(queues.items(), key=lambda each: (each[1], -each[0]))
            share, count = most / total, topic.config.write_queues
            if count > 1 and share >= min(HOT_SHARE_MAX, HOT_FACTOR / count):
                self.hot_queues.append(HotQueue(topic.name, number, most, round(share, 3), count))
            self.shares[topic.name] = (share, self._judge_keys(topic_id, topic.name, total))
        self.hot_queues = sorted(self.hot_queues, key=lambda each: -each.messages)[:SHOWN_MAX]
        self.hot_keys = sorted(self.hot_keys, key=lambda each: -each.share)[:SHOWN_MAX]

    def _judge_keys(self, topic_id: int, topic: str, total: int) -> float:
        """Note the hot keys of a topic and return the greatest share."""
        counted = self._keys.get(topic_id)
        samples = total / SAMPLE_EVERY
        greatest = 0.0
        for key, count in (counted.counts if counted is not None else {}).items():
            share = min(1.0, count / samples)
            greatest = max(greatest, share)
            if share >= HOT_KEY_SHARE:
                self.hot_keys.append(HotKey(topic, key, round(share, 3)))

        return greatest


def _is_of_users(topic: str) -> bool:
    return not is_system_topic(topic) and not is_dlq_topic(topic) and not topic.startswith("%")
