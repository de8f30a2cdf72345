"""A broker group does not answer: no plan is made without it, but a removed one is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.errors import BrokerUnreachable, OrderlyMQError
from orderlymq.message import ReceivedMessage
from orderlymq_console.actions.plan import Plan
from orderlymq_console.actions.redrive import plan_redrive
from orderlymq_console.actions.release import plan_release
from orderlymq_console.actions.reset import plan_reset
from orderlymq_console.cluster import FORGOTTEN_S, NAMED_S, NOT_REGISTERED, ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.pages.letters import letters, read_letters
from orderlymq_console.parameters import Parameters
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from tests.cluster.conftest import make_group  # noqa: F401 - a fixture
from tests.cluster.processes import Child, Group
from tests.ports import free_ports


class NameServers(AdminClient):
    """Name servers with answers that a test gives."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.registered = {"a": "127.0.0.1:2", "b": "127.0.0.1:3"}
        self.named: list[str] = []

    async def brokers(self) -> dict[str, str]:
        """Return the registered brokers."""
        return self.registered

    async def absent_groups(self) -> list[str]:
        """Return groups that are named but not registered."""
        return self.named


class Clock:
    """A clock that only the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def servers() -> AsyncIterator[NameServers]:
    async with NameServers() as admin:
        yield admin


async def names(reader: ClusterReader) -> dict[str, str]:
    """Return each broker group's reason."""

    async def ask(_: AdminClient) -> str:
        return "known"

    found = await reader.of_each("x", ask)
    return {name: reading.unknown for name, reading in found.readings.items()}


async def test_a_broker_group_that_was_removed_is_forgotten_after_a_while(
    servers: NameServers,
) -> None:
    """Law: a broker group that may be away is unknown; a removed one is forgotten after a while,
    unless a queue list names it.
    """
    reader = ClusterReader(servers, Collector(clock=(clock := Clock())))
    assert await names(reader) == {"a": "", "b": ""}

    servers.registered, servers.named = {"a": "127.0.0.1:2"}, ["b"]
    clock.now_s = FORGOTTEN_S
    assert await names(reader) == {"a": "", "b": NOT_REGISTERED}
    clock.now_s += NAMED_S
    assert await names(reader) == {"a": "", "b": NOT_REGISTERED}

    servers.named = []
    clock.now_s += NAMED_S
    assert await names(reader) == {"a": ""}
    await reader.collector.close()


async def second(group: Group, admin: AdminClient) -> Child:
    """Start a second broker group of one replica; return its process when both groups have leaders."""
    (port,) = free_ports(1)
    own = {"peers": {"2": {"host": "127.0.0.1", "port": group.raft_ports[2]}}}
    other = group.add(2, group="other", address={"host": "127.0.0.1", "port": port}, **own)
    group.wait_for_leader()
    other.start()
    while True:
        with suppress(OrderlyMQError):
            if len(await admin.brokers()) > 1 and await admin.topic_configs():
                return other
        await asyncio.sleep(0.05)


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(120)
async def test_no_plan_is_made_without_a_broker_group_that_is_away(
    make_group: Callable[..., Group],  # noqa: F811 - the fixture
) -> None:
    """Law: no redrive or release is planned while a broker group is away, which may have the key's first letters;
    a reset of one queue elsewhere is.
    """
    group = make_group(1)
    async with AdminClient(group.name_server_address) as admin:
        other = await second(group, admin)
        await admin.create_topic("loose", queues=1)
        await admin.set_group(SubscriptionGroupConfig("billing"))
        (name,) = set(await admin.brokers()) - {"other"}
        reader = ClusterReader(admin, Collector(clock=(clock := Clock())))
        await reader.brokers()
        other.kill()
        while len(await admin.brokers()) > 1:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.05)
        clock.now_s += 1.0
        await reader.brokers()

        asked = {"group": "billing", "topic": "loose", "key": "k", "to": "latest"}
        for planner in (plan_release, plan_redrive, plan_reset):
            with pytest.raises(BrokerUnreachable, match=f"other: {NOT_REGISTERED}"):
                await planner(reader, Parameters(asked))
        found = await read_letters(reader, "billing")
        one: Plan = await plan_reset(reader, Parameters({**asked, "queue": f"{name}:0"}))

    assert found.unknown == f"other: {NOT_REGISTERED}"
    assert [each.broker_group for each in one.moves] == [name]


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(120)
async def test_a_key_is_released_where_its_broker_group_has_refused_to_give_keys(
    make_group: Callable[..., Group],  # noqa: F811 - the fixture
) -> None:
    """Law: each broker group acts by its own configuration of the group, even if only one of two has got a change."""

    def listen(_: Sequence[ReceivedMessage], __: OrderedContext) -> None:
        raise RuntimeError("no such customer")

    group = make_group(1)
    config = SubscriptionGroupConfig("shipping", on_dead_letter="HoldKey")
    async with AdminClient(group.name_server_address) as admin:
        await second(group, admin)
        await admin.create_topic("orders", queues=1, ordered=True)
        await admin.set_group(config)
        async with Producer("sender", instance=admin.instance) as producer:
            await producer.send("orders", "x", key="k")
        async with Consumer(
            "shipping",
            group.name_server_address,
            topics="orders",
            ordered=True,
            consume_from="first",
            listener=listen,
            settings=ConsumerSettings(max_reconsume_times=1),
        ):
            while not (parked := await admin.parked_keys("shipping")):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.05)
        reader = ClusterReader(admin, Collector())
        while not (await read_letters(reader, "shipping")).total:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.05)
        await admin.delete_topic("%DLQ%shipping")
        (name,) = (each.queue.broker_name for each in parked)
        ((taker, address),) = (each for each in (await admin.brokers()).items() if each[0] != name)
        await admin.at(taker, address).set_group(replace(config, concurrency="Key"))

        asked = {"group": "shipping", "topic": "orders", "key": "k", "how": "release"}
        plan = await plan_release(reader, Parameters(asked))
        (row,) = (await letters(reader, Parameters({"group": "shipping"}))).rows

    assert (plan.action, [each.broker_group for each in plan.stands]) == ("release", [name])
    assert row.key == "k"
    assert row.step in ("wait", "release")
