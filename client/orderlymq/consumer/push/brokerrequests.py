"""
Requests that brokers send to a consumer, and the answers.

Rebalance (40), reset offsets (220), status (221), running info (307), consume one message immediately (309).

Rule: RocketMQ's tools read the answers, so their JSON is RocketMQ's. Nothing here blocks the loop.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.wire import read_record
from orderlymq.consumer.core.events import (
    ConcurrentResult,
    Deliver,
    OffsetsReset,
    OrderedResult,
)
from orderlymq.consumer.push.brokercalls import lease_clock_ms
from orderlymq.consumer.push.stacks import stacks
from orderlymq.errors import OrderlyMQError
from orderlymq.ownedtasks import OwnedTasks
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import ConsumeDirectlyResult, ConsumerStatus, OffsetTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.record import RecordError, decode_record

if TYPE_CHECKING:
    from orderlymq.consumer.push.consumer import Consumer

_log = logging.getLogger(__name__)

_RESULTS = {
    OrderedResult.SUCCESS: "CR_SUCCESS",
    OrderedResult.SUSPEND: "CR_LATER",
    OrderedResult.COMMIT: "CR_COMMIT",
    OrderedResult.ROLLBACK: "CR_ROLLBACK",
    ConcurrentResult.SUCCESS: "CR_SUCCESS",
    ConcurrentResult.RECONSUME_LATER: "CR_LATER",
}

Reply = Callable[[RemotingCommand], None]


class InboundRequests:
    """Serves the requests that brokers send to one consumer."""

    def __init__(self, consumer: "Consumer") -> None:
        self._consumer = consumer

    def serve(self, command: RemotingCommand, reply: Reply, tasks: OwnedTasks) -> bool:
        """Serve *command*; return whether this class serves such requests."""
        match command.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._consumer.rebalance_now()
                if command.ext.get("omqQueues"):
                    topics = tuple(self._consumer.subscriptions)
                    tasks.start(watch_change(self._consumer.instance, topics), "watch for queues")
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._reset(command)
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                reply(command.reply(body=self._status(command.ext.get("topic", ""))))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                with_stacks = command.ext.get("jstackEnable") == "true"
                reply(command.reply(body=self._running_info(with_stacks=with_stacks)))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                tasks.start(self._consume_directly(command, reply), "consume directly")
            case _:
                return False
        return True

    def _reset(self, command: RemotingCommand) -> None:
        try:
            table = OffsetTable.from_json(command.body).offset_table
        except ValueError as error:
            _log.error("an offset reset cannot be read and is dropped: %s", error)
            return
        _log.info("offsets of %s are reset: %s", self._consumer.group, dict(table))
        self._consumer.post(OffsetsReset(dict(table)))

    def _status(self, topic: str) -> bytes:
        states = {} if self._consumer.by_key else self._consumer.core.queues
        table = {
            queue: state.committed
            for queue, state in states.items()
            if queue.topic == topic and state.committed is not None
        }
        return ConsumerStatus(table).to_json()

    def _running_info(self, *, with_stacks: bool) -> bytes:
        consumer = self._consumer
        settings = consumer.settings
        queues = () if consumer.by_key else tuple(consumer.core.queues)
        properties = {
            "PROP_CONSUMEORDERLY": str(consumer.ordered).lower(),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CLIENT_VERSION": "V4_9_8",
            "messageModel": settings.message_model.value,
            "consumeFromWhere": settings.consume_from.value,
            "consumeMessageBatchMaxSize": str(settings.consume_message_batch_max_size),
            "PROP_THREADPOOL_CORE_SIZE": str(settings.consume_thread_max),
        }
        return fastjson.dumps(
            {
                "mqTable": {queue: self._queue_info(queue) for queue in queues},
                **({"jstack": stacks()} if with_stacks else {}),
                "properties": properties,
                "statusTable": {
                    topic: each.to_json_value() for topic, each in consumer.stats().items()
                },
                "subscriptionSet": [
                    each.data.to_json_value() for each in consumer.subscriptions.values()
                ],
            }
        )

    def _queue_info(self, queue: MessageQueue) -> dict[str, object]:
        state = self._consumer.core.queues[queue]
        cache = state.fetcher.cache
        listeners = self._consumer.listeners
        attempt = None if listeners is None else listeners.attempt(queue)
        return {
            "cachedMsgCount": cache.count,
            "cachedMsgMinOffset": max(0, cache.min_offset),
            "cachedMsgMaxOffset": max(0, cache.max_offset),
            "cachedMsgSizeInMiB": cache.size_bytes // (1024 * 1024),
            "commitOffset": -1 if state.committed is None else state.committed,
            "droped": False,
            "locked": self._consumer.ordered
            and self._consumer.core.holds(queue, state.fetcher.generation, lease_clock_ms()),
            "lastConsumeTimestamp": 0 if attempt is None else attempt.called_ms,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": 0,
            "transactionMsgCount": 0,
            "transactionMsgMinOffset": 0,
            "transactionMsgMaxOffset": 0,
            "tryUnlockTimes": 0,
            # Our additions, for users who watch a queue that stands still; Java's tools ignore them.
            "omqTries": 0 if attempt is None else attempt.tries,
            "omqLastError": None if attempt is None else attempt.error,
            "omqRunning": attempt is not None and attempt.running,
            "omqSuspended": self._consumer.is_suspended,
        }

    async def _consume_directly(self, command: RemotingCommand, reply: Reply) -> None:
        """Call the listener with one message outside the normal flow; nothing is committed."""
        consumer = self._consumer
        listeners = consumer.listeners
        if listeners is None:
            return
        try:
            stored = decode_record(command.body)
            broker_name = command.ext.get("brokerName", "")
            queue = MessageQueue(stored.topic, broker_name, stored.queue_id)
            message = read_record(stored, queue, consumer.group)
            message.topic = consumer.instance.bare(message.topic)
        except (RecordError, OrderlyMQError, ValueError) as error:
            reply(command.reply(ResponseCode.SYSTEM_ERROR, remark=f"unreadable message: {error}"))
            return
        deliver = Deliver(queue, 0, 0, (message,), None)
        if consumer.ordered:
            done, call = await listeners.call_ordered(deliver, lambda: False)
        else:
            done, call = await listeners.call_concurrent(deliver)
        result = ConsumeDirectlyResult(
            "CR_THROW_EXCEPTION" if call.result is None else _RESULTS[call.result],
            call.raised,
            call.duration_ms,
            consumer.ordered,
            done.auto_commit,
        )
        reply(command.reply(body=result.to_json()))


# A broker may notify before it has registered its new queues: a consumer asks until it sees a change.
_LOOKS_S: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)


async def watch_change(instance: ClientInstance, topics: tuple[str, ...]) -> None:
    """Refresh the routes of *topics* until one has changed; the instance notifies its consumers."""
    before = {topic: instance.routes.get(topic) for topic in topics}
    for pause_s in _LOOKS_S:
        await asyncio.sleep(pause_s)
        for topic in topics:
            await instance.try_refresh(topic)
        if any(instance.routes.get(topic) != found for topic, found in before.items()):
            return
