"""
The progress of consumer groups: 208, 303, 317.

The rules: lag is computed from the applied state, for every queue of a topic and of the retry topic. A request without a
topic gets no topics that the group's members no longer subscribe to. Remarks are RocketMQ's (AdminBrokerProcessor).
"""

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import Any, Final

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import Pieces, filled, offset_table
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.core.responses import answer_list
from orderlymq_broker.processors.admin.topics import find_topic
from orderlymq_broker.processors.fetch.query import QueryProcessor
from orderlymq_broker.processors.lanes.overview import lane_backlog
from orderlymq_broker.processors.observe.rates import Figures
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import ConsumeTimeSpan, OffsetWrapper, QueueTimeSpan
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import (
    GetConsumeStatsHeader,
    GetConsumeStatsInBrokerHeader,
    TopicOfGroupHeader,
)
from orderlymq_protocol.names import retry_topic

# The work for one queue in the answer to 303, which looks up three messages.
SPAN_WORK: Final = 6
# Topics that one request may list: an answer has a row for each of their queues.
TOPICS_MAX: Final = 256


class GroupProgress:
    """Serves administrators' questions about the progress of consumer groups."""

    def __init__(self, context: Context, queries: QueryProcessor, figures: Figures) -> None:
        self._context = context
        self._queries = queries
        self._figures = figures

    def one(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 208: the progress of a group in one topic, in several, or in all that concern it.

        For a single topic that the group does not subscribe to, RocketMQ's broker reports nothing. This broker
        reports it. Our own tools ask for all topics in which the group has offsets, and also get the backlog of a
        group by key.
        """
        header = GetConsumeStatsHeader.from_ext(request.ext)
        if header.topic:
            names = [header.topic]
        elif header.topic_list:
            names = _named(header.topic_list)
        else:
            is_whole = request.ext.get("orderlymq") == "true"
            names = self._topics_of(header.consumer_group, is_whole=is_whole)

        pieces = self._progress(
            header.consumer_group, names, now, with_backlog="orderlymq" in request.ext
        )
        return answer_list(self._context, request, caller, pieces)

    def _progress(self, group: str, names: list[str], now: Now, *, with_backlog: bool) -> Pieces:
        """Write the body that RocketMQ calls `ConsumeStats`."""
        rate = 0.0

        def queues() -> Iterator[tuple[MessageQueue, OffsetWrapper]]:
            nonlocal rate
            for name in names:
                topic = self._context.state.topics.get(name)
                if topic is not None:
                    rate += self._figures.consume_rate(group, name, now.monotonic_ms)
                    yield from self._queues(group, topic, with_backlog=with_backlog)

        return offset_table(queues(), lambda: {"consumeTps": round(rate, 2)})

    def all(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 317: the progress of all groups; only in ordered topics if the request wants that."""
        only_ordered = GetConsumeStatsInBrokerHeader.from_ext(request.ext).is_order
        address = self._context.address_for(caller)

        return answer_list(
            self._context, request, caller, self._all_progress(only_ordered, address, now)
        )

    def _all_progress(self, only_ordered: bool, address: str, now: Now) -> Pieces:
        """Write the body that RocketMQ calls ConsumeStatsList."""
        state = self._context.state
        difference = in_flight = 0

        def queues(group: str, topic: Topic) -> Iterator[tuple[MessageQueue, OffsetWrapper]]:
            nonlocal difference, in_flight
            for queue, offsets in self._queues(group, topic):
                difference += offsets.broker_offset - offsets.consumer_offset
                in_flight += (offsets.pull_offset or 0) - offsets.consumer_offset
                yield queue, offsets

        start = b'{"consumeStatsList":['
        for group in sorted(state.offsets.groups()):
            begin = start + b"{" + fastjson.dumps(group) + b":["
            for name in self._topics_of(group):
                topic = state.topics.get(name)
                if topic is None or (only_ordered and not topic.config.order):
                    continue
                yield begin, 1
                rate = self._figures.consume_rate(group, name, now.monotonic_ms)
                yield from offset_table(queues(group, topic), partial(dict, consumeTps=rate))
                begin, start = b",", b"]},"
            yield b"", 1
        # The last element is not closed yet.
        end = b"]}" if start == b"]}," else start
        more = {
            "brokerAddr": address,
            "totalDiff": difference,
            "totalInflightDiff": in_flight,
        }
        yield end + b"]," + fastjson.dumps(more)[1:], 1

    def time_spans(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 303: the store times of the oldest, the newest and the consumed message of every queue."""
        header = TopicOfGroupHeader.from_ext(request.ext)
        topic = find_topic(self._context, header.topic)

        def rows() -> Iterator[Any]:
            for queue_id in range(topic.queue_count):
                yield self._time_span(topic, header.group, queue_id, now).to_json_value()
                yield from repeat(None, SPAN_WORK - 1)

        pieces = filled(ConsumeTimeSpan().to_json(), b'"consumeTimeSpanSet":[', rows())

        return answer_list(self._context, request, caller, pieces)

    def _topics_of(self, group: str, *, is_whole: bool = False) -> list[str]:
        """Return the topics in which a group has offsets: those that it may still want or, if *is_whole*, all of them.

        Its retry topic is among them if that has ever had messages.
        """
        members = self._context.state.members
        names = {
            name
            for name in self._context.state.offsets.of_group(group)
            if is_whole or members.may_want(group, name)
        }
        retries = self._context.state.topics.get(retry_topic(group))
        if retries is not None and any(queue.next_offset for queue in retries.queues.values()):
            names.add(retries.name)

        return sorted(names)

    def _queues(
        self, group: str, topic: Topic, *, with_backlog: bool = False
    ) -> Iterator[tuple[MessageQueue, OffsetWrapper]]:
        offsets = self._context.state.offsets.of_group(group).get(topic.name, {})
        pulled = self._context.positions.of(group, topic.name)
        for queue_id in range(topic.queue_count):
            queue = topic.queues.get(queue_id)
            committed = offsets.get(queue_id, 0)
            end, last_ms, backlog = 0, 0, None
            if queue is not None:
                end = queue.next_offset
                if queue.min_offset < committed <= end:
                    last_ms = self._queries.store_time(queue, committed - 1)
                if with_backlog:
                    backlog = lane_backlog(self._context.state, group, topic.name, queue)
            name = MessageQueue(topic.name, self._context.settings.group, queue_id)
            # Never less than the committed offset: tools of 5.x show the difference as messages in flight.
            position = max(committed, pulled.get(queue_id, 0))
            yield name, OffsetWrapper(end, committed, last_ms, position, backlog)

    def _time_span(self, topic: Topic, group: str, queue_id: int, now: Now) -> QueueTimeSpan:
        name = MessageQueue(topic.name, self._context.settings.group, queue_id)
        queue = topic.queues.get(queue_id)
        if queue is None or queue.min_offset == queue.next_offset:
            return QueueTimeSpan(name)
        first_ms = self._queries.store_time(queue, queue.min_offset)
        committed = self._context.state.offsets.get(group, topic.name, queue_id) or 0
        consumed_ms, delay_ms = first_ms, 0
        if queue.min_offset < committed <= queue.next_offset:
            consumed_ms = self._queries.store_time(queue, committed - 1)
        if committed < queue.next_offset:
            following = max(committed, queue.min_offset)
            delay_ms = max(0, now.wall_ms - self._queries.store_time(queue, following))

        return QueueTimeSpan(name, first_ms, queue.last_timestamp, consumed_ms, delay_ms)


def _named(topics: str) -> list[str]:
    """Return the topics that a request lists, each once.

    Raises:
        RequestRefused: it lists too many.
    """
    names = list(dict.fromkeys(filter(None, topics.split(";"))))
    if len(names) > TOPICS_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topicList names {len(names)} topics; name at most {TOPICS_MAX} at a time, or none "
            "to ask about all",
        )

    return names
