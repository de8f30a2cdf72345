"""The queue list of an ordered topic is not changed by mistake, and no change skips a broker group that is away."""

import asyncio

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.errors import BrokerError, BrokerUnreachable, SettingError, TopicNotFound
from orderlymq_protocol.body.catalogue import (
    BrokerData,
    ClusterInfo,
    QueueData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import BROKER, Fault, refuse, running
from tests.waiting import until

AWAY = "broker-b"
CHANGES = {
    RequestCode.PUT_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.CLONE_GROUP_OFFSET,
}


async def test_another_number_of_queues_is_declared_nowhere() -> None:
    """Law: another number of queues of an ordered topic is refused before it is declared;
    producers would use the new list.
    """
    declared = {"orders": f"{BROKER}:8"}
    async with (
        running(topics={"orders": 8}, declared=declared) as cluster,
        AdminClient(cluster.address) as admin,
    ):
        with pytest.raises(SettingError, match=f"orders has 8 queues \\(8 on {BROKER}\\)"):
            await admin.create_topic("orders", queues=4, ordered=True)

        assert not CHANGES & {*cluster.codes()}
        assert await admin.create_topic("orders", queues=8, ordered=True) == {BROKER: 8}


async def test_a_list_without_a_group_that_is_away_is_declared_nowhere() -> None:
    """Law: a declaration that would omit a broker group that is away is refused; it would halve the list."""
    declared = {"orders": f"{BROKER}:4;{AWAY}:4"}
    for topics in ({"orders": 4}, {}):
        async with (
            running(topics=dict(topics), declared=dict(declared)) as cluster,
            AdminClient(cluster.address) as admin,
        ):
            with pytest.raises(BrokerUnreachable, match=f"{AWAY} is not registered now"):
                await admin.create_topic("orders", queues=8, ordered=True)

            assert not CHANGES & {*cluster.codes()}


async def test_a_new_ordered_topic_is_declared_before_it_is_made() -> None:
    """Law: a new ordered topic is declared before it is created, also if an earlier try ended between the two."""
    async with (
        running(declared={"orders": f"{BROKER}:4"}) as cluster,
        AdminClient(cluster.address) as admin,
    ):
        assert await admin.create_topic("orders", queues=8, ordered=True) == {BROKER: 8}

        assert cluster.declared == {"orders": f"{BROKER}:8"}
        made = [code for code in cluster.codes() if code in CHANGES]
        assert made == [RequestCode.PUT_KV_CONFIG, RequestCode.UPDATE_AND_CREATE_TOPIC]


async def test_what_the_broker_has_is_declared_when_another_administrator_was_faster() -> None:
    """Law: if two administrators declare different numbers, the one that the broker has is declared in the end."""
    async with running() as cluster, AdminClient(cluster.address) as admin:
        # The other administrator's creations go on meanwhile.
        has = (2, 4, 4)
        cluster.faults[RequestCode.UPDATE_AND_CREATE_TOPIC] = [refuse(ResponseCode.SYSTEM_ERROR)]
        cluster.faults[RequestCode.GET_ALL_TOPIC_CONFIG] = [_configured(count) for count in has]

        with pytest.raises(BrokerError, match="refused by the test"):
            await admin.create_topic("orders", queues=8, ordered=True)

        assert cluster.declared == {"orders": f"{BROKER}:4"}
        assert cluster.faults[RequestCode.GET_ALL_TOPIC_CONFIG] == []


async def test_a_refused_topic_that_no_broker_has_keeps_its_declaration() -> None:
    """Law: if a new topic is refused, its declaration stays, so that the same command creates it later."""
    async with running() as cluster, AdminClient(cluster.address) as admin:
        cluster.faults[RequestCode.UPDATE_AND_CREATE_TOPIC] = [refuse(ResponseCode.SYSTEM_ERROR)]
        cluster.faults[RequestCode.GET_ALL_TOPIC_CONFIG] = [_configured(4, order=False)]

        with pytest.raises(BrokerError):
            await admin.create_topic("orders", queues=8, ordered=True)

        assert cluster.declared == {"orders": f"{BROKER}:8"}


async def test_what_one_group_refuses_is_made_by_the_same_command_later() -> None:
    """Law: if one of two broker groups refuses a new topic, the list of both stays, and the same command completes it."""

    def both(command: RemotingCommand, _: Connection) -> RemotingCommand:
        table = {name: BrokerData("fake", name, {0: cluster.address}) for name in (BROKER, AWAY)}
        return command.reply(body=ClusterInfo(table, {"fake": (BROKER, AWAY)}).to_json())

    async with running(topics={"orders": 4}) as cluster, AdminClient(cluster.address) as admin:
        cluster.faults[RequestCode.GET_BROKER_CLUSTER_INFO] = [both] * 3
        cluster.faults[RequestCode.UPDATE_AND_CREATE_TOPIC] = [
            lambda command, _: command.reply(),
            refuse(ResponseCode.SYSTEM_ERROR),
        ]
        cluster.faults[RequestCode.GET_ALL_TOPIC_CONFIG] = [
            _configured(2),
            _configured(4, order=False),
        ]
        with pytest.raises(BrokerError, match="refused by the test"):
            await admin.create_topic("orders", queues=4, ordered=True)

        assert cluster.declared == {"orders": f"{BROKER}:2;{AWAY}:2"}
        assert await admin.create_topic("orders", queues=4, ordered=True) == {BROKER: 2, AWAY: 2}


async def test_a_list_that_was_declared_before_stays_when_a_broker_refuses_it() -> None:
    """Law: a list declared before stays if a broker, in the middle of an expansion, refuses the number."""
    declared = {"orders": f"{BROKER}:8"}
    async with (
        running(topics={"orders": 8}, declared=declared) as cluster,
        AdminClient(cluster.address) as admin,
    ):
        cluster.faults[RequestCode.UPDATE_AND_CREATE_TOPIC] = [refuse(ResponseCode.SYSTEM_ERROR)]
        cluster.faults[RequestCode.GET_ALL_TOPIC_CONFIG] = [_configured(16), _configured(16)]

        with pytest.raises(BrokerError):
            await admin.create_topic("orders", queues=8, ordered=True)

        assert cluster.declared == {"orders": f"{BROKER}:8"}


def _configured(count: int, *, order: bool = True) -> Fault:
    """Answer that the broker has the topic with so many queues."""
    config = TopicConfig("orders", count, count, order=order)
    body = TopicConfigTable({"orders": config}).to_json()
    return lambda command, _: command.reply(body=body)


async def test_nothing_is_deleted_while_a_group_of_the_topic_is_away() -> None:
    """Law: an ordered topic is not deleted while one of its broker groups is away;
    its part would come back with old messages.
    """
    declared = {"orders": f"{BROKER}:4;{AWAY}:4"}
    async with (
        running(topics={"orders": 4}, declared=declared) as cluster,
        AdminClient(cluster.address) as admin,
    ):
        with pytest.raises(BrokerUnreachable, match=f"{AWAY} is not registered now"):
            await admin.delete_topic("orders")

        assert not CHANGES & {*cluster.codes()}


async def test_a_deletion_that_ended_too_soon_can_be_repeated() -> None:
    """Law: a deletion that ended too early can be repeated; else its declaration would apply to the next topic of that
    name.
    """
    declared = {"orders": f"{BROKER}:4"}
    async with running(declared=declared) as cluster, AdminClient(cluster.address) as admin:
        await admin.delete_topic("orders")

        assert cluster.declared == {}
        with pytest.raises(TopicNotFound):
            await admin.delete_topic("orders")


async def test_a_change_for_all_groups_is_made_at_all_or_at_none() -> None:
    """Law: a change for all broker groups is made at all or at none."""
    declared = {"orders": f"{BROKER}:4;{AWAY}:4"}
    async with (
        running(topics={"orders": 4}, declared=declared) as cluster,
        AdminClient(cluster.address) as admin,
    ):
        for change in (
            admin.set_group(SubscriptionGroupConfig("billing")),
            admin.delete_group("billing"),
            admin.clone_offsets("billing", "shipping", "orders"),
        ):
            with pytest.raises(BrokerUnreachable, match=f"{AWAY} is not registered now"):
                await change

        assert await admin.absent_groups() == [AWAY]
        assert not CHANGES & {*cluster.codes()}


async def test_a_route_alone_names_a_group_that_is_away() -> None:
    """Law: a route alone shows that a broker group is away; RocketMQ's tools declare nothing."""
    route = TopicRouteData(
        (QueueData(BROKER, 1, 1, 6), QueueData(AWAY, 1, 1, 6)),
        (BrokerData("fake", BROKER, {}), BrokerData("fake", AWAY, {})),
        None,
    )

    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        assert await admin.absent_groups() == []
        cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [
            lambda command, _: command.reply(body=route.to_json())
        ]
        assert await admin.absent_groups() == [AWAY]


async def test_routes_are_asked_for_immediately_and_not_all_at_once() -> None:
    """Law: the routes of many topics are asked for in parallel, but not all at once."""
    waiting: list[tuple[RemotingCommand, Connection]] = []

    def hold(command: RemotingCommand, conn: Connection) -> None:
        waiting.append((command, conn))

    async with (
        running(topics={f"T{number}": 1 for number in range(40)}) as cluster,
        AdminClient(cluster.address) as admin,
    ):
        cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [hold] * 32
        asked = asyncio.create_task(admin.absent_groups())
        await until(lambda: len(waiting) == 32)
        assert cluster.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 32
        for command, conn in waiting:
            conn.send(command.reply(ResponseCode.TOPIC_NOT_EXIST))

        assert await asked == []
        assert cluster.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 40


async def test_a_topic_without_order_is_deleted_at_all_groups_or_at_none() -> None:
    """Law: a topic without order is also deleted only if no broker group is away."""
    declared = {"orders": f"{BROKER}:4;{AWAY}:4"}
    async with (
        running(topics={"orders": 4, "plain": 4}, declared=declared) as cluster,
        AdminClient(cluster.address) as admin,
    ):
        with pytest.raises(BrokerUnreachable, match=f"{AWAY} is not registered now"):
            await admin.delete_topic("plain")

        assert not CHANGES & {*cluster.codes()}


async def test_a_field_that_no_group_has_is_changed_nowhere() -> None:
    """Law: an unknown field of a group is refused; a broker would answer success and change nothing."""
    async with running() as cluster, AdminClient(cluster.address) as admin:
        with pytest.raises(SettingError, match="has no field consume_enabled"):
            await admin.set_group(SubscriptionGroupConfig("billing"), only=["consume_enabled"])

        assert not CHANGES & {*cluster.codes()}
