"""The admin client's answers about messages when it cannot ask every broker."""

from dataclasses import replace

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.errors import BodyUnreadable, BrokerUnreachable, SettingError, StateError
from orderlymq.message import Message
from orderlymq.producer.producer import Producer
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.catalogue import (
    BrokerData,
    OffsetTable,
    QueueData,
    TopicRouteData,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.sysflag import COMPRESSED
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import BROKER, Fault, refuse, running
from tests.client.messages import messages
from tests.waiting import until

ROUTE = 105


async def test_a_broker_without_a_leader_is_no_broker_without_the_message() -> None:
    """Law: if a broker group has no leader, a search raises instead of finding nothing;
    the caller might send the message again.
    """
    leaderless = TopicRouteData(
        (QueueData(BROKER, 1, 1, 6),), (BrokerData("fake", BROKER, {}),), None
    )

    def answer(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        return command.reply(body=leaderless.to_json())

    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        cluster.faults[ROUTE] = [answer] * 4

        with pytest.raises(BrokerUnreachable, match=f"{BROKER} of T has no leader now"):
            await admin.find_messages("T", "key", unique=True)


async def test_a_second_start_is_refused() -> None:
    """Law: a second start is refused; it once left connections open after one close."""
    async with running() as cluster:
        async with AdminClient(cluster.address) as admin:
            with pytest.raises(StateError, match="already open"):
                await admin.start()
            await admin.cluster_info()

        await until(lambda: not cluster.connections)


async def test_one_broker_group_is_asked_alone() -> None:
    """Law: with a broker group named, only that one is asked, whatever others or the name servers say."""
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        one = admin.at("broker-x", "127.0.0.1:1")

        assert await one.brokers() == {"broker-x": "127.0.0.1:1"}
        with pytest.raises(BrokerUnreachable, match="is the cluster up"):
            await one.groups()
        assert await one.topic_stats("T") == {}


async def test_a_dead_letter_goes_where_it_says_or_is_refused() -> None:
    """Law: a dead letter is sent again to the topic that it names (RocketMQ 5's property too);
    without a known topic it is refused.
    """
    (told, untold) = messages(1, 2)
    told.body = b"x" * (5 << 20)  # As a producer with its own limit sends it, compressed.
    told.properties |= {"DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "0A", "color": "red"}
    origin = Message(topic="T", body=told.body, properties={"color": "red"}, unique_key="0A")
    large = ProducerSettings(max_message_size_bytes=8 << 20)

    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        with pytest.raises(SettingError, match="T has no message with the same content"):
            await admin.resend(told)
        async with Producer("p", cluster.address, settings=large) as producer:
            await producer.send(origin)
        with pytest.raises(SettingError, match="T has no message with the same content"):
            await admin.resend(replace(told, body=b"mine"))
        result = await admin.resend(told)
        with pytest.raises(SettingError, match="does not name its original topic; pass a topic"):
            await admin.resend(untold)

        sent = await admin.view_message(result.offset_message_id)

    assert result.queue.topic == "T"
    assert (
        sent.queue == result.queue
    )  # An offset id names an address; the broker's name is that of its route.
    assert {name: sent.properties.get(name) for name in told.properties if name != "UNIQ_KEY"} == {
        "DLQ_ORIGIN_TOPIC": None,
        "DLQ_ORIGIN_MESSAGE_ID": None,
        "color": "red",
    }


async def test_a_body_that_cannot_be_inflated_is_reported_with_its_place() -> None:
    """Law: a message that cannot be decompressed is reported with its place, as pull consumers do."""
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        async with Producer("p", cluster.address) as producer:
            sent = await producer.send(Message(topic="T", body=b"plain"))
        (physical, stored), *_ = cluster.physical.items()
        cluster.physical[physical] = replace(stored, sys_flag=COMPRESSED)

        with pytest.raises(BodyUnreadable, match="offset 0 of") as told:
            await admin.view_message(sent.offset_message_id)

    assert (told.value.queue.topic, told.value.offset) == ("T", 0)


@pytest.mark.parametrize("online", [(False, True), (True, False), (False, False)])
async def test_each_broker_group_is_reset_whether_its_members_are_online_or_not(
    online: tuple[bool, bool],
) -> None:
    """Law: each broker group is reset, by its online members or directly, because members may be connected to one only."""
    async with running(topics={"T": 1}) as one, running(topics={"T": 1}) as two:
        parts = dict(zip(("broker-a", "broker-b"), (one, two), strict=True))
        brokers = tuple(BrokerData("fake", name, {0: each.address}) for name, each in parts.items())
        queues = tuple(QueueData(name, 1, 1, 6) for name in parts)
        route = TopicRouteData(queues, brokers).to_json()
        one.faults[ROUTE] = [_tells(route)] * 8
        for (name, each), is_online in zip(parts.items(), online, strict=True):
            table = OffsetTable({MessageQueue("T", name, 0): 7}).to_json()
            each.faults[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET] = [
                _tells(table) if is_online else refuse(ResponseCode.CONSUMER_NOT_ONLINE)
            ]
        async with AdminClient(one.address) as admin:
            found = await admin.reset_offsets("g", "T", "earliest")

    assert found == {
        MessageQueue("T", name, 0): 7 if is_online else 0
        for name, is_online in zip(parts, online, strict=True)
    }
    expected: list[dict[tuple[str, str, int], int]] = [
        {} if is_online else {("g", "T", 0): 0} for is_online in online
    ]
    assert [one.offsets, two.offsets] == expected


@pytest.mark.parametrize("to", [-1, -(10**12), "first", ""])
async def test_a_reset_to_no_moment_is_refused_before_anybody_is_asked(to: int | str) -> None:
    """Law: a reset to a negative time is refused; -1 once meant the end for online groups and the begin for others."""
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        with pytest.raises(SettingError, match="neither earliest, latest nor a time"):
            await admin.reset_offsets("g", "T", to)

    assert cluster.offsets == {}


def _tells(body: bytes) -> Fault:
    return lambda command, _: command.reply(body=body)
