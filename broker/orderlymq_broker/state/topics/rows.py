"""Rows of topics and queues beside the messages; ``topics.py`` and ``queues.py`` read and write it."""

import msgspec

from orderlymq_broker.state.records import TopicSet


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    """A topic as its row holds it."""

    id: int
    config: TopicSet


class FloorRow(msgspec.Struct, frozen=True, array_like=True):
    """Where a trimmed queue begins; an empty one cannot be read from CONSUME_QUEUE any more."""

    topic_id: int
    queue_id: int
    min_offset: int
    last_timestamp: int
