"""
Where a message lies, by its offset id.

An offset id has the stable address of its broker group and the message's physical offset. The address is the group's name
as much as a place: a reader of a log on another network has the same id, and reaches the group at another address.
So the group is asked at its address when this client's name server tells it; else all groups are asked at the
addresses that are told, and the record that names the same address is the message.
"""

from collections.abc import Iterable

from orderlymq.connection.instance import ClientInstance
from orderlymq.errors import BrokerError, SettingError
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.header.catalogue import ViewMessageHeader
from orderlymq_protocol.message.ids import MessageIdError, decode_offset_message_id
from orderlymq_protocol.message.record import StoredMessage, iter_records
from orderlymq_runtime.sockets.addresses import join_address


async def find_message(
    instance: ClientInstance, message_id: str, addresses: Iterable[str]
) -> tuple[str, StoredMessage]:
    """Return the address of the group that has a message, and the message's record.

    *addresses* are those of the groups' leaders, as this client's name server tells them.

    Raises:
        SettingError: The text is no offset id.
        BrokerError: There is no such message.
    """
    try:
        host, port, offset = decode_offset_message_id(message_id)
    except MessageIdError as error:
        raise SettingError(
            f"{error}; pass the offset message id of a send result, or search with "
            "`orderlymq message find --topic TOPIC --key KEY`"
        ) from error
    own, told = join_address(host, port), sorted(addresses)
    if own in told or not told:
        return own, await _view(instance, own, offset)
    for address in told:
        try:
            stored = await _view(instance, address, offset)
        except BrokerError:
            continue  # it has nothing there, or another message's middle
        if stored.store_host == (host, port):
            return address, stored
    raise BrokerError(
        ResponseCode.SYSTEM_ERROR,
        f"no broker group has the message {message_id}: it is of another cluster, or its retention is over",
    )


async def _view(instance: ClientInstance, address: str, offset: int) -> StoredMessage:
    header = ViewMessageHeader(offset)
    answer = await instance.call(address, RequestCode.VIEW_MESSAGE_BY_ID, header.to_ext())
    return next(iter_records(answer.body))
