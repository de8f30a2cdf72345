"""A key is explained by the broker group that has it; a refusal is not taken for an empty answer."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from orderlymq import AdminClient
from orderlymq.admin.explanation import explain_key
from orderlymq.errors import BrokerError, BrokerUnreachable
from orderlymq.settings import ClientSettings
from orderlymq_protocol.body.catalogue import (
    BrokerData,
    ClusterInfo,
    ConsumeStats,
    GroupList,
    OffsetWrapper,
    QueueData,
    TopicOffset,
    TopicRouteData,
    TopicStats,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from tests.client.fakecluster import BROKER, FakeCluster, nobody, refuse

OTHER = "broker-b"
IMPATIENT = ClientSettings(request_timeout=0.1)


@dataclass
class TwoGroups(FakeCluster):
    """Two broker groups: broker-a answers, broker-b accepts connections and answers nothing."""

    hanging: str = ""
    consumed: int = 5

    def serve(self, command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        brokers = (
            BrokerData("fake", BROKER, {0: self.address}),
            BrokerData("fake", OTHER, {0: self.hanging}),
        )
        queue = MessageQueue("orders", BROKER, 0)
        match command.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                queues = (QueueData(BROKER, 1, 1, 6), QueueData(OTHER, 1, 1, 6))
                return command.reply(body=TopicRouteData(queues, brokers).to_json())
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                table = {each.broker_name: each for each in brokers}
                return command.reply(body=ClusterInfo(table).to_json())
            case RequestCode.GET_TOPIC_STATS_INFO:
                return command.reply(body=TopicStats({queue: TopicOffset(0, 5)}).to_json())
            case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
                return command.reply(body=GroupList(("billing",)).to_json())
            case RequestCode.GET_CONSUME_STATS:
                return command.reply(
                    body=ConsumeStats(
                        {queue: OffsetWrapper(self.consumed, self.consumed)}
                    ).to_json()
                )
        return super().serve(command, conn)


@pytest.fixture
async def groups() -> AsyncIterator[TwoGroups]:
    """Both broker groups; the key b is in the first queue."""
    async with nobody() as hanging:
        fake = TwoGroups(hanging=hanging)
        server = RemotingServer(fake, linger_reset=True)
        fake.host, fake.port = await server.listen("127.0.0.1", 0)
        yield fake
        await server.close()


async def test_a_broker_group_that_hangs_delays_no_key_of_another_one(groups: TwoGroups) -> None:
    """Law: a hanging broker group that does not have the key is not asked; a request unknown to RocketMQ is no failure."""
    async with AdminClient(groups.address) as admin, asyncio.timeout(1.0):
        told = await explain_key(admin, "orders", "b")

    assert (told.queue, told.max_offset) == (MessageQueue("orders", BROKER, 0), 5)
    (group,) = told.groups
    assert (group.group, group.committed, group.lock, group.parked) == ("billing", 5, None, None)


async def test_a_group_never_stands_behind_the_end_of_the_queue(groups: TwoGroups) -> None:
    """Law: the shown end of the queue is never below a group's offset, even if it consumed meanwhile."""
    groups.consumed = 9
    async with AdminClient(groups.address) as admin:
        told = await explain_key(admin, "orders", "b")

    assert (told.max_offset, told.groups[0].committed) == (9, 9)


async def test_the_key_of_a_broker_group_that_hangs_is_not_explained(groups: TwoGroups) -> None:
    """Law: if the broker group with the key hangs, the error says so."""
    async with AdminClient(groups.address, client_settings=IMPATIENT) as admin:
        with pytest.raises(BrokerUnreachable):
            await explain_key(admin, "orders", "a")


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.ORDERLYMQ_LOCK_TABLE,
        RequestCode.ORDERLYMQ_PARKED_KEYS,
        RequestCode.ORDERLYMQ_LANES,
    ],
)
async def test_what_a_broker_refuses_is_not_taken_for_nobody_and_nothing(
    groups: TwoGroups, code: RequestCode
) -> None:
    """Law: a broker's refusal is raised, unless it does not know the request or the group."""
    groups.faults[code] = [refuse(ResponseCode.SYSTEM_ERROR), refuse(26)]
    async with AdminClient(groups.address) as admin:
        with pytest.raises(BrokerError, match="refused by the test"):
            await explain_key(admin, "orders", "b")
        assert (await explain_key(admin, "orders", "b")).groups
