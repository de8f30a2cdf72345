"""
RocketMQ's broker settings by name: which have a meaning here, when a change takes effect, and why others have no effect.

The names, units and defaults are those of BrokerConfig and MessageStoreConfig (4.9.8). Manifests have
them in ``config``; admin tools show them with code 26 and change them with code 25. One table serves
both, so that a refusal has the same text wherever a key is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orderlymq_protocol.integers import read_integer

# RocketMQ's clients consume for 30 s after they have read a grant, for which they wait 1 s; one
# second more is for clocks and threads. With a shorter lease, two of them would consume one queue.
LOCK_LEASE_MS_MIN: Final = 32_000
# Nobody wants to wait longer for a leader. Replicas send the value to each other in a field that ends at 24 days.
ELECTION_MS_MAX: Final = 60_000


class Use(Enum):
    """How our brokers treat a key."""

    LIVE = "manifest, and code 25 while the broker runs"
    START = "manifest; replicas restart one by one"
    SHOWN = "shown, follows from the manifest elsewhere"
    INERT = "accepted from tools, no effect"
    ALWAYS = "true is accepted from tools, any other value is refused"
    REFUSED = "refused"


class Kind(Enum):
    """Type of a value."""

    BOOLEAN = "true or false"
    INTEGER = "a whole number"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """One key.

    Attributes:
        default: RocketMQ's default, as its tools print it; empty if it has none.
        effect: what it does here; for a refused key the reason and what to do instead.
        unit: unit of the number; empty for counts and for values that are not numbers.
        low, high: smallest and largest number, both accepted.
        step: distance between the numbers that are accepted.
        ours: our default if it differs; *effect* gives the reason.
    """

    name: str
    default: str
    use: Use
    effect: str
    kind: Kind = Kind.TEXT
    unit: str = ""
    low: int = 0
    high: int = 0
    ours: str | None = None
    step: int = 1

    @property
    def range(self) -> str:
        """The accepted values, in words."""
        if self.kind is Kind.INTEGER and self.step > 1:
            return ", ".join(map(str, range(self.low, self.high + 1, self.step)))
        if self.kind is Kind.INTEGER:
            return f"{self.low} to {self.high}"

        return self.kind.value if self.kind is Kind.BOOLEAN else ""


class KeyValueError(ValueError):
    """The text is not a value of the key; the error says what is."""


def parse_boolean(text: str) -> bool:
    """Parse a value of a boolean key.

    Raises:
        KeyValueError: it is neither true nor false.
    """
    if text not in ("true", "false"):
        raise KeyValueError("write true or false")

    return text == "true"


def parse_integer(key: BrokerKey, text: str) -> int:
    """Parse a value of a numeric key.

    Raises:
        KeyValueError: it is not a whole number, or the key's range and step exclude it.
    """
    unit = f" of {key.unit}" if key.unit else ""
    try:
        number = read_integer(text)
    except ValueError as error:
        raise KeyValueError(f"write a whole number{unit}, {key.range}") from error
    if number not in range(key.low, key.high + 1):
        raise KeyValueError(f"write a number{unit} from {key.low} to {key.high}")
    if number not in range(key.low, key.high + 1, key.step):
        raise KeyValueError(f"write one of {key.range}: {key.effect}")

    return number


_HOURS_MAX: Final = 24 * 365 * 100
_DAY_MS: Final = 86_400_000


def _boolean(name: str, default: str, use: Use, effect: str, ours: str | None = None) -> BrokerKey:
    return BrokerKey(name, default, use, effect, Kind.BOOLEAN, ours=ours)


def _integer(
    name: str,
    default: int,
    use: Use,
    effect: str,
    low: int,
    high: int,
    *,
    unit: str = "",
    ours: int | None = None,
) -> BrokerKey:
    own = None if ours is None else str(ours)

    return BrokerKey(name, str(default), use, effect, Kind.INTEGER, unit, low, high, own)


_SERVED: Final = (
    _boolean(
        "autoCreateTopicEnable",
        "true",
        Use.LIVE,
        "a send to an unknown topic creates a Normal topic from the template TBW102; ordered "
        "topics must be declared",
    ),
    _boolean(
        "autoCreateSubscriptionGroup",
        "true",
        Use.LIVE,
        "a request that names an unknown consumer group creates it",
    ),
    _integer(
        "defaultTopicQueueNums",
        8,
        Use.LIVE,
        "the largest number of queues of a topic that a send creates; the client's own default "
        "is 4",
        1,
        1024,
    ),
    BrokerKey(
        "brokerPermission",
        "6",
        Use.LIVE,
        "6 read and write, 4 read only (sends answer 16), 2 write only (pulls answer 16)",
        Kind.INTEGER,
        low=2,
        high=6,
        step=2,
    ),
    _boolean(
        "rejectTransactionMessage",
        "false",
        Use.LIVE,
        "half messages are refused with code 16; open transactions can still be ended",
    ),
    _boolean(
        "enablePropertyFilter",
        "false",
        Use.LIVE,
        "subscriptions by SQL92 are served; on by default, because a refusal would surprise more "
        "people",
        ours="true",
    ),
    _integer(
        "fileReservedTime",
        72,
        Use.LIVE,
        "older messages are deleted, whole ranges at a time; spec.retention.time in manifests",
        1,
        _HOURS_MAX,
        unit="hours",
    ),
    _integer(
        "diskMaxUsedSpaceRatio",
        75,
        Use.LIVE,
        "if more of the disk is used, sends are answered with code 14; RocketMQ begins to clean "
        "at 75 and refuses at 90",
        10,
        99,
        unit="percent",
        ours=90,
    ),
    _integer(
        "maxMessageSize", 4_194_304, Use.LIVE, "largest body of a message", 1, 8 << 20, unit="bytes"
    ),
    _integer(
        "transactionTimeOut",
        6_000,
        Use.LIVE,
        "age of a half message when its producer is first asked about it",
        1,
        _DAY_MS,
        unit="ms",
    ),
    _integer(
        "transactionCheckInterval",
        60_000,
        Use.LIVE,
        "time from one question about a half message to the next",
        1,
        _DAY_MS,
        unit="ms",
    ),
    _integer(
        "transactionCheckMax",
        15,
        Use.LIVE,
        "number of unanswered questions after which a half message is put aside",
        1,
        1_000,
    ),
    _boolean(
        "timerWheelEnable",
        "true",
        Use.LIVE,
        "messages may have a delivery time (TIMER_DELIVER_MS and the like); if false, such "
        "messages are refused",
    ),
    _integer(
        "timerMaxDelaySec",
        259_200,
        Use.LIVE,
        "longest delay of a message with a delivery time",
        1,
        366 * 86_400,
        unit="s",
    ),
    _boolean(
        "recallMessageEnable",
        "false",
        Use.LIVE,
        "a message with a delivery time can be recalled by the handle that its send returned "
        "(from 5.3.1 on); on by default, because a client that may send to the topic may cancel "
        "by unique key anyway",
        ours="true",
    ),
    BrokerKey(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        Use.START,
        "the delay levels, from level 1 on; messages that already wait keep their due time",
    ),
    BrokerKey(
        "flushDiskType",
        "ASYNC_FLUSH",
        Use.START,
        "SYNC_FLUSH: acknowledged messages are on the disks of a majority; ASYNC_FLUSH: in the "
        "memory of a majority. spec.flushDiskType in manifests; durable by default",
        ours="SYNC_FLUSH",
    ),
    _integer(
        "registerNameServerPeriod",
        30_000,
        Use.START,
        "time from one registration with the name servers to the next",
        10_000,
        60_000,
        unit="ms",
    ),
    _integer(
        "rocketmq.broker.rebalance.lockMaxLiveTime",
        60_000,
        Use.START,
        "how long a holder that sends nothing keeps its queues (a system property in RocketMQ); "
        "spec.lock.leaseSeconds in manifests",
        LOCK_LEASE_MS_MIN,
        300_000,
        unit="ms",
    ),
    _boolean(
        "traceTopicEnable",
        "false",
        Use.START,
        "the topic RMQ_SYS_TRACE_TOPIC is created at the start",
    ),
    _boolean("aclEnable", "false", Use.START, "only requests that a User has signed are served"),
)

_SHOWN: Final = tuple(
    BrokerKey(name, default, Use.SHOWN, effect, ours=ours)
    for name, default, effect, ours in (
        ("brokerClusterName", "DefaultCluster", "the name of the Cluster", None),
        (
            "brokerName",
            "the host's name",
            "the name of the Cluster and the index of the broker group",
            None,
        ),
        (
            "brokerId",
            "0",
            "always 0: every broker group has one stable address, its leader's",
            None,
        ),
        ("brokerIP1", "the host's address", "the broker group's stable address", None),
        ("listenPort", "10911", "the port of that address; port - 2 is served, too", None),
        ("namesrvAddr", "", "all name servers of the Cluster", None),
        ("brokerRole", "ASYNC_MASTER", "acknowledged messages are at a majority", "SYNC_MASTER"),
        ("enableDLegerCommitLog", "false", "every broker group is replicated by raft", "true"),
        ("storePathRootDir", "~/store", "the replica's data directory", None),
        ("filterServerNums", "0", "RocketMQ removed class filters in 4.3.0", None),
        ("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "the name cannot be changed", None),
        (
            "slaveReadEnable",
            "false",
            "followers answer no pulls: only the leader knows the locks",
            None,
        ),
        ("traceOn", "true", "clients decide whether they write traces", None),
        ("useTLS", "false", "spec.tls of the Cluster", None),
        (
            "maxMsgsNumBatch",
            "64",
            "the largest number of messages that one query by key returns",
            None,
        ),
    )
)

_FLUSHING: Final = "acknowledged messages are stored already: there is nothing to flush later"
_WAITING: Final = "requests do not wait for threads here, so none waits too long"
_CLEANING: Final = "RocksDB frees space by itself; see spec.retention"
_INSIDE: Final = "it tunes internals of RocketMQ's broker and has no visible effect"

# Keys that tools set by habit. Every value is accepted, because none makes a difference here.
_INERT: Final = tuple(
    BrokerKey(name, default, Use.INERT, effect)
    for effect, keys in (
        (
            _FLUSHING,
            {
                "flushConsumerOffsetInterval": "5000",
                "flushConsumerOffsetHistoryInterval": "60000",
                "flushDelayOffsetInterval": "10000",
                "flushIntervalCommitLog": "500",
                "flushIntervalConsumeQueue": "1000",
                "commitIntervalCommitLog": "200",
            },
        ),
        (
            _WAITING,
            {
                "waitTimeMillsInSendQueue": "200",
                "waitTimeMillsInPullQueue": "5000",
                "osPageCacheBusyTimeOutMills": "1000",
            },
        ),
        (
            _CLEANING,
            {
                "cleanResourceInterval": "10000",
                "deleteCommitLogFilesInterval": "100",
                "destroyMapedFileIntervalForcibly": "120000",
            },
        ),
        (
            _INSIDE,
            {
                "transferMsgByHeap": "true",
                "useReentrantLockWhenPutMessage": "true",
                "isEnableBatchPush": "false",
                "enablePopLog": "false",
            },
        ),
    )
    for name, default in keys.items()
)

_ALWAYS_ON: Final = tuple(
    BrokerKey(name, "true", Use.ALWAYS, "always on")
    for name in (
        "longPollingEnable",
        "litePullMessageEnable",
        "notifyConsumerIdsChangedEnable",
        "messageIndexEnable",
        "checkCRCOnRecover",
    )
)

_THREADS: Final = (
    "a replica has one event loop and one writer thread; more broker groups give more throughput"
)
_FILES: Final = "messages are kept in RocksDB, not in mapped files; see spec.storage"
_CACHE: Final = "there is no page cache lock; set tailCacheSize and blockCacheSize in config"
_REPLICATION: Final = "raft replicates; see replicasPerGroup, raftHeartbeat, raftElectionTimeout"
_POP: Final = "POP consumption is not served; clients fall back to pull"

_REFUSED: Final = tuple(
    BrokerKey(name, default, Use.REFUSED, reason)
    for reason, keys in (
        (
            _THREADS,
            {
                "sendMessageThreadPoolNums": "1",
                "pullMessageThreadPoolNums": "16 + 2 per core",
                "queryMessageThreadPoolNums": "8 + cores",
                "adminBrokerThreadPoolNums": "16",
                "clientManageThreadPoolNums": "32",
                "consumerManageThreadPoolNums": "32",
                "heartbeatThreadPoolNums": "min(32, cores)",
                "endTransactionThreadPoolNums": "8 + 2 per core",
                "sendThreadPoolQueueCapacity": "10000",
                "pullThreadPoolQueueCapacity": "100000",
            },
        ),
        (
            _FILES,
            {
                "storePathCommitLog": "~/store/commitlog",
                "mappedFileSizeCommitLog": "1073741824",
                "mappedFileSizeConsumeQueue": "6000000",
                "deleteWhen": "04",
                "cleanFileForciblyEnable": "true",
                "warmMapedFileEnable": "false",
                "transientStorePoolEnable": "false",
                "maxIndexNum": "20000000",
                "maxHashSlotNum": "5000000",
            },
        ),
        (
            _CACHE,
            {
                "accessMessageInMemoryMaxRatio": "40",
                "maxTransferBytesOnMessageInMemory": "262144",
                "maxTransferCountOnMessageInMemory": "32",
                "maxTransferBytesOnMessageInDisk": "65536",
                "maxTransferCountOnMessageInDisk": "8",
            },
        ),
        (
            _REPLICATION,
            {
                "haListenPort": "10912",
                "haMasterAddress": "",
                "haSlaveFallbehindMax": "268435456",
                "syncFlushTimeout": "5000",
                "dLegerGroup": "",
                "dLegerPeers": "",
                "dLegerSelfId": "",
                "preferredLeaderId": "",
                "offsetCheckInSlave": "false",
            },
        ),
        (
            _POP,
            {
                "popPollingSize": "1024",
            },
        ),
        (
            (
                "a setting of each consumer group: retry.maxTimes of the ConsumerGroup, or "
                "updateSubGroup -r"
            ),
            {"retryMaxTimes": "16"},
        ),
        (
            "a setting of each topic: spec.queues of the Topic, or updateTopic -r -w",
            {"readQueueNums": "4", "writeQueueNums": "4"},
        ),
    )
    for name, default in keys.items()
)

BROKER_KEYS: Final[Mapping[str, BrokerKey]] = {
    key.name: key for key in (*_SERVED, *_SHOWN, *_INERT, *_ALWAYS_ON, *_REFUSED)
}


def changes_nothing(name: str, text: str) -> bool:
    """Return whether a value that a tool sets is accepted although it has no effect."""
    key = BROKER_KEYS.get(name)

    return key is not None and (
        key.use is Use.INERT or (key.use is Use.ALWAYS and text.lower() == "true")
    )


def why_not(name: str) -> str:
    """Say why a key cannot be set in a running broker; works for every key, known or not."""
    key = BROKER_KEYS.get(name)
    if key is None:
        return "there is no such key; docs/reference/settings.md lists the existing ones"
    match key.use:
        case Use.LIVE:
            return "it can be changed while the broker runs"
        case Use.INERT:
            return f"it has no effect: {key.effect}"
        case Use.START:
            return "it takes effect when a replica starts; change the cluster's manifest"
        case Use.SHOWN:
            return f"it follows from the cluster's manifest: {key.effect}"
        case Use.ALWAYS:
            return f"it is {key.effect}"
        case Use.REFUSED:
            return key.effect
