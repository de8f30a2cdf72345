"""Requests to all broker groups: asked at the same time, and merged by a rule."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from orderlymq import AdminClient
from orderlymq.errors import BrokerError
from orderlymq_protocol.body.catalogue import BrokerData, ClusterInfo
from orderlymq_protocol.body.config import SubscriptionGroupConfig, SubscriptionGroupTable
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from tests.client.fakecluster import FakeCluster, until

GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
NAMES = ("broker-a", "broker-b", "broker-c")


class ThreeGroups(FakeCluster):
    """Three broker groups at one address, which answer nothing by themselves."""

    waiting: list[tuple[RemotingCommand, Connection]]

    def serve(self, command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {name: BrokerData("fake", name, {0: self.address}) for name in NAMES}
            return command.reply(body=ClusterInfo(table).to_json())
        if command.code == GROUPS:
            self.waiting.append((command, conn))
            return None
        return super().serve(command, conn)


@pytest.fixture
async def cluster() -> AsyncIterator[ThreeGroups]:
    fake = ThreeGroups()
    fake.waiting = []
    server = RemotingServer(fake, linger_reset=True)
    fake.host, fake.port = await server.listen("127.0.0.1", 0)
    yield fake
    await server.close()


def table(**retries: int) -> bytes:
    """Return the groups that a broker group knows, each with its limit of tries."""
    configs = {
        name: SubscriptionGroupConfig(name, retry_max_times=count)
        for name, count in retries.items()
    }
    return SubscriptionGroupTable(configs).to_json()


async def test_all_broker_groups_are_asked_at_the_same_time_and_the_first_by_name_counts(
    cluster: ThreeGroups,
) -> None:
    """The slowest one alone says how long it takes, and whose answer comes last says nothing."""
    async with AdminClient(cluster.address) as admin:
        asking = asyncio.create_task(admin.groups())
        await until(lambda: len(cluster.waiting) == 3)
        bodies = (table(billing=1), table(billing=2, shipping=2), table(shipping=3, audit=3))
        for (command, conn), body in reversed([*zip(cluster.waiting, bodies, strict=True)]):
            conn.send(command.reply(body=body))
        found = await asking

    assert {name: config.retry_max_times for name, config in found.items()} == {
        "audit": 3,
        "billing": 1,
        "shipping": 2,
    }


async def test_the_first_broker_group_by_name_that_refuses_says_why(cluster: ThreeGroups) -> None:
    """The others have been asked all the same."""
    async with AdminClient(cluster.address) as admin:
        asking = asyncio.create_task(admin.groups())
        await until(lambda: len(cluster.waiting) == 3)
        for (command, conn), remark in zip(cluster.waiting, ("", "second", "third"), strict=True):
            code = ResponseCode.SYSTEM_ERROR if remark else ResponseCode.SUCCESS
            conn.send(command.reply(code, body=table(billing=1), remark=remark))

        with pytest.raises(BrokerError, match="second"):
            await asking
