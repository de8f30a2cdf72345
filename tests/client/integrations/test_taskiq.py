"""taskiq on a real cluster: a key's tasks in order, one at a time, each until it is acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import pytest
from taskiq import (
    AckableMessage,
    InMemoryBroker,
    SendTaskError,
    SimpleRetryMiddleware,
    TaskiqResult,
)
from taskiq.api import run_receiver_task
from taskiq.utils import maybe_awaitable

from orderlymq import ClientSettings, ConsumerSettings, SettingError, StateError
from orderlymq.blocking import AdminClient
from orderlymq.integrations.taskiq import OrderlyMQBroker
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster
from tests.waiting import until

__all__ = ["orderlymq_cluster"]

SOON = ClientSettings(persist_consumer_offset_interval=0.05)
QUICK = ConsumerSettings(suspend_current_queue_time=0.01)
# Closing waits so long for a task that is not acknowledged; its lock then ends with its lease.
LEAVING = ConsumerSettings(shutdown_timeout=0.05, lock_lease=1, lock_renew=0.3)


def make(**options: Any) -> OrderlyMQBroker:
    chosen = {"settings": QUICK, **options}
    return OrderlyMQBroker("tasks", "workers", client_settings=SOON, **chosen).with_result_backend(
        InMemoryBroker().result_backend
    )


@asynccontextmanager
async def working(broker: OrderlyMQBroker) -> AsyncIterator[None]:
    """Run a taskiq worker in this loop."""
    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker))
    try:
        yield
    finally:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
        await broker.shutdown()


@pytest.mark.parametrize("ordered", [True, "key"])
async def test_tasks_of_a_key_run_one_after_the_other(
    orderlymq_cluster: Cluster, ordered: Literal["key"] | bool
) -> None:
    """Law: a key's tasks run one after the other in the order of their sends; keys run in parallel."""
    orderlymq_cluster.create_topic("tasks")
    if ordered == "key":
        with AdminClient() as admin:
            admin.set_group(SubscriptionGroupConfig("workers", concurrency=BY_KEY))
    broker = make(ordered=ordered)
    begun: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    running: dict[str, int] = dict.fromkeys(begun, 0)
    together = 0

    @broker.task
    async def work(key: str, number: int) -> str:
        nonlocal together
        running[key] += 1
        assert running[key] == 1
        together = max(together, sum(running.values()))
        begun[key].append(number)
        if number == 1:  # The first task of each key may end before another one begins.
            await until(lambda: together > 1)
        await asyncio.sleep(0.02 if number % 2 else 0)
        running[key] -= 1
        return f"{key}{number}"

    async with working(broker):
        kicked = [
            await work.kicker().with_labels(key=key).kiq(key, number)
            for number in range(6)
            for key in begun
        ]
        results: list[TaskiqResult[str]] = [await each.wait_result(timeout=30) for each in kicked]

    assert begun == {key: list(range(6)) for key in begun}
    assert [each.return_value for each in results] == [f"{k}{n}" for n in range(6) for k in begun]
    assert together > 1


async def test_a_task_that_outlives_the_consume_timeout_runs_once(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a task that exceeds the consume time-out runs once; its key waits until taskiq acknowledges it."""
    orderlymq_cluster.create_topic("tasks", queues=1)
    with AdminClient() as admin:
        admin.set_group(
            SubscriptionGroupConfig("workers", concurrency="Key", consume_timeout_minute=0)
        )
    broker = make(ordered="key", settings=replace(QUICK, consume_timeout=1))
    seen: list[str] = []

    @broker.task
    async def work(name: str) -> str:
        seen.append(f"{name} begins")
        await asyncio.sleep(1.5 if name == "long" else 0)
        seen.append(f"{name} ends")
        return name

    async with working(broker):
        kicked = [await work.kicker().with_labels(key="k").kiq(name) for name in ("long", "next")]
        for each in kicked:
            await each.wait_result(timeout=30)

    assert seen == ["long begins", "long ends", "next begins", "next ends"]


async def test_a_failed_task_is_done_unless_it_is_to_be_retried(orderlymq_cluster: Cluster) -> None:
    """Law: a failed task is done, unless it is to be retried in place; then the key's next task waits."""
    orderlymq_cluster.create_topic("tasks", queues=1)
    for retry, order in ((False, ["first", "second"]), (True, ["first"] * 3 + ["second"])):
        broker = make(retry_failed=retry)
        seen: list[str] = []

        @broker.task(f"work {retry}")
        async def work(name: str, seen: list[str] = seen) -> str:
            seen.append(name)
            if seen.count("first") < 3 and name == "first":
                raise ValueError(name)
            return name

        async with working(broker):
            first = await work.kicker().with_labels(key="k").kiq("first")
            second = await work.kicker().with_labels(key="k").kiq("second")
            results = [await each.wait_result(timeout=30) for each in (first, second)]

        assert seen == order
        assert [each.is_err for each in results] == [not retry, False]


async def test_a_middleware_that_sends_a_failed_task_again_wins(orderlymq_cluster: Cluster) -> None:
    """Law: if a middleware sends a failed task again, the new one comes behind the others, and the old one is done."""
    orderlymq_cluster.create_topic("tasks", queues=1)
    broker = make(retry_failed=True)
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=2))
    seen: list[str] = []

    @broker.task("work", retry_on_error=True)
    async def work(name: str) -> None:
        seen.append(name)
        if len(seen) == 1:
            raise ValueError(name)

    async with working(broker):
        for name in ("first", "second"):
            await work.kicker().with_labels(key="k").kiq(name)
        await until(lambda: len(seen) == 3)

    assert sorted(seen) == ["first", "first", "second"]


async def test_a_task_whose_worker_stops_comes_again(orderlymq_cluster: Cluster) -> None:
    """Law: a task that was not acknowledged when its worker stopped comes again."""
    orderlymq_cluster.create_topic("tasks", queues=1)
    broker = make(settings=LEAVING)
    ended: list[str] = []

    @broker.task("work")
    async def work(name: str) -> None:
        ended.append(name)

    await broker.startup()
    for name in ("first", "second"):
        await work.kicker().with_labels(key="k").kiq(name)
    tasks = broker.listen()
    taken = await anext(tasks)
    await tasks.aclose()
    await broker.shutdown()
    assert b"first" in taken.data

    other = make()
    other.local_task_registry.update(broker.local_task_registry)
    async with working(other):
        await until(lambda: len(ended) == 2)

    assert ended == ["first", "second"]


@pytest.mark.long
@pytest.mark.parametrize("ordered", [True, "key"])
async def test_a_task_that_outlives_its_broker_keeps_its_lock(
    orderlymq_cluster: Cluster, ordered: Literal["key"] | bool
) -> None:
    """Law: a task that outlives its broker object keeps its lock until the lease ends."""
    orderlymq_cluster.create_topic("tasks", queues=1)
    broker = make(ordered=ordered, settings=ConsumerSettings(shutdown_timeout=0.05))

    @broker.task("work")
    async def work(name: str) -> None:
        pass

    concurrency = BY_KEY if ordered == "key" else BY_QUEUE
    with AdminClient() as admin:
        admin.set_group(SubscriptionGroupConfig("workers", concurrency=concurrency))
        await broker.startup()
        await work.kicker().with_labels(key="k").kiq("first")
        tasks = broker.listen()
        await anext(tasks)
        await tasks.aclose()
        await broker.shutdown()
        held = len(admin.locks("workers"))
        held += sum(each.in_hand for each in admin.lanes("workers").queues)

    assert held == 1


@pytest.mark.parametrize("ordered", [True, "key", False])
async def test_a_task_that_has_not_begun_counts_no_try(
    orderlymq_cluster: Cluster, ordered: Literal["key"] | bool
) -> None:
    """Law: a stopping worker's task that has not begun counts no try."""
    orderlymq_cluster.create_topic("tasks", queues=1)
    if ordered == "key":
        with AdminClient() as admin:
            admin.set_group(SubscriptionGroupConfig("workers", concurrency=BY_KEY))
    settings = ConsumerSettings(suspend_current_queue_time=0.01, max_reconsume_times=0)
    broker, other = make(settings=settings, ordered=ordered), make(ordered=ordered)
    ended: list[str] = []

    @broker.task("work")
    async def work(name: str) -> None:
        ended.append(name)

    await broker.startup()
    tasks = broker.listen()
    asking = asyncio.create_task(anext(tasks))
    await work.kicker().with_labels(key="k").kiq("first")
    taken = await asking
    assert isinstance(taken, AckableMessage)
    for name in ("second", "third"):
        await work.kicker().with_labels(key=name).kiq(name)
    await maybe_awaitable(taken.ack())
    await asyncio.sleep(0.3)  # Until the next one is offered.
    await tasks.aclose()
    await broker.shutdown()

    other.local_task_registry.update(broker.local_task_registry)
    async with working(other):
        await until(lambda: len(ended) == 2)

    assert sorted(ended) == ["second", "third"]


async def test_a_worker_that_could_not_listen_may_listen_again(orderlymq_cluster: Cluster) -> None:
    """Law: a worker whose first listen failed may listen again."""
    orderlymq_cluster.create_topic("tasks", queues=1)
    broker = make(ordered="key", settings=LEAVING)
    with AdminClient() as admin:
        admin.set_group(SubscriptionGroupConfig("workers"))
        await broker.startup()
        with pytest.raises(SettingError, match="consumes by queue"):
            await anext(broker.listen())
        admin.set_group(SubscriptionGroupConfig("workers", concurrency=BY_KEY))
    tasks = broker.listen()
    async with asyncio.timeout(30):
        asking = asyncio.create_task(anext(tasks))

        @broker.task("work")
        async def work(name: str) -> None:
            pass

        await work.kicker().with_labels(key="k").kiq("first")
        assert b"first" in (await asking).data
    await tasks.aclose()
    await broker.shutdown()


async def test_a_delayed_task_is_delivered_later(orderlymq_cluster: Cluster) -> None:
    """Law: a task with the label `delay` is delivered later and does not delay others."""
    orderlymq_cluster.create_topic("tasks", queues=1)
    broker = make()
    seen: list[str] = []

    @broker.task("work")
    async def work(name: str) -> None:
        seen.append(name)

    async with working(broker):
        await work.kicker().with_labels(key="k", delay=0.3).kiq("delayed")
        await work.kiq("now")
        await until(lambda: len(seen) == 2)

    assert seen == ["now", "delayed"]


async def test_a_send_that_fails_says_so() -> None:
    """Law: a failed send raises taskiq's error, caused by ours."""
    broker = make(name_servers="127.0.0.1:1")

    @broker.task("work")
    async def work() -> None:
        pass

    with pytest.raises(SendTaskError) as caught:
        await work.kiq()
    assert isinstance(caught.value.__cause__, StateError)
