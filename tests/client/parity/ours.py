"""
The SDK's names for each method of RocketMQ's Java clients.

A rule is ``(methods, ours, why)``: Java's names, separated by blanks; our names below ``orderlymq``, separated by
blanks, or nothing if the method is left out; and the reason if name or kind differ.
Getters and setters of a setting need no rule: ``table.py`` finds them by RocketMQ's name of the setting.
"""

from typing import Final, TypeAlias

Rules: TypeAlias = tuple[tuple[str, str, str], ...]

_LIFE: Final = ("start shutdown", "{0}.start {0}.close", "or `async with`")
_GROUP: Final = "an argument at creation, then fixed: a member cannot change its group"
_LOOK: Final = "`AdminClient` creates topics and looks up queues and messages"
_IMPL: Final = "internal to the Java client"
_VIP: Final = "the second port of brokers for clients up to 4.4; not needed here"
_POP: Final = "POP is a protocol of RocketMQ 5's proxy; it is not supported"
_STORE: Final = (
    "the broker keeps offsets; broadcasting members keep them in a file; there is no other store"
)
_TRACE: Final = "`trace=True` sends traces; the dispatcher is internal"
_TABLE_5: Final = "for RocketMQ 5's storage or controller, which has no counterpart in a raft group"
_LATENCY: Final = "a send by key must stay on its queue; the SDK does not rank brokers by latency"

_QUESTIONS: Final[Rules] = (
    ("createTopic", "AdminClient.create_topic", _LOOK),
    ("earliestMsgStoreTime", "AdminClient.earliest_store_time", _LOOK),
    ("queryMessage", "AdminClient.find_messages", _LOOK),
    ("viewMessage", "AdminClient.view_message", _LOOK),
)
_OFFSETS: Final[Rules] = (
    ("maxOffset", "AdminClient.max_offset", _LOOK),
    ("minOffset", "AdminClient.min_offset", _LOOK),
    ("searchOffset", "AdminClient.search_offset", _LOOK),
)


def _life(name: str) -> tuple[str, str, str]:
    return _LIFE[0], _LIFE[1].format(name), _LIFE[2]


OURS: Final[dict[str, Rules]] = {
    "DefaultMQProducer": (
        _life("Producer"),
        *_QUESTIONS,
        *_OFFSETS,
        (
            "send",
            "Producer.send Producer.send_nowait Producer.send_batch",
            "one method instead of 22 overloads: key, queue and selector are arguments; use `send_nowait`, "
            "which returns a future, instead of a callback, and `send_batch` for a list",
        ),
        ("sendOneway", "Producer.send_oneway", ""),
        ("request", "Producer.request", ""),
        ("sendMessageInTransaction", "TransactionProducer.send_in_transaction", ""),
        ("fetchPublishMessageQueues", "Producer.queues", ""),
        ("getProducerGroup setProducerGroup", "Producer", _GROUP),
        ("getTraceDispatcher", "", _TRACE),
        ("getDefaultMQProducerImpl", "", _IMPL),
        (
            "addRetryResponseCode getRetryResponseCodes",
            "",
            "the answers after which a send is tried again are fixed, because they decide whether it can be stored twice",
        ),
        (
            "setAsyncSenderExecutor setCallbackExecutor",
            "",
            "callbacks run on the event loop; there is no thread pool to replace",
        ),
        (
            "isSendLatencyFaultEnable setSendLatencyFaultEnable getLatencyMax setLatencyMax "
            "getNotAvailableDuration setNotAvailableDuration setStartDetectorEnable",
            "",
            _LATENCY,
        ),
        ("isSendMessageWithVIPChannel setSendMessageWithVIPChannel", "", _VIP),
        ("getCompressLevel setCompressLevel", "ProducerSettings.compress_level", ""),
        (
            "getCompressType setCompressType getCompressor",
            "",
            "bodies are sent as zlib, which every consumer reads; LZ4 and ZSTD bodies can be read",
        ),
        (
            "getAutoBatch setAutoBatch batchMaxBytes getBatchMaxBytes batchMaxDelayMs getBatchMaxDelayMs "
            "totalBatchMaxBytes getTotalBatchMaxBytes initProduceAccumulator sendByAccumulator sendDirect",
            "Producer",
            "its argument `linger=`: sends to a topic wait for others and are sent as one batch per queue",
        ),
        (
            "isEnableBackpressureForAsyncMode setEnableBackpressureForAsyncMode "
            "getBackPressureForAsyncSendNum setBackPressureForAsyncSendNum "
            "getBackPressureForAsyncSendSize setBackPressureForAsyncSendSize "
            "setBackPressureForAsyncSendNumInsideAdjust setBackPressureForAsyncSendSizeInsideAdjust "
            "acquireBackPressureForAsyncSendNumLock acquireBackPressureForAsyncSendSizeLock "
            "releaseBackPressureForAsyncSendNumLock releaseBackPressureForAsyncSendSizeLock",
            "ProducerSettings.send_buffer_bytes",
            "sends above this limit are refused immediately: await some futures first",
        ),
        (
            "getSendMsgMaxTimeoutPerRequest",
            "ClientSettings.request_timeout",
            "the limit of one request",
        ),
        (
            "setSendMsgMaxTimeoutPerRequest",
            "ClientSettings.request_timeout",
            "the limit of one request",
        ),
        ("getTopics setTopics", "", "the producer requests the route of a topic at its first send"),
        ("recallMessage", "Producer.recall", "the name that Python uses"),
    ),
    "TransactionMQProducer": (
        _life("TransactionProducer"),
        ("sendMessageInTransaction", "TransactionProducer.send_in_transaction", ""),
        (
            "getTransactionListener setTransactionListener getTransactionCheckListener "
            "setTransactionCheckListener",
            "TransactionProducer",
            "`execute` and `check` are arguments at creation",
        ),
        (
            "getExecutorService setExecutorService getCheckRequestHoldMax setCheckRequestHoldMax "
            "getCheckThreadPoolMaxSize setCheckThreadPoolMaxSize getCheckThreadPoolMinSize "
            "setCheckThreadPoolMinSize",
            "",
            "checks are tasks on the event loop with their own limit; there is no pool to size",
        ),
    ),
    "DefaultMQPushConsumer": (
        _life("Consumer"),
        *_QUESTIONS,
        *_OFFSETS,
        ("subscribe", "Consumer.subscribe", "tags or, with `kind='SQL92'`, SQL"),
        ("unsubscribe", "Consumer.unsubscribe", ""),
        ("suspend", "Consumer.suspend", ""),
        ("resume", "Consumer.resume", ""),
        ("isPause", "Consumer.state", "the state of the consumer"),
        ("getSubscription setSubscription", "Consumer.subscriptions", "set with `subscribe`"),
        (
            "registerMessageListener getMessageListener setMessageListener isConsumeOrderly",
            "Consumer",
            "`listener` and `ordered` are arguments: the caller states the kind of the listener; its class does not decide it",
        ),
        ("registerConsumeMessageHook", "ConsumeHook", "an argument of `Consumer`"),
        ("fetchSubscribeMessageQueues", "LitePullConsumer.fetch_queues AdminClient.route", ""),
        ("getConsumerGroup setConsumerGroup", "Consumer", _GROUP),
        (
            "sendMessageBack",
            "ConcurrentContext",
            "a listener requests it with its result; for a pull consumer use `PullConsumer.send_back`",
        ),
        (
            "getMessageQueueListener setMessageQueueListener",
            "Consumer.queues",
            "the queues held now; there is no listener for changes",
        ),
        (
            "getOffsetStore setOffsetStore",
            "Consumer",
            "its argument `offset_store`; the default is the broker, for broadcasting members a file",
        ),
        ("getTraceDispatcher", "", _TRACE),
        ("getDefaultMQPushConsumerImpl", "", _IMPL),
        (
            "updateCorePoolSize",
            "ConsumerSettings.consume_thread_max",
            "a setting, fixed at the start",
        ),
        (
            "getPopBatchNums setPopBatchNums getPopInvisibleTime setPopInvisibleTime "
            "getPopThresholdForQueue setPopThresholdForQueue isClientRebalance setClientRebalance",
            "",
            _POP,
        ),
        (
            "getPullBatchSizeInBytes setPullBatchSizeInBytes",
            "",
            "the broker limits the size of an answer; `ConsumerSettings.pull_threshold_size_for_queue_mib` limits memory",
        ),
    ),
    "DefaultLitePullConsumer": (
        _life("LitePullConsumer"),
        (
            "isRunning",
            "LitePullConsumer",
            "calls before its start or after its end raise StateError",
        ),
        ("assign", "LitePullConsumer.assign", ""),
        ("assignment", "LitePullConsumer.assignment", ""),
        ("subscribe", "LitePullConsumer.subscribe", "tags or, with `kind='SQL92'`, SQL"),
        (
            "unsubscribe",
            "",
            "close the consumer and create another; subscriptions are part of a membership",
        ),
        ("poll", "LitePullConsumer.poll", ""),
        ("seek", "LitePullConsumer.seek", ""),
        ("seekToBegin", "LitePullConsumer.seek_to_begin", ""),
        ("seekToEnd", "LitePullConsumer.seek_to_end", ""),
        ("pause", "LitePullConsumer.pause", ""),
        ("resume", "LitePullConsumer.resume", ""),
        (
            "commit commitSync",
            "LitePullConsumer.commit",
            "one method; the offset is stored when it returns",
        ),
        ("committed", "LitePullConsumer.committed", ""),
        ("fetchMessageQueues", "LitePullConsumer.fetch_queues", ""),
        ("offsetForTimestamp", "LitePullConsumer.offset_for_timestamp", ""),
        (
            "isAutoCommit setAutoCommit getAutoCommitIntervalMillis setAutoCommitIntervalMillis "
            "getConsumeFromWhere setConsumeFromWhere getPullBatchSize setPullBatchSize "
            "getAllocateMessageQueueStrategy setAllocateMessageQueueStrategy",
            "LitePullConsumer",
            "arguments at creation",
        ),
        (
            "getConsumeTimestamp setConsumeTimestamp",
            "LitePullConsumer.offset_for_timestamp",
            "then `seek`",
        ),
        ("getConsumerGroup setConsumerGroup", "LitePullConsumer", _GROUP),
        (
            "getPollTimeoutMillis setPollTimeoutMillis",
            "LitePullConsumer.poll",
            "an argument of each poll",
        ),
        (
            "setSubExpressionForAssign",
            "LitePullConsumer.subscribe",
            "assigned queues are read without a filter; filter in the program, or subscribe",
        ),
        (
            "registerTopicMessageQueueChangeListener getMessageQueueListener setMessageQueueListener "
            "getTopicMetadataCheckIntervalMillis setTopicMetadataCheckIntervalMillis",
            "LitePullConsumer.fetch_queues",
            "call it when needed; routes are refreshed every `ClientSettings.poll_name_server_interval`",
        ),
        (
            "getMessageModel setMessageModel",
            "",
            "to receive everything as in broadcasting, `assign` all queues",
        ),
        (
            "getPullThreadNums setPullThreadNums getPullThresholdForAll setPullThresholdForAll "
            "getPullThresholdForQueue setPullThresholdForQueue getPullThresholdSizeForQueue "
            "setPullThresholdSizeForQueue getConsumeMaxSpan setConsumeMaxSpan",
            "",
            "each queue reads at most one pull of `pull_batch_size` messages ahead, so no other limit is needed",
        ),
        (
            "getBrokerSuspendMaxTimeMillis getConsumerPullTimeoutMillis setConsumerPullTimeoutMillis "
            "getConsumerTimeoutMillisWhenSuspend setConsumerTimeoutMillisWhenSuspend",
            "",
            "a held pull ends with the poll that waits for it",
        ),
        (
            "getDefaultBrokerId setDefaultBrokerId isConnectBrokerByUser setConnectBrokerByUser",
            "",
            "the SDK reads only from leaders, because a replica may lag behind acknowledged messages",
        ),
        (
            "getTraceDispatcher isEnableMsgTrace setEnableMsgTrace getCustomizedTraceTopic "
            "setCustomizedTraceTopic",
            "",
            "polling is not traced, because only the program knows when it has finished a message",
        ),
        ("getOffsetStore setOffsetStore", "", _STORE),
        ("updateNameServerAddress", "ClientInstance", "an argument at creation"),
    ),
    "DefaultMQPullConsumer": (
        _life("PullConsumer"),
        *_QUESTIONS,
        ("maxOffset", "PullConsumer.max_offset", ""),
        ("minOffset", "PullConsumer.min_offset", ""),
        ("searchOffset", "PullConsumer.offset_for_timestamp", ""),
        ("pull", "PullConsumer.pull", "tags or SQL as an argument"),
        (
            "pullBlockIfNotFound pullBlockIfNotFoundWithMessageSelector",
            "PullConsumer.pull_block_if_not_found",
            "tags or SQL as an argument",
        ),
        ("fetchSubscribeMessageQueues", "PullConsumer.fetch_queues", ""),
        ("fetchConsumeOffset", "PullConsumer.committed", ""),
        ("updateConsumeOffset", "PullConsumer.update_offset", ""),
        ("persist", "PullConsumer.commit", "stores one offset immediately"),
        ("sendMessageBack", "PullConsumer.send_back", ""),
        ("getConsumerGroup setConsumerGroup", "PullConsumer", _GROUP),
        (
            "fetchMessageQueuesInBalance registerMessageQueueListener getMessageQueueListener "
            "setMessageQueueListener getRegisterTopics setRegisterTopics addRegisterSubscriptions "
            "clearRegisterSubscriptions getRegisterSubscriptions isEnableRebalance setEnableRebalance "
            "getAllocateMessageQueueStrategy setAllocateMessageQueueStrategy",
            "LitePullConsumer",
            "to divide queues among members, subscribe with the lite pull consumer",
        ),
        (
            "getMessageModel setMessageModel",
            "",
            "a program that pulls messages itself chooses the queues that it reads",
        ),
        (
            "getMaxReconsumeTimes setMaxReconsumeTimes",
            "AdminClient.set_group",
            "`retry_max_times` of the group",
        ),
        (
            "getBrokerSuspendMaxTimeMillis setBrokerSuspendMaxTimeMillis getConsumerPullTimeoutMillis "
            "setConsumerPullTimeoutMillis getConsumerTimeoutMillisWhenSuspend "
            "setConsumerTimeoutMillisWhenSuspend",
            "PullConsumer.pull_block_if_not_found",
            "the times are arguments of each pull",
        ),
        ("getOffsetStore setOffsetStore", "", _STORE),
        ("getDefaultMQPullConsumerImpl", "", _IMPL),
    ),
    "DefaultMQAdminExt": (
        _life("AdminClient"),
        *_OFFSETS,
        (
            "searchLowerBoundaryOffset searchUpperBoundaryOffset",
            "AdminClient.search_offset",
            "the lower boundary",
        ),
        ("createTopic", "AdminClient.create_topic", ""),
        (
            "createAndUpdateTopicConfig createAndUpdateTopicConfigList",
            "AdminClient.create_topic",
            "on all broker groups in one call, together with the declaration of order",
        ),
        (
            "createOrUpdateOrderConf",
            "AdminClient.put_kv",
            "`create_topic(ordered=True)` writes it itself",
        ),
        (
            "deleteTopic deleteTopicInBroker deleteTopicInBrokerConcurrent deleteTopicInNameServer",
            "AdminClient.delete_topic",
            "on all brokers and name servers in one call",
        ),
        (
            "examineTopicConfig getAllTopicConfig getUserTopicConfig",
            "AdminClient.topic_configs",
            "",
        ),
        ("examineTopicRouteInfo", "AdminClient.route", ""),
        ("examineTopicStats examineTopicStatsConcurrent", "AdminClient.topic_stats", ""),
        ("fetchAllTopicList fetchTopicsByCLuster", "AdminClient.topics", "of the one cluster"),
        (
            "createAndUpdateSubscriptionGroupConfig createAndUpdateSubscriptionGroupConfigList",
            "AdminClient.set_group",
            "",
        ),
        ("deleteSubscriptionGroup", "AdminClient.delete_group", ""),
        (
            "examineSubscriptionGroupConfig getAllSubscriptionGroup getUserSubscriptionGroup",
            "AdminClient.groups",
            "",
        ),
        (
            "examineConsumeStats examineConsumeStatsConcurrent fetchConsumeStatsInBroker",
            "AdminClient.progress",
            "of one group over all broker groups",
        ),
        ("examineConsumerConnectionInfo", "AdminClient.connections AdminClient.members", ""),
        (
            "examineProducerConnectionInfo getAllProducerInfo",
            "AdminClient.producers",
            "of one group",
        ),
        ("getConsumerRunningInfo getConsumeStatus", "AdminClient.running_info", ""),
        ("consumeMessageDirectly", "AdminClient.consume_directly", ""),
        ("queryTopicConsumeByWho", "AdminClient.topic_groups", ""),
        (
            "queryTopicsByConsumer queryTopicsByConsumerConcurrent",
            "AdminClient.topics_of_group",
            "",
        ),
        ("querySubscription", "AdminClient.subscription", ""),
        (
            "queryConsumeTimeSpan queryConsumeTimeSpanConcurrent",
            "AdminClient.consume_time_span",
            "",
        ),
        ("cloneGroupOffset", "AdminClient.clone_offsets", ""),
        (
            "resetOffsetByTimestamp resetOffsetByTimestampOld resetOffsetNew resetOffsetNewConcurrent",
            "AdminClient.reset_offsets",
            "one method, for members that are online and groups that are not",
        ),
        (
            "resetOffsetByQueueId updateConsumeOffset",
            "AdminClient.set_offsets",
            "one method, for members that are online and groups that are not",
        ),
        ("queryMessage queryMessageByUniqKey", "AdminClient.find_messages", ""),
        ("viewMessage", "AdminClient.view_message", ""),
        (
            "messageTrackDetail messageTrackDetailConcurrent",
            "message_track",
            "a function, not a method",
        ),
        ("resumeCheckHalfMessage", "AdminClient.check_transaction", ""),
        ("queryConsumeQueue", "AdminClient.consume_queue", ""),
        (
            "examineBrokerClusterInfo getClusterList getTopicClusterList",
            "AdminClient.cluster_info",
            "",
        ),
        ("fetchBrokerRuntimeStats", "AdminClient.broker_runtime", ""),
        ("viewBrokerStatsData", "AdminClient.broker_stats", ""),
        ("getBrokerConfig", "AdminClient.broker_config", ""),
        ("updateBrokerConfig", "AdminClient.update_broker_config", ""),
        ("getNameServerConfig", "AdminClient.name_server_config", ""),
        ("updateNameServerConfig", "AdminClient.update_name_server_config", ""),
        ("getNameServerAddressList", "AdminClient.instance", "its `name_servers`"),
        ("putKVConfig createAndUpdateKvConfig", "AdminClient.put_kv", ""),
        ("getKVConfig", "AdminClient.get_kv", ""),
        ("getKVListByNamespace", "AdminClient.list_kv", ""),
        ("deleteKvConfig", "AdminClient.delete_kv", ""),
        ("wipeWritePermOfBroker", "AdminClient.wipe_write_permission", ""),
        ("addWritePermOfBroker", "AdminClient.add_write_permission", ""),
        (
            "deleteExpiredCommitLog deleteExpiredCommitLogByAddr cleanExpiredConsumerQueue "
            "cleanExpiredConsumerQueueByAddr",
            "AdminClient.delete_expired",
            "one method: retention handles both",
        ),
        (
            "cleanUnusedTopic cleanUnusedTopicByAddr",
            "",
            "a deleted topic leaves nothing that must be cleaned",
        ),
        ("earliestMsgStoreTime", "AdminClient.earliest_store_time", ""),
        (
            "createAndUpdatePlainAccessConfig deletePlainAccessConfig updateGlobalWhiteAddrConfig "
            "examineBrokerClusterAclVersionInfo createUser updateUser deleteUser getUser listUser "
            "createAcl updateAcl deleteAcl getAcl listAcl",
            "",
            "declare accounts in `User` manifests; the brokers serve mqadmin's requests 50 to 53",
        ),
        (
            "getAdminExtGroup setAdminExtGroup getCreateTopicKey setCreateTopicKey getDefaultMQAdminExtImpl",
            "",
            _IMPL,
        ),
        (
            "updateAndGetGroupReadForbidden",
            "AdminClient.set_group",
            "`consume_enable=False` stops the whole consumer group",
        ),
        ("setMessageRequestMode exportPopRecords", "", _POP),
        (
            "createStaticTopic",
            "",
            "queues stay in their broker group; the manifest of a topic places them",
        ),
        (
            "addBrokerToContainer removeBrokerFromContainer cleanControllerBrokerData electMaster "
            "getControllerConfig updateControllerConfig getControllerMetaData getBrokerEpochCache "
            "getBrokerHAStatus getInSyncStateData resetMasterFlushOffset checkRocksdbCqWriteProgress "
            "exportRocksDBConfigToJson getColdDataFlowCtrInfo removeColdDataFlowCtrGroupConfig "
            "updateColdDataFlowCtrGroupConfig setCommitLogReadAheadMode",
            "",
            _TABLE_5 + "; see `AdminClient.group_status` and `transfer_leadership`",
        ),
    ),
    "ClientConfig": (
        (
            "getNamesrvAddr setNamesrvAddr",
            "ClientInstance",
            "an argument when a client is created",
        ),
        (
            "getNamespace setNamespace getNamespaceV2 setNamespaceV2 withNamespace withoutNamespace "
            "queueWithNamespace queuesWithNamespace",
            "ClientSettings.namespace with_namespace without_namespace",
            "a setting, fixed when a client is created; an AdminClient takes full names",
        ),
        ("buildMQClientId changeInstanceNameToPID", "Producer.client_id", "created at the start"),
        ("cloneClientConfig resetClientConfig toString", "ClientSettings", "a frozen dataclass"),
        ("isVipChannelEnabled setVipChannelEnabled", "", _VIP),
        ("getLanguage setLanguage", "", "always PYTHON"),
        ("getAccessChannel setAccessChannel", "", "the destination of traces in Alibaba's cloud"),
        (
            "isEnableTrace setEnableTrace getTraceTopic setTraceTopic getTraceMsgBatchNum "
            "setTraceMsgBatchNum",
            "Producer Consumer",
            "`trace` is an argument of both",
        ),
        (
            "getDetectInterval setDetectInterval getDetectTimeout setDetectTimeout isSendLatencyEnable "
            "setSendLatencyEnable isStartDetectorEnable setStartDetectorEnable",
            "",
            _LATENCY,
        ),
        (
            "getPullTimeDelayMillsWhenException setPullTimeDelayMillsWhenException",
            "",
            "failed pulls are repeated after increasing pauses",
        ),
        ("getSocksProxyConfig setSocksProxyConfig", "", "connections are made directly"),
        (
            "isDecodeDecompressBody setDecodeDecompressBody isDecodeReadBody setDecodeReadBody",
            "",
            "bodies are always read and decompressed",
        ),
        (
            "isEnableHeartbeatChannelEventListener setEnableHeartbeatChannelEventListener "
            "isUseHeartbeatV2 setUseHeartbeatV2 isEnableStreamRequestType setEnableStreamRequestType",
            "",
            _IMPL,
        ),
    ),
}
