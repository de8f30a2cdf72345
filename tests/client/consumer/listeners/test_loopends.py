"""How a loop over a consumer ends, and what happens to the message in its body."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.listeners.messageloop import MessageLoop
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.errors import StateError
from orderlymq.message import ReceivedMessage
from tests.client.consumer.listeners.loops import consumer_of, fail_at
from tests.client.fakecluster import FakeCluster
from tests.client.inbox import fill
from tests.client.messages import QUEUE, messages
from tests.waiting import until


async def asked(consumer: Consumer, how: str) -> AsyncGenerator[ReceivedMessage, None]:
    """Loop in one of the ways in which programs ask for messages; some use a task for it."""
    stream = aiter(consumer)

    async def handed_on() -> ReceivedMessage:
        return await anext(stream)

    while True:
        try:
            match how:
                case "for":
                    message = await anext(stream)
                case "wait_for":
                    message = await asyncio.wait_for(anext(stream), 10)
                case "task":
                    message = await asyncio.create_task(anext(stream))
                case _:
                    message = await asyncio.create_task(handed_on())
        except StopAsyncIteration:
            return
        yield message


async def begun_by(
    consumer: Consumer, texts: list[str], go_on: asyncio.Event, how: str = "for"
) -> None:
    """Loop, and wait in each body."""
    async for message in asked(consumer, how):
        texts.append(f"begun {message.text}")
        await go_on.wait()
        texts.append(f"ended {message.text}")


async def waits(call: "asyncio.Task[None]") -> bool:
    """Return whether a call still waits after everything else had its turn."""
    done, _ = await asyncio.wait([call], timeout=0.05)
    return not done


@pytest.mark.parametrize("how", ["for", "wait_for", "task", "handed on"])
@pytest.mark.parametrize("ordered", [True, False])
async def test_close_waits_for_the_body_of_a_loop(
    cluster: FakeCluster, ordered: bool, how: str
) -> None:
    """Law: `close` waits for the body of a loop; it once went on while the next member got the same message."""
    fill(cluster, 2, queues=1)
    consumer, texts, go_on = consumer_of(cluster, ordered=ordered), list[str](), asyncio.Event()
    await consumer.start()
    body = asyncio.create_task(begun_by(consumer, texts, go_on, how))
    await until(lambda: bool(texts))
    closing = asyncio.create_task(consumer.close())

    assert await waits(closing)
    assert {key[1].queue_id for key in cluster.locks} == ({0} if ordered else set())
    go_on.set()
    await closing
    await body

    assert texts == ["begun m0", "ended m0"]
    assert cluster.offsets["G", "T", 0] == 1, "the loop asked for the next one, so it is done"
    assert cluster.locks == {}


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_consumer_that_nobody_looped_over_closes_at_once(
    cluster: FakeCluster, ordered: bool
) -> None:
    """Law: a consumer without a loop closes immediately; it once kept its locks for `shutdown_timeout`."""
    fill(cluster, 2, queues=1)
    consumer = consumer_of(cluster, ordered=ordered)
    await consumer.start()
    await until(lambda: any(pull.header.queue_offset == 2 for pull in cluster.held))
    async with asyncio.timeout(5):
        await consumer.close()

    assert cluster.locks == {}
    assert cluster.offsets.get(("G", "T", 0), 0) == 0


@pytest.mark.parametrize("how", ["for", "wait_for", "task"])
async def test_close_in_the_body_of_a_loop_ends_the_consumer_after_the_body(
    cluster: FakeCluster, how: str
) -> None:
    """Law: `close` called in the body does not wait for itself; it commits earlier messages,
    and the rest ends after the body.
    """
    fill(cluster, 3, queues=1)
    locks: list[int] = []

    async with consumer_of(cluster) as consumer:
        async for message in asked(consumer, how):
            if message.text == "m1":
                await consumer.close()
                await consumer.close()
                assert cluster.offsets["G", "T", 0] == 1
                await asyncio.sleep(0.05)
                locks = [queue.queue_id for _, queue in cluster.locks]

    assert locks == [0]
    assert cluster.offsets["G", "T", 0] == 2
    assert cluster.locks == {}


@pytest.mark.parametrize("how", ["break", "raise", "cancel"])
async def test_a_loop_that_is_left_while_close_waits_gives_its_message_back(
    cluster: FakeCluster, how: str
) -> None:
    """Law: if the loop is left while `close` waits, its message is given back as soon as the iterator or task has ended."""
    fill(cluster, 1, queues=1)
    consumer, go_on = consumer_of(cluster), asyncio.Event()
    await consumer.start()

    async def loop() -> None:
        stream = aiter(consumer) if how == "cancel" else consumer
        async for _ in stream:
            go_on.set()
            await until(lambda: consumer.state == "SHUTDOWN_ALREADY")
            if how == "raise":
                raise ValueError("no")
            if how == "cancel":
                await asyncio.Event().wait()
            break
        await asyncio.Event().wait()

    body = asyncio.create_task(loop())
    await go_on.wait()
    closing = asyncio.create_task(consumer.close())
    if how == "cancel":
        assert await waits(closing)
        body.cancel()
    async with asyncio.timeout(5):
        await closing
    body.cancel()
    await asyncio.wait([body])

    assert cluster.offsets.get(("G", "T", 0), 0) == 0
    assert cluster.locks == {}


async def test_a_body_in_a_task_of_its_own_outlives_the_block(cluster: FakeCluster) -> None:
    """Law: a message is done when the loop asks for the next one, also in a task that outlives the block;
    the block's end once counted it as done.
    """
    fill(cluster, 1, queues=1)
    texts, go_on, left = list[str](), asyncio.Event(), asyncio.Event()

    async def block() -> None:
        async with consumer_of(cluster) as consumer:
            tasks.append(asyncio.create_task(begun_by(consumer, texts, go_on)))
            await until(lambda: bool(texts))
            left.set()

    tasks: list[asyncio.Task[None]] = []
    closing = asyncio.create_task(block())
    await left.wait()

    assert await waits(closing)
    assert cluster.offsets.get(("G", "T", 0), 0) == 0
    go_on.set()
    await closing
    await tasks[0]

    assert cluster.offsets["G", "T", 0] == 1


async def test_a_message_that_is_worked_on_behind_its_loop_is_kept_until_the_block_ends(
    cluster: FakeCluster,
) -> None:
    """Law: a message processed after its loop stays until the block ends; a `close` meanwhile waits."""
    fill(cluster, 1, queues=1)

    async with consumer_of(cluster) as consumer:
        async for _ in consumer:
            break
        closing = asyncio.create_task(consumer.close())
        assert await waits(closing)
    await closing

    assert cluster.offsets["G", "T", 0] == 1


async def test_a_body_that_outlives_close_keeps_its_lock(cluster: FakeCluster) -> None:
    """Law: after `shutdown_timeout` a body that still runs keeps its lock until the lease ends, and is not acknowledged."""
    fill(cluster, 2, queues=1)
    settings = ConsumerSettings(shutdown_timeout=0.01)
    consumer = Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", settings=settings
    )
    texts, go_on = list[str](), asyncio.Event()
    await consumer.start()
    body = asyncio.create_task(begun_by(consumer, texts, go_on))
    await until(lambda: bool(texts))
    await consumer.close()

    assert [queue.queue_id for _, queue in cluster.locks] == [0]
    go_on.set()
    await body
    assert texts == ["begun m0", "ended m0"]
    assert cluster.offsets.get(("G", "T", 0), 0) == 0


async def test_a_later_loop_waits_for_the_body_of_another_task() -> None:
    """Law: a later loop gets another task's message only when that task's body has left it."""
    loop, (first, second) = MessageLoop("G"), messages(5, 6)
    begun: list[ReceivedMessage] = []
    go_on = asyncio.Event()

    async def former() -> None:
        stream = loop.stream()
        begun.append(await anext(stream))
        await go_on.wait()
        await anext(stream)

    offer = asyncio.create_task(loop.offer([first], OrderedContext(QUEUE)))
    task = asyncio.create_task(former())
    await until(lambda: bool(begun))
    later = asyncio.create_task(anext(stream := loop.stream()))
    await asyncio.sleep(0)
    stream.leave()  # Like a body whose wait was interrupted.
    await asyncio.sleep(0)
    assert not offer.done()
    go_on.set()
    with pytest.raises(StateError, match="another loop"):
        await task
    await offer  # Done, because its body has ended.
    next_offer = asyncio.create_task(loop.offer([second], OrderedContext(QUEUE)))

    assert await later is second
    loop.settle()
    await next_offer


@pytest.mark.parametrize("how", ["break", "raise", "cancel"])
async def test_a_later_loop_gets_what_the_body_of_another_task_leaves(
    cluster: FakeCluster, how: str
) -> None:
    """Law: a later loop gets the message that a cancelled task leaves; it once waited for ever."""
    fill(cluster, 2, queues=1)
    texts, go_on = list[str](), asyncio.Event()

    async def former(consumer: Consumer) -> None:
        async for message in consumer:
            texts.append(message.text)
            try:
                await go_on.wait()
            finally:
                await asyncio.sleep(0)
            if how == "raise":
                raise ValueError("no")
            break
        await asyncio.Event().wait()

    async with consumer_of(cluster) as consumer:
        body = asyncio.create_task(former(consumer))
        await until(lambda: bool(texts))
        if how == "cancel":
            body.cancel()
        later = asyncio.create_task(anext(aiter(consumer)))
        await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(10):
            texts.append((await later).text)
        body.cancel()
        await asyncio.wait([body])

    assert texts == ["m0", "m0"]


async def test_a_later_loop_gets_what_a_task_has_handed_on(cluster: FakeCluster) -> None:
    """Law: a new loop of the same task gets the former loop's message, even if that iterator still exists."""
    fill(cluster, 1, queues=1)
    texts: list[str] = []

    async with consumer_of(cluster) as consumer, asyncio.timeout(10):
        former = asked(consumer, "handed on")
        texts.append((await anext(former)).text)
        async for message in consumer:
            texts.append(message.text)
            break
        await former.aclose()

    assert texts == ["m0", "m0"]


async def test_a_later_loop_of_another_task_gets_what_was_left_inside_the_block(
    cluster: FakeCluster,
) -> None:
    """Law: a loop of another task also gets what was left inside the block; it once waited for the block's end."""
    fill(cluster, 2, queues=1)
    texts: list[str] = []

    async with consumer_of(cluster) as consumer, asyncio.timeout(10):
        async for _ in consumer:
            break
        later = asyncio.create_task(fail_at(consumer, "m1", texts))
        with pytest.raises(ValueError, match="no"):
            await later

    assert texts == ["m0", "m1"]


async def test_close_inside_the_block_behind_a_loop_that_closed_waits_for_no_body(
    cluster: FakeCluster,
) -> None:
    """Law: a second `close` after one in the body does not wait; it once took `shutdown_timeout`."""
    fill(cluster, 1, queues=1)

    async with consumer_of(cluster) as consumer, asyncio.timeout(10):
        async for _ in consumer:
            await consumer.close()
            break
        await consumer.close()

    assert cluster.offsets.get(("G", "T", 0), 0) == 0
    assert cluster.locks == {}


async def test_a_body_that_outlives_close_and_breaks_leaves_no_error_unseen(
    cluster: FakeCluster,
) -> None:
    """Law: a body that outlives `close` and breaks leaves no "Future exception was never retrieved"."""
    fill(cluster, 1, queues=1)
    settings = ConsumerSettings(shutdown_timeout=0.01)
    consumer = Consumer("G", cluster.address, topics="T", consume_from="first", settings=settings)
    go_on, unseen = asyncio.Event(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unseen.append(what))
    await consumer.start()

    async def loop() -> None:
        async for _ in consumer:
            go_on.set()
            await until(lambda: consumer.state == "SHUTDOWN_ALREADY")
            await consumer._shutdown.wait()
            break

    body = asyncio.create_task(loop())
    await go_on.wait()
    await consumer.close()
    await body
    await asyncio.sleep(0)
    gc.collect()

    assert unseen == []


@pytest.mark.parametrize("how", ["raise", "cancel"])
async def test_a_loop_in_a_task_that_fails_inside_the_block_has_its_last_message_again(
    cluster: FakeCluster, how: str
) -> None:
    """Law: if the task of a loop fails inside the block, its last message comes again;
    the block's end once counted it as done.
    """
    fill(cluster, 2, queues=1)
    texts: list[str] = []

    async def loop(consumer: Consumer) -> None:
        async for message in consumer:
            texts.append(message.text)
            if message.text == "m1":
                if how == "raise":
                    raise ValueError("no")
                await asyncio.Event().wait()

    async with consumer_of(cluster) as consumer:
        body = asyncio.create_task(loop(consumer))
        await until(lambda: texts == ["m0", "m1"])
        if how == "cancel":
            body.cancel()
        await asyncio.gather(body, return_exceptions=True)

    assert cluster.offsets["G", "T", 0] == 1


@pytest.mark.parametrize("how", ["group", "tidies"])
async def test_a_loop_whose_task_nobody_keeps_has_its_last_message_again(
    cluster: FakeCluster, how: str
) -> None:
    """Law: this holds even if the program keeps no reference to the task, or the task still tidies up."""
    fill(cluster, 2, queues=1)
    go_on, texts = asyncio.Event(), list[str]()

    async def loop(consumer: Consumer) -> None:
        try:
            await fail_at(consumer, "m1", texts)
        finally:
            if how == "tidies":
                await go_on.wait()

    async with consumer_of(cluster) as consumer:
        if how == "group":
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(loop(consumer))
        else:
            body = asyncio.create_task(loop(consumer))
            await until(lambda: texts == ["m0", "m1"])
            await asyncio.sleep(0)
        gc.collect()
    if how == "tidies":
        go_on.set()
        await asyncio.wait([body])

    assert cluster.offsets["G", "T", 0] == 1


async def test_a_loop_whose_task_ends_well_inside_the_block_has_its_last_message_done(
    cluster: FakeCluster,
) -> None:
    """Law: if the task of a loop ends without an error, its last message is done."""
    fill(cluster, 2, queues=1)

    async def loop(consumer: Consumer) -> None:
        async for message in consumer:
            if message.text == "m1":
                break

    async with consumer_of(cluster) as consumer:
        await asyncio.gather(loop(consumer))
        gc.collect()

    assert cluster.offsets["G", "T", 0] == 2
