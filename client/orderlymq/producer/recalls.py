"""
Taking back a timer message by the handle of its send (`SendResult.recall_handle`).

Rule: the call is retried until its time is over, because a repeat does no harm. After a success the message is not
delivered any more.
"""

import asyncio
import time
from typing import Final

from orderlymq.connection.instance import ClientInstance, no_leader
from orderlymq.errors import BrokerError, BrokerUnreachable, SettingError
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import RecallMessageHeader, RecallMessageResponseHeader
from orderlymq_protocol.message.recallhandle import InvalidHandle, RecallHandle
from orderlymq_protocol.names import is_dlq_topic, is_retry_topic
from orderlymq_runtime.remoting.client import RemotingError

# From a replica that does not lead, and from one that is just delivering or recalling the message.
_LATER: Final = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)
_RETRY_S: Final = 0.05


def read_handle(topic: str, handle: str) -> RecallHandle:
    """Return the content of a handle.

    Raises:
        SettingError: It is not a handle, or not one of a message of this topic.
    """
    if is_retry_topic(topic) or is_dlq_topic(topic):
        raise SettingError(f"messages of {topic} cannot be recalled: topic is not supported")
    try:
        found = RecallHandle.decode(handle)
    except InvalidHandle as error:
        raise SettingError(f"{error}; pass the recall_handle of a SendResult") from error
    if found.topic != topic:
        raise SettingError(f"the handle belongs to a message of {found.topic}, not of {topic}")
    return found


async def recall_message(
    instance: ClientInstance, group: str, topic: str, handle: str, timeout_s: float
) -> str:
    """Ask the broker that has the message; return the message's unique key.

    Raises:
        SettingError: As `read_handle`; no broker was asked.
        BrokerError: The broker refuses: the message is due, or recalls are switched off.
        BrokerUnreachable: No broker said whether it was recalled; recall it again.
    """
    broker_name = read_handle(topic, handle).broker_name
    ext = {**RecallMessageHeader(topic, handle, group).to_ext(), "bname": broker_name}
    end_s = time.monotonic() + timeout_s
    why: BrokerError | BrokerUnreachable | None = None
    while (left_s := end_s - time.monotonic()) > 0:
        address = await instance.address(broker_name, topic, within_s=left_s)
        if address is None:
            why = no_leader(broker_name)
        else:
            command = request(RequestCode.RECALL_MESSAGE, ext)
            try:
                answer = await instance.invoke(address, command, end_s - time.monotonic())
            except RemotingError as error:
                why = BrokerUnreachable(f"{error}; recall the message again")
            else:
                if answer.code == ResponseCode.SUCCESS:
                    return RecallMessageResponseHeader.from_ext(answer.ext).msg_id
                why = BrokerError(answer.code, answer.remark, address)
                if answer.code not in _LATER:
                    break
        await asyncio.sleep(_RETRY_S)
    raise why or BrokerUnreachable(f"no time was left to recall the message: {timeout_s} s")
