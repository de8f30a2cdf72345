"""A message is found wherever it lies, although other brokers do not answer."""

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.admin.messageplace import find_message
from orderlymq.errors import BrokerError
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.client.fakecluster import refuse, running


async def test_a_refusal_of_one_broker_hides_no_message_of_another() -> None:
    """The refusal is reported only when nobody had it."""
    async with running() as one, running() as two, AdminClient(one.address) as admin:
        refusing, holder = sorted((one, two), key=lambda each: each.address)
        told = [refusing.address, holder.address]
        holder.host, holder.port = "10.0.0.1", 10911  # as another network knows it
        message_id = holder.append("T", 0, b"x")
        refusal = refuse(ResponseCode.NO_PERMISSION, "no right")
        refusing.faults[RequestCode.VIEW_MESSAGE_BY_ID] = [refusal] * 2

        address, stored = await find_message(admin.instance, message_id, told)
        holder.physical.clear()
        with pytest.raises(BrokerError, match="no right"):
            await find_message(admin.instance, message_id, told)

    assert (address, stored.body) == (told[1], b"x")
