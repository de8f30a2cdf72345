"""`async for` over a consumer and `run`: which messages are done, which come again, how both end."""

import asyncio
from collections.abc import Sequence

import pytest

from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.listeners.messageloop import MessageLoop
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.errors import StateError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from tests.client.consumer.listeners.loops import consumer_of, fail_at
from tests.client.fakecluster import FakeCluster
from tests.client.inbox import fill
from tests.client.messages import QUEUE, messages
from tests.waiting import until


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_message_is_done_when_the_loop_asks_for_the_next(
    cluster: FakeCluster, ordered: bool
) -> None:
    """Law: a message is done when the loop asks for the next one; nothing is committed before."""
    fill(cluster, 3, queues=1)
    committed: list[int | None] = []
    texts: list[str] = []

    async with consumer_of(cluster, ordered=ordered) as consumer:
        async for message in consumer:
            texts.append(message.text)
            committed.append(consumer.core.queues[message.queue].committed)
            if len(texts) == 3:
                break

    assert texts == ["m0", "m1", "m2"]
    assert committed == [0, 1, 2]
    assert cluster.offsets["G", "T", 0] == 3, "the block ended without an error"


async def test_a_loop_left_by_an_exception_has_its_last_message_again(
    cluster: FakeCluster,
) -> None:
    """Law: after a loop ends by an exception, its last message comes again in a later loop, before others."""
    fill(cluster, 3, queues=1)
    texts: list[str] = []

    async with consumer_of(cluster) as consumer:
        with pytest.raises(ValueError, match="no"):
            await fail_at(consumer, "m1", texts)
        async for message in consumer:
            texts.append(message.text)
            if message.text == "m2":
                break

    assert texts == ["m0", "m1", "m1", "m2"]


async def test_a_block_left_by_an_exception_commits_what_was_done_before(
    cluster: FakeCluster,
) -> None:
    """Law: a block left by an exception commits the earlier messages; the one in hand stays for the next member."""
    fill(cluster, 3, queues=1)

    async def service() -> None:
        async with consumer_of(cluster) as consumer:
            await fail_at(consumer, "m1", [])

    with pytest.raises(ValueError, match="no"):
        await service()

    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}


async def test_a_time_out_around_the_block_has_the_message_in_hand_again(
    cluster: FakeCluster,
) -> None:
    """Law: after a time-out around the block, the message in hand comes again; inside the block it would count as a break."""
    fill(cluster, 2, queues=1)
    begun: list[str] = []

    async def service() -> None:
        async with asyncio.timeout(None) as limit, consumer_of(cluster) as consumer:
            async for message in consumer:
                begun.append(message.text)
                if len(begun) == 2:
                    limit.reschedule(0)
                    await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await service()

    assert begun == ["m0", "m1"]
    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}


async def test_closing_ends_the_loop(cluster: FakeCluster) -> None:
    """Law: closing the consumer ends a waiting loop."""
    consumer = consumer_of(cluster)
    await consumer.start()

    async def loop() -> list[ReceivedMessage]:
        return [message async for message in consumer]

    waiting = asyncio.create_task(loop())
    await until(lambda: len(cluster.held) == 3)
    await consumer.close()

    assert await waiting == []


async def test_one_message_is_in_hand_at_a_time(cluster: FakeCluster) -> None:
    """Law: one message is in hand at a time; messages of other queues wait."""
    fill(cluster, 4, queues=2)

    async with consumer_of(cluster) as consumer:
        await until(lambda: sum(s.fetcher.cache.count for s in consumer.core.queues.values()) == 4)
        async for message in consumer:
            assert consumer.listeners is not None
            called = [q for q in consumer.queues if consumer.listeners.attempt(q) is not None]
            assert called == [message.queue]
            break


async def test_a_member_that_does_not_loop_keeps_no_queue_from_a_new_member(
    cluster: FakeCluster,
) -> None:
    """Law: a member without a loop still gives queues to a new member; they once waited without end."""
    fill(cluster, 4, queues=2)

    async with consumer_of(cluster) as idle:
        await until(lambda: sum(s.fetcher.cache.count for s in idle.core.queues.values()) == 4)
        async with consumer_of(cluster) as member, asyncio.timeout(10):
            stream = aiter(member)
            texts = [(await anext(stream)).text for _ in range(2)]

    assert texts in (["m0", "m2"], ["m1", "m3"])


async def test_two_loops_at_a_time_are_refused(cluster: FakeCluster) -> None:
    """Law: of two loops at the same time, the earlier one is refused and the later one goes on."""
    async with consumer_of(cluster) as consumer:
        first, second = aiter(consumer), aiter(consumer)
        with pytest.raises(StateError, match="another loop"):
            await anext(first)
        fill(cluster, 1, queues=1)
        assert (await anext(second)).text == "m0"


@pytest.mark.parametrize("offered", ["before", "after"])
async def test_a_loop_that_waits_leaves_the_next_message_to_a_later_loop(offered: str) -> None:
    """Law: a waiting loop that was replaced takes no message; one was once lost to it for ever."""
    loop, (message,) = MessageLoop("G"), messages(5)
    former = asyncio.create_task(anext(loop.stream()))
    await asyncio.sleep(0)
    if offered == "before":
        offer = asyncio.create_task(loop.offer([message], OrderedContext(QUEUE)))
        await asyncio.sleep(0)  # The former loop is woken but has not run yet.
    later = asyncio.create_task(anext(loop.stream()))
    if offered == "after":
        offer = asyncio.create_task(loop.offer([message], OrderedContext(QUEUE)))

    async with asyncio.timeout(5):
        assert await later is message
        with pytest.raises(StateError, match="another loop"):
            await former
        loop.settle()
        await offer


async def test_all_loops_that_wait_end_with_the_consumer() -> None:
    """Law: all waiting loops end with the consumer."""
    loop = MessageLoop("G")
    waiting = [asyncio.create_task(anext(loop.stream())) for _ in range(3)]
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(anext(loop.stream())))
    loop.end()

    async with asyncio.timeout(5):
        ended = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(each) for each in ended] == [StateError] * 3 + [StopAsyncIteration]


async def test_what_can_not_be_looped_over_says_why(cluster: FakeCluster) -> None:
    """Law: looping over a consumer that is not started or has a listener raises with the reason."""
    with pytest.raises(StateError, match=r"call start\(\) or use `async with` first"):
        aiter(consumer_of(cluster))
    with pytest.raises(StateError, match="it has a listener, which gets the messages"):
        aiter(Consumer("G", cluster.address, topics="T", listener=lambda messages, context: None))


async def test_a_message_whose_lock_was_lost_before_the_loop_asked_is_not_handed_out() -> None:
    """Law: a message whose lock was lost before the loop asked is not handed out."""
    loop, begun = MessageLoop("G"), list[ReceivedMessage]()
    lost, held = messages(5, 6)
    offers = [
        asyncio.create_task(loop.offer([lost], OrderedContext(QUEUE, still_holds=lambda: False))),
        asyncio.create_task(loop.offer([held], OrderedContext(QUEUE))),
    ]
    await asyncio.sleep(0)

    begun.append(await anext(loop.stream()))
    loop.settle()
    outcomes = await asyncio.gather(*offers, return_exceptions=True)

    assert begun == [held]
    assert [type(each).__name__ for each in outcomes] == ["NotBegun", "NoneType"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_message_that_no_loop_has_taken_loses_no_try(
    cluster: FakeCluster, ordered: bool
) -> None:
    """Law: a message that no loop took loses no try; with one try it would become a dead letter."""
    once = ConsumerSettings(max_reconsume_times=0)
    consumer = Consumer(
        "G", cluster.address, topics="T", ordered=ordered, consume_from="first", settings=once
    )
    async with consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(aiter(consumer))
        fill(cluster, 1, queues=1)
        assert consumer.listeners is not None
        await until(consumer.listeners.slots.locked)
    taken = {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2} & set(cluster.codes())

    assert not taken
    assert cluster.offsets.get(("G", "T", 0), 0) == 0
    async with consumer_of(cluster, ordered=ordered) as other:
        assert (await anext(aiter(other))).reconsume_times == 0


async def test_run_consumes_until_it_is_cancelled_and_closes(cluster: FakeCluster) -> None:
    """Law: `run` consumes until it is cancelled, then commits the done messages and gives the locks back."""
    fill(cluster, 2, queues=1)
    seen: list[str] = []

    def listener(found: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        seen.extend(message.text for message in found)

    consumer = Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    )
    service = asyncio.create_task(consumer.run())
    await until(lambda: len(seen) == 2)
    service.cancel()
    with pytest.raises(asyncio.CancelledError):
        await service

    assert consumer.state == "SHUTDOWN_ALREADY"
    assert cluster.offsets["G", "T", 0] == 2
    assert cluster.locks == {}


async def test_run_ends_when_the_consumer_is_closed(cluster: FakeCluster) -> None:
    """Law: `run` ends without an error when the consumer is closed."""
    consumer = Consumer("G", cluster.address, topics="T", listener=lambda *_: None)
    service = asyncio.create_task(consumer.run())
    await until(lambda: consumer.state == "RUNNING")
    await consumer.close()
    await service


class Broken:
    """A strategy that raises."""

    name = "BROKEN"

    def assign(self, *_: object) -> list[MessageQueue]:
        raise ZeroDivisionError("no members")


@pytest.mark.parametrize("looped", [True, False])
async def test_the_error_of_a_background_task_ends_run_and_loops(
    cluster: FakeCluster, looped: bool
) -> None:
    """Law: the error of a background task ends `run` and loops with that error and closes the consumer."""
    consumer = Consumer(
        "G",
        cluster.address,
        topics="T",
        listener=None if looped else lambda *_: None,
        settings=ConsumerSettings(allocate_message_queue_strategy=Broken()),
    )

    async def loop() -> None:
        async with consumer:
            await anext(aiter(consumer))

    with pytest.raises(ZeroDivisionError, match="no members"):
        await (loop() if looped else consumer.run())

    assert consumer.state == "SHUTDOWN_ALREADY"
