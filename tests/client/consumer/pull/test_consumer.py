"""The plain pull consumer: the result of a pull, and how it waits when it cannot pull."""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.group.requests import PullResult
from orderlymq.consumer.pull.consumer import PullConsumer
from orderlymq.errors import (
    BodyUnreadable,
    BrokerError,
    BrokerUnreachable,
    PullError,
    SettingError,
    StateError,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.sysflag import COMPRESSED
from orderlymq_runtime.remoting.connection import Connection
from tests.client import fakecluster
from tests.client.consumer.pulls import send_away
from tests.client.fakecluster import BROKER, Fault, running
from tests.client.inbox import fill
from tests.waiting import until

PULL, COMMIT = 11, 15
QUEUE = MessageQueue("T", BROKER, 0)


async def test_the_result_of_a_pull_prints_itself() -> None:
    """Law: a PullResult prints RocketMQ's words, the ends of the queue and the number of messages (PUL-04)."""
    async with (
        running(topics={"T": 1}) as cluster,
        PullConsumer("G", cluster.address) as reader,
    ):
        fill(cluster, 5, queues=1)
        found = await reader.pull(QUEUE, "*", 1, 3)
        nothing = await reader.pull(QUEUE, "*", 5)

    assert repr(found) == (
        "PullResult(FOUND, nextBeginOffset=4, minOffset=0, maxOffset=5, msgFoundList=3)"
    )
    assert repr(nothing) == (
        "PullResult(NO_NEW_MSG, nextBeginOffset=5, minOffset=0, maxOffset=5, msgFoundList=0)"
    )
    assert isinstance(found, PullResult)


@pytest.mark.parametrize("fault", [fakecluster.refuse(1), send_away], ids=["refused", "sent away"])
async def test_the_iterator_waits_longer_after_each_failure_and_loses_nothing(
    fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: after each failure the iterator waits longer (50, 100, 200 ms), loses nothing,
    and the log says what is refused (PUL-08).
    """
    asked: list[float] = []

    def refuse(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        asked.append(time.monotonic())
        return fault(command, conn)

    async with (
        running(topics={"T": 1}) as cluster,
        PullConsumer("G", cluster.address) as reader,
    ):
        fill(cluster, 2, queues=1)
        cluster.faults[PULL] = [refuse] * 4
        texts = []
        async with asyncio.timeout(10):
            async for message in reader.messages(QUEUE, 0):
                texts.append(message.text)
                if len(texts) == 2:
                    break

    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert texts == ["m0", "m1"]
    assert all(gap >= least for gap, least in zip(gaps, (0.05, 0.1, 0.2), strict=True)), gaps
    assert ("broker-a refuses pulls of T: code 1" in caplog.text) is (fault is not send_away)


@pytest.mark.parametrize("shared", [False, True])
async def test_the_iterator_ends_when_the_consumer_is_closed(shared: bool) -> None:
    """Law: the iterator ends when the consumer is closed; it once went on for ever."""
    async with running(topics={"T": 1}) as cluster:
        instance = ClientInstance(cluster.address)
        await instance.start()
        reader = PullConsumer("G", cluster.address, instance=instance if shared else None)
        await reader.start()
        following = asyncio.ensure_future(anext(reader.messages(QUEUE, 0)))
        await until(lambda: bool(cluster.held))
        await reader.close()
        for held in list(cluster.held):
            cluster._release(held)  # As the broker does after 20 s.

        with pytest.raises(StateError, match="closed"):
            async with asyncio.timeout(10):
                await following
        await instance.close()


async def test_a_pull_that_is_refused_leaves_the_position_to_the_caller() -> None:
    """Law: a refused pull raises an error with queue and offset, and leaves the position to the caller."""
    async with (
        running(topics={"T": 1}) as cluster,
        PullConsumer("G", cluster.address) as reader,
    ):
        cluster.faults[PULL] = [fakecluster.refuse(1)]
        with pytest.raises(PullError, match="at 7 failed"):
            await reader.pull(QUEUE, "*", 7)


@pytest.mark.parametrize(
    "place", [(5, 0), ("T", 0), (QUEUE, "x"), (QUEUE, None), (QUEUE, True), (QUEUE, 1.5)]
)
async def test_what_is_no_place_is_refused_before_it_is_remembered(place: Any) -> None:
    """Law: a wrong queue or offset is refused before it is stored; else the iterator and `close` would fail later."""
    queue, offset = place
    async with running(topics={"T": 1}) as cluster:
        async with PullConsumer("G", cluster.address) as reader:
            calls: list[Callable[[], Any]] = [
                lambda: reader.pull(queue, None, offset),
                lambda: anext(reader.messages(queue, offset)),
                lambda: reader.commit(queue, offset),
            ]
            if queue is not QUEUE:
                calls += [
                    lambda: reader.committed(queue),
                    lambda: reader.max_offset(queue),
                    lambda: reader.min_offset(queue),
                    lambda: reader.offset_for_timestamp(queue, 0),
                ]
            for call in calls:
                with pytest.raises(SettingError, match=r"queue is|offset is"):
                    await call()
            with pytest.raises(SettingError, match=r"queue is|offset is"):
                reader.update_offset(queue, offset)

        assert [each.code for each in cluster.seen if each.code in (PULL, COMMIT)] == []


async def test_an_offset_that_cannot_be_asked_for_is_an_error_of_the_sdk() -> None:
    """Law: an error of the cluster is always an OrderlyMQError."""
    async with (
        running(topics={"T": 1}) as cluster,
        PullConsumer("G", cluster.address) as reader,
    ):
        cluster.faults[RequestCode.QUERY_CONSUMER_OFFSET] = [fakecluster.reset]
        with pytest.raises(BrokerUnreachable):
            await reader.committed(QUEUE)

        assert await reader.committed(QUEUE) is None


async def test_a_body_that_cannot_be_inflated_is_an_error_of_its_own_message() -> None:
    """Law: a pull returns the messages before one that cannot be decompressed; that one's error says where to go on."""
    async with (
        running(topics={"T": 1}) as cluster,
        PullConsumer("G", cluster.address) as reader,
    ):
        cluster.append("T", 0, b"m0")
        cluster.append("T", 0, b"no zlib stream", sys_flag=COMPRESSED)
        cluster.append("T", 0, b"m2")
        before = await reader.pull(QUEUE, "*", 0)
        with pytest.raises(BodyUnreadable, match="a pull from offset 2 on skips it") as caught:
            await reader.pull(QUEUE, "*", before.next_offset)
        stream = reader.messages(QUEUE, 0)
        first = await anext(stream)
        with pytest.raises(BodyUnreadable):
            await anext(stream)
        behind = await reader.pull(QUEUE, "*", caught.value.offset + 1)

    assert ([each.text for each in before.messages], before.next_offset) == (["m0"], 1)
    assert (caught.value.queue, caught.value.offset) == (QUEUE, 1)
    assert first.text == "m0"
    assert [each.text for each in behind.messages] == ["m2"]


async def test_a_commit_that_returns_is_done_and_one_that_is_not_raises() -> None:
    """Law: a commit that returns is stored; if it is refused, unanswered or overtaken, it raises."""
    async with (
        running(topics={"T": 1}) as cluster,
        PullConsumer("G", cluster.address) as reader,
    ):
        cluster.faults[COMMIT] = [fakecluster.refuse(1), fakecluster.reset]
        with pytest.raises(BrokerError, match="refused by the test"):
            await reader.commit(QUEUE, 5)
        with pytest.raises(BrokerUnreachable):
            await reader.commit(QUEUE, 5)
        assert await reader.committed(QUEUE) is None

        await reader.commit(QUEUE, 5)
        cluster.offsets["G", "T", 0] = 2
        await reader.commit(QUEUE, 5)
        assert await reader.committed(QUEUE) == 5
