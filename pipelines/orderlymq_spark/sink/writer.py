"""
The ordered sink: sends rows as messages, in order, each once.

Rules: one batch of messages per queue is in flight. Before it is sent, the sink looks up each message in the brokers'
index and skips stored ones. A repeated task or a dead driver therefore adds no message, as long as retention keeps
what the former try stored. The duplicate window of ordered topics also recognises messages that are still in flight;
in other topics a repeat may store those twice. The look-up for the next batch runs while a batch is in flight.

If an ordered topic gets more queues meanwhile, the sink places the rows again: unsent messages go to the queue of
their key after the expansion. Rows of one key in two tasks have no order: the commit finds them after they were sent, and
fails the batch (`ordered` prevents them). The memory of a task does not grow with its rows.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from orderlymq.admin.messages import RESENDS
from orderlymq.errors import SendUnknown, SettingError
from orderlymq.message import Message
from orderlymq.producer.producer import Producer
from orderlymq.producer.sendoutcome import split_batch
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.cluster.access import ClusterAccess, access_to, together
from orderlymq_spark.errors import UnorderedRows
from orderlymq_spark.options import ContentMode, SinkOptions
from orderlymq_spark.sink.messages import (
    QueueMessages,
    check_columns,
    queue_messages,
    with_event,
)
from orderlymq_spark.sparkversion import DataSourceStreamArrowWriter

_BATCH_COUNT_MAX: Final = 256  # a broker applies a batch in one step; larger batches delay others
_ROWS_AT_ONCE: Final = 64  # rows converted from Arrow at a time; Spark's batches may be large
_GROUP: Final = "orderlymq-spark"
_NO_TOTALS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass
class Sent(WriterCommitMessage):
    """The messages that one task has sent; 8 bytes of each key go to the driver."""

    count: int
    keys: npt.NDArray[np.int64]


class _Writer:
    def __init__(self, options: SinkOptions, columns: Mapping[str, str]) -> None:
        content = "value" if options.cloud_events else "body"
        check_columns(columns, options.topic, options.order_by, content)
        self._options = options
        # Created on the driver, once for all tasks of a plain frame and all their attempts.
        self._run = options.run_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task, after all of them have arrived and passed the checks."""
        options = self._options
        totals: dict[str, int] = {}

        def queues(topic: str) -> Sequence[MessageQueue]:
            route = access_to(options.connect).route(topic)
            if route.is_ordered:
                totals[topic] = len(route.publish)
            return route.publish

        with queue_messages(
            rows_of(iterator, options.cloud_events),
            queues,
            topic=options.topic,
            order_by=options.order_by,
            app_id=options.app_id,
            batch=self._batch(),
            task=None if options.check_order else _task(),
        ) as load:
            count, parts = 0, load.parts
            while parts:
                sent = send_messages(access_to(options.connect), parts, options.batch_bytes, totals)
                count += sent.count
                parts = load.place() if sent.grown else ()
            return Sent(count, np.array(load.keys, np.int64))

    def _batch(self) -> str:
        """Return the name of the load: the number of the micro-batch, or the name that the driver created."""
        context = TaskContext.get()
        # Spark sets this undocumented property in tasks; `commit` comes too late to name rows.
        number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        return f"{self._options.run_id}/{number}" if number else self._run

    def check(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Refuse keys that came from two tasks.

        Raises:
            UnorderedRows: Two tasks share a key; its rows are already sent, in no guaranteed order.
        """
        if not self._options.check_order:
            return
        keys = [message.keys for message in messages if isinstance(message, Sent)]
        ordered = np.sort(np.concatenate([np.empty(0, np.int64), *keys]))
        if (ordered[1:] == ordered[:-1]).any():
            raise UnorderedRows(
                "rows of one sharding key, or rows without a key, came from several tasks, so they have "
                "no order and equal rows cannot be distinguished; send orderlymq_spark.ordered(frame) instead "
                "of frame, with topic= if the sink has this option and the rows belong to several topics, or set checkOrder=false"
            )


class OrderedBatchWriter(_Writer, DataSourceArrowWriter):
    """A writer that sends a frame."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check the results of the tasks; the messages are already stored."""
        self.check(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: stored messages stay and are recognised when the frame is sent again."""


class OrderedStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A writer that sends a stream."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's names
        """Check the results of the tasks; the messages are already stored."""
        self.check(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the batch is repeated with the same identities."""


def rows_of(
    batches: Iterable[pa.RecordBatch], mode: ContentMode | None
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a task with their times in UTC; in the session's zone a time may lie outside Python's years."""
    for batch in batches:
        kinds = pa.schema([each.with_type(_in_utc(each.type)) for each in batch.schema])
        there = batch if kinds == batch.schema else batch.cast(kinds)
        for start in range(0, there.num_rows, _ROWS_AT_ONCE):
            rows = there.slice(start, _ROWS_AT_ONCE).to_pylist()
            yield from rows if mode is None else (with_event(row, mode) for row in rows)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_in_utc(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_utc(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


@dataclass(frozen=True, slots=True)
class Sends:
    """The outcome of a send of many messages.

    Attributes:
        count: how many were sent, because they were not stored before.
        grown: a topic now has more queues than its messages were placed in; not all of them are sent.
    """

    count: int
    grown: bool


def send_messages(
    access: ClusterAccess,
    found: Sequence[QueueMessages],
    batch_bytes: int,
    totals: Mapping[str, int] = _NO_TOTALS,
) -> Sends:
    """Send messages to all queues concurrently, while the topics have as many queues as in *totals*.

    Raises:
        SendRefused, SendUnknown: A broker refused or was unavailable; stored messages stay.
        SourceUnavailable: A broker was unavailable when it was asked which messages are stored.
    """
    return access.thread.run(_send(access, found, batch_bytes, totals))


async def _send(
    access: ClusterAccess,
    found: Sequence[QueueMessages],
    batch_bytes: int,
    totals: Mapping[str, int],
) -> Sends:
    # Do not limit bodies: each may be as large as its first producer allowed.
    producer = Producer(_GROUP, settings=RESENDS, instance=access.instance)
    # Each queue finishes first, so that stored messages are known before the others are placed again.
    async with producer:
        sends = await together(
            _send_queue(producer, access, part, batch_bytes, totals.get(part.queue.topic))
            for part in found
        )
    return Sends(sum(each.count for each in sends), any(each.grown for each in sends))


async def _send_queue(
    producer: Producer,
    access: ClusterAccess,
    part: QueueMessages,
    batch_bytes: int,
    total: int | None,
) -> Sends:
    grown = False

    def select(queues: Sequence[MessageQueue], _message: Message, _key: object) -> MessageQueue:
        nonlocal grown
        grown = len(queues) != total
        if grown:
            raise SettingError(f"{part.queue.topic} has {len(queues)} queues now")
        return part.queue

    timeout_s = access.connect.retry_timeout_ms / 1000
    options: dict[str, Any] = {"timeout": timeout_s}
    options |= {"queue": part.queue} if total is None else {"selector": select}
    count = 0
    pieces = split_batch(part.messages, batch_bytes, count_max=_BATCH_COUNT_MAX)
    ahead: asyncio.Task[list[Message]] | None = None
    try:
        piece = next(pieces, None)
        fresh = [] if piece is None else await _unsent(access, piece)
        while piece is not None:
            piece = next(pieces, None)
            ahead = None if piece is None else asyncio.create_task(_unsent(access, piece))
            if len(fresh) == 1:
                await producer.send(fresh[0], **options)
            elif fresh:
                await producer.send_batch(fresh, **options)
            count += len(fresh)
            fresh = [] if ahead is None else await ahead
    except (SettingError, SendUnknown):
        # After the growth the index shows whether an earlier attempt was stored.
        if not grown:
            raise
    finally:
        if ahead is not None:
            ahead.cancel()
    return Sends(count, grown)


async def _unsent(access: ClusterAccess, piece: Sequence[Message]) -> list[Message]:
    """Return the messages that are not stored yet, in order.

    A repeated run has stored its messages up to some point. A run that overlaps an earlier one, such as a second copy
    of a topic from an earlier offset, may find stored messages anywhere.
    """
    keys = [message.unique_key for message in piece]
    stored = await access.are_stored(piece[0].topic, keys)
    return [message for message, is_stored in zip(piece, stored, strict=True) if not is_stored]
