"""Rows of topics and queues, and messages in memory; ``topics.py`` and ``queues.py`` read and write them."""

import msgspec

from orderlymq_broker.state.records import TopicSet
from orderlymq_broker.store.entry import Buffer


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a topic."""

    id: int
    config: TopicSet


class FloorRow(msgspec.Struct, frozen=True, array_like=True):
    """The start of a trimmed queue; if the queue is empty, it cannot be read from CONSUME_QUEUE.

    Attributes:
        first_offset: the offset of the first message ever stored here; 0 in rows of former releases.
    """

    topic_id: int
    queue_id: int
    min_offset: int
    last_timestamp: int
    first_offset: int = 0


class TailEntry(msgspec.Struct, frozen=True, gc=False):
    """One message at the end of a queue, in the form that a pull needs.

    There are hundreds of thousands of them, so they and their contents are excluded from the garbage collector's scans.

    Attributes:
        data: the log entry in which it came; *size* bytes of it from *start* on are the message.
    """

    physical: int
    tags_code: int
    store_timestamp: int
    data: Buffer
    start: int
    size: int

    @property
    def message(self) -> memoryview:
        """The stored message."""
        return memoryview(self.data)[self.start : self.start + self.size]
