"""
Queries of messages and queues that change nothing: 12, 33 and 29 to 32.

The rules: only applied messages are shown, never one that may still be overwritten. A query by key returns the newest
messages, at most 64, with the oldest of them first. A search by time bisects the queue, whose store times do
not fall. The RocketMQ classes with the same wire format: QueryMessageProcessor, AdminBrokerProcessor.
"""

from bisect import bisect_left
from typing import Final

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer
from orderlymq_broker.processors.fetch.read import read_applied
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.store.consumequeue import read_messages
from orderlymq_broker.store.kv import Family
from orderlymq_broker.store.layout import (
    IndexKind,
    decode_queue_entry,
    decode_timestamp,
    decode_u64,
    index_prefix,
    message_key,
    prefix_end,
    queue_key,
)
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import (
    QueryMessageHeader,
    QueueHeader,
    SearchOffsetHeader,
    ViewMessageHeader,
)

KEY_RESULTS_MAX: Final = 64  # maxMsgsNumBatch
UNIQUE_RESULTS_MAX: Final = 32
# The index entries that one query reads, backwards from the end of the requested time.
INDEX_SCAN_MAX: Final = 4_096
# Store times do not fall along a queue, but along the log they do if the clock of the next leader is behind.
CLOCK_SLACK_MS: Final = 60_000
BODY_SIZE_MAX: Final = 8 << 20  # well below what one frame can carry
# Messages that are read together; their sizes are known only after the read.
LOADED_COUNT: Final = 4


class QueryProcessor:
    """Serves queries of messages and queues."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def by_key(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 12: messages by key."""
        header = QueryMessageHeader.from_ext(request.ext)
        context = self._context
        topic = context.state.topics.get(header.topic)
        found: list[bytes] = []
        if topic is not None and header.key:
            kind = IndexKind.UNIQUE if header.unique_key_query else IndexKind.KEY
            limit = UNIQUE_RESULTS_MAX if header.unique_key_query else KEY_RESULTS_MAX
            if not header.unique_key_query:
                limit = max(0, min(limit, header.max_num))
            prefix = index_prefix(topic.id, kind, header.key)
            kept = prefix + message_key(context.state.floor)
            end = self._index_end(prefix, header.end_timestamp + CLOCK_SLACK_MS)
            pairs = context.reader.scan(
                Family.KEY_INDEX, kept, end, limit=INDEX_SCAN_MAX, reverse=True
            )
            places = [
                message_key(decode_u64(key[-8:]))
                for key, value in pairs
                if header.begin_timestamp <= decode_timestamp(value) <= header.end_timestamp
            ]
            found = self._load(places, limit)[::-1]
        ext = {
            "indexLastUpdateTimestamp": str(context.state.last_timestamp),
            "indexLastUpdatePhyoffset": str(context.state.physical_end),
        }
        if not found:
            return answer(
                request,
                caller,
                ResponseCode.QUERY_NOT_FOUND,
                ext=ext,
                remark="can not find message, maybe time range not correct",
            )
        body = b"".join(found)
        context.quotas.handed_out(caller, len(body))

        return answer(request, caller, ext=ext, body=body)

    def by_offset(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 33: one message by its physical offset."""
        offset = ViewMessageHeader.from_ext(request.ext).offset
        stored = read_applied(self._context, offset)
        if stored is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        self._context.quotas.handed_out(caller, len(stored))

        return answer(request, caller, body=stored)

    def by_time(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 29: the offset for a store time."""
        header = SearchOffsetHeader.from_ext(request.ext)
        queue = self._queue(header)
        offset = 0
        if queue is not None:
            offset = self.search(queue, header.timestamp, header.boundary_type)

        return answer(request, caller, ext={"offset": str(offset)})

    def max_offset(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 30: the offset that the next message will get."""
        queue = self._queue(QueueHeader.from_ext(request.ext))

        return answer(
            request, caller, ext={"offset": str(queue.next_offset if queue is not None else 0)}
        )

    def min_offset(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 31: the first offset that is kept."""
        queue = self._queue(QueueHeader.from_ext(request.ext))

        return answer(
            request, caller, ext={"offset": str(queue.min_offset if queue is not None else 0)}
        )

    def earliest_time(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 32: the store time of the first message, -1 for an empty queue."""
        queue = self._queue(QueueHeader.from_ext(request.ext))
        timestamp = -1
        if queue is not None and queue.min_offset < queue.next_offset:
            timestamp = self.store_time(queue, queue.min_offset)

        return answer(request, caller, ext={"timestamp": str(timestamp)})

    # -- for administration too --------------------------------------------------------------------

    def store_time(self, queue: Queue, offset: int) -> int:
        """Return the store time (wall ms) of a message of the queue, or 0 if the message is gone."""
        if offset >= queue.tail_start:
            return queue.tail[offset - queue.tail_start].store_timestamp
        value = self._context.reader.get(
            Family.CONSUME_QUEUE, queue_key(queue.topic_id, queue.queue_id, offset)
        )

        return 0 if value is None else decode_queue_entry(value).store_timestamp

    def search(self, queue: Queue, timestamp: int, boundary: str | None = None) -> int:
        """Return the offset for a store time.

        Without *boundary*, the rule is RocketMQ 4.9's: the nearer of the two neighbours; the older one if they are
        equally near; the first of messages with equal times; the last message if all are older. ``LOWER``: the first
        message that is not older, or the end of the queue if all are older. ``UPPER``: the last message that is not
        younger.
        """
        low, high = queue.min_offset, queue.next_offset
        if low == high:
            return 0 if high == 0 else high
        first = self._first_from(queue, timestamp)
        if boundary == "LOWER":
            return first
        if boundary == "UPPER":
            return max(low, self._first_from(queue, timestamp + 1) - 1)
        if first == high:
            return high - 1
        if first == low:
            return low
        after = self.store_time(queue, first) - timestamp
        before = timestamp - self.store_time(queue, first - 1)

        return first if after < before else first - 1

    def _index_end(self, prefix: bytes, timestamp: int) -> bytes:
        """Return the end of the index entries of a key that are not newer than *timestamp*."""
        state, end = self._context.state, prefix_end(prefix)
        low, high = state.floor, state.physical_end
        if timestamp >= state.last_timestamp:
            return end
        while low < high:
            middle = (low + high) // 2
            start = prefix + message_key(middle)
            pairs = self._context.reader.scan(Family.KEY_INDEX, start, end, limit=1)
            if pairs and decode_timestamp(pairs[0][1]) <= timestamp:
                low = decode_u64(pairs[0][0][-8:]) + 1
            else:
                high = middle

        return prefix + message_key(low)

    def _first_from(self, queue: Queue, timestamp: int) -> int:
        """Return the first offset whose message is not older than *timestamp*."""
        return bisect_left(
            range(queue.next_offset),
            timestamp,
            lo=queue.min_offset,
            key=lambda at: self.store_time(queue, at),
        )

    def _queue(self, header: QueueHeader | SearchOffsetHeader) -> Queue | None:
        topic = self._context.state.topics.get(header.topic)

        return topic.queues.get(header.queue_id) if topic is not None else None

    def _load(self, keys: list[bytes], limit: int) -> list[bytes]:
        """Return up to *limit* messages that fit into one answer."""
        found: list[bytes] = []
        size = 0
        while keys and len(found) < limit:
            wanted, keys = keys[:LOADED_COUNT], keys[LOADED_COUNT:]
            for stored in read_messages(self._context.reader, wanted):
                if stored is None or len(found) == limit:
                    continue
                size += len(stored)
                if found and size > BODY_SIZE_MAX:
                    return found
                found.append(stored)

        return found
