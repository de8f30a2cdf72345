"""The plain pull consumer: what a pull reports, and how it waits when nothing can be pulled."""

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
    """PUL-04: RocketMQ's words, with both ends of the queue and how many were found."""
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
    """PUL-08: 50, 100, 200 ms; after a success it begins again, and each message comes once. The log says what is refused."""
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
    """It once asked a closed client for ever, or went on by the connections that others share."""
    async with running(topics={"T": 1}) as cluster:
        instance = ClientInstance(cluster.address)
        await instance.start()
        reader = PullConsumer("G", cluster.address, instance=instance if shared else None)
        await reader.start()
        following = asyncio.ensure_future(anext(reader.messages(QUEUE, 0)))
        await until(lambda: bool(cluster.held))
        await reader.close()
        for held in list(cluster.held):
            cluster._release(held)  # as the broker does after 20 s

        with pytest.raises(StateError, match="closed"):
            async with asyncio.timeout(10):
                await following
        await instance.close()


async def test_a_pull_that_is_refused_leaves_the_position_to_the_caller() -> None:
    """The error names queue and offset."""
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
    """An iterator would ask for ever, and close would fail to leave the group."""
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
    """Law: whatever a call raises because of its cluster is an OrderlyMQError."""
    async with (
        running(topics={"T": 1}) as cluster,
        PullConsumer("G", cluster.address) as reader,
    ):
        cluster.faults[RequestCode.QUERY_CONSUMER_OFFSET] = [fakecluster.reset]
        with pytest.raises(BrokerUnreachable):
            await reader.committed(QUEUE)

        assert await reader.committed(QUEUE) is None


async def test_a_body_that_cannot_be_inflated_is_an_error_of_its_own_message() -> None:
    """A pull returns the message before it, and the error says where to go on; the iterator raises it, too."""
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
    """Refused, without an answer, and once more at an offset that somebody else has moved meanwhile."""
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
