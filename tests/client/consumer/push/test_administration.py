"""Requests of operators and brokers to a push consumer: suspension, statistics, resets, standing queues."""

import asyncio
from collections.abc import Sequence

from orderlymq.consumer.core.events import OrderedResult
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import OffsetTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from tests.client.fakecluster import BROKER, FakeCluster
from tests.client.inbox import Inbox, fill, ordered_consumer
from tests.protocol.records import encode_record
from tests.waiting import until

QUEUE = MessageQueue("T", BROKER, 0)


async def test_suspending_the_consumer_stops_listeners_until_it_is_resumed(
    cluster: FakeCluster,
) -> None:
    """Law: a suspended consumer calls no listener until it is resumed, and keeps its locks."""
    inbox = Inbox()
    async with ordered_consumer(cluster, inbox) as consumer:
        await until(lambda: len(cluster.held) == 3)
        consumer.suspend()
        fill(cluster, 2)
        await asyncio.sleep(0.02)
        assert inbox.seen == []
        assert len(cluster.locks) == 3

        consumer.resume()
        await until(lambda: len(inbox.seen) == 2)


async def test_brokers_may_ask_for_status_running_info_and_a_reset(cluster: FakeCluster) -> None:
    """Law: 220, 221, 307 and 309 are answered, for RocketMQ's tools."""
    fill(cluster, 3, queues=1)
    inbox = Inbox()
    async with ordered_consumer(cluster, inbox):
        await until(lambda: len(inbox.seen) == 3)
        conn = next(iter(cluster.members["G"].values()))
        ask = {"consumerGroup": "G", "topic": "T", "group": "G", "brokerName": BROKER}

        conn.send(request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ask))
        conn.send(request(RequestCode.GET_CONSUMER_RUNNING_INFO, ask))
        record = encode_record(cluster.logs["T", 0][1])
        conn.send(request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ask, record))
        conn.send(request(RequestCode.CHECK_TRANSACTION_STATE, ask))
        await until(lambda: len(cluster.answers) == 4)
        body = OffsetTable({QUEUE: 1}).to_json()
        conn.send(request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ask, body, oneway=True))
        await until(lambda: inbox.texts[-2:] == ["m1", "m2"] and len(inbox.seen) == 6)

    status, info, unknown, direct = sorted(cluster.answers, key=lambda each: len(each.ext))[:4]
    bodies = [fastjson.loads(each.body) for each in (status, info, unknown, direct) if each.body]
    tables = next(each["messageQueueTable"] for each in bodies if "messageQueueTable" in each)
    assert tables[QUEUE] == 3
    running_info = next(each for each in bodies if "mqTable" in each)
    assert running_info["mqTable"][QUEUE]["commitOffset"] == 3
    assert running_info["mqTable"][QUEUE]["locked"] is True
    assert any(each.get("consumeResult") == "CR_SUCCESS" for each in bodies)
    assert 3 in [each.code for each in cluster.answers]


async def test_a_reset_while_the_consumer_closes_is_not_undone(cluster: FakeCluster) -> None:
    """Law: a reset while the consumer closes is not undone by the result of a running listener."""
    fill(cluster, 3, queues=1)
    at_last, finish = asyncio.Event(), asyncio.Event()

    async def listener(messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        if messages[0].text == "m2":
            at_last.set()
            await finish.wait()

    consumer = Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    )
    await consumer.start()
    await at_last.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    conn = next(iter(cluster.members["G"].values()))
    body = OffsetTable({QUEUE: 1}).to_json()
    ask = {"topic": "T", "group": "G"}
    conn.send(request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ask, body, oneway=True))
    await until(lambda: cluster.offsets.get(("G", "T", 0)) == 1)
    finish.set()
    await closing

    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}


async def test_a_listener_that_has_not_returned_is_reported(cluster: FakeCluster) -> None:
    """Law: 307 reports a call that has not returned."""
    fill(cluster, 1, queues=1)
    called, finish = asyncio.Event(), asyncio.Event()

    async def listener(_: Sequence[ReceivedMessage], __: OrderedContext) -> None:
        called.set()
        await finish.wait()

    async with Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    ):
        await called.wait()
        conn = next(iter(cluster.members["G"].values()))
        conn.send(request(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G"}))
        await until(lambda: len(cluster.answers) == 1)
        finish.set()

    info = fastjson.loads(cluster.answers[0].body)["mqTable"][QUEUE]
    assert (info["omqRunning"], info["omqTries"]) == (True, 0)


async def test_a_queue_that_stands_still_shows_tries_and_error_of_its_listener(
    cluster: FakeCluster,
) -> None:
    """Law: 307 reports per queue the tries, the last error and the last call of its first message."""
    fill(cluster, 2, queues=1)
    inbox = Inbox()
    inbox.answers = [ValueError("no such order"), OrderedResult.SUSPEND, None, None]
    seen: list[tuple[int, str | None]] = []
    async with ordered_consumer(cluster, inbox, suspend_current_queue_time=0.2):
        conn = next(iter(cluster.members["G"].values()))
        for calls in (1, 2, 4):
            while len(inbox.seen) < calls:  # noqa: ASYNC110 - what is waited for is the listener
                await asyncio.sleep(0.002)
            cluster.answers.clear()
            conn.send(request(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G"}))
            await until(lambda: len(cluster.answers) == 1)
            info = fastjson.loads(cluster.answers[0].body)["mqTable"][QUEUE]
            assert info["lastConsumeTimestamp"] > 1_700_000_000_000
            seen.append((info["omqTries"], info["omqLastError"]))

    assert (info["omqSuspended"], info["omqRunning"]) == (False, False)
    assert seen == [
        (1, "ValueError: no such order"),
        (2, "it returned SUSPEND_CURRENT_QUEUE_A_MOMENT"),
        (0, None),
    ]
