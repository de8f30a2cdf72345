"""
Administration of consumer groups: 200, 201, 207, 225, 352.

The rules: a change is a record, and its request is answered when the record is applied. Members of a configuration that
an older tool does not know keep their values. Remarks are RocketMQ's (AdminBrokerProcessor). ``groupprogress.py`` tells
how far a group is, ``clients.py`` who is online.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import rows_of, table
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, check_name
from orderlymq_broker.core.responses import answer_list, change, check_unchanging
from orderlymq_broker.processors.admin.topics import merge_attributes
from orderlymq_broker.processors.groups.groupcreation import check_own_topic, find_group
from orderlymq_broker.processors.groups.members import missing_retry_topic
from orderlymq_broker.processors.topics.pendingretries import RetryWatch
from orderlymq_broker.state.groups.failurepolicy import POLICIES
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.records import GroupDeleted, GroupSet, Record
from orderlymq_broker.state.topics.expansionphases import retries_left
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    DataVersion,
    SubscriptionGroupConfig,
)
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE, DELAY_MS_MAX
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.groupinuse import in_use
from orderlymq_protocol.header.catalogue import (
    DeleteSubscriptionGroupHeader,
    GroupHeader,
)
from orderlymq_protocol.header.extensions import EXT_MEMBERS
from orderlymq_protocol.names import (
    check_group_name,
    dlq_topic,
    is_system_group,
)
from orderlymq_protocol.plurals import counted

# The longest name, in characters, of the property that holds the key in a group by key.
PROPERTY_NAME_MAX: Final = 128
RETRY_QUEUES_MAX: Final = 1_024
# One log entry holds all of them, and one turn of the event loop processes them.
GROUPS_AT_ONCE_MAX: Final = 256

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
        flush: Callable[[], list[Record]],
        retries: RetryWatch,
    ) -> None:
        self._context = context
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
