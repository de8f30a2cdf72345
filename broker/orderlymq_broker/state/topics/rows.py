"""Rows of topics and queues beside the messages, and messages in memory; ``topics.py`` and ``queues.py`` read and write them."""

import msgspec

from orderlymq_broker.state.records import TopicSet
from orderlymq_broker.store.entry import Buffer


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    """A topic as its row holds it."""

    id: int
    config: TopicSet


class FloorRow(msgspec.Struct, frozen=True, array_like=True):
    """Where a trimmed queue begins; an empty one cannot be read from CONSUME_QUEUE any more.

    Attributes:
        first_offset: offset of the first message that was ever here; 0 in rows of former releases.
    """

    topic_id: int
    queue_id: int
    min_offset: int
    last_timestamp: int
    first_offset: int = 0


class TailEntry(msgspec.Struct, frozen=True, gc=False):
    """One message at the end of a queue, as a pull needs it.

    There are hundreds of thousands of them: neither they nor what they hold is anything that the collector looks through.

    Attributes:
        data: the entry of the log that brought it; *size* bytes of it from *start* on are the message.
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
