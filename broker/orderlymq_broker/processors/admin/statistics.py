"""
Administration of statistics: 28, 315, 321.

The rules: every key that RocketMQ's tools read is present, in the later spelling as well as in the earlier one
(getTransferedTps, getTransferredTps). A figure without a counterpart in this broker, such as the queues of thread
pools, is 0. The tools fail if a key is missing, but not if it is 0. The figures come from ``observe/rates.py``.
"""

from dataclasses import replace
from typing import Final

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer
from orderlymq_broker.processors.observe.rates import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    Figures,
)
from orderlymq_broker.state.groups.members import subscription_data
from orderlymq_broker.state.records import Subscription
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.store.kv import Family
from orderlymq_broker.store.layout import U64_END, decode_queue_entry, message_key, queue_key
from orderlymq_protocol.body.catalogue import ConsumeQueueData, ConsumeQueueView, KVTable
from orderlymq_protocol.body.clients import EXPRESSION_SQL92
from orderlymq_protocol.codes import REPORTED_VERSION, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import QueryConsumeQueueHeader, ViewBrokerStatsDataHeader
from orderlymq_protocol.message.record import RecordError, decode_record
from orderlymq_protocol.names import SCHEDULE_TOPIC

VERSION_NAME: Final = "V4_9_8"  # the name of REPORTED_VERSION
QUEUE_ENTRIES_MAX: Final = 1_024

_BROKER_NAMES: Final = frozenset({BROKER_PUT_NUMS, BROKER_GET_NUMS})
_LATENCIES: Final = (
    "<=0ms 0~10ms 10~50ms 50~100ms 100~200ms 200~500ms 500ms~1s 1~2s 2~3s 3~4s 4~5s 5~10s 10s~"
)
_UNITS: Final = "KMGTPE"
_IDLE: Final = {
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "dispatchBehindBytes": "0",
    "dispatchMaxBuffer": "0",
    "getMessageEntireTimeMax": "0",
    "pageCacheLockTimeMills": "0",
    "pullThreadPoolQueueCapacity": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "putMessageDistributeTime": "".join(f"[{span}]:0 " for span in _LATENCIES.split()),
    "putMessageEntireTimeMax": "0",
    "queryThreadPoolQueueCapacity": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "remainHowManyDataToFlush": "0 B",
    "remainTransientStoreBufferNumbs": "0",
    "sendThreadPoolQueueCapacity": "0",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "timerCongestNum": "0",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
    "timerOffsetBehind": "0",
    "timerReadBehind": "0",
}


class StatsAdministration:
    """Serves administrators' requests about rates and stored data."""

    def __init__(self, context: Context, figures: Figures) -> None:
        self._context = context
        self._figures = figures

    # -- 28 ----------------------------------------------------------------------------------------

    def runtime(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 28: an overview of the broker, with all values as text."""
        table = {
            **_IDLE,
            **self._identity(now),
            **self._throughput(now),
            **self._storage(),
            **self._delays(),
        }

        return answer(request, caller, body=KVTable(table).to_json())

    def _identity(self, now: Now) -> dict[str, str]:
        replication = self._context.replication
        uptime_ms = replication.get("uptime_ms")
        if not isinstance(uptime_ms, int):
            uptime_ms = max(0, now.wall_ms - (self._figures.began_wall_ms or now.wall_ms))
        days, rest = divmod(uptime_ms, DAY_MS)
        hours, rest = divmod(rest, HOUR_MS)
        minutes, rest = divmod(rest, MINUTE_MS)

        return {
            "bootTimestamp": str(now.wall_ms - uptime_ms),
            "brokerActive": "true" if self._context.leading else "false",
            "brokerVersion": str(REPORTED_VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "runtime": (
                f"[ {days} days, {hours} hours, {minutes} minutes, {rest // SECOND_MS} seconds ]"
            ),
            "sendThreadPoolQueueSize": str(replication.get("waiting", 0)),
        }

    def _throughput(self, now: Now) -> dict[str, str]:
        counters, figures = self._context.counters, self._figures
        put, got = counters["messages_in"], counters["messages_out"]
        (put_before, got_before), (put_today, got_today) = figures.mornings
        got_rates = figures.broker_rates(BROKER_GET_NUMS, now.monotonic_ms)

        return {
            "getFoundTps": got_rates,
            "getMissTps": "0.0 0.0 0.0",
            "getTotalTps": got_rates,
            "getTransferedTps": got_rates,
            "getTransferredTps": got_rates,
            "msgGetTotalTodayMorning": str(got_today),
            "msgGetTotalTodayNow": str(got),
            "msgGetTotalYesterdayMorning": str(got_before),
            "msgPutTotalTodayMorning": str(put_today),
            "msgPutTotalTodayNow": str(put),
            "msgPutTotalYesterdayMorning": str(put_before),
            "putMessageAverageSize": str(round(figures.bytes_in / put, 2) if put else 0.0),
            "putMessageFailedTimes": "0",
            "putMessageSizeTotal": str(figures.bytes_in),
            "putMessageTimesTotal": str(put),
            "putTps": figures.broker_rates(BROKER_PUT_NUMS, now.monotonic_ms),
        }

    def _storage(self) -> dict[str, str]:
        state, ratio = self._context.state, self._context.disk_ratio
        disk = self._context.replication.get("disk")
        total = disk.get("total", 0) if isinstance(disk, dict) else 0
        free = int(total * (1.0 - ratio))

        return {
            # rocketmq-exporter splits it at blanks, and drops the last character of a unit.
            "commitLogDirCapacity": f"Total : {_readable(total)}, Free : {_readable(free)}.",
            "commitLogDiskRatio": f"{ratio:.2f}",
            "commitLogMaxOffset": str(state.physical_end),
            "commitLogMinOffset": str(state.floor),
            "consumeQueueDiskRatio": f"{ratio:.2f}",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
        }

    def _earliest_ms(self) -> int:
        start = message_key(self._context.state.floor)
        pairs = self._context.reader.scan(Family.MESSAGES, start, U64_END, limit=1)
        try:
            return decode_record(pairs[0][1]).store_timestamp if pairs else -1
        except RecordError:
            return -1

    def _delays(self) -> dict[str, str]:
        state = self._context.state
        topic = state.topics.get(SCHEDULE_TOPIC)
        queues = {} if topic is None else topic.queues

        return {
            f"scheduleMessageOffset_{queue_id + 1}": (
                f"{state.delay.get(queue_id, 0)},{queues[queue_id].next_offset}"
            )
            for queue_id in sorted(queues)
            if queues[queue_id].next_offset
        }

    # -- 315 ---------------------------------------------------------------------------------------

    def stats(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 315: one counter over a minute, an hour and a day."""
        header = ViewBrokerStatsDataHeader.from_ext(request.ext)
        name, key = header.stats_name, header.stats_key
        if name in _BROKER_NAMES:
            settings = self._context.settings
            known = key in (settings.cluster, settings.group)
            data = self._figures.data(name, "", now.monotonic_ms) if known else None
        else:
            data = self._figures.data(name, key, now.monotonic_ms) if key else None
        if data is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")

        return answer(request, caller, body=data.to_json())

    # -- 321 ---------------------------------------------------------------------------------------

    def queue_entries(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 321: the entries of a consume queue that are still stored."""
        header = QueryConsumeQueueHeader.from_ext(request.ext)
        topic = self._context.state.topics.get(header.topic or "")
        if topic is None or not 0 <= header.queue_id < topic.queue_count:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{header.queue_id}@{header.topic} is not exist!",
            )
        queue = topic.queues.get(header.queue_id)
        count = max(0, min(header.count, QUEUE_ENTRIES_MAX))
        # An index below 0 asks for the newest entries, as in RocketMQ.
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.next_offset)
        first = header.index if header.index >= 0 else high + header.index
        entries = () if queue is None else self._entries(queue, max(first, low), count)
        group = header.consumer_group
        members = self._context.state.members
        subscription = members.subscriptions(group).get(topic.name) if group else None
        if subscription is not None:
            entries = tuple(
                replace(entry, eval=_may_match(subscription, entry)) for entry in entries
            )
        view = ConsumeQueueView(
            None if subscription is None else subscription_data(subscription),
            _filter_text(group, topic.name, subscription) if group else None,
            entries,
            low,
            high,
        )

        return answer(request, caller, body=view.to_json())

    def _entries(self, queue: Queue, first: int, count: int) -> tuple[ConsumeQueueData, ...]:
        end = min(queue.next_offset, first + count)
        if first >= end:
            return ()
        pairs = self._context.reader.scan(
            Family.CONSUME_QUEUE,
            queue_key(queue.topic_id, queue.queue_id, first),
            queue_key(queue.topic_id, queue.queue_id, end),
            limit=end - first,
        )
        entries = [decode_queue_entry(value) for _, value in pairs]

        return tuple(
            ConsumeQueueData(entry.physical, entry.size, entry.tags_code) for entry in entries
        )


def _may_match(subscription: Subscription, entry: ConsumeQueueData) -> bool:
    """Return whether a group may want a message, judged by the tag in its queue entry."""
    is_by_tags = subscription.expression_type != EXPRESSION_SQL92 and subscription.codes

    return not is_by_tags or entry.tags_code in subscription.codes


def _filter_text(group: str, topic: str, subscription: Subscription | None) -> str:
    if subscription is None:
        return f"{group}@{topic} is not online!"

    return subscription.expression if subscription.expression_type == EXPRESSION_SQL92 else "null"


def _readable(size: int) -> str:
    """Return a number of bytes in RocketMQ's notation for people (MixAll.humanReadableByteCount)."""
    power = min((max(size, 1).bit_length() - 1) // 10, len(_UNITS))

    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}iB" if power else f"{size} B"
