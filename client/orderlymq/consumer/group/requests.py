"""
Pulls, commits, locks and messages handed back as commands, and the answers to them. Pure.

Rule: everything here is RocketMQ's protocol plus fields that other brokers ignore: `omqClientId` and `omqEpoch` on
pulls and commits make the broker's fence exact, `leaseMillis` asks for the lease of a lock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orderlymq.connection.wire import INFLATED_SIZE_MAX, read_or_flag
from orderlymq.consumer.core.events import DeadLetter, ParkedFrom
from orderlymq.errors import BrokerError
from orderlymq.message import ReceivedMessage
from orderlymq.producer.requests import checksums
from orderlymq_protocol import names
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import LockBatchRequest, SubscriptionData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import (
    ConsumerSendMsgBackHeader,
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    SendMessageHeader,
    UpdateConsumerOffsetHeader,
)
from orderlymq_protocol.header.declaration import HeaderError
from orderlymq_protocol.header.extensions import EXT_BULK, EXT_CLIENT_ID, EXT_EPOCH
from orderlymq_protocol.message import properties, sysflag
from orderlymq_protocol.message.compression import CompressionType, compress
from orderlymq_protocol.message.properties import RETRY_TOPIC, encode_properties
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX, RecordError, iter_records

# The broker does not know this member's subscription yet: the next heartbeat reports it.
RESUBSCRIBE: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)
_COMPRESSION: Final = sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE_MASK
# Properties that a consumer adds to a message, and properties that a copy sets itself. RETRY_TOPIC must not be the
# producer's value: a dead letter is sent again to this topic.
_NOT_COPIED: Final = frozenset(
    {
        *(properties.MIN_OFFSET, properties.MAX_OFFSET, properties.CONSUME_START_TIME),
        *(properties.RETRY_TOPIC, properties.ORIGIN_MESSAGE_ID, properties.HELD_BEHIND),
        *(properties.RECONSUME_TIME, properties.MAX_RECONSUME_TIMES, properties.DELAY),
    }
)


class PullStatus(Enum):
    """Status of a pull; the values are response codes of the broker."""

    FOUND = 0
    NO_NEW_MSG = 19
    NO_MATCHED_MSG = 20
    OFFSET_ILLEGAL = 21


@dataclass(frozen=True, slots=True)
class PullResult:
    """Result of a pull.

    Attributes:
        next_offset: offset of the next pull.
        min_offset, max_offset: the range of the queue at that moment.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[ReceivedMessage, ...]

    def __repr__(self) -> str:
        return (
            f"PullResult({self.status.name}, nextBeginOffset={self.next_offset}, "
            f"minOffset={self.min_offset}, maxOffset={self.max_offset}, "
            f"msgFoundList={len(self.messages)})"
        )


def is_sent_away(result: PullResult, offset: int) -> bool:
    """Return whether a broker ended a waiting pull from *offset* early, to make room for other pulls or because it no longer leads.

    The caller waits a moment before the next pull, because that pull would take the place of yet another one.
    """
    return result.status is PullStatus.NO_MATCHED_MSG and result.next_offset == offset


def copy_to_retry(
    message: ReceivedMessage,
    group: str,
    *,
    times: int,
    maximum: int,
    delay_level: int,
    born_ms: int,
    behind: str = "",
) -> RemotingCommand:
    """Return a copy for the group's retry topic, as RocketMQ clients send it when they hand a message back.

    A body that arrived compressed is compressed again, so the copy is as large as the message was. The broker turns the
    copy into a dead letter when *times* has reached *maximum*. A dead letter must carry no delay level, because 4.x
    brokers would first keep it in the delay queue for minutes. *behind* is the message that it follows, if its key is
    parked.
    """
    body, said = message.body, {RETRY_TOPIC: _whole_topic(message, group)}
    if behind:
        said[properties.HELD_BEHIND] = behind
    said[properties.ORIGIN_MESSAGE_ID] = message.properties.get(
        properties.ORIGIN_MESSAGE_ID, message.message_id
    )
    # A body that could not be inflated is sent unchanged.
    if message.sys_flag & sysflag.COMPRESSED and not message.unreadable:
        kind = CompressionType(sysflag.compression_type(message.sys_flag))
        body = compress(body, kind)
        said[properties.BODY_CHECKSUMS] = checksums(message.body, body)
    said[properties.RECONSUME_TIME] = str(times)
    said[properties.MAX_RECONSUME_TIMES] = str(maximum)
    if delay_level:
        said[properties.DELAY] = str(delay_level)
    header = SendMessageHeader(
        producer_group=names.CLIENT_INNER_PRODUCER_GROUP,
        topic=names.retry_topic(group),
        default_topic=names.AUTO_CREATE_TOPIC,
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=message.sys_flag & _COMPRESSION,
        born_timestamp=born_ms,
        flag=message.flag,
        properties=_copied_properties(message, said, is_dead=times >= maximum).decode(),
        reconsume_times=times,
        max_reconsume_times=maximum,
        broker_name=message.queue.broker_name,
    )
    return request(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body)


def _copied_properties(message: ReceivedMessage, said: dict[str, str], *, is_dead: bool) -> bytes:
    """Return the properties of a copy: those of the message, then those in *said*.

    If the sender left no room for some properties in *said*, a dead letter goes without them, as a dead letter of a
    broker does, because its queue waits for it. A retry gets them all: without them it would give its consumer nothing,
    so its broker must refuse it.
    """
    own = {name: it for name, it in message.properties.items() if name not in _NOT_COPIED}
    text = encode_properties(own)
    for name, value in said.items():
        entry = encode_properties({name: value})
        if not is_dead or len(text) + len(entry) <= PROPERTIES_BYTES_MAX:
            text += entry
    return text


def send_back_request(
    message: ReceivedMessage, group: str, *, delay_level: int, maximum: int
) -> RemotingCommand:
    """Return the request to deliver a message again later (code 36)."""
    header = ConsumerSendMsgBackHeader(
        offset=message.physical_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.offset_message_id,
        origin_topic=_whole_topic(message, group),
        max_reconsume_times=maximum,
    )
    ext = header.to_ext()
    ext["bname"] = message.queue.broker_name
    return request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)


def _whole_topic(message: ReceivedMessage, group: str) -> str:
    """Return the topic to which a message was sent, by the name that brokers know; users see bare names."""
    topic = message.queue.topic
    retried = topic == names.retry_topic(group)
    return message.properties.get(RETRY_TOPIC, topic) if retried else topic


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """The options of one pull.

    Attributes:
        bulk: lets our brokers return more than RocketMQ's 32 messages; other brokers ignore it.
        fence: the fields that name the client and the epoch of its lock.
    """

    group: str
    queue: MessageQueue
    offset: int
    count: int
    subscription: SubscriptionData
    suspend_ms: int = 0
    commit_offset: int | None = None
    with_subscription: bool = False
    lite: bool = False
    bulk: bool = False
    fence: Mapping[str, str]


def fence(client_id: str, epoch: int | None = None) -> dict[str, str]:
    """Return the fields by which our brokers distinguish the lock's holder from other clients."""
    found = {EXT_CLIENT_ID: client_id}
    if epoch is not None:
        found[EXT_EPOCH] = str(epoch)
    return found


def pull_request(options: PullOptions) -> RemotingCommand:
    """Return a pull; the broker holds it if `suspend_ms` is not 0."""
    flags = sysflag.pull_flag(
        commit_offset=options.commit_offset is not None,
        suspend=options.suspend_ms > 0,
        subscription=options.with_subscription,
        lite=options.lite,
    )
    subscription = options.subscription
    header = PullMessageHeader(
        consumer_group=options.group,
        topic=options.queue.topic,
        queue_id=options.queue.queue_id,
        queue_offset=options.offset,
        max_msg_nums=options.count,
        sys_flag=flags,
        commit_offset=options.commit_offset or 0,
        suspend_timeout_millis=options.suspend_ms,
        sub_version=subscription.sub_version,
        subscription=subscription.sub_string if options.with_subscription else None,
        expression_type=subscription.expression_type,
    )
    code = RequestCode.LITE_PULL_MESSAGE if options.lite else RequestCode.PULL_MESSAGE
    ext = {**header.to_ext(), **options.fence}
    if options.bulk:
        ext[EXT_BULK] = "true"
    return request(code, ext)


def read_pull(
    answer: RemotingCommand,
    queue: MessageQueue,
    group: str,
    address: str,
    body_max: int | None = None,
) -> PullResult:
    """Read the answer of a pull; the messages are not filtered yet, and one may be `unreadable`.

    The first *body_max* bytes of each body are inflated, None for all. If the bodies inflate to too much, the result
    ends early; the next pull begins with the rest.

    Raises:
        BrokerError: The broker refused the pull, or its answer cannot be read.
    """
    try:
        status = PullStatus(answer.code)
    except ValueError:
        raise BrokerError(answer.code, answer.remark, address) from None
    try:
        header = PullMessageResponseHeader.from_ext(answer.ext)
    except HeaderError as error:
        raise BrokerError(answer.code, f"unreadable answer: {error}", address) from error
    if header.next_begin_offset < 0:
        # The next pull could not use this number, and it would be committed.
        text = f"unreadable answer: nextBeginOffset is {header.next_begin_offset}"
        raise BrokerError(answer.code, text, address)
    messages: list[ReceivedMessage] = []
    next_offset, inflated_bytes = header.next_begin_offset, 0
    if status is PullStatus.FOUND:
        try:
            for stored in iter_records(answer.body):
                if inflated_bytes >= INFLATED_SIZE_MAX:
                    next_offset = stored.queue_offset
                    break
                message = read_or_flag(stored, queue, group, body_max)
                message.properties[properties.MIN_OFFSET] = str(header.min_offset)
                message.properties[properties.MAX_OFFSET] = str(header.max_offset)
                messages.append(message)
                inflated_bytes += len(message.body)
        except RecordError as error:
            if not messages:
                raise BrokerError(answer.code, f"unreadable record: {error}", address) from error
            # The messages before this record are good; the next pull begins at the bad record.
            next_offset = messages[-1].queue_offset + 1
    return PullResult(status, next_offset, header.min_offset, header.max_offset, tuple(messages))


def commit_request(
    group: str, queue: MessageQueue, offset: int, fence_fields: Mapping[str, str]
) -> RemotingCommand:
    """Return the request to commit an offset."""
    header = UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, offset)
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, {**header.to_ext(), **fence_fields})


def read_offset(answer: RemotingCommand) -> int:
    """Read an answer that carries one offset.

    Raises:
        BrokerError: The answer cannot be read.
    """
    try:
        return OffsetResponseHeader.from_ext(answer.ext).offset
    except HeaderError as error:
        raise BrokerError(answer.code, f"unreadable answer: {error}") from error


def read_assignment(body: bytes) -> list[MessageQueue]:
    """Read the queues that a broker assigns to a member (QUERY_ASSIGNMENT).

    Raises:
        ValueError, KeyError, TypeError: The body is no assignment.
    """
    found = fastjson.loads(body)["messageQueueAssignments"]
    return [MessageQueue.from_json_value(each["messageQueue"]) for each in found]


def lock_request(
    code: RequestCode,
    client_id: str,
    group: str,
    queues: Iterable[MessageQueue],
    lease_ms: int | None,
) -> RemotingCommand:
    """Return a LOCK_BATCH_MQ or UNLOCK_BATCH_MQ request."""
    body = LockBatchRequest(client_id, group, tuple(queues), lease_ms).to_json()
    return request(code, {EXT_CLIENT_ID: client_id}, body)


def read_locks(
    body: bytes,
) -> tuple[dict[MessageQueue, int | None], dict[MessageQueue, dict[str, ParkedFrom]]]:
    """Return the granted queues with their epochs, and the parked keys of the queues that have some.

    The epoch is None if the broker knows no epochs.

    Raises:
        ValueError: The body is no answer to a lock request.
    """
    answer = fastjson.loads(body)
    if not isinstance(answer, Mapping):
        raise ValueError("the answer to a lock request is not a JSON object")
    queues = [MessageQueue.from_json_value(each) for each in answer.get("lockOKMQSet") or ()]
    epochs = answer.get("epochs") or [None] * len(queues)
    places = {(queue.topic, queue.queue_id): queue for queue in queues}
    parked: dict[MessageQueue, dict[str, ParkedFrom]] = {}
    for topic, queue_id, key, offset, message_id in answer.get("parkedKeys") or ():
        queue = places.get((topic, queue_id))
        if queue is not None:
            parked.setdefault(queue, {})[key] = ParkedFrom(offset, message_id)
    return dict(zip(queues, epochs, strict=True)), parked


def park_request(ask: DeadLetter, group: str, client_id: str) -> RemotingCommand:
    """Return the request for the verdict on a dead letter, or on a message that follows one."""
    message = ask.message
    ext = {
        "consumerGroup": group,
        "topic": ask.queue.topic,
        "queueId": str(ask.queue.queue_id),
        "offset": str(message.queue_offset),
        "key": message.key or "",
        "messageId": message.message_id,
        **fence(client_id, ask.epoch),
    }
    if ask.parked is not None and ask.parked.precedes(message.queue_offset):
        ext["following"] = "true"
    return request(RequestCode.ORDERLYMQ_HOLD_KEY, ext)


def read_verdict(answer: RemotingCommand) -> tuple[str, ParkedFrom | None]:
    """Return the verdict of the broker, and if it is `held`, the dead letter that holds the key.

    Raises:
        ValueError: The answer cannot be read.
    """
    ext = answer.ext
    if ext.get("verdict") == "held":
        return "held", ParkedFrom(int(ext["firstOffset"]), ext.get("firstMessageId", ""))
    return ext.get("verdict", ""), None
