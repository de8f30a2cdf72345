"""
Administration of consumer groups: 200, 201, 207, 208, 225, 303, 317, 352.

The rules: a change is a record, and its request is answered when the record is applied. Members of a configuration that
an older tool does not know keep their values. Lag is computed from the applied state, for every queue of a topic
and of the retry topic. A request without a topic gets no topics that the group's members no longer subscribe to.
Remarks are RocketMQ's (AdminBrokerProcessor). ``clients.py`` tells who is online.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any, Final

import msgspec

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import Pieces, filled, offset_table, rows_of, table
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, check_name
from orderlymq_broker.core.responses import answer_list, change, check_unchanging
from orderlymq_broker.processors.admin.topics import find_topic, merge_attributes
from orderlymq_broker.processors.fetch.query import QueryProcessor
from orderlymq_broker.processors.groups.groupcreation import check_own_topic, find_group
from orderlymq_broker.processors.groups.members import missing_retry_topic
from orderlymq_broker.processors.lanes.overview import lane_backlog
from orderlymq_broker.processors.observe.rates import Figures
from orderlymq_broker.processors.topics.pendingretries import RetryWatch
from orderlymq_broker.state.groups.failurepolicy import POLICIES
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.records import GroupDeleted, GroupSet, Record
from orderlymq_broker.state.topics.expansionphases import retries_left
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    ConsumeTimeSpan,
    DataVersion,
    OffsetWrapper,
    QueueTimeSpan,
    SubscriptionGroupConfig,
)
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE, DELAY_MS_MAX
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.groupinuse import in_use
from orderlymq_protocol.header.catalogue import (
    DeleteSubscriptionGroupHeader,
    GetConsumeStatsHeader,
    GetConsumeStatsInBrokerHeader,
    GroupHeader,
    TopicOfGroupHeader,
)
from orderlymq_protocol.header.extensions import EXT_MEMBERS
from orderlymq_protocol.names import (
    check_group_name,
    dlq_topic,
    is_system_group,
    retry_topic,
)
from orderlymq_protocol.plurals import counted

# The longest name, in characters, of the property that holds the key in a group by key.
PROPERTY_NAME_MAX: Final = 128
RETRY_QUEUES_MAX: Final = 1_024
# One log entry holds all of them, and one turn of the event loop processes them.
GROUPS_AT_ONCE_MAX: Final = 256

# The work for one queue in the answer to 303, which looks up three messages.
SPAN_WORK: Final = 6
# Topics that one request may list: an answer has a row for each of their queues.
TOPICS_MAX: Final = 256

_HOLDS: Final = (
    "group[{group}] cannot {change} while it holds {keys}, which later messages would overtake: "
    "release them first (orderlymq group release)"
)
_RETRIES: Final = (
    "group[{group}] cannot change to concurrency Key while {messages} must be retried, which "
    "consumers by key do not receive: let its consumers finish first"
)
_UNREAD: Final = (
    "group[{group}] cannot change to concurrency Key before the broker has checked {messages} "
    "with a delay, because some may be retries: send the request again in a moment"
)
_LETTERS: Final = (
    "group[{group}] cannot change to concurrency Queue while {letters} of its lanes must be "
    "stored: send the request again in a moment, or reset the group's offsets if the broker "
    "cannot store them"
)
_LOCKED: Final = (
    "group[{group}] cannot be declared concurrent while its members hold queue locks ({count}): stop its ordered consumers and "
    "wait until their leases end"
)
_TWO_ORDERS: Final = (
    "group[{group}] cannot have consumeConcurrently together with consumeMessageOrderly or "
    "concurrency Key: send the wanted one, and false or Queue for the others"
)

# No attribute of a group has an effect here; this one may be set to the value that the broker has anyway.
_ATTRIBUTES: Final = {"priority.factor": ("100",)}

# Members of 5.x and our own, which a 4.9 tool does not send: if one is absent, it keeps its value.
_NEWER_MEMBERS: Final = {
    "consumeMessageOrderly": "orderly",
    "groupSysFlag": "sys_flag",
    "consumeTimeoutMinute": "consume_timeout_minutes",
    "onDeadLetter": "on_dead_letter",
    "concurrency": "concurrency",
    "laneKeyProperty": "lane_key_property",
    "consumeConcurrently": "concurrent",
    "retryPauseMillis": "retry_pause_ms",
    "retryPauseMaxMillis": "retry_pause_max_ms",
}
# Members that one of our own tools may name as the only ones to change.
_MEMBERS: Final = {
    **_NEWER_MEMBERS,
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "retryQueueNums": "retry_queues",
    "retryMaxTimes": "retry_max_times",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "which_broker_when_slow",
    "notifyConsumerIdsChangedEnable": "notify_changes",
}


class GroupAdministration:
    """Serves administrators' requests about consumer groups.

    Args:
        flush: returns the gathered offset commits as records, which must precede a change or deletion, because a
            group by key takes no commits.
        retries: knows the messages that wait for their next try.
    """

    def __init__(
        self,
        context: Context,
        queries: QueryProcessor,
        figures: Figures,
        flush: Callable[[], list[Record]],
        retries: RetryWatch,
    ) -> None:
        self._context = context
        self._queries = queries
        self._figures = figures
        self._flush = flush
        self._retries = retries

    # -- changes -----------------------------------------------------------------------------------

    def update(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 200: create a group or change it."""
        body = fastjson.loads_standard(request.body)

        meant = request.ext.get(EXT_MEMBERS)
        only = None if meant is None else frozenset(filter(None, meant.split(",")))
        if unknown := (only or frozenset()) - _MEMBERS.keys():
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{EXT_MEMBERS} names {min(unknown)!r}, which is not a member of a group's "
                "configuration",
            )

        return self._change(self._judge(body, only), request, caller)

    def update_list(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 225: create or change several groups; if a check fails here, none of them changes."""
        body = fastjson.loads_standard(request.body)
        listed = body.get("groupConfigList") if isinstance(body, Mapping) else None
        if not isinstance(listed, list) or not listed:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "the body has no consumer groups; list them as groupConfigList",
            )
        if len(listed) > GROUPS_AT_ONCE_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{len(listed)} consumer groups in one request are too many; send at most "
                f"{GROUPS_AT_ONCE_MAX}",
            )
        records = [record for each in listed for record in self._judge(each)]

        return self._change(records, request, caller)

    def _change(
        self, records: list[Record], request: RemotingCommand, caller: Caller
    ) -> list[Effect]:
        names = [each.name for each in records if isinstance(each, GroupSet)]
        check_unchanging(self._context, "group", names)

        return change(self._context, [*self._flush(), *records], request, caller)

    def _judge(self, body: object, only: frozenset[str] | None = None) -> list[Record]:
        """Return the records that configure a group as in *body*; if the group exists, change *only* the members named.

        Raises:
            ModelError: *body* is not the configuration of a group.
            RequestRefused: the name or a number is not allowed (1).
        """
        config = SubscriptionGroupConfig.from_json_value(body)
        check_name(check_group_name, config.group_name)
        if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"retryQueueNums {config.retry_queue_nums} of group[{config.group_name}] is not "
                f"between 0 and {RETRY_QUEUES_MAX}",
            )
        if config.on_dead_letter not in POLICIES:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"onDeadLetter {config.on_dead_letter!r} of group[{config.group_name}] is not one "
                f"of {', '.join(POLICIES)}",
            )
        _check_lanes(config)
        if isinstance(body, Mapping):
            merge_attributes(f"group[{config.group_name}]", {}, body.get("attributes"), _ATTRIBUTES)
        present = self._context.state.groups.get(config.group_name)
        record = _record_of(config)
        if present is not None:
            if only is not None:
                record = _changed(present, record, only)
            else:
                kept: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
                missing = [member for member in _NEWER_MEMBERS if kept.get(member) is None]
                record = _changed(record, present, missing)

            if record.by_key != present.by_key:
                self._check_left(present, record)
            if record.concurrent and not present.concurrent:
                self._check_held_keys(record.name, "be declared concurrent")
                if count := self._context.state.locks.held_of[record.name]:
                    text = _LOCKED.format(group=record.name, count=count)
                    raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        _check_pauses(record)
        if record.concurrent and (record.orderly or record.by_key):
            if config.consume_concurrently:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, _TWO_ORDERS.format(group=record.name)
                )
            record = msgspec.structs.replace(record, concurrent=False)

        return [record, *missing_retry_topic(self._context.state, record)]

    def _check_left(self, present: GroupSet, wanted: GroupSet) -> None:
        """Refuse to change a group's mode while it has state that only its present mode can finish.

        Raises:
            RequestRefused: the group holds keys, has messages to try again, has lanes in hand, or has dead letters of
                lanes that are not stored (1).
        """
        group = wanted.name
        if present.by_key:
            self._check_letters(present, wanted)
            return
        self._check_held_keys(group, "change to concurrency Key")
        waiting = retries_left(self._context.state, group)
        waiting += sum(count for _, count in self._retries.waiting((group,)))
        unread = self._retries.unread
        if waiting:
            text, count = (_UNREAD, unread) if waiting == unread else (_RETRIES, waiting - unread)
            text = text.format(group=group, messages=counted(count, "message"))
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)

    def _check_letters(self, present: GroupSet, wanted: GroupSet) -> None:
        """Refuse to drop lanes whose messages are to become dead letters, because no one would store these.

        Raises:
            RequestRefused: some dead letters are not stored yet, or may arise before the change is in the log (1).
        """
        group, state = wanted.name, self._context.state
        count = state.lanes.count_in(LaneState.DEAD_LETTERING, group)
        count += self._context.entries.pending_removals["failed", group]
        text = _LETTERS.format(group=group, letters=counted(count, "dead letter")) if count else ""
        # The report about a lane in hand may be on its way.
        if text := text or state.lanes.refuse_change(present, wanted, state.locks):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)

    def _check_held_keys(self, group: str, change: str) -> None:
        """Refuse a change that would release messages of keys that are held because of a dead letter.

        Raises:
            RequestRefused: the group holds keys (1).
        """
        held = len(self._context.state.parked.of_group(group))
        if held:
            text = _HOLDS.format(group=group, change=change, keys=counted(held, "key"))
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)

    def delete(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 207: delete a group with its locks and members, and with its offsets if the request wants that."""
        header = DeleteSubscriptionGroupHeader.from_ext(request.ext)
        group = header.group_name
        if is_system_group(group):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"group[{group}] belongs to the broker and cannot be deleted",
            )
        self._check_unused(group)
        clean = header.remove_offset or header.clean_offset

        return change(self._context, [*self._flush(), GroupDeleted(group, clean)], request, caller)

    def _check_unused(self, group: str) -> None:
        """Refuse to delete a group in use: members of a new group of this name could get a message still being handled.

        Raises:
            RequestRefused: members have queues or lanes, or a pending proposal gives them some (20517).
        """
        state = self._context.state
        locks, lanes = state.locks.held_of[group], state.lanes.count_in(LaneState.IN_HAND, group)
        is_giving = self._context.entries.pending_removals["given", group] > 0
        if text := in_use(group, locks, lanes, is_giving=is_giving):
            raise RequestRefused(ResponseCode.ORDERLYMQ_GROUP_IN_USE, text)

    # -- questions about configuration -------------------------------------------------------------

    def configs(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 201: the configuration of every group."""
        groups = self._context.state.groups
        version = DataVersion(groups.version.counter, groups.version.timestamp)
        rows = rows_of(groups.by_name, config_of)
        pieces = table("subscriptionGroupTable", rows, dataVersion=version)

        return answer_list(self._context, request, caller, pieces)

    def config(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 352: one group's configuration."""
        config = find_group(self._context, GroupHeader.from_ext(request.ext).group)

        return answer(request, caller, body=config_of(config).to_json())

    # -- questions about progress ------------------------------------------------------------------

    def progress(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
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

    def all_progress(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
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

    # -- parts -------------------------------------------------------------------------------------

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


def _check_lanes(config: SubscriptionGroupConfig) -> None:
    """Refuse a configuration with an unknown mode or an impossible name of the key property.

    Raises:
        RequestRefused: the mode is unknown, or the name is no property's (1).
    """
    if config.concurrency not in (BY_QUEUE, BY_KEY):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"concurrency {config.concurrency[:32]!r} of group[{config.group_name}] is neither "
            f"{BY_QUEUE} nor {BY_KEY}",
        )
    if config.concurrency == BY_KEY:
        check_own_topic(dlq_topic(config.group_name))
    name = config.lane_key_property
    if not name or len(name) > PROPERTY_NAME_MAX or not name.isprintable():
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"laneKeyProperty of group[{config.group_name}] is not the name of a property: choose "
            f"1 to {PROPERTY_NAME_MAX} printable characters",
        )


def _check_pauses(record: GroupSet) -> None:
    """Refuse pauses between tries that are out of range or in the wrong order.

    Raises:
        RequestRefused: a pause is out of range, or the maximum is shorter than the first pause (1).
    """
    if not 1 <= record.retry_pause_ms <= record.retry_pause_max_ms <= DELAY_MS_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"retryPauseMillis {record.retry_pause_ms} and retryPauseMaxMillis "
            f"{record.retry_pause_max_ms} of group[{record.name}] are not valid: choose 1 to "
            f"{DELAY_MS_MAX}, the second not less than the first",
        )


def config_of(config: GroupSet) -> SubscriptionGroupConfig:
    """Return a group's configuration in its form on the wire."""
    return SubscriptionGroupConfig(
        group_name=config.name,
        consume_enable=config.consume_enable,
        consume_from_min_enable=config.consume_from_min_enable,
        consume_broadcast_enable=config.consume_broadcast_enable,
        consume_message_orderly=config.orderly,
        retry_queue_nums=config.retry_queues,
        retry_max_times=config.retry_max_times,
        broker_id=config.broker_id,
        which_broker_when_consume_slowly=config.which_broker_when_slow,
        notify_consumer_ids_changed_enable=config.notify_changes,
        group_sys_flag=config.sys_flag,
        consume_timeout_minute=config.consume_timeout_minutes,
        on_dead_letter=config.on_dead_letter,
        concurrency=config.concurrency,
        lane_key_property=config.lane_key_property,
        consume_concurrently=config.concurrent,
        retry_pause_millis=config.retry_pause_ms,
        retry_pause_max_millis=config.retry_pause_max_ms,
    )


def _changed(record: GroupSet, by: GroupSet, members: Iterable[str]) -> GroupSet:
    """Return *record* with the given *members* taken from *by*."""
    fields = [_MEMBERS[member] for member in members]
    return msgspec.structs.replace(record, **{field: getattr(by, field) for field in fields})


def _record_of(config: SubscriptionGroupConfig) -> GroupSet:
    return GroupSet(
        config.group_name,
        consume_enable=config.consume_enable,
        consume_from_min_enable=config.consume_from_min_enable,
        consume_broadcast_enable=config.consume_broadcast_enable,
        orderly=config.consume_message_orderly,
        retry_queues=config.retry_queue_nums,
        retry_max_times=config.retry_max_times,
        broker_id=config.broker_id,
        which_broker_when_slow=config.which_broker_when_consume_slowly,
        notify_changes=config.notify_consumer_ids_changed_enable,
        sys_flag=config.group_sys_flag,
        consume_timeout_minutes=config.consume_timeout_minute,
        concurrency=config.concurrency,
        lane_key_property=config.lane_key_property,
        on_dead_letter=config.on_dead_letter,
        concurrent=bool(config.consume_concurrently),
        retry_pause_ms=config.retry_pause_millis,
        retry_pause_max_ms=config.retry_pause_max_millis,
    )
