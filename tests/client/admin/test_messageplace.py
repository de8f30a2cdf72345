"""A message is found although other brokers do not answer."""

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.admin.messageplace import find_message
from orderlymq.errors import BrokerError, BrokerUnreachable
from orderlymq_protocol.body.catalogue import BrokerData, QueueData, TopicRouteData
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.client.fakecluster import BROKER, refuse, running


async def test_a_refusal_of_one_broker_hides_no_message_of_another() -> None:
    """Law: one broker's refusal does not hide another's message; it is raised only if none has it."""
    async with running() as one, running() as two, AdminClient(one.address) as admin:
        refusing, holder = sorted((one, two), key=lambda each: each.address)
        told = [refusing.address, holder.address]
        holder.host, holder.port = "10.0.0.1", 10911  # As another network knows it.
        message_id = holder.append("T", 0, b"x")
        refusal = refuse(ResponseCode.NO_PERMISSION, "no right")
        refusing.faults[RequestCode.VIEW_MESSAGE_BY_ID] = [refusal] * 2

        address, stored = await find_message(admin.instance, message_id, told)
        holder.physical.clear()
        with pytest.raises(BrokerError, match="no right"):
            await find_message(admin.instance, message_id, told)

    assert (address, stored.body) == (told[1], b"x")


async def test_a_message_is_found_by_its_id_beside_a_broker_group_that_does_not_answer() -> None:
    """Law: a message is found by its id next to a silent broker group; a search that needs all of them raises."""
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        brokers = {"a": "127.0.0.1:1", BROKER: cluster.address}
        route = TopicRouteData(
            tuple(QueueData(name, 1, 1, 6) for name in brokers),
            tuple(BrokerData("fake", name, {0: address}) for name, address in brokers.items()),
        )
        cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [
            lambda command, _: command.reply(body=route.to_json())
        ] * 9
        cluster.append("T", 0, b"x", b"UNIQ_KEY\x01ID\x02KEYS\x01ID\x02")

        assert [each.body for each in await admin.find_messages("T", "ID", unique=True)] == [b"x"]
        with pytest.raises(BrokerUnreachable):
            await admin.find_messages("T", "ID")
        with pytest.raises(BrokerUnreachable):
            await admin.find_messages("T", "other", unique=True)


@pytest.mark.parametrize(("body", "says"), [(b"", "no message"), (b"no record", "unreadable")])
async def test_an_answer_without_a_message_is_an_error_of_its_broker(
    body: bytes, says: str
) -> None:
    """Law: an answer without a message is a BrokerError."""
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        message_id = cluster.append("T", 0, b"x")
        cluster.faults[RequestCode.VIEW_MESSAGE_BY_ID] = [
            lambda command, _: command.reply(body=body)
        ]
        with pytest.raises(BrokerError, match=says):
            await admin.view_message(message_id)
        cluster.faults[RequestCode.QUERY_MESSAGE] = [
            lambda command, _: command.reply(body=b"no record")
        ]
        with pytest.raises(BrokerError, match="unreadable"):
            await admin.find_messages("T", "key")


async def test_as_many_messages_are_found_as_were_asked_for() -> None:
    """Law: a search returns the newest messages of all broker groups together, and raises if one is away."""
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        for body in (b"old", b"new"):
            cluster.append("T", 0, body, b"UNIQ_KEY\x01order\x02KEYS\x01order\x02")

        assert [each.body for each in await admin.find_messages("T", "order", count=1)] == [b"new"]
