"""Requests to all broker groups: sent at the same time, with the answers merged by a rule."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from orderlymq import AdminClient
from orderlymq.admin.answers import Subscription
from orderlymq.errors import BrokerError, BrokerUnreachable
from orderlymq_protocol.body.catalogue import BrokerData, ClusterInfo
from orderlymq_protocol.body.clients import SubscriptionData
from orderlymq_protocol.body.config import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
)
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.lanes import BY_KEY, LaneTable, QueueLanes
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from tests.client.fakecluster import BROKER, FakeCluster, Fault, refuse, running
from tests.waiting import until

GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
NAMES = ("broker-a", "broker-b", "broker-c")


class ThreeGroups(FakeCluster):
    """Three broker groups at one address that answer nothing by themselves."""

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
    """Return the consumer groups that a broker group knows, each with its maximum of tries."""
    configs = {
        name: SubscriptionGroupConfig(name, retry_max_times=count)
        for name, count in retries.items()
    }
    return SubscriptionGroupTable(configs).to_json()


async def test_all_broker_groups_are_asked_at_the_same_time_and_the_first_by_name_counts(
    cluster: ThreeGroups,
) -> None:
    """Law: all broker groups are asked at the same time; of different answers that of the first by name counts."""
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
    """Law: if several broker groups refuse, the first one's reason by name is raised; all have been asked."""
    async with AdminClient(cluster.address) as admin:
        asking = asyncio.create_task(admin.groups())
        await until(lambda: len(cluster.waiting) == 3)
        for (command, conn), remark in zip(cluster.waiting, ("", "second", "third"), strict=True):
            code = ResponseCode.SYSTEM_ERROR if remark else ResponseCode.SUCCESS
            conn.send(command.reply(code, body=table(billing=1), remark=remark))

        with pytest.raises(BrokerError, match="second"):
            await asking


@pytest.mark.parametrize("body", [b"[]", b'{"locks":[{}],"parkedKeys":[{}],"topics":[7]}', b"{"])
@pytest.mark.parametrize(
    "asked",
    [
        lambda admin: admin.locks("G"),
        lambda admin: admin.locking_groups(),
        lambda admin: admin.parked_keys("G"),
        lambda admin: admin.release_key("G", "T", "k"),
        lambda admin: admin.expansion("T"),
    ],
)
async def test_an_answer_of_another_shape_is_one_error(
    asked: Callable[[AdminClient], Awaitable[object]], body: bytes
) -> None:
    """Law: an answer of an unexpected form raises one kind of error, which commands print in one sentence."""
    codes = (
        RequestCode.ORDERLYMQ_LOCK_TABLE,
        RequestCode.ORDERLYMQ_PARKED_KEYS,
        RequestCode.ORDERLYMQ_RELEASE_KEY,
        RequestCode.ORDERLYMQ_QUEUE_EXPANSION,
    )
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        for code in codes:
            cluster.faults[code] = [lambda command, _: command.reply(body=body)]

        with pytest.raises((JsonError, ModelError)):
            await asked(admin)


async def test_an_answer_without_its_number_is_an_error_of_the_broker() -> None:
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        cluster.faults[RequestCode.GET_MAX_OFFSET] = [lambda command, _: command.reply()]

        with pytest.raises(BrokerError, match="has no offset"):
            await admin.max_offset(MessageQueue("T", BROKER, 0))


async def test_a_broker_group_that_does_not_answer_hides_nothing_of_another() -> None:
    """Law: a silent broker group does not hide another's answer; only if no other one answers, its silence is the error."""
    want = b'{"subscriptionData":{"topic":"T","subString":"*"}}'
    answers = {
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: want,
        RequestCode.GET_CONSUMER_RUNNING_INFO: b'{"jstack":"x"}',
    }
    async with running() as cluster, AdminClient(cluster.address) as admin:
        both = {"a": "127.0.0.1:1", "b": cluster.address, "c": "127.0.0.1:1"}
        asking = AdminClient(instance=admin.instance, only=both)
        for code, body in answers.items():
            cluster.faults[code] = [lambda command, _, body=body: command.reply(body=body)]  # type: ignore[misc]

        found = await asking.subscription("G", "T")
        assert found is not None
        assert found.sub_string == "*"
        assert await asking.running_info("G", "client") == {"jstack": "x"}

        cluster.faults[RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER] = [
            lambda command, _: command.reply(body=b"{}")
        ]
        for work in (asking.subscription("G", "T"), asking.running_info("G", "client")):
            with pytest.raises(BrokerUnreachable):
                await work


async def test_a_broker_group_that_lacks_a_consumer_group_hides_nothing_of_another() -> None:
    """Law: a broker group without the consumer group does not hide another's answer; if none has it,
    the refusal is the answer.
    """
    row = QueueLanes("orders", "broker-b", 0, 5, 0, 5, 1, 0, 0, 0)
    lacks = refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "did you mean billing?")
    async with running() as cluster, AdminClient(cluster.address) as admin:
        both = {"a": cluster.address, "b": cluster.address}
        asking = AdminClient(instance=admin.instance, only=both)
        cluster.faults |= {
            RequestCode.ORDERLYMQ_LANES: [
                lacks,
                lambda command, _: command.reply(body=LaneTable(BY_KEY, (row,)).to_json()),
            ],
            RequestCode.ORDERLYMQ_RELEASE_KEY: [
                lacks,
                lambda command, _: command.reply(body=b'{"parkedKeys":[]}'),
            ],
        }

        assert (await asking.lanes("billing")).queues == (row,)
        assert await asking.release_key("billing", "orders", "k") == []

        cluster.faults[RequestCode.ORDERLYMQ_LANES] = [lacks] * 4
        with pytest.raises(BrokerError, match="did you mean billing"):
            await asking.lanes("bilying")


@pytest.mark.parametrize("order", [1, -1])
async def test_a_change_asks_no_broker_group_for_what_it_lacks(order: int) -> None:
    """Law: a change skips broker groups that lack the topic or consumer group, instead of stopping half way."""
    lacks = refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "did you mean billing?")
    topics = TopicList(("orders",)).to_json()
    wanted = Subscription(SubscriptionData(topic="orders")).to_json()

    def answers(*faults: Fault) -> list[Fault]:
        return [*faults][::order]

    async with running(topics={"orders": 1}) as cluster, AdminClient(cluster.address) as admin:
        asking = AdminClient(
            instance=admin.instance, only={"a": cluster.address, BROKER: cluster.address}
        )
        cluster.faults |= {
            RequestCode.QUERY_TOPICS_BY_CONSUMER: answers(
                lacks, lambda command, _: command.reply(body=topics)
            ),
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: answers(
                lacks, lambda command, _: command.reply(body=wanted)
            ),
            RequestCode.QUERY_CONSUME_TIME_SPAN: [lambda command, _: command.reply(body=b"{}")],
            RequestCode.CLONE_GROUP_OFFSET: [lambda command, _: command.reply()],
        }

        assert await asking.topics_of_group("billing") == ["orders"]
        found = await asking.subscription("billing", "orders")
        assert found == SubscriptionData("orders")
        await asking.consume_time_span("orders", "billing")
        await asking.clone_offsets("billing", "shipping", "orders")
    # The topic is at one of the two.
    codes = cluster.codes()
    assert codes.count(RequestCode.QUERY_CONSUME_TIME_SPAN) == 1
    assert codes.count(RequestCode.CLONE_GROUP_OFFSET) == 1


async def test_a_reset_goes_on_where_a_broker_group_lacks_the_consumer_group() -> None:
    """Law: a reset sets offsets directly at broker groups without the consumer group;
    an unknown name is refused before any change.
    """
    lacks = refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "did you mean billing?")
    async with running(topics={"orders": 1}) as cluster, AdminClient(cluster.address) as admin:
        cluster.append("orders", 0, b"x")
        cluster.faults |= {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: [lacks] * 2,
            GROUPS: [lambda command, _: command.reply(body=table(billing=1))] * 2,
        }
        with pytest.raises(BrokerError, match="did you mean billing"):
            await admin.reset_offsets("bilying", "orders", "latest")

        moved = await admin.reset_offsets("billing", "orders", "latest")

    assert [*moved.values()] == [1]
