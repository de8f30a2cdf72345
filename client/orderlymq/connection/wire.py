"""
Reading of answers, for producers, consumers and admin clients. Pure.

`producer.requests` and `consumer.group.requests` build the commands.
"""

from dataclasses import replace
from typing import Final

from orderlymq.errors import BrokerError
from orderlymq.message import ReceivedMessage, SendStatus, received
from orderlymq_protocol import names
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message import sysflag
from orderlymq_protocol.message.compression import CompressionError, decompress
from orderlymq_protocol.message.ids import encode_offset_message_id
from orderlymq_protocol.message.properties import (
    BODY_CHECKSUMS,
    RETRY_TOPIC,
    decode_properties,
)
from orderlymq_protocol.message.record import StoredMessage

# Bodies never exceed what a broker stores; a compressed body may inflate to the user's own limit.
INFLATED_SIZE_MAX: Final = 64 * 1024 * 1024

_STORED_CODES: Final = frozenset(status.value for status in SendStatus)


def check(answer: RemotingCommand, address: str, *allowed: int) -> RemotingCommand:
    """Return *answer* if its code is SUCCESS or one of *allowed*.

    Raises:
        BrokerError: It has another code.
    """
    if answer.code == ResponseCode.SUCCESS or answer.code in allowed:
        return answer
    raise BrokerError(answer.code, answer.remark, address)


def is_stored(code: int) -> bool:
    """Return whether a send's answer means that the message is in the log."""
    return code in _STORED_CODES


def read_record(
    stored: StoredMessage, queue: MessageQueue, group: str = "", body_max: int | None = None
) -> ReceivedMessage:
    """Return the user's view of a record, inflated and under its original topic.

    With *body_max* its body is cut to that many bytes.

    Raises:
        CompressionError: The body is not compressed as its flags say.
    """
    if body_max is None:
        body = decompress(stored.body, stored.sys_flag, INFLATED_SIZE_MAX)
    else:
        body = decompress(stored.body, stored.sys_flag, body_max, cut=True)
    id_text = encode_offset_message_id(
        stored.store_host[0], stored.store_host[1], stored.physical_offset
    )
    message = received(stored, body, queue, id_text)
    if body_max is not None and not stored.sys_flag & sysflag.COMPRESSED:
        message.size_bytes = len(stored.body)
    # It describes the body as it was sent, compressed.
    message.properties.pop(BODY_CHECKSUMS, None)
    if group and message.topic == names.retry_topic(group):
        message.topic = message.properties.get(RETRY_TOPIC, message.topic)
    return message


def read_or_flag(
    stored: StoredMessage, queue: MessageQueue, group: str = "", body_max: int | None = None
) -> ReceivedMessage:
    """Return a record's message as `read_record` does; if its body cannot be inflated, flag only that message."""
    try:
        return read_record(stored, queue, group, body_max)
    except CompressionError as error:
        as_stored = replace(stored, sys_flag=sysflag.without_compression(stored.sys_flag))
        message = read_record(as_stored, queue, group, body_max)
        message.sys_flag, message.unreadable = stored.sys_flag, str(error)
        message.properties = decode_properties(stored.properties)
        return message
