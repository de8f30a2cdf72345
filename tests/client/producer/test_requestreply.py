"""The time-outs of requests, replies and one-way sends while name servers or brokers hang."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from orderlymq.connection import instance
from orderlymq.errors import NameServersUnreachable, ReplyTimeout
from orderlymq.producer.producer import Producer
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.catalogue import BrokerData, QueueData, TopicRouteData
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message import properties
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import BROKER, nobody, running, silence
from tests.client.messages import message

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
QUESTION = replace(
    message(0),
    properties={
        properties.CORRELATION_ID: "1",
        properties.REPLY_TO_CLIENT: "somebody",
        properties.CLUSTER: "fake",
    },
)
CALLS: dict[str, tuple[Callable[[Producer], Awaitable[object]], type[Exception], str]] = {
    "request": (
        lambda producer: producer.request("T", "q", timeout=0.2),
        ReplyTimeout,
        r"not sent: no name server answered within 0\.2 s",
    ),
    "reply": (
        lambda producer: producer.reply(QUESTION, "a", timeout=0.2),
        NameServersUnreachable,
        r"within 0\.2 s with the route of fake_REPLY_TOPIC",
    ),
    "oneway": (
        lambda producer: producer.send_oneway("T", "x"),
        NameServersUnreachable,
        r"within 0\.2 s with the route of T",
    ),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_ends_with_its_time_while_name_servers_hang(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Law: a call's time-out covers the question for the topic's route."""
    monkeypatch.setattr(instance, "_NAME_SERVER_TIMEOUT_S", 600.0)
    make, error, text = CALLS[call]
    settings = ProducerSettings(send_message_timeout=0.2)
    async with (
        running(topics={"T": 1}) as cluster,
        Producer("P", cluster.address, settings=settings) as producer,
    ):
        cluster.faults[ROUTE] = [silence] * 9
        async with asyncio.timeout(30):
            with pytest.raises(error, match=text):
                await make(producer)

    assert not cluster.logs


async def test_a_oneway_send_ends_with_its_time_while_name_servers_hang_and_its_broker_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a one-way send ends with its time-out, without an error."""
    monkeypatch.setattr(instance, "_NAME_SERVER_TIMEOUT_S", 600.0)
    settings = ProducerSettings(send_message_timeout=0.2)
    async with (
        running(topics={"T": 1}) as cluster,
        Producer("P", cluster.address, settings=settings) as producer,
    ):
        await producer.queues("T")
        producer._instance._doubted[cluster.address] = None
        cluster.faults[ROUTE] = [silence] * 9
        async with asyncio.timeout(30):
            await producer.send_oneway("T", "x")
            await producer.send("T", "y")

    assert cluster.bodies("T", 0) == [b"x", b"y"]


async def test_a_request_waits_for_no_heartbeat_of_a_broker_that_hangs() -> None:
    """Law: a request does not wait for the heartbeat to a hanging broker; its own broker knows the client before the send."""
    async with (
        nobody() as hangs,
        running(topics={"T": 1}) as cluster,
        Producer("P", cluster.address) as producer,
    ):

        def two_groups(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
            addresses = {BROKER: cluster.address, "broker-b": hangs}
            route = TopicRouteData(
                (QueueData(BROKER, 1, 1, 6),),
                tuple(BrokerData("fake", name, {0: each}) for name, each in addresses.items()),
            )
            return command.reply(body=route.to_json())

        cluster.faults[ROUTE] = [two_groups] * 99
        began_s = time.monotonic()
        with pytest.raises(ReplyTimeout, match="no reply within"):
            await producer.request("T", "q", timeout=1)
        took_s = time.monotonic() - began_s

    assert took_s < 2.5, "the 3 s of a heartbeat were waited for"
    assert cluster.bodies("T", 0) == [b"q"]
    codes = cluster.codes()
    assert codes.index(RequestCode.HEART_BEAT) < codes.index(RequestCode.SEND_MESSAGE_V2)
