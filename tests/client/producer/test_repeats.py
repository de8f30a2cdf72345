"""Messages that are sent again and sends that are not tried: "refused" is said only if no try can be stored."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest

from orderlymq.errors import SendRefused, SendUnknown, SettingError, StateError
from orderlymq.message import Message, SendResult, SendStatus
from orderlymq.producer.producer import Producer
from orderlymq.producer.sendoutcome import heard
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client import fakecluster
from tests.client.fakecluster import running
from tests.waiting import until

SEND = int(RequestCode.SEND_MESSAGE_V2)
BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
RESEND: dict[str, Callable[..., Awaitable[SendResult]]] = {
    "send": lambda producer, message, **more: producer.send(message, **more),
    "send_nowait": lambda producer, message, **more: producer.send_nowait(message, **more),
    "send_batch": lambda producer, message, **more: producer.send_batch([message], **more),
}


@pytest.mark.parametrize("linger", [0, 0.001])
@pytest.mark.parametrize("repeat", RESEND)
async def test_a_refused_repeat_of_an_unknown_send_stays_unknown(
    repeat: str, linger: float
) -> None:
    """Law: a refused repeat of an unknown send stays unknown until one is acknowledged."""
    message = Message(topic="T", body=b"x", key="k")
    async with (
        running(topics={"T": 1}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=linger) as producer,
    ):
        await producer.queues("T")
        for code in (SEND, BATCH):
            cluster.faults[code] = [fakecluster.refuse(16)] * 2
        cluster.faults[SEND].insert(0, fakecluster.serve_then_reset(cluster))
        with pytest.raises(SendUnknown):
            await producer.send(message)

        with pytest.raises(
            SendUnknown, match="an earlier try may have stored the message"
        ) as caught:
            await RESEND[repeat](producer, message)

        assert caught.value.code == 16
        cluster.faults.clear()
        await RESEND[repeat](producer, message)
        for code in (SEND, BATCH):
            cluster.faults[code] = [fakecluster.refuse(16)]
        with pytest.raises(SendRefused):
            await RESEND[repeat](producer, message)
    assert cluster.bodies("T", 0) == [b"x"]


async def test_a_refused_repeat_behind_a_failed_send_stays_unknown() -> None:
    """Law: a repeat refused unsent is unknown if an earlier send of its object was cancelled or not answered."""
    first = Message(topic="T", body=b"x", key="k")
    second = Message(topic="T", body=b"y", key="k")
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.silence, *[fakecluster.refuse(16)] * 2]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await producer.send(first)
        await producer.send_oneway(second)

        sends = [producer.send_nowait(Message(topic="T", body=b"z", key="k"))]
        sends += [producer.send_nowait(each) for each in (first, second)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)

    assert [type(each) for each in outcomes] == [SendRefused, SendUnknown, SendUnknown]


@pytest.mark.parametrize("linger", [0, 0.001])
async def test_sends_that_are_repeated_keep_the_order_of_their_calls(linger: float) -> None:
    """Law: if several sends of a key fail, the caller may repeat all of them in order, and each is stored once."""
    messages = [Message(topic="T", body=body, key="k") for body in (b"1", b"2", b"3")]
    async with (
        running(topics={"T": 1}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=linger) as producer,
    ):
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.silence, fakecluster.refuse(16)]
        cluster.faults[BATCH] = [fakecluster.refuse(16)]
        with pytest.raises(SendUnknown):
            await producer.send(messages[0], timeout=0.1)
        sends = [producer.send_nowait(each) for each in messages]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        cluster.faults.clear()

        await asyncio.gather(*(producer.send_nowait(each) for each in messages))

    assert [type(each) for each in outcomes] == [SendUnknown, SendRefused, SendRefused]
    assert cluster.bodies("T", 0) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("linger", [0, 0.001])
async def test_a_repeat_behind_its_own_first_send_is_as_unknown_as_that(linger: float) -> None:
    """Law: a repeat behind its own unknown first send is unknown too."""
    message = Message(topic="T", body=b"x", key="k")
    async with (
        running(topics={"T": 1}) as cluster,
        Producer("G", cluster.address, linger=linger) as producer,
    ):
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.silence]
        first = producer.send_nowait(message, timeout=0.1)
        await until(lambda: cluster.codes().count(SEND) == 1)
        outcomes = await asyncio.gather(
            first, producer.send_nowait(message), return_exceptions=True
        )

    assert [type(each) for each in outcomes] == [SendUnknown, SendUnknown]


@pytest.mark.parametrize("linger", [0, 0.001])
@pytest.mark.parametrize("first", RESEND)
async def test_a_refusal_after_an_acknowledgement_that_nobody_heard_is_unknown(
    first: str, linger: float
) -> None:
    """Law: a send cancelled while under way may be stored, even if its acknowledgement is read by nobody."""
    message = Message(topic="T", body=b"x", key="k")
    async with (
        running(topics={"T": 1}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=linger) as producer,
    ):
        await producer.queues("T")
        answer: Callable[[], object] = int

        def late(command: RemotingCommand, conn: Connection) -> None:
            nonlocal answer
            stored = cluster.serve(command, conn)
            assert stored is not None
            answer = partial(conn.send, stored)

        cluster.faults[SEND] = [late] * 2
        cluster.faults[BATCH] = [late]
        before = producer.send_nowait("T", b"before", key="k")
        await until(lambda: len(cluster.bodies("T", 0)) == 1)
        cancelled = asyncio.ensure_future(RESEND[first](producer, message))
        await asyncio.sleep(0)
        answer()
        await before
        await until(lambda: len(cluster.bodies("T", 0)) == 2)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        for code in (SEND, BATCH):
            cluster.faults[code] = [fakecluster.refuse(16)]
        repeat = producer.send_nowait(message)
        answer()

        with pytest.raises(SendUnknown, match="an earlier try may have stored the message"):
            await repeat


@pytest.mark.parametrize("stored", [True, False])
async def test_an_outcome_that_meets_the_cancellation_of_its_caller_is_not_heard(
    stored: bool,
) -> None:
    """Law: an outcome that meets its caller's cancellation is not reported; a refusal leaves the message as it was."""
    message = Message(topic="T", body=b"x", key="k")
    outcome: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
    caller = asyncio.create_task(heard([message], outcome))
    await asyncio.sleep(0)
    if stored:
        outcome.set_result(SendResult(SendStatus.OK, "", "", MessageQueue("T", "B", 0), 0))
    else:
        outcome.set_exception(SendRefused("no"))
    caller.cancel()
    await asyncio.wait([caller])

    assert caller.cancelled()
    assert message.maybe_stored is stored


async def test_a_repeat_that_is_cancelled_before_its_turn_is_not_sent() -> None:
    """Law: a repeat cancelled before its turn is not sent."""
    message = Message(topic="T", body=b"x", key="k")
    message.unique_key, message.maybe_stored = "C0A80001000118B4AAC2", True
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.refuse(14)]
        first = producer.send_nowait(Message(topic="T", body=b"first", key="k"))
        repeat = producer.send_nowait(message)
        repeat.cancel()
        await producer.send("T", b"last", key="k")

        assert first.done()
        assert repeat.cancelled()
    assert cluster.bodies("T", 0) == [b"first", b"last"]


@pytest.mark.parametrize("timeout", [0, -1, float("-inf"), timedelta(0)])
async def test_a_send_without_time_is_not_tried(timeout: float | timedelta) -> None:
    """Law: a send without time left is refused and not tried."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        message = Message(topic="T", body=b"x")
        for send in RESEND.values():
            with pytest.raises(SettingError, match="it must be greater than 0"):
                await send(producer, message, timeout=timeout)

    assert not [each for each in cluster.seen if each.code in (SEND, BATCH)]


async def test_a_send_from_a_thread_without_a_loop_says_so() -> None:
    """Law: `send_nowait` from a thread without a loop raises."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        with pytest.raises(StateError, match="runs on another event loop"):
            await asyncio.to_thread(producer.send_nowait, "T", "x")
