"""The headers of requests to name servers."""

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import (
    Header,
    request_header,
    response_header,
)
from orderlymq_protocol.integers import Int, Long


@request_header(RequestCode.PUT_KV_CONFIG)
class PutKVConfigHeader(Header):
    """Store a text under a name."""

    namespace: str
    key: str
    value: str


@request_header(RequestCode.GET_KV_CONFIG, RequestCode.DELETE_KV_CONFIG)
class KVKeyHeader(Header):
    """The name of a text: 101, 102."""

    namespace: str
    key: str


@request_header(RequestCode.REGISTER_BROKER)
class RegisterBrokerHeader(Header):
    """A broker's report that it is alive; the body lists its topics, `body_crc32` 0 means unchecked.

    `restored_groups` is OrderlyMQ's own: the names of all broker groups that were restored together, with semicolons between them.
    A group sends it while it does not know yet whether all have registered.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    restored_groups: str | None = None


@response_header(RequestCode.REGISTER_BROKER)
class RegisterBrokerResponseHeader(Header):
    """The address of the master, for a follower; and which of the `restored_groups` have never registered, in the same form."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    awaited_groups: str | None = None


@request_header(RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION)
class BrokerHeader(Header):
    """The broker that leaves (104), or that asks whether it must register its topics again (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@request_header(RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)
class BrokerNameHeader(Header):
    """The broker whose queues stop taking writes (205), or take them again (327)."""

    broker_name: str


@request_header(RequestCode.DELETE_TOPIC_IN_NAMESRV)
class DeleteTopicFromNamesrvHeader(Header):
    """Delete the route of a topic, only in one cluster if it is given."""

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
