"""
The typed headers of requests and responses, in the order of their codes.

A class is named after RocketMQ's, without `Request`: `PullMessageHeader` reads the `ext` of a pull,
`PullMessageResponseHeader` that of its answer. A field without default is required. Codes that are not
here carry no header. How one is declared: `declaration`; the hot ones: `send`, `pull`.
"""

from dataclasses import field

from orderlymq_protocol.body.declaration import wire_name
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    Header,
    HeaderError,
    request_header,
    response_header,
)
from orderlymq_protocol.header.lanes import (
    CompleteLanesHeader,
    FetchLanesHeader,
    LanesHeader,
)
from orderlymq_protocol.header.pull import (
    PullMessageHeader,
    PullMessageResponseHeader,
    UpdateConsumerOffsetHeader,
)
from orderlymq_protocol.header.send import SendMessageHeader, SendMessageResponseHeader
from orderlymq_protocol.integers import Int, Long

__all__ = [
    "REQUEST_HEADERS",
    "RESPONSE_HEADERS",
    "CompleteLanesHeader",
    "FetchLanesHeader",
    "Header",
    "HeaderError",
    "LanesHeader",
    "PullMessageHeader",
    "PullMessageResponseHeader",
    "SendMessageHeader",
    "SendMessageResponseHeader",
    "UpdateConsumerOffsetHeader",
]


# -- messages and offsets ------------------------------------------------------------------------------


@request_header(RequestCode.QUERY_MESSAGE)
class QueryMessageHeader(Header):
    """Messages by key in a span of store times (ms); `unique_key_query` asks for UNIQ_KEY instead."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key_query: bool = field(default=False, metadata=wire_name("_UNIQUE_KEY_QUERY"))


@response_header(RequestCode.QUERY_MESSAGE)
class QueryMessageResponseHeader(Header):
    """How far the index reaches."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@request_header(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffsetHeader(Header):
    """The committed offset of a group in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


@request_header(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffsetHeader(Header):
    """The offset nearest to a store time (ms); `boundary_type` is LOWER or UPPER."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None


@request_header(RequestCode.GET_MAX_OFFSET)
class GetMaxOffsetHeader(Header):
    """The offset that the next message will get."""

    topic: str
    queue_id: Int
    committed: bool | None = None


@request_header(RequestCode.GET_MIN_OFFSET)
class GetMinOffsetHeader(Header):
    """The oldest offset that is still there."""

    topic: str
    queue_id: Int


@response_header(
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
)
class OffsetResponseHeader(Header):
    """One offset: the answer to 14, 29, 30 and 31."""

    offset: Long


@request_header(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestMsgStoretimeHeader(Header):
    """The store time of a queue's oldest message."""

    topic: str
    queue_id: Int


@response_header(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestMsgStoretimeResponseHeader(Header):
    """Milliseconds, -1 for an empty queue."""

    timestamp: Long


@request_header(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageHeader(Header):
    """The message at a physical offset."""

    offset: Long
    topic: str | None = None


# -- clients and groups ------------------------------------------------------------------------------


@request_header(RequestCode.UNREGISTER_CLIENT)
class UnregisterClientHeader(Header):
    """A client leaves a group on purpose."""

    client_id: str = field(metadata=wire_name("clientID"))
    producer_group: str | None = None
    consumer_group: str | None = None


@request_header(RequestCode.CONSUMER_SEND_MSG_BACK)
class ConsumerSendMsgBackHeader(Header):
    """A message that a consumer could not handle; below 0 `delay_level` means dead letter."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


@request_header(RequestCode.END_TRANSACTION)
class EndTransactionHeader(Header):
    """Commit or roll back a half message; `commit_or_rollback` holds transaction bits of `sysflag`."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


@request_header(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroupHeader(Header):
    """Who is in a consumer group."""

    consumer_group: str


@request_header(RequestCode.CHECK_TRANSACTION_STATE)
class CheckTransactionStateHeader(Header):
    """The broker asks a producer what became of a half message."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


@request_header(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
class NotifyConsumerIdsChangedHeader(Header):
    """The broker tells a client that the members of its group changed."""

    consumer_group: str


# -- name server -------------------------------------------------------------------------------------


@request_header(RequestCode.PUT_KV_CONFIG)
class PutKVConfigHeader(Header):
    """Store a text under a name."""

    namespace: str
    key: str
    value: str


@request_header(RequestCode.GET_KV_CONFIG)
class GetKVConfigHeader(Header):
    """Read a text by its name."""

    namespace: str
    key: str


@response_header(RequestCode.GET_KV_CONFIG)
class GetKVConfigResponseHeader(Header):
    """The text."""

    value: str | None = None


@request_header(RequestCode.DELETE_KV_CONFIG)
class DeleteKVConfigHeader(Header):
    """Forget a text."""

    namespace: str
    key: str


@request_header(RequestCode.REGISTER_BROKER)
class RegisterBrokerHeader(Header):
    """A broker is alive; the body lists its topics, `body_crc32` 0 means unchecked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None


@response_header(RequestCode.REGISTER_BROKER)
class RegisterBrokerResponseHeader(Header):
    """Where the master is, for a follower."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@request_header(RequestCode.UNREGISTER_BROKER)
class UnRegisterBrokerHeader(Header):
    """A broker leaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@request_header(RequestCode.GET_ROUTEINFO_BY_TOPIC)
class GetRouteInfoHeader(Header):
    """Where a topic's queues are."""

    topic: str
    accept_standard_json_only: bool | None = None


@request_header(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermOfBrokerHeader(Header):
    """Take a broker's queues out of writing."""

    broker_name: str


@response_header(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermOfBrokerResponseHeader(Header):
    """How many topics that touched."""

    wipe_topic_count: Int


@request_header(RequestCode.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermOfBrokerHeader(Header):
    """Give a broker's queues back to writing."""

    broker_name: str


@response_header(RequestCode.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermOfBrokerResponseHeader(Header):
    """How many topics that touched."""

    add_topic_count: Int


@request_header(RequestCode.DELETE_TOPIC_IN_NAMESRV)
class DeleteTopicFromNamesrvHeader(Header):
    """Forget the route of a topic, of one cluster if given."""

    topic: str
    cluster_name: str | None = None


@request_header(RequestCode.GET_KVLIST_BY_NAMESPACE)
class GetKVListByNamespaceHeader(Header):
    """All texts of a namespace."""

    namespace: str


@request_header(RequestCode.GET_TOPICS_BY_CLUSTER)
class GetTopicsByClusterHeader(Header):
    """The topics of a cluster."""

    cluster: str


@request_header(RequestCode.QUERY_DATA_VERSION)
class QueryDataVersionHeader(Header):
    """Whether a broker needs to register its topics again."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@response_header(RequestCode.QUERY_DATA_VERSION)
class QueryDataVersionResponseHeader(Header):
    """Whether the versions differ."""

    changed: bool


# -- administration ----------------------------------------------------------------------------------


@request_header(RequestCode.UPDATE_AND_CREATE_TOPIC)
class CreateTopicHeader(Header):
    """Create or change a topic."""

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int = 0
    attributes: str | None = None
    force: bool | None = None


@response_header(RequestCode.GET_BROKER_CONFIG)
class GetBrokerConfigResponseHeader(Header):
    """The version of the configuration, as JSON text of a DataVersion."""

    version: str


@request_header(
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.GET_TOPIC_CONFIG,
)
class TopicHeader(Header):
    """A topic and nothing else: 202, 215, 300, 351."""

    topic: str


@request_header(RequestCode.GET_CONSUMER_CONNECTION_LIST)
class GetConsumerConnectionListHeader(Header):
    """The connections of a consumer group."""

    consumer_group: str


@request_header(RequestCode.GET_PRODUCER_CONNECTION_LIST)
class GetProducerConnectionListHeader(Header):
    """The connections of a producer group."""

    producer_group: str


@request_header(RequestCode.DELETE_SUBSCRIPTIONGROUP)
class DeleteSubscriptionGroupHeader(Header):
    """Delete a group; 4.9 tools say `removeOffset`, 5.x tools `cleanOffset`."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


@request_header(RequestCode.GET_CONSUME_STATS)
class GetConsumeStatsHeader(Header):
    """The lag of a group, in one topic if given."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@request_header(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
class ResetOffsetHeader(Header):
    """Set a group's offsets to a store time (ms), -1 for the newest; 5.x may name queue and offset."""

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
    """Where the consumers of a group stand."""

    topic: str
    group: str
    client_addr: str | None = None


@request_header(RequestCode.QUERY_CONSUME_TIME_SPAN)
class QueryConsumeTimeSpanHeader(Header):
    """Oldest, newest and consumed message of each queue."""

    topic: str
    group: str


@request_header(RequestCode.GET_CONSUMER_RUNNING_INFO)
class GetConsumerRunningInfoHeader(Header):
    """What a client says about itself."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@request_header(RequestCode.QUERY_CORRECTION_OFFSET)
class QueryCorrectionOffsetHeader(Header):
    """Offsets of a group compared with others."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


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
    """Copy the offsets of one group to another."""

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
    """The lag of all groups."""

    is_order: bool


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


@request_header(RequestCode.QUERY_TOPICS_BY_CONSUMER)
class QueryTopicsByConsumerHeader(Header):
    """The topics of a consumer group."""

    group: str


@request_header(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
class QuerySubscriptionByConsumerHeader(Header):
    """What a consumer group wants of a topic."""

    group: str
    topic: str


@request_header(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
class GetSubscriptionGroupConfigHeader(Header):
    """The configuration of a group."""

    group: str


@request_header(RequestCode.RECALL_MESSAGE)
class RecallMessageHeader(Header):
    """Take a message with a time of its own back, by the handle of its send."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@response_header(RequestCode.RECALL_MESSAGE)
class RecallMessageResponseHeader(Header):
    """The unique key of the message that will not be delivered."""

    msg_id: str
