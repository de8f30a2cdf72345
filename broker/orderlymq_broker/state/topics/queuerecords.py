"""What is stored of a queue beside its messages; ``queues.py`` reads and writes it."""

import msgspec


class FloorRow(msgspec.Struct, frozen=True, array_like=True):
    """Where a trimmed queue begins; an empty one cannot be read from CONSUME_QUEUE any more."""

    topic_id: int
    queue_id: int
    min_offset: int
    last_timestamp: int
