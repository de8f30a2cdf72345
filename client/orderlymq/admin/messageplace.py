"""
The place of a message, by its offset id or by a key.

An offset id has the stable address of its broker group and the message's physical offset. The address also serves as
the broker group's name: a reader of the log on another network has the same id, but reaches the broker group at
another address. So the broker group is asked at that address if this client's name server lists it. Else all broker
groups are asked at their known addresses, and the record that names the same address is the message. A key is asked
of every broker group that has a part of the topic.
"""

from collections.abc import Iterable
from typing import Final

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.wire import read_or_flag
from orderlymq.errors import BodyUnreadable, BrokerError, BrokerUnreachable, SettingError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import QueryMessageHeader, ViewMessageHeader
from orderlymq_protocol.message.ids import MessageIdError, decode_offset_message_id
from orderlymq_protocol.message.record import RecordError, StoredMessage, iter_records
from orderlymq_runtime.sockets.addresses import join_address

# Brokers, RocketMQ's too, answer with this text and the code of any error.
_NOTHING: Final = "can not find message"

#: The most messages of a key that one broker group returns by default.
QUERY_MAX: Final = 64
_FOREVER_MS: Final = 2**62


async def find_message(
    instance: ClientInstance, message_id: str, addresses: Iterable[str]
) -> tuple[str, StoredMessage]:
    """Return the address of the broker group that has a message, and the message's record.

    *addresses* are those of the broker groups' leaders, from this client's name server.

    Raises:
        SettingError: The text is not an offset id.
        BrokerError: There is no such message (22), or no broker that answered has it, and one refused.
        BrokerUnreachable: No broker that answered has it, and one did not answer.
    """
    try:
        host, port, offset = decode_offset_message_id(message_id)
    except MessageIdError as error:
        raise SettingError(
            f"{error}; pass the offset message id of a send result, or search with "
            "`orderlymq message find --topic TOPIC --key KEY`"
        ) from error
    own, known = join_address(host, port), sorted(addresses)
    if own in known or not known:
        return own, await _view(instance, own, offset)
    failure: BrokerUnreachable | BrokerError | None = None
    for address in known:
        try:
            stored = await _view(instance, address, offset)
        except BrokerUnreachable as error:
            failure = error
            continue
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                failure = error
            continue  # it has nothing at this offset, or the middle of another message
        if stored.store_host == (host, port):
            return address, stored
    if failure is not None:
        raise failure
    raise BrokerError(
        ResponseCode.QUERY_NOT_FOUND,
        f"no broker group has the message {message_id}: it belongs to another cluster, or retention has deleted it",
    )


async def _view(instance: ClientInstance, address: str, offset: int) -> StoredMessage:
    header = ViewMessageHeader(offset)
    try:
        answer = await instance.call(address, RequestCode.VIEW_MESSAGE_BY_ID, header.to_ext())
    except BrokerError as error:
        if error.code == ResponseCode.SYSTEM_ERROR and error.remark.startswith(_NOTHING):
            raise BrokerError(ResponseCode.QUERY_NOT_FOUND, error.remark, address) from error
        raise
    records = _records(answer, address)
    if not records:
        raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "the answer has no message", address)
    return records[0]


def _records(answer: RemotingCommand, address: str) -> list[StoredMessage]:
    """Return the records of an answer.

    Raises:
        BrokerError: One cannot be read.
    """
    try:
        return list(iter_records(answer.body))
    except RecordError as error:
        raise BrokerError(answer.code, f"unreadable record: {error}", address) from error


async def find_by_key(
    instance: ClientInstance,
    topic: str,
    key: str,
    *,
    unique: bool,
    count: int,
    unreadable: bool,
    body_max: int | None = None,
) -> list[ReceivedMessage]:
    """Return the messages of a topic with an index key, or with a unique key; raises as `AdminClient.find_messages`."""
    await instance.route(topic, keep=False)
    header = QueryMessageHeader(topic, key, count, 0, _FOREVER_MS, unique)
    ext = header.to_ext()
    if not unique:
        ext.pop("_UNIQUE_KEY_QUERY", None)
    found: dict[str, ReceivedMessage] = {}
    away: list[str] = []
    failure: BrokerUnreachable | None = None
    for name in instance.routes.brokers(topic):
        address = await instance.address(name, topic)
        if address is None:
            away.append(name)
            continue
        try:
            answer = await instance.call(address, RequestCode.QUERY_MESSAGE, ext)
        except BrokerUnreachable as error:
            failure = error
            continue
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            raise
        for stored in _records(answer, address):
            queue = MessageQueue(topic, name, stored.queue_id)
            message = read_found(stored, queue, unreadable=unreadable, body_max=body_max)
            # The index holds hashes or shortened keys; only the record itself decides.
            has_key = message.message_id == key if unique else key in message.keys
            if message.topic == topic and has_key:
                found[message.offset_message_id] = message
    # For an index key a part of the messages is not enough; for a unique key one message is.
    if failure is not None and not (unique and found):
        raise failure
    if away and not (unique and found):
        raise BrokerUnreachable(f"the broker group {away[0]} of {topic} has no leader now")
    oldest_first = sorted(found.values(), key=lambda each: (each.store_timestamp, each.queue))
    return oldest_first[-count:]


def read_found(
    stored: StoredMessage, queue: MessageQueue, *, unreadable: bool, body_max: int | None = None
) -> ReceivedMessage:
    """Return the user's view of a record; with *unreadable* also one whose body cannot be inflated.

    With *body_max* it has at most that many first bytes of its body.

    Raises:
        BodyUnreadable: Its body cannot be inflated.
    """
    message = read_or_flag(stored, queue, body_max=body_max)
    if message.unreadable and not unreadable:
        raise BodyUnreadable(queue, stored.queue_offset, message.unreadable)
    return message
