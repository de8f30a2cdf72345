"""
Administration of topics: 17, 18, 21, 202, 215, 300, 305, 316, 351, 513.

The rules: a change is a record, and its request is answered when the record is applied. An ordered topic keeps its
queues and stays ordered as long as it exists, because the queue of a key depends on their number. No queue is removed
from a topic while a group still has to read from it. Names and remarks are RocketMQ's
(AdminBrokerProcessor, TopicConfigManager). ``groups.py`` does the same for consumer groups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import array, offset_table, rows_of, table
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, check_name
from orderlymq_broker.core.responses import answer_list, change, check_unchanging
from orderlymq_broker.processors.observe.rates import Figures
from orderlymq_broker.state.records import Record, TopicDeleted, TopicSet
from orderlymq_broker.state.removals import refuse_fewer
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    DataVersion,
    TopicConfig,
    TopicConfigList,
    TopicList,
    TopicOffset,
)
from orderlymq_protocol.body.config import (
    MESSAGE_TYPE_ATTRIBUTE,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    QUEUES_MAX,
    SINGLE_TAG,
    TOPIC_ATTRIBUTES,
    TYPE_IN_ORDER,
    UNIT,
    UNIT_SUBSCRIPTION,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import CreateTopicHeader, TopicHeader
from orderlymq_protocol.header.extensions import EXT_NEW
from orderlymq_protocol.names import (
    AUTO_CREATE_TOPIC,
    check_topic_name,
    is_system_topic,
    reply_topic,
)
from orderlymq_protocol.plurals import counted

# One log entry holds all of them, and one turn of the event loop processes them.
TOPICS_AT_ONCE_MAX: Final = 256

_PERM_ALL: Final = PERM_READ | PERM_WRITE | PERM_INHERIT
_FLAGS_ALL: Final = UNIT | UNIT_SUBSCRIPTION


class TopicAdministration:
    """Serves administrators' requests about topics.

    Args:
        flush: returns the gathered offset commits as records, which must precede a deletion.
    """

    def __init__(
        self, context: Context, figures: Figures, flush: Callable[[], list[Record]]
    ) -> None:
        self._context = context
        self._figures = figures
        self._flush = flush

    # -- changes -----------------------------------------------------------------------------------

    def create(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 17: create a topic or change it; with `omqNew` only create it."""
        header = CreateTopicHeader.from_ext(request.ext)
        if request.ext.get(EXT_NEW) == "true" and self._context.state.topics.get(header.topic):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{header.topic}] was created meanwhile and stays as it is; look at it again",
            )

        return self._set(header, request, caller)

    def create_list(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 18: create or change several topics; if a check fails here, none of them changes."""
        body = fastjson.loads_standard(request.body)
        configs = TopicConfigList.from_json_value(body).topic_config_list
        if len(configs) > TOPICS_AT_ONCE_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{len(configs)} topics in one request are too many; send at most {TOPICS_AT_ONCE_MAX}",
            )
        records = [
            self._judge(config, raw.get("attributes"))
            for config, raw in zip(configs, body.get("topicConfigList") or (), strict=True)
        ]
        if not records:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the list of topics is empty")

        return self._change(records, request, caller)

    def create_static(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 513: create a topic whose queues stay in their broker group, as all queues do here.

        The body maps queues to brokers. For a new topic, it adds nothing to the numbers in the header.
        """
        header = CreateTopicHeader.from_ext(request.ext)
        counts = (header.read_queue_nums, header.write_queue_nums)
        present = self._context.state.topics.get(header.topic)
        if present is None:
            # The cluster has more broker groups than the topic has queues: this group gets none.
            return self._set(header, request, caller) if any(counts) else answer(request, caller)
        if counts != (present.config.read_queues, present.config.write_queues):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{header.topic}] exists, and its queues stay with their broker group; add "
                "queues with updateTopic or a Topic manifest",
            )

        return answer(request, caller)

    def delete(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 215: delete a topic with its messages and with the offsets that groups have committed in it."""
        name = TopicHeader.from_ext(request.ext).topic
        self._check_not_system(name)
        check_unchanging(self._context, "topic", [name])
        if self._context.state.topics.get(name) is None:
            return answer(request, caller)

        return change(self._context, [*self._flush(), TopicDeleted(name)], request, caller)

    def clean_unused(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 316: do nothing, because a deleted topic leaves nothing behind."""
        return answer(request, caller)

    # -- questions ---------------------------------------------------------------------------------

    def configs(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 21: the configuration of every topic."""
        topics = self._context.state.topics
        version = DataVersion(topics.version.counter, topics.version.timestamp)
        pieces = table("topicConfigTable", rows_of(topics.by_name, _shown), dataVersion=version)

        return answer_list(self._context, request, caller, pieces)

    def config(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 351: one topic's configuration, in 5.x's form."""
        topic = find_topic(self._context, TopicHeader.from_ext(request.ext).topic)

        return answer(request, caller, body=fastjson.dumps(_shown(topic)))

    def stats(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 202: bounds and last store time of every queue, empty ones included, and the topic's send rate."""
        topic = find_topic(self._context, TopicHeader.from_ext(request.ext).topic)
        rate = self._figures.put_rate(topic.name, now.monotonic_ms)
        pieces = offset_table(self._bounds(topic), lambda: {"topicPutTps": rate})

        return answer_list(self._context, request, caller, pieces)

    def _bounds(self, topic: Topic) -> Iterator[tuple[MessageQueue, TopicOffset]]:
        for queue_id in range(topic.queue_count):
            queue = topic.queues.get(queue_id)
            offsets = TopicOffset()
            if queue is not None:
                last_ms = queue.last_timestamp if queue.next_offset > queue.min_offset else 0
                offsets = TopicOffset(queue.min_offset, queue.next_offset, last_ms)
            yield MessageQueue(topic.name, self._context.settings.group, queue_id), offsets

    def consumers(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 300: the groups that subscribe to a topic or have offsets in it."""
        topic = TopicHeader.from_ext(request.ext).topic
        rows = groups_of(self._context, topic)

        return answer_list(self._context, request, caller, array("groupList", rows))

    def system_topics(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 305: the topics that belong to the broker."""
        names = tuple(
            sorted(name for name in self._context.state.topics.by_name if self._is_system(name))
        )

        return answer(request, caller, body=TopicList(names).to_json())

    # -- parts -------------------------------------------------------------------------------------

    def _set(
        self, header: CreateTopicHeader, request: RemotingCommand, caller: Caller
    ) -> list[Effect]:
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag,
            header.order,
        )

        return self._change([self._judge(config, _changes_of(header.attributes))], request, caller)

    def _change(
        self, records: Sequence[TopicSet], request: RemotingCommand, caller: Caller
    ) -> list[Effect]:
        check_unchanging(self._context, "topic", [record.name for record in records])

        # Sends are checked against the applied state: after the change, none may go into a queue that it removes.
        topics, fencing = self._context.state.topics, self._context.view.fencing
        fewer = {
            record.name
            for record in records
            if (topic := topics.get(record.name)) is not None
            and max(record.read_queues, record.write_queues) < topic.queue_count
        }
        fencing |= fewer

        return change(
            self._context, records, request, caller, ended=lambda: fencing.difference_update(fewer)
        )

    def _judge(self, config: TopicConfig, attributes: object) -> TopicSet:
        """Return the record that gives a topic this configuration.

        Raises:
            RequestRefused: the change is not allowed (1); the remark says why and what to do.
        """
        name = config.topic_name
        check_name(check_topic_name, name)
        present = self._context.state.topics.get(name)
        if not self._is_missing_template(name):
            self._check_not_system(name)
        _check_numbers(config)
        order, kept = config.order, dict[str, str]()
        if present is not None:
            self._check_change(present, config)
            order = order or present.config.order
            kept = dict(present.config.attributes)
        merged = merge_attributes(f"topic[{name}]", kept, attributes, TOPIC_ATTRIBUTES)

        return TopicSet(
            name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            order or merged.get(MESSAGE_TYPE_ATTRIBUTE) == TYPE_IN_ORDER,
            config.topic_sys_flag,
            config.topic_filter_type,
            merged,
        )

    def _check_change(self, topic: Topic, wished: TopicConfig) -> None:
        present = topic.config
        counts = (wished.read_queue_nums, wished.write_queue_nums)
        if present.order and counts != (present.read_queues, present.write_queues):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{topic.name}] is ordered and keeps its "
                f"{counted(present.write_queues, 'queue')}: with another number, new messages of "
                "a key would go to another queue than earlier ones; create a new topic with the "
                "wanted number and move the producers to it",
            )
        reason = refuse_fewer(self._context.state, topic, max(counts))
        if reason:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, reason)

    def _check_not_system(self, name: str) -> None:
        if self._is_system(name):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The topic[{name}] is conflict with system topic; choose another name",
            )

    def _is_missing_template(self, name: str) -> bool:
        """Return whether *name* is the template topic of auto-creation and missing, so that an operator may create it.

        See ``topics/bootstrap.py``. A leader with the settings from before a rolling update accepts it too: while its
        settings forbid auto-creation, sends create no topic.
        """
        return name == AUTO_CREATE_TOPIC and self._context.state.topics.get(name) is None

    def _is_system(self, name: str) -> bool:
        settings = self._context.settings
        reserved = (settings.cluster, settings.group, reply_topic(settings.cluster))

        return name in reserved or is_system_topic(name)


def find_topic(context: Context, name: str) -> Topic:
    """Return a topic.

    Raises:
        RequestRefused: the topic does not exist (17).
    """
    topic = context.state.topics.get(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")

    return topic


def config_of(config: TopicSet) -> TopicConfig:
    """Return a topic's configuration in its form on the wire."""
    return TopicConfig(
        config.name,
        config.read_queues,
        config.write_queues,
        config.perm,
        config.filter_type,
        config.sys_flag,
        config.order,
    )


def _shown(topic: Topic) -> dict[str, Any]:
    """Return a topic's configuration in 5.x's form, with its attributes."""
    return {**config_of(topic.config).to_json_value(), "attributes": topic.config.attributes}


def groups_of(context: Context, topic: str) -> Iterator[str | None]:
    """Yield the groups that subscribe to a topic or have committed in it, sorted, and None for each other group."""
    members, offsets = context.state.members, context.state.offsets
    for group in sorted({*members.groups(), *offsets.groups()}):
        concerned = topic in members.subscriptions(group) or topic in offsets.of_group(group)
        yield group if concerned else None


def merge_attributes(
    owner: str, kept: Mapping[str, str], changes: object, allowed: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the attributes after changes in 5.x's form: ``{"+name": "value", "-name": ""}``.

    Raises:
        RequestRefused: the changes have another form, or set a value that has no effect here (1).
    """
    merged = dict(kept)
    problem = f"attributes of {owner} must be changes: +name=value sets one, -name removes one"
    if not isinstance(changes, Mapping | None):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, problem)
    for key, value in (changes or {}).items():
        sign, name = key[:1], key[1:]
        if sign == "-" and name:
            merged.pop(name, None)
            continue
        if sign != "+" or not name or not isinstance(value, str) or not value:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, problem)
        values = allowed.get(name, ())
        if value not in values and kept.get(name) != value:
            wished = f"set it to {' or '.join(values)}" if values else "leave it out"
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"{owner}: attribute {name}={value} would have no effect here; {wished}",
            )
        merged[name] = value

    return merged


def _changes_of(attributes: str | None) -> dict[str, str]:
    """Return the attributes that a header writes as ``+name=value,-name``."""
    items = (item.partition("=") for item in (attributes or "").split(",") if item)

    return {name: value for name, _, value in items}


def _check_numbers(config: TopicConfig) -> None:
    counts = (config.read_queue_nums, config.write_queue_nums)
    for is_allowed, problem in (
        (
            all(0 < count <= QUEUES_MAX for count in counts),
            f"readQueueNums and writeQueueNums must be between 1 and {QUEUES_MAX}",
        ),
        (
            config.read_queue_nums >= config.write_queue_nums,
            f"readQueueNums {config.read_queue_nums} is less than writeQueueNums "
            f"{config.write_queue_nums}: no consumer could read the other queues; raise it",
        ),
        (
            not config.perm & ~_PERM_ALL,
            f"perm {config.perm} is unknown; add 4 (read), 2 (write) and 1 (inherit) as needed",
        ),
        (
            not config.topic_sys_flag & ~_FLAGS_ALL,
            (
                f"topicSysFlag {config.topic_sys_flag} is unknown; add 1 (unit) and 2 (subscriptions "
                "of units) as needed, or use 0"
            ),
        ),
        # Every registration contains it: RocketMQ knows only these two values.
        (
            config.topic_filter_type in (SINGLE_TAG, "MULTI_TAG"),
            "topicFilterType must be SINGLE_TAG or MULTI_TAG",
        ),
    ):
        if not is_allowed:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"topic[{config.topic_name}]: {problem}"
            )
