"""
Ranges of queues as rows, and the messages of a range, read by the task that needs them.

If a pipeline's tasks need messages only in Python, Spark carries ranges (`rangesOnly`). Spark plans, retries and
stores the offsets, and the task that receives a range reads it from the brokers. Messages then never cross into the
JVM and back, which would cost more than everything else together.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.tags import TagFilter
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.columns import COLUMNS, RANGE_COLUMNS
from orderlymq_spark.offsets import QueueRange, passed_over
from orderlymq_spark.options import SourceOptions
from orderlymq_spark.source.batches import ARROW_TYPES, BatchMaker
from orderlymq_spark.source.bounds import report_loss
from orderlymq_spark.source.records import parse_records

MESSAGE_TYPES: Final = {name: ARROW_TYPES[kind] for name, kind in COLUMNS.items()}


def range_row(schema: pa.Schema, part: QueueRange) -> pa.RecordBatch:
    """Return one row that names a range; *schema* is that of `columns.RANGE_COLUMNS`."""
    queue = part.queue
    values = (queue.topic, queue.broker_name, queue.queue_id, part.start, part.end)
    arrays = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def ranges_in_rows(rows: pa.RecordBatch) -> Iterator[QueueRange]:
    """Yield the ranges that the rows name."""
    columns = [rows.column(name).to_pylist() for name in RANGE_COLUMNS]
    for topic, broker, queue_id, start, end in zip(*columns, strict=True):
        yield QueueRange(MessageQueue(topic, broker, queue_id), start, end)


def message_schema(options: SourceOptions) -> pa.Schema:
    """Return the Arrow schema of the columns that the options ask for."""
    return pa.schema([pa.field(name, MESSAGE_TYPES[name]) for name in options.columns])


def read_range(
    options: SourceOptions, schema: pa.Schema, part: QueueRange
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range, in order.

    Raises:
        DataLost: Messages are missing and `failOnDataLoss` is true.
        SourceUnavailable: The cluster was unavailable longer than `retryTimeout`.
    """
    access = access_to(options.connect)
    keep_tags = TagFilter.parse(options.tags).tags
    maker = BatchMaker(
        schema,
        part.queue,
        sequence_property=options.sequence_property,
        epoch_property=options.epoch_property,
        keep_tags=keep_tags,
        value=options.value,
    )
    position = part.start
    while position < part.end:
        for fetched in access.read(QueueRange(part.queue, position, part.end), options.tags):
            block = parse_records(fetched.chunks, position, part.end)
            covered = QueueRange(part.queue, position, fetched.next_offset)
            if not keep_tags and len(block) != covered.size:
                # RocketMQ's brokers silently skip messages whose file is gone.
                report_loss(
                    options, passed_over(covered, block.numbers["queue_offset"].tolist()), ()
                )
            position = fetched.next_offset
            if len(block):
                yield from maker.batches(block)
            if fetched.moved_to is not None:
                gone = QueueRange(part.queue, position, min(fetched.moved_to, part.end))
                report_loss(options, [gone], ())
                position = gone.end
