"""How a consumer by key ends: what it waits for, and what it holds until then."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from orderlymq import (
    AdminClient,
    ClientInstance,
    Consumer,
    ConsumerSettings,
    OrderedContext,
    Producer,
    ReceivedMessage,
)
from orderlymq_testing.cluster import Cluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(60)

SETTINGS = ConsumerSettings(lock_lease=2, lock_renew=0.5, shutdown_timeout=0.1)


@pytest.mark.parametrize("is_working", [True, False])
async def test_a_direct_call_holds_no_key_when_its_consumer_closes(
    tmp_path: Path, is_working: bool
) -> None:
    """Law: a direct call holds no key when its consumer closes; only keys with a running thread keep their leases."""
    got, direct, gate = list[ReceivedMessage](), threading.Event(), threading.Event()
    again = list[str]()

    def listener(messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        got.extend(messages)
        if context.lane is None:
            direct.set()
        if context.lane is None or is_working:
            gate.wait(30)

    async def other(messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        again.extend(message.text for message in messages)

    def member(listener: object, name_server: str, instance: ClientInstance | None) -> Consumer:
        return Consumer(
            "billing",
            name_server,
            topics="orders",
            ordered="key",
            consume_from="first",
            listener=listener,  # type: ignore[arg-type]  # one of the two above
            settings=SETTINGS,
            instance=instance,
        )

    # Not the plugin's cluster, whose oracle rightly reports that a direct call keeps no order.
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.create_topic("orders", queues=1)
        at = cluster.name_server
        instance = ClientInstance(at)
        async with Producer("P", instance=instance) as producer, AdminClient(at) as admin:
            await producer.send("orders", "one", key="a")
            consumer = member(listener, at, instance)
            await consumer.start()
            await until(lambda: len(got) == 1)
            work = admin.consume_directly("billing", consumer.client_id, got[0])
            asking = asyncio.create_task(work)
            await until(direct.is_set)

            async with asyncio.timeout(10):
                await consumer.close()
            assert bool(await admin.members("billing")) == is_working
            async with member(other, at, None):
                await until(lambda: not is_working or again == ["one"])
            gate.set()
            asking.cancel()


async def test_a_consumer_that_nobody_looped_over_closes_at_once(tmp_path: Path) -> None:
    """Law: a consumer without a loop closes immediately; it once kept its lanes for `shutdown_timeout`."""
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.create_topic("orders", queues=1)
        async with Producer(name_servers=cluster.name_server) as producer:
            await producer.send("orders", "one", key="a")
        consumer = Consumer(
            "billing", cluster.name_server, topics="orders", ordered="key", consume_from="first"
        )
        await consumer.start()
        await until(lambda: consumer.lanes is not None and consumer.lanes.in_hand > 0)

        async with asyncio.timeout(10):
            await consumer.close()
