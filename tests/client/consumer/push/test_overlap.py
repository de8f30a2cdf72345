"""Two consumers of one queue with a real broker in this process: never do both work, also when one is closed."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Literal

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
from orderlymq.consumer.listeners.context import Listener
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster
from tests.waiting import until

__all__ = ["orderlymq_cluster"]

# So long that a busy machine does not miss all renewals.
LEASE_S = 4.0
SETTINGS = ConsumerSettings(lock_lease=LEASE_S, lock_renew=0.5, shutdown_timeout=0.1)
# With these settings a consumer renews the lease while it works.
_RENEWALS = {RequestCode.LOCK_BATCH_MQ, RequestCode.ORDERLYMQ_COMPLETE_LANES}


def consumer(
    listener: Listener, ordered: bool | Literal["key"], instance: ClientInstance | None = None
) -> Consumer:
    return Consumer(
        "billing",
        topics="orders",
        ordered=ordered,
        consume_from="first",
        listener=listener,
        settings=SETTINGS,
        instance=instance,
    )


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize("ordered", [True, "key"])
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "coroutine"])
async def test_a_closed_consumer_whose_listener_still_runs_keeps_what_it_works_on_until_the_lease_is_over(
    orderlymq_cluster: Cluster, ordered: Literal["key"] | bool, *, is_async: bool
) -> None:
    """Law: a closed consumer whose listener still runs keeps its messages until the lease ends; `still_holds` is False.

    Nothing ends a thread, or a coroutine that catches each cancellation; `close` still returns.
    """
    orderlymq_cluster.create_topic("orders", queues=1)
    started, finish = threading.Event(), threading.Event()
    contexts: list[OrderedContext] = []
    asked_s: list[float] = []
    began_s: list[float] = []

    def note(_address: str, command: RemotingCommand) -> None:
        if command.code in _RENEWALS:
            asked_s.append(time.monotonic())

    def stuck(_messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        contexts.append(context)
        started.set()
        finish.wait(30)

    async def stubborn(_messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        contexts.append(context)
        started.set()
        while not finish.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    async def following(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        began_s.append(time.monotonic())

    async with Producer() as producer:
        await producer.send("orders", "one", key="a")
    noted = ClientInstance(before_request=note)
    first = consumer(stubborn if is_async else stuck, ordered, noted)
    second = consumer(following, ordered)
    await first.start()
    await until(lambda: started.is_set() and bool(asked_s))
    async with second, AdminClient() as admin:
        assert contexts[0].still_holds()
        async with asyncio.timeout(10):
            await first.close()
        assert not contexts[0].still_holds()
        if ordered is True:
            holders = {each.client_id for each in (await admin.locks("billing")).values()}
            assert first.client_id in holders
        await until(lambda: bool(began_s))
        finish.set()
    # Brokers count in milliseconds.
    assert began_s[0] >= asked_s[-1] + LEASE_S - 0.002
