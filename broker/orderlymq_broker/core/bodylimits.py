"""
Limits for the size of request bodies, checked before a body is parsed.

The rule: a body is parsed on the event loop that also runs raft, so parsing must take a few milliseconds at
most: some 0.1 ms per KiB of many small parts. If a body has to be larger, the code that parses it limits its
parts, too. Messages are stored without being parsed and have a limit of their own
(``processors/send/sends.py``).
"""

from collections.abc import Mapping
from typing import Final

from orderlymq_protocol.body.clients import HeartbeatData
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import loads_standard
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand

BODY_SIZE_MAX: Final = 64 << 10
# A client's answer that is parsed here: its data on some hundred queues.
ANSWER_SIZE_MAX: Final = 64 << 10
# Programs have a few. Each is compared at every heartbeat and stored in the log when it changes.
SUBSCRIPTIONS_MAX: Final = 1_000
PRODUCER_GROUPS_MAX: Final = 1_000

# The body is a message, or a batch that is stored like a message.
MESSAGE_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
_UNREAD: Final = MESSAGE_CODES | {RequestCode.ORDERLYMQ_APPEND_COPIES}
_LARGER: Final[Mapping[int, int]] = {
    RequestCode.HEART_BEAT: 256 << 10,
    # The most queues that one request may name, with long names.
    RequestCode.LOCK_BATCH_MQ: 1 << 20,
    RequestCode.UNLOCK_BATCH_MQ: 1 << 20,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: 256 << 10,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: 256 << 10,
    # The names of the consumer groups that read a topic.
    RequestCode.ORDERLYMQ_CHANGE_QUEUES: 2 << 20,
    # The maximum number of reports in one request, with long reasons in characters of four bytes.
    RequestCode.ORDERLYMQ_COMPLETE_LANES: 1 << 20,
    # An owner for each queue of the largest topic.
    RequestCode.ORDERLYMQ_SET_ASSIGNMENT: 2 << 20,
}


def body_size_max(code: int) -> int | None:
    """Return the largest allowed body of a request; None if it is not parsed."""
    return None if code in _UNREAD else _LARGER.get(code, BODY_SIZE_MAX)


def excess(request: RemotingCommand) -> str:
    """Return the message that the body of a request is too large; empty if it is not."""
    maximum = body_size_max(request.code)
    if request.is_response or maximum is None or len(request.body) <= maximum:
        return ""

    return (
        f"the body of a request {request.code} has {len(request.body)} bytes; at most {maximum} "
        "are allowed: send less in one request"
    )


def read_heartbeat(body: bytes) -> HeartbeatData:
    """Return the content of a heartbeat.

    Raises:
        ModelError: it has too many groups or subscriptions, or is not a heartbeat.
        JsonError: it is not JSON.
    """
    value = loads_standard(body)
    if isinstance(value, Mapping):
        consumers = _list(value.get("consumerDataSet"))
        wishes = sum(
            1 + len(_list(each.get("subscriptionDataSet")))
            for each in consumers
            if isinstance(each, Mapping)
        )
        _check("groups and subscriptions", wishes, SUBSCRIPTIONS_MAX)
        _check("producer groups", len(_list(value.get("producerDataSet"))), PRODUCER_GROUPS_MAX)

    return HeartbeatData.from_json_value(value)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _check(what: str, count: int, maximum: int) -> None:
    if count > maximum:
        raise ModelError(
            f"the heartbeat has {count} {what}, at most {maximum} are allowed: divide them over "
            "several clients"
        )
