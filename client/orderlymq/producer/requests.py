"""Commands of sends, and the answers to them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq.errors import SendUnknown
from orderlymq.message import Message, SendResult, SendStatus
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import (
    SendMessageHeader,
    SendMessageResponseHeader,
)
from orderlymq_protocol.message import properties, sysflag
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from orderlymq_protocol.message.compression import CompressionType, compress
from orderlymq_protocol.message.record import body_crc

# The value of MSG_TYPE in the answer to a request.
REPLY: Final = "reply"
_CHECKSUMS: Final = "{:08x},{:08x}"
# The bytes that the checksums of a deflated body add to the properties.
CHECKSUMS_SIZE: Final = len(
    properties.encode_properties({properties.BODY_CHECKSUMS: _CHECKSUMS.format(0, 0)})
)


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Parameters that all sends of a producer share."""

    group: str
    settings: ProducerSettings


def send_request(
    message: Message, queue: MessageQueue, options: SendOptions, born_ms: int
) -> RemotingCommand:
    """Return the send of one message; a large body is deflated."""
    body, flags, wanted = message.body, 0, message.wire_properties()
    if options.settings.compresses(body):
        body = compress(body, CompressionType.ZLIB, options.settings.compress_level)
        flags = sysflag.with_compression(0, CompressionType.ZLIB)
        # The same message in a batch is not deflated; these checksums show that it is the same.
        wanted[properties.BODY_CHECKSUMS] = checksums(message.body, body)
    text = properties.encode_properties(wanted).decode()
    if properties.TRAN_MSG in message.marks:
        flags = sysflag.with_transaction_state(flags, sysflag.TRANSACTION_PREPARED)
    header = _send_header(options, queue, flags, born_ms, text)
    header.flag = message.flag
    is_reply = message.marks.get(properties.MSG_TYPE) == REPLY
    code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else RequestCode.SEND_MESSAGE_V2
    return request(code, header.to_ext_v2(), body)


def checksums(body: bytes, deflated: bytes) -> str:
    """Return the property by which brokers recognise a body, whether it is deflated or not."""
    return _CHECKSUMS.format(body_crc(body), body_crc(deflated))


def batch_request(
    messages: Sequence[Message], queue: MessageQueue, options: SendOptions, born_ms: int
) -> RemotingCommand:
    """Return the atomic send of several messages of one topic; batches are never deflated."""
    body = encode_batch(batch_entry(message) for message in messages)
    # RocketMQ appends these to the properties of each message, where they win: a UNIQ_KEY here would become the key
    # of every message. Java 4.9 gives a batch none either.
    shared = {properties.WAIT: "true" if messages[0].wait_store_ok else "false"}
    text = properties.encode_properties(shared).decode()
    header = _send_header(options, queue, 0, born_ms, text)
    header.batch = True
    return request(RequestCode.SEND_BATCH_MESSAGE, header.to_ext_v2(), body)


def batch_entry(message: Message) -> BatchEntry:
    """Return one message in the form of a batch body's entry."""
    return BatchEntry(
        message.flag, message.body, properties.encode_properties(message.wire_properties())
    )


def _send_header(
    options: SendOptions, queue: MessageQueue, flags: int, born_ms: int, text: str
) -> SendMessageHeader:
    return SendMessageHeader(
        producer_group=options.group,
        topic=queue.topic,
        default_topic=options.settings.create_topic_key,
        default_topic_queue_nums=options.settings.default_topic_queue_nums,
        queue_id=queue.queue_id,
        sys_flag=flags,
        born_timestamp=born_ms,
        flag=0,
        properties=text,
        broker_name=queue.broker_name,
    )


def read_send_result(answer: RemotingCommand, message_id: str, queue: MessageQueue) -> SendResult:
    """Read the answer of a send whose code `is_stored`.

    Raises:
        SendUnknown: It cannot be read.
    """
    try:
        header = SendMessageResponseHeader.from_ext(answer.ext)
        places = (each.split(":") for each in header.places.split(",")) if header.places else ()
        return SendResult(
            SendStatus(answer.code),
            message_id,
            header.msg_id,
            queue._replace(queue_id=header.queue_id),
            header.queue_offset,
            header.recall_handle or "",
            tuple((queue._replace(queue_id=int(number)), int(offset)) for number, offset in places),
        )
    except ValueError as error:
        text = f"the acknowledgement of {queue.broker_name} cannot be read: {error}"
        raise SendUnknown(text, code=answer.code) from error
