"""
The typed headers of requests and responses, gathered: import them from here.

A class has RocketMQ's name without `Request`: `PullMessageHeader` reads the `ext` of a pull,
`PullMessageResponseHeader` that of its answer. A class that several requests share is named after its fields. A field without
a default is required. Codes that are not here carry no header. `declaration` says how one is declared; `send` and `pull` hold the hot ones.
"""

from orderlymq_protocol.header.admin import (
    CloneGroupOffsetHeader,
    ConsumeMessageDirectlyHeader,
    ConsumerGroupHeader,
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    GetConsumerRunningInfoHeader,
    GetConsumerStatusHeader,
    GetConsumeStatsHeader,
    GetConsumeStatsInBrokerHeader,
    GetProducerConnectionListHeader,
    GroupHeader,
    QueryConsumeQueueHeader,
    RecallMessageHeader,
    RecallMessageResponseHeader,
    ReplyMessageHeader,
    ResetOffsetHeader,
    ResumeCheckHalfMessageHeader,
    TopicHeader,
    TopicOfGroupHeader,
    ViewBrokerStatsDataHeader,
)
from orderlymq_protocol.header.clients import (
    CheckTransactionStateHeader,
    ConsumerSendMsgBackHeader,
    EndTransactionHeader,
    UnregisterClientHeader,
)
from orderlymq_protocol.header.declaration import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    Header,
    HeaderError,
)
from orderlymq_protocol.header.lanes import (
    CompleteLanesHeader,
    FetchLanesHeader,
    LanesHeader,
)
from orderlymq_protocol.header.messages import (
    AppendCopiesHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    QueueHeader,
    SearchOffsetHeader,
    ViewMessageHeader,
)
from orderlymq_protocol.header.nameserver import (
    BrokerHeader,
    BrokerNameHeader,
    DeleteTopicFromNamesrvHeader,
    GetKVListByNamespaceHeader,
    GetTopicsByClusterHeader,
    KVKeyHeader,
    PutKVConfigHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
)
from orderlymq_protocol.header.pull import (
    PullMessageHeader,
    PullMessageResponseHeader,
    UpdateConsumerOffsetHeader,
)
from orderlymq_protocol.header.send import SendMessageHeader, SendMessageResponseHeader

__all__ = [
    "REQUEST_HEADERS",
    "RESPONSE_HEADERS",
    "AppendCopiesHeader",
    "BrokerHeader",
    "BrokerNameHeader",
    "CheckTransactionStateHeader",
    "CloneGroupOffsetHeader",
    "CompleteLanesHeader",
    "ConsumeMessageDirectlyHeader",
    "ConsumerGroupHeader",
    "ConsumerSendMsgBackHeader",
    "CreateTopicHeader",
    "DeleteSubscriptionGroupHeader",
    "DeleteTopicFromNamesrvHeader",
    "EndTransactionHeader",
    "FetchLanesHeader",
    "GetConsumeStatsHeader",
    "GetConsumeStatsInBrokerHeader",
    "GetConsumerRunningInfoHeader",
    "GetConsumerStatusHeader",
    "GetKVListByNamespaceHeader",
    "GetProducerConnectionListHeader",
    "GetTopicsByClusterHeader",
    "GroupHeader",
    "Header",
    "HeaderError",
    "KVKeyHeader",
    "LanesHeader",
    "OffsetResponseHeader",
    "PullMessageHeader",
    "PullMessageResponseHeader",
    "PutKVConfigHeader",
    "QueryConsumeQueueHeader",
    "QueryConsumerOffsetHeader",
    "QueryMessageHeader",
    "QueueHeader",
    "RecallMessageHeader",
    "RecallMessageResponseHeader",
    "RegisterBrokerHeader",
    "RegisterBrokerResponseHeader",
    "ReplyMessageHeader",
    "ResetOffsetHeader",
    "ResumeCheckHalfMessageHeader",
    "SearchOffsetHeader",
    "SendMessageHeader",
    "SendMessageResponseHeader",
    "TopicHeader",
    "TopicOfGroupHeader",
    "UnregisterClientHeader",
    "UpdateConsumerOffsetHeader",
    "ViewBrokerStatsDataHeader",
    "ViewMessageHeader",
]
