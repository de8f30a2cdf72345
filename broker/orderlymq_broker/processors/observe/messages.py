"""
Findings from applied messages: queues and keys with far more than their share, and messages that fail again and again.

The rules of loads: a message costs one addition, and every sixteenth also a look at its sharding key (or its first
index key). Each minute is closed and then evaluated as a whole. Only as many keys are counted as are needed to find a
frequent one for certain (Misra and Gries). The rules of failures: a failure shows when the message arrives in the
group's retry topic or among its dead letters, whichever client failed and however it failed. The message itself is
read later, not while a send waits. Only failures of the last hour are kept, and a limited number. ``watch.py`` shows
them.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from orderlymq_broker.core.effects import Now
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.processors.fetch.read import read_message
from orderlymq_broker.state.records import Append
from orderlymq_protocol.message.properties import (
    KEYS,
    RETRY_TOPIC,
    SHARDING_KEY,
    UNIQ_KEY,
    decode_properties,
    find_property,
)
from orderlymq_protocol.message.record import StoredMessage, decode_record, record_properties
from orderlymq_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_dlq_topic, is_system_topic

WINDOW_MS: Final = 60_000
# With fewer messages per minute, no queue is overloaded, however they are distributed.
MESSAGES_MIN: Final = 600
# A queue is hot if it gets three times its share or, if there are few queues, most of all messages.
HOT_FACTOR: Final = 3.0
HOT_SHARE_MAX: Final = 0.7
# A single key with this share of a topic limits how fast the topic can be consumed in order.
HOT_KEY_SHARE: Final = 0.2
SAMPLE_EVERY: Final = 16
# Any key with more than one in this many of the samples is certainly among the counted keys.
KEYS_COUNTED: Final = 32
# Clients choose these texts, and a status contains hundreds of them.
KEY_LENGTH_SHOWN: Final = 128
ID_LENGTH_SHOWN: Final = 255
SHOWN_MAX: Final = 100
# Queues and topics of the last minute that one tick evaluates: about 2 ms.
JUDGED_MAX: Final = 8_192

# The first tries of a message often fail for reasons that disappear by themselves.
TRIES_MIN: Final = 3
REMEMBERED_MAX: Final = 1_000
REMEMBERED_MS: Final = 3_600_000
# The most messages that wait to be read; there are more only if everything fails, and then these are enough.
WAITING_MAX: Final = 2_000
READ_PER_TICK: Final = 50

Row = dict[str, Any]


class Frequent:
    """The most frequent of many texts, found with little memory.

    The count of a text is never too high, and too low by at most the number of all texts divided by the
    room. Therefore each text with a greater share than that is among the counts.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self.counts: dict[str, int] = {}

    def add(self, item: str) -> None:
        """Count a text."""
        counts = self.counts
        if item in counts:
            counts[item] += 1
        elif len(counts) < self._room:
            counts[item] = 1
        else:
            self.counts = {each: count - 1 for each, count in counts.items() if count > 1}


class Loads:
    """Counts applied messages, minute by minute."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queues: Counter[tuple[int, int]] = Counter()
        self._keys: dict[int, Frequent] = {}
        self._seen = 0
        self._ends_ms = 0
        # The evaluation of the last minute, if it is in progress.
        self._judging: Iterator[None] = iter(())
        self.hot_queues: list[Row] = []
        self.hot_keys: list[Row] = []
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
        """Close the minute if it is over, and evaluate a part of the last one."""
        if now.monotonic_ms >= self._ends_ms:
            if self._ends_ms:
                self._judging = self._judge(self._queues, self._keys)
            self._queues, self._keys = Counter(), {}
            self._ends_ms = now.monotonic_ms + WINDOW_MS
        for _ in islice(self._judging, JUDGED_MAX):
            pass

    def ended(self) -> None:
        """Clear everything, because this replica does not see the sends to another leader."""
        self._queues.clear()
        self._keys.clear()
        self._ends_ms = 0
        self._judging = iter(())
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

    def _judge(self, counts: Counter[tuple[int, int]], keys: dict[int, Frequent]) -> Iterator[None]:
        """Evaluate a minute; yield after each queue and topic."""
        topics: dict[int, dict[int, int]] = {}
        for (topic_id, queue_id), count in counts.items():
            topics.setdefault(topic_id, {})[queue_id] = count
            yield
        hot_queues: list[Row] = []
        hot_keys: list[Row] = []
        shares: dict[str, tuple[float, float]] = {}
        for topic_id, queues in topics.items():
            yield
            topic = self._context.state.topics.by_id.get(topic_id)
            total = sum(queues.values())
            if topic is None or total < MESSAGES_MIN or not _is_of_users(topic.name):
                continue
            number, most = max(queues.items(), key=lambda each: (each[1], -each[0]))
            share, count = most / total, topic.config.write_queues
            if count > 1 and share >= min(HOT_SHARE_MAX, HOT_FACTOR / count):
                hot_queues.append(
                    {
                        "topic": topic.name,
                        "queue_id": number,
                        "messages": most,
                        "share": round(share, 3),
                        "queues": count,
                    }
                )
            by_key = _shares_of(keys.get(topic_id), total)
            shares[topic.name] = (share, max(by_key.values(), default=0.0))
            hot_keys += [
                {"topic": topic.name, "key": key, "share": round(share, 3)}
                for key, share in by_key.items()
                if share >= HOT_KEY_SHARE
            ]
        self.hot_queues = sorted(hot_queues, key=lambda each: -each["messages"])[:SHOWN_MAX]
        self.hot_keys = sorted(hot_keys, key=lambda each: -each["share"])[:SHOWN_MAX]
        self.shares = shares


def _shares_of(counted: Frequent | None, total: int) -> dict[str, float]:
    """Return the share of *total* messages that each of the frequent keys has."""
    samples = total / SAMPLE_EVERY
    counts = {} if counted is None else counted.counts

    return {key: min(1.0, count / samples) for key, count in counts.items()}


def _is_of_users(topic: str) -> bool:
    return not is_system_topic(topic) and not is_dlq_topic(topic) and not topic.startswith("%")


class Failures:
    """Remembers failing messages, the latest failure last."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[tuple[str, bool, int]] = deque(maxlen=WAITING_MAX)
        # By group and message: when it last failed (monotonic ms), and the row that is shown.
        self._rows: OrderedDict[tuple[str, str], tuple[int, Row]] = OrderedDict()

    def appended(self, records: Sequence[Append]) -> None:
        """Note messages that any sender puts into a retry topic or among dead letters, and count the dead letters."""
        topics = self._context.state.topics.by_id
        for topic_id in {record.topic_id for record in records}:
            topic = topics.get(topic_id)
            if topic is None or not topic.name.startswith("%"):
                continue
            dead = is_dlq_topic(topic.name)
            group = topic.name.removeprefix(DLQ_PREFIX if dead else RETRY_PREFIX)
            places = [record.physical for record in records if record.topic_id == topic_id]
            self._waiting.extend((group, dead, physical) for physical in places)
            if dead:
                self._context.counters["dead_letters"] += len(places)

    def tick(self, now: Now) -> None:
        """Read some of the noted messages and drop the old ones."""
        for _ in range(min(READ_PER_TICK, len(self._waiting))):
            self._read(*self._waiting.popleft(), now)
        while self._rows:
            failed_ms, _ = next(iter(self._rows.values()))
            if failed_ms + REMEMBERED_MS > now.monotonic_ms and len(self._rows) <= REMEMBERED_MAX:
                break
            self._rows.popitem(last=False)

    def ended(self) -> None:
        """Clear everything."""
        self._waiting.clear()
        self._rows.clear()

    def rows(self) -> list[Row]:
        """Return the failing messages: dead ones first, then those with the most tries."""
        found = [row for _, row in self._rows.values()]

        return sorted(found, key=lambda row: (not row["dead"], -row["tries"], row["group"]))

    def counts(self) -> list[tuple[str, int]]:
        """Return the number of failing messages of each group, the largest first."""
        return Counter(group for group, _ in self._rows).most_common()

    def _read(self, group: str, dead: bool, physical: int, now: Now) -> None:
        stored = read_message(self._context.reader, physical)
        if stored is None:
            return
        message = decode_record(stored)
        if not dead and message.reconsume_times < TRIES_MIN:
            return
        ids = ids_of(self._context, message)
        ids["messageId"] = ids["messageId"] or ids["offsetId"]
        self._rows.pop((group, ids["messageId"]), None)
        self._rows[group, ids["messageId"]] = (
            now.monotonic_ms,
            {
                "group": group,
                "topic": self._origin_of(message),
                **ids,
                "dead": dead,
                "lastFailed": now.wall_ms,
            },
        )

    def _origin_of(self, message: StoredMessage) -> str:
        """Return the topic in which a message failed; ignore an unknown name, which may be any text of its sender."""
        said = find_property(message.properties, RETRY_TOPIC)

        return said if said in self._context.state.topics.by_name else message.topic


def ids_of(context: Context, message: StoredMessage) -> Row:
    """Return the ids, the key and the tries of a message in the form for tools; long texts are cut off."""
    said = decode_properties(message.properties)
    unique_key, key = said.get(UNIQ_KEY), said.get(SHARDING_KEY) or said.get(KEYS)

    return {
        "messageId": unique_key and unique_key[:ID_LENGTH_SHOWN],
        "offsetId": context.message_id(message.physical_offset),
        "key": key and key[:KEY_LENGTH_SHOWN],
        "tries": message.reconsume_times,
    }
