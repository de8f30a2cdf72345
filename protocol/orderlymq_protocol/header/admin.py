"""The headers of admin requests: topics, groups, offsets, figures."""

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import (
    Header,
    request_header,
    response_header,
)
from orderlymq_protocol.integers import Int, Long


@request_header(RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
class CreateTopicHeader(Header):
    """Create or change a topic."""

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    # RocketMQ's broker accepts a request without it.
    order: bool = False
    topic_sys_flag: Int = 0
    attributes: str | None = None
    force: bool | None = None


@request_header(
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
)
class TopicHeader(Header):
    """A topic and nothing else: 202, 215, 217, 300, 351. 105 may also say which JSON its sender reads."""

    topic: str
    accept_standard_json_only: bool | None = None


@request_header(
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
)
class ConsumerGroupHeader(Header):
    """A consumer group and nothing else: 38, 40, 203."""

    consumer_group: str


@request_header(RequestCode.GET_PRODUCER_CONNECTION_LIST)
class GetProducerConnectionListHeader(Header):
    """The connections of a producer group."""

    producer_group: str


@request_header(RequestCode.DELETE_SUBSCRIPTIONGROUP)
class DeleteSubscriptionGroupHeader(Header):
    """Delete a consumer group; 4.9 tools send `removeOffset`, 5.x tools `cleanOffset`."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


@request_header(RequestCode.GET_CONSUME_STATS)
class GetConsumeStatsHeader(Header):
    """The lag of a consumer group, only in one topic if it is given."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@request_header(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
class ResetOffsetHeader(Header):
    """Set a consumer group's offsets to a store time (ms), or to the newest with -1; 5.x may name queue and offset."""

    topic: str
    group: str
    timestamp: Long
    is_force: bool
    queue_id: Int | None = None
    offset: Long | None = None


@request_header(
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
)
class GetConsumerStatusHeader(Header):
    """The offsets at which the consumers of a group stand."""

    topic: str
    group: str
    client_addr: str | None = None


@request_header(RequestCode.QUERY_CONSUME_TIME_SPAN, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
class TopicOfGroupHeader(Header):
    """A topic and a consumer group that reads it: 303, 345."""

    topic: str
    group: str


@request_header(RequestCode.GET_CONSUMER_RUNNING_INFO)
class GetConsumerRunningInfoHeader(Header):
    """Ask a client for its own report."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@request_header(RequestCode.CONSUME_MESSAGE_DIRECTLY)
class ConsumeMessageDirectlyHeader(Header):
    """Have one client consume one message now."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


@request_header(RequestCode.CLONE_GROUP_OFFSET)
class CloneGroupOffsetHeader(Header):
    """Copy the offsets of one consumer group to another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@request_header(RequestCode.VIEW_BROKER_STATS_DATA)
class ViewBrokerStatsDataHeader(Header):
    """One counter."""

    stats_name: str
    stats_key: str


@request_header(RequestCode.GET_BROKER_CONSUME_STATS)
class GetConsumeStatsInBrokerHeader(Header):
    """The lag of all consumer groups."""

    is_order: bool = False


@request_header(RequestCode.QUERY_CONSUME_QUEUE)
class QueryConsumeQueueHeader(Header):
    """Entries of a consume queue."""

    topic: str | None = None
    queue_id: Int = 0
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


@request_header(RequestCode.RESUME_CHECK_HALF_MESSAGE)
class ResumeCheckHalfMessageHeader(Header):
    """Ask again about a half message that was given up."""

    msg_id: str | None = None
    topic: str | None = None


@request_header(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
class ReplyMessageHeader(Header):
    """The answer of a request-reply call, on its way to the asking client; hosts are `ip:port`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str | None = None
    reconsume_times: Int = 0
    unit_mode: bool = False


@request_header(RequestCode.QUERY_TOPICS_BY_CONSUMER, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
class GroupHeader(Header):
    """A consumer group and nothing else: 343, 352."""

    group: str


@request_header(RequestCode.RECALL_MESSAGE)
class RecallMessageHeader(Header):
    """Take back a message with its own delivery time, by the handle of its send."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@response_header(RequestCode.RECALL_MESSAGE)
class RecallMessageResponseHeader(Header):
    """The unique key of the message that will not be delivered."""

    msg_id: str
