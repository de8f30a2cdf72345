"""
The ordered sink: rows to messages, in order, each once.

Rules: one batch of messages per queue is on its way at a time; what of a queue's run is stored already is not
sent, which the brokers' index tells, so a task that is tried again or a driver that died adds nothing, however
long ago that was; what is in flight meanwhile is recognised by the brokers' duplicate window. Rows of one key
in two tasks have no order: they are refused (`ordered` prevents them).
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from orderlymq.message import Message
from orderlymq.producer import Producer
from orderlymq.sending import split_batch
from orderlymq_spark.access import ClusterAccess, access_to
from orderlymq_spark.errors import OptionError, UnorderedRows
from orderlymq_spark.options import SinkOptions
from orderlymq_spark.outgoing import Run, check_columns, key_hash, runs

_BATCH_COUNT_MAX: Final = 256  # a broker applies a batch in one go; more holds up others
_GROUP: Final = "orderlymq-spark"
_SAMPLE: Final = 8  # messages of a run that are looked up before it is sent, all at once


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    count: int
    keys: list[int]


class _Writer:
    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        check_columns(columns, options.topic, options.order_by)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task; they are all held in memory, to be sorted."""
        rows = list(chain.from_iterable(batch.to_pylist() for batch in iterator))
        if not rows:
            return Sent(0, [])
        options = self._options
        access = access_to(options.connect)
        topics = {options.topic or row["topic"] for row in rows}
        if None in topics:
            raise OptionError("a row has no topic, and the option topic is not set")
        queues = {topic: access.publish_queues(topic) for topic in sorted(topics)}
        found = runs(
            rows,
            queues,
            topic=options.topic,
            order_by=options.order_by,
            app_id=options.app_id,
            batch=_batch(),
        )
        count = send_runs(access, found, options.batch_bytes)
        keys = {
            key_hash(message.topic, message.key)
            for run in found
            for message in run.messages
            if message.key is not None
        }
        return Sent(count, sorted(keys))

    def check(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Refuse keys that came from two tasks.

        Raises:
            UnorderedRows: There is one; its rows are sent, in no promised order.
        """
        if not self._options.check_order:
            return
        seen: set[int] = set()
        for message in messages:
            assert isinstance(message, Sent)
            if not seen.isdisjoint(message.keys):
                raise UnorderedRows(
                    "rows of one sharding key came from several tasks, so they have no order; send "
                    "orderlymq_spark.ordered(frame) instead of frame, or set checkOrder=false"
                )
            seen.update(message.keys)


class OrderedBatchWriter(_Writer, DataSourceArrowWriter):
    """Sends a frame."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check what the tasks say; the messages are stored already."""
        self.check(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: what is stored stays, and is recognised when the frame is sent again."""


class OrderedStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Sends a stream."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's names
        """Check what the tasks say; the messages are stored already."""
        self.check(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the batch is repeated under the same identities."""


def _batch() -> str:
    """Return the number of the micro-batch, the same when it is repeated; empty for a plain frame."""
    context = TaskContext.get()
    # Spark gives tasks this property without documenting it; `commit` comes too late to name rows.
    number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return number or ""


def send_runs(access: ClusterAccess, found: Sequence[Run], batch_bytes: int) -> int:
    """Send runs, all queues at once; return how many messages were not stored before.

    Raises:
        SendRefused, SendUnknown: A broker refused, or stayed away; what is stored stays.
    """
    fresh = [(run, messages) for run in found if (messages := unsent(access, run))]
    if fresh:
        access.thread.run(_send(access, fresh, batch_bytes))
    return sum(len(messages) for _, messages in fresh)


def unsent(access: ClusterAccess, run: Run) -> list[Message]:
    """Return the messages of a run that are not stored yet, in order.

    A run that is repeated is stored up to somewhere; one that only overlaps a run of before, as when a topic
    is copied again from an earlier place, has new messages anywhere.
    """
    topic, count = run.queue.topic, len(run.messages)
    # Nearly always nothing is stored, hence a sample first; it has the first message and the last.
    places = {number * (count - 1) // (_SAMPLE - 1) for number in range(_SAMPLE)}
    sample = [run.messages[place].unique_key for place in sorted(places)]
    if not any(access.are_stored(topic, sample)):
        return run.messages
    stored = access.are_stored(topic, [message.unique_key for message in run.messages])
    return [message for message, there in zip(run.messages, stored, strict=True) if not there]


async def _send(
    access: ClusterAccess, fresh: Sequence[tuple[Run, list[Message]]], batch_bytes: int
) -> None:
    producer = Producer(_GROUP, instance=access.instance)
    async with producer, asyncio.TaskGroup() as group:
        for run, messages in fresh:
            group.create_task(
                _send_run(producer, access, run, messages, batch_bytes), name=f"send {run.queue}"
            )


async def _send_run(
    producer: Producer, access: ClusterAccess, run: Run, messages: list[Message], batch_bytes: int
) -> None:
    timeout_ms = access.connect.retry_timeout_ms
    for part in split_batch(messages, batch_bytes):
        for at in range(0, len(part), _BATCH_COUNT_MAX):
            piece = part[at : at + _BATCH_COUNT_MAX]
            options: dict[str, Any] = {"queue": run.queue, "timeout_ms": timeout_ms}
            if len(piece) == 1:
                await producer.send(piece[0], **options)
            else:
                await producer.send_batch(piece, **options)
