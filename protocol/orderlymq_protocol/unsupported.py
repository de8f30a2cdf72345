"""
Requests of RocketMQ that no process here serves: why, and what serves the purpose instead.

Rules: each of them is answered with code 3, on which clients fall back immediately. The remark begins
as RocketMQ's own does and goes on with the reason, because admin tools print it. A number
that is in neither table is not known at all and gets only RocketMQ's words.
"""

from collections.abc import Mapping
from typing import Final

_NEVER_SENT: Final = "no client or tool of RocketMQ sends it"
_FILTER_SERVER: Final = "RocketMQ removed class filters in 4.3.0; subscribe by tags or SQL92"
_POP: Final = "POP consumption is not served; consume by push, pull or lite pull"
_LITE: Final = "lite topics, which only POP uses, are not served; use topics and sharding keys"
_CONTROLLER: Final = "raft replicates and needs no controller; see orderlymq status"
_STORE: Final = "messages are kept in RocksDB, not in commit log files"
_AUTH: Final = (
    "accounts are changed with codes 50 to 53, updateAclConfig of mqadmin 4.9, or a User manifest"
)

REASONS: Final[Mapping[int, str]] = {
    13: _NEVER_SENT,  # QUERY_BROKER_OFFSET
    22: _NEVER_SENT,  # GET_TOPIC_CONFIG_LIST
    23: _NEVER_SENT,  # GET_TOPIC_NAME_LIST
    27: _NEVER_SENT,  # TRIGGER_DELETE_FILES
    47: _NEVER_SENT,  # GET_CLIENT_CONFIG
    54: (
        "accounts are not shown, because they contain secrets; request 52, "
        "clusterAclConfigVersion of mqadmin 4.9, shows whether the brokers have the same accounts"
    ),
    60: "the timer wheel has no check point here, because due times are in the log",
    61: "orderlymq status and /metrics show the number of timer messages",
    209: _NEVER_SENT,  # SUSPEND_CONSUMER
    210: _NEVER_SENT,  # RESUME_CONSUMER
    211: _NEVER_SENT,  # RESET_CONSUMER_OFFSET_IN_CONSUMER
    212: _NEVER_SENT,  # RESET_CONSUMER_OFFSET_IN_BROKER
    213: _NEVER_SENT,  # ADJUST_CONSUMER_THREAD_POOL
    214: _NEVER_SENT,  # WHO_CONSUME_THE_MESSAGE
    301: _FILTER_SERVER,
    302: _FILTER_SERVER,
    308: "use resetOffsetByTime to correct offsets",
    353: "a consumer group can only be stopped as a whole: updateSubGroup with consumeEnable=false",
    354: "there is only one store, so there is nothing to compare it with",
    355: (
        "there is only one store; its settings are tailCacheSize and blockCacheSize in the manifest"
    ),
    401: _POP,
    402: _POP,
    514: "the queues of a topic stay with their broker group",
    902: _CONTROLLER,
    903: _CONTROLLER,
    905: _CONTROLLER,
    906: _CONTROLLER,
    907: "orderlymq status and /status of each replica show the replicas and their lag",
    908: "only raft truncates the logs of followers",
    1001: _CONTROLLER,
    1002: _CONTROLLER,
    1003: _CONTROLLER,
    1004: _CONTROLLER,
    1005: _CONTROLLER,
    1006: _CONTROLLER,
    1007: "orderlymq status shows the term of the broker group",
    1008: _CONTROLLER,
    1009: _CONTROLLER,
    1010: _CONTROLLER,
    1011: _CONTROLLER,
    1012: _CONTROLLER,
    1013: _CONTROLLER,
    2001: "there is no cold data flow control; pulls of old messages do not slow others down",
    2002: "there is no cold data flow control; pulls of old messages do not slow others down",
    2003: "there is no cold data flow control; pulls of old messages do not slow others down",
    2004: _STORE,
    3001: _AUTH,
    3002: _AUTH,
    3003: _AUTH,
    3004: _AUTH,
    3005: _AUTH,
    3006: _AUTH,
    3007: _AUTH,
    3008: _AUTH,
    3009: _AUTH,
    3010: _AUTH,
    5001: "there is only one way to store timer messages",  # SWITCH_TIMER_ENGINE
    200_050: _POP,
    200_051: _POP,
    200_052: _POP,
    200_053: _POP,
    200_054: _POP,
    200_055: _POP,
    200_056: _POP,
    200_057: _POP,
    **dict.fromkeys(range(200_070, 200_080), _LITE),  # since 5.5.0
    200_151: _POP,
}


def remark_of(code: int) -> str:
    """Return the remark of a refusal of a request code: RocketMQ's words, and the reason if there is one."""
    reason = REASONS.get(code)
    words = f" request type {code} not supported"

    return words if reason is None else f"{words}: {reason}"
