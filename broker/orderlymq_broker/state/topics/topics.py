"""
The tables of topics and of consumer groups: their configuration.

The rules: a topic's id is given once and never used again, so that a topic that is deleted and
created again starts with empty queues. Every change of a table raises its version, by which brokers
and name servers notice the change. The content of a topic's queues is in ``queues.py``.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from orderlymq_broker.state.records import GroupChanged, GroupSet, TopicChanged, TopicSet
from orderlymq_broker.state.tables import TableWrites, read_as, read_counter
from orderlymq_broker.state.topics.expansiontable import Expansion
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.state.topics.rows import TopicRow
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table
from orderlymq_protocol.body.config import DEDUP_ATTRIBUTE, PERM_READ, PERM_WRITE
from orderlymq_protocol.names import (
    TIMER_TOPIC,
    UNSENDABLE_TOPICS,
    is_dlq_topic,
    is_retry_topic,
)

_TOPIC_COUNTERS: Final = "topics"
_GROUP_COUNTERS: Final = "groups"


class Topic:
    """One topic: its configuration and its queues, which are created when they are first written.

    The derived fields are stored instead of computed, because they are read for every message.
    """

    __slots__ = (
        "config",
        "deduplicated",
        "expansion",
        "id",
        "is_retry",
        "name",
        "name_bytes",
        "name_prefix",
        "queue_count",
        "queues",
        "readable",
        "sendable",
        "timed",
        "writable",
    )

    def __init__(self, topic_id: int, config: TopicSet) -> None:
        self.id = topic_id
        self.name = config.name
        self.name_bytes = config.name.encode()
        self.name_prefix = bytes((min(len(self.name_bytes), 0xFF),))
        self.is_retry = is_retry_topic(config.name)
        self.timed = config.name == TIMER_TOPIC
        self.sendable = config.name not in UNSENDABLE_TOPICS
        self.queues: dict[int, Queue] = {}
        self.expansion: Expansion | None = None
        self.configure(config)

    def __repr__(self) -> str:
        return f"Topic({self.id}, {self.config!r})"

    def configure(self, config: TopicSet) -> None:
        """Set another configuration of the same topic."""
        self.config = config
        self.queue_count = max(config.read_queues, config.write_queues)
        self.readable = bool(config.perm & PERM_READ)
        self.writable = bool(config.perm & PERM_WRITE)
        # Ordered topics promise one copy per send; a dead letter that is handed over twice is stored once.
        self.deduplicated = (
            config.order
            or self.is_retry
            or is_dlq_topic(config.name)
            or config.attributes.get(DEDUP_ATTRIBUTE) == "true"
        )

    def queue(self, queue_id: int) -> Queue:
        """Return the queue; create it if it was never written. Callers have checked the number."""
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = Queue(self.id, queue_id)

        return queue


class Versioned:
    """The counter and time of the last change of a table; RocketMQ's data version."""

    __slots__ = ("counter", "timestamp")

    def __init__(self, counter: int = 0, timestamp: int = 0) -> None:
        self.counter = counter
        self.timestamp = timestamp

    def bump(self, wall_ms: int) -> None:
        """Note a change."""
        self.counter += 1
        self.timestamp = max(self.timestamp, wall_ms)

    def row(self) -> tuple[int, int]:
        """Return the values on which replicas must agree."""
        return self.counter, self.timestamp


class TopicTable:
    """All topics, by name and by id; a row and its queues are removed with the topic. `BrokerState` adds the queues.

    Attributes:
        names_size: the bytes of all names.
    """

    def __init__(self, reader: Reader) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.names_size = 0
        counters = read_counter(reader, _TOPIC_COUNTERS, tuple[int, int, int], (0, 0, 1))
        *version, self.next_id = counters
        self.version = Versioned(*version)
        for row in read_as(reader, Table.TOPICS, TopicRow):
            self._add(Topic(row.id, row.config))

    def get(self, name: str) -> Topic | None:
        """Return the topic, or None."""
        return self.by_name.get(name)

    def set(self, record: TopicSet, wall_ms: int, writes: TableWrites) -> TopicChanged:
        """Create or reconfigure a topic."""
        topic = self.by_name.get(record.name)
        config = msgspec.structs.replace(record, only_if_absent=False)
        if topic is not None and (record.only_if_absent or topic.config == config):
            return TopicChanged(record.name, changed=False)
        if topic is None:
            topic = Topic(self.next_id, config)
            self.next_id += 1
            self._add(topic)
        else:
            topic.configure(config)
        writes.put(Table.TOPICS, topic.name, value=TopicRow(topic.id, config))
        self._bump(wall_ms, writes)

        return TopicChanged(record.name, changed=True)

    def delete(self, name: str, wall_ms: int, writes: TableWrites) -> Topic | None:
        """Remove a topic and return it; the caller removes its data."""
        topic = self.by_name.pop(name, None)
        if topic is None:
            return None
        del self.by_id[topic.id]
        self.names_size -= len(topic.name_bytes)
        self._bump(wall_ms, writes)
        writes.delete(Table.TOPICS, name)
        for queue_id in topic.queues:
            writes.delete(Table.QUEUES, topic.id, queue_id)

        return topic

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield topics and queues for the digest."""
        yield (*self.version.row(), self.next_id)
        for name in sorted(self.by_name):
            topic = self.by_name[name]
            yield (topic.id, topic.config)
            for queue_id in sorted(topic.queues):
                queue = topic.queues[queue_id]
                if queue.next_offset:
                    yield queue.row()

    def queues(self) -> Iterable[Queue]:
        """Yield every queue that was ever written."""
        for topic in self.by_id.values():
            yield from topic.queues.values()

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self.by_name) == len(self.by_id)
        assert self.names_size == sum(len(name.encode()) for name in self.by_name)
        for topic in self.by_id.values():
            assert self.by_name[topic.name] is topic
            assert topic.id < self.next_id, topic
            for queue in topic.queues.values():
                queue.check()

    def _add(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.id] = topic
        self.names_size += len(topic.name_bytes)

    def _bump(self, wall_ms: int, writes: TableWrites) -> None:
        self.version.bump(wall_ms)
        writes.put(Table.COUNTERS, _TOPIC_COUNTERS, value=(*self.version.row(), self.next_id))


class GroupTable:
    """The configuration of the consumer groups; a row is removed with its group."""

    def __init__(self, reader: Reader) -> None:
        self.by_name = {config.name: config for config in read_as(reader, Table.GROUPS, GroupSet)}
        self.version = Versioned(*read_counter(reader, _GROUP_COUNTERS, tuple[int, int], (0, 0)))

    def get(self, name: str) -> GroupSet | None:
        """Return the group's configuration, or None."""
        return self.by_name.get(name)

    def set(self, record: GroupSet, wall_ms: int, writes: TableWrites) -> GroupChanged:
        """Create or reconfigure a group."""
        present = self.by_name.get(record.name)
        config = msgspec.structs.replace(record, only_if_absent=False)
        if present is not None and (record.only_if_absent or present == config):
            return GroupChanged(record.name, changed=False)
        self.by_name[record.name] = config
        writes.put(Table.GROUPS, record.name, value=config)
        self._bump(wall_ms, writes)

        mode_changed = present is not None and present.by_key != config.by_key
        return GroupChanged(record.name, changed=True, mode_changed=mode_changed)

    def delete(self, name: str, wall_ms: int, writes: TableWrites) -> bool:
        """Remove a group's configuration and return whether it existed."""
        if self.by_name.pop(name, None) is None:
            return False
        writes.delete(Table.GROUPS, name)
        self._bump(wall_ms, writes)

        return True

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield groups for the digest."""
        yield self.version.row()
        for name in sorted(self.by_name):
            yield (self.by_name[name],)

    def _bump(self, wall_ms: int, writes: TableWrites) -> None:
        self.version.bump(wall_ms)
        writes.put(Table.COUNTERS, _GROUP_COUNTERS, value=self.version.row())
