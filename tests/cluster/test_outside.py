"""Clients that know a cluster by a further listener alone: another address, and TLS of its own."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from orderlymq import (
    AdminClient,
    ClientSettings,
    Consumer,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
)
from orderlymq.errors import OrderlyMQError
from tests.client.fakecluster import until
from tests.cluster.outside import OUTSIDE, bootstrap, called, listen_outside, tell_addresses
from tests.cluster.processes import Group

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

TLS = ClientSettings(use_tls=True)


@pytest.fixture
def make_outside(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    groups: list[Group] = []

    def make(replicas: int, **options: bool) -> Group:
        group = listen_outside(tmp_path / f"group-{len(groups)}", replicas, **options)
        groups.append(group)
        group.start()
        return group

    yield make
    for group in groups:
        group.stop()


@pytest.mark.parametrize("tls", [False, True])
async def test_order_is_kept_outside_while_the_leader_is_killed(
    make_outside: Callable[..., Group], tls: bool
) -> None:
    """Law: the promise holds by a further listener as by the group's own, and no inner address is called."""
    group = make_outside(3, tls=tls)
    settings = TLS if tls else ClientSettings()
    keys = [f"order-{number}" for number in range(8)]
    acknowledged: dict[str, list[str]] = defaultdict(list)
    delivered: dict[str, list[str]] = defaultdict(list)

    async def listener(
        messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        for message in messages:
            assert message.key is not None
            delivered[message.key].append(message.text)
        return OrderedResult.SUCCESS

    async def produce(producer: Producer, key: str) -> None:
        for number in range(60):
            await producer.send("orders", f"{key}/{number}", key=key, timeout=10)
            acknowledged[key].append(f"{key}/{number}")
            await asyncio.sleep(0.01)

    async def kill() -> None:
        await until(lambda: len(acknowledged[keys[0]]) >= 10)
        leader = group.leader()
        assert leader is not None
        group.brokers[leader].kill()

    async with AdminClient(group.name_server_address) as admin:
        await admin.create_topic("orders", queues=4, ordered=True)
    await until(lambda: not called(group, os.getpid()))
    where = bootstrap(group)
    async with (
        Producer("p", where, client_settings=settings) as producer,
        Consumer(
            "billing",
            where,
            topics="orders",
            ordered=True,
            consume_from="first",
            listener=listener,
            client_settings=settings,
        ),
        asyncio.TaskGroup() as tasks,
    ):
        for key in keys:
            tasks.create_task(produce(producer, key))
        await kill()
        await until(lambda: sum(map(len, delivered.values())) >= 60 * len(keys), 30.0)
        found = called(group, os.getpid())

    # A listener call that ran at the moment of the crash may be repeated; order allows no more.
    for key in keys:
        assert list(dict.fromkeys(delivered[key])) == acknowledged[key]
    assert found == {OUTSIDE}


async def test_a_route_waits_for_the_address_of_its_group(
    make_outside: Callable[..., Group],
) -> None:
    """Law: without an outside address the refusal is named; with one the same client goes on by itself."""
    group = make_outside(1)
    tell_addresses(group, {})
    async with AdminClient(group.name_server_address) as admin:
        await admin.create_topic("orders", queues=1)

    async with AdminClient(bootstrap(group)) as outside:
        refusal = await _refusal_of(outside)
        tell_addresses(group, {"g": f"{OUTSIDE}:{group.port}"})
        async with Producer("p", bootstrap(group)) as producer:
            sent = await _send_when_told(producer)
        brokers = await outside.brokers()
        seen = await outside.view_message(sent)

    assert "OutsideAddressMissing: the broker group g " in refusal
    assert brokers == {"g": f"{OUTSIDE}:{group.port}"}
    # The id names the group by its own address, so that it is the same for all who read it.
    assert (seen.text, seen.offset_message_id) == ("first", sent)


async def _refusal_of(admin: AdminClient) -> str:
    """Return why there is no route, as soon as the name server has read its file again."""
    async with asyncio.timeout(20.0):
        while True:
            try:
                await admin.route("orders")
            except OrderlyMQError as error:
                return str(error)
            await asyncio.sleep(0.05)


async def _send_when_told(producer: Producer) -> str:
    async with asyncio.timeout(20.0):
        while True:
            try:
                return (await producer.send("orders", "first")).offset_message_id
            except OrderlyMQError:
                await asyncio.sleep(0.05)
