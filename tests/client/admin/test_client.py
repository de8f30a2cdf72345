"""What the administrator says of messages when it cannot ask everybody."""

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.errors import BrokerUnreachable, SettingError
from orderlymq_protocol.body.catalogue import BrokerData, QueueData, TopicRouteData
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import BROKER, running
from tests.client.messages import messages

ROUTE = 105


async def test_a_broker_without_a_leader_is_no_broker_without_the_message() -> None:
    """Who took "none" for an answer would send the message again."""
    leaderless = TopicRouteData(
        (QueueData(BROKER, 1, 1, 6),), (BrokerData("fake", BROKER, {}),), None
    )

    def answer(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        return command.reply(body=leaderless.to_json())

    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        cluster.faults[ROUTE] = [answer] * 4

        with pytest.raises(BrokerUnreachable, match=f"{BROKER} of T has no leader now"):
            await admin.find_messages("T", "key", unique=True)


async def test_one_broker_group_is_asked_alone() -> None:
    """Its figures do not depend on what the others, or the name servers, can say now."""
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        one = admin.at("broker-x", "127.0.0.1:1")

        assert await one.brokers() == {"broker-x": "127.0.0.1:1"}
        with pytest.raises(BrokerUnreachable, match="is the cluster up"):
            await one.groups()
        assert await one.topic_stats("T") == {}


async def test_a_dead_letter_goes_where_it_says_or_is_refused() -> None:
    """A broker of RocketMQ 5 notes the topic under a name of its own; one without any is sent nowhere."""
    (told, untold) = messages(1, 2)
    told.properties |= {"DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "0A", "color": "red"}

    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        result = await admin.resend(told)
        with pytest.raises(SettingError, match="does not tell its original topic; pass one"):
            await admin.resend(untold)

        sent = await admin.view_message(result.offset_message_id)

    assert result.queue.topic == "T"
    assert {name: sent.properties.get(name) for name in told.properties if name != "UNIQ_KEY"} == {
        "DLQ_ORIGIN_TOPIC": None,
        "DLQ_ORIGIN_MESSAGE_ID": None,
        "color": "red",
    }
