"""Two consumers of one queue against a real broker in this process: never both at work, also when one is closed."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Literal

import pytest

from orderlymq import (
    AdminClient,
    Consumer,
    ConsumerSettings,
    OrderedContext,
    Producer,
    ReceivedMessage,
)
from orderlymq.consumer.listeners.context import Listener
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster
from tests.client.fakecluster import until

__all__ = ["orderlymq_cluster"]

LEASE_S, RENEW_S = 2.0, 0.5
SETTINGS = ConsumerSettings(lock_lease=LEASE_S, lock_renew=RENEW_S, shutdown_timeout=0.1)


def consumer(listener: Listener, ordered: bool | Literal["key"]) -> Consumer:
    return Consumer(
        "billing",
        topics="orders",
        ordered=ordered,
        consume_from="first",
        listener=listener,
        settings=SETTINGS,
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ordered", [True, "key"])
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "coroutine"])
async def test_a_closed_consumer_whose_listener_still_runs_keeps_what_it_works_on_until_the_lease_is_over(
    orderlymq_cluster: Cluster, ordered: Literal["key"] | bool, *, is_async: bool
) -> None:
    """Its `still_holds` is False, and the next member gets the message after the lease, not before.

    Nothing ends a thread, or a coroutine that catches each cancellation; `close` ends all the same.
    """
    orderlymq_cluster.create_topic("orders", queues=1)
    started, finish = threading.Event(), threading.Event()
    contexts: list[OrderedContext] = []
    began: list[bool] = []

    def stuck(_messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        contexts.append(context)
        started.set()
        finish.wait(10)

    async def stubborn(_messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        contexts.append(context)
        started.set()
        while not finish.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    async def following(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        began.append(True)

    async with Producer() as producer:
        await producer.send("orders", "one", key="a")
    first = consumer(stubborn if is_async else stuck, ordered)
    second = consumer(following, ordered)
    await first.start()
    await until(started.is_set)
    async with second, AdminClient() as admin:
        assert contexts[0].still_holds()
        async with asyncio.timeout(10):
            await first.close()
        assert not contexts[0].still_holds()
        if ordered is True:
            holders = {each.client_id for each in (await admin.locks("billing")).values()}
            assert first.client_id in holders
        assert began == []
        # The last renewal was at most one interval before.
        await asyncio.sleep(LEASE_S - RENEW_S - 0.3)
        assert began == []
        await until(lambda: bool(began))
        finish.set()
