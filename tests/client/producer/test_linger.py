"""Sends that wait for each other: one batch per queue, in the order of the calls, with a limit in bytes."""

import asyncio

import pytest

from orderlymq.errors import SendRefused
from orderlymq.message import Message, SendResult
from orderlymq.producer.producer import Producer
from orderlymq.producer.selectors import hash_index
from orderlymq.settings import ClientSettings, ProducerSettings
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import BROKER, FakeCluster, Fault, running

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


def _codes(cluster: FakeCluster) -> list[int]:
    return [code for code in cluster.codes() if code in (SEND, BATCH)]


async def test_sends_of_many_keys_leave_as_one_batch_per_queue_in_the_order_of_their_calls() -> (
    None
):
    """Law: sends of many keys leave as one batch per queue in the order of their calls; each future gets its own place."""
    async with (
        running(topics={"T": 2}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=0.02) as producer,
    ):
        keys = [f"k{number % 6}" for number in range(60)]
        futures = [
            producer.send_nowait("T", f"{key} {number}", key=key) for number, key in enumerate(keys)
        ]
        results = await asyncio.gather(*futures)

    assert _codes(cluster) == [BATCH, BATCH]
    for number, (key, result) in enumerate(zip(keys, results, strict=True)):
        stored = cluster.bodies("T", result.queue.queue_id)[result.queue_offset]
        assert stored == f"{key} {number}".encode()
        assert result.queue.queue_id == hash_index(key, 2)
    for queue in (0, 1):
        numbers = [int(body.split()[1]) for body in cluster.bodies("T", queue)]
        assert numbers == sorted(numbers)
    assert len({result.offset_message_id for result in results}) == 60


async def test_a_send_that_is_waited_for_stays_behind_those_that_are_not() -> None:
    """Law: awaited sends stay behind earlier ones that are not awaited."""
    async with (
        running(topics={"T": 1}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=0.01) as producer,
    ):
        first = producer.send_nowait("T", "first", key="k")
        await producer.send("T", "second", key="k")
        await first

    assert cluster.bodies("T", 0) == [b"first", b"second"]


@pytest.mark.parametrize("linger", [0, 0.01])
@pytest.mark.parametrize("by", ["key", "queue"])
async def test_the_order_is_the_same_under_the_bare_and_the_whole_name(
    by: str, linger: float
) -> None:
    """Law: sends under the bare and the full name of a topic have one order."""
    async with (
        running(topics={"shop%T": 1}, ordered=True) as cluster,
        Producer(
            "G",
            cluster.address,
            client_settings=ClientSettings(namespace="shop"),
            linger=linger,
        ) as producer,
    ):

        def send(topic: str, body: str) -> "asyncio.Future[SendResult]":
            queue = MessageQueue(topic, BROKER, 0) if by == "queue" else None
            return producer.send_nowait(
                topic, body, key="k" if queue is None else None, queue=queue
            )

        async def late(command: RemotingCommand, conn: Connection) -> None:
            await asyncio.sleep(0)
            answer = cluster.serve(command, conn)
            assert answer is not None
            conn.send(answer)

        tasks = list[asyncio.Task[None]]()

        def slow(command: RemotingCommand, conn: Connection) -> None:
            tasks.append(asyncio.create_task(late(command, conn)))

        cluster.faults[SEND] = [slow]
        await asyncio.gather(send("T", "first"), send("shop%T", "second"))

    assert cluster.bodies("shop%T", 0) == [b"first", b"second"]


async def test_order_is_kept_while_the_queues_of_the_topic_change() -> None:
    """Law: while the topic's queues change, a refused batch is chosen again before later sends of its keys leave."""

    def grow(cluster: FakeCluster) -> Fault:
        def fault(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
            cluster.topics["T"] = 9
            return command.reply(ResponseCode.ORDERLYMQ_QUEUES_CHANGED, remark="changed")

        return fault

    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=0.005) as producer,
    ):
        cluster.faults[BATCH] = [cluster.serve, grow(cluster)]
        futures = []
        for number in range(40):
            futures += [producer.send_nowait("T", f"{number}", key=f"k{n}") for n in range(8)]
            await asyncio.sleep(0.001)
        results = await asyncio.gather(*futures)

    for n in range(8):
        own = results[n::8]
        moved = [at for at in range(1, 40) if own[at].queue != own[at - 1].queue]
        assert len(moved) <= 1, "a key moves once"
        for part in (own[: (moved or [40])[0]], own[(moved or [40])[0] :]):
            offsets = [result.queue_offset for result in part]
            assert offsets == sorted(offsets)


async def test_what_waits_behind_a_failed_send_of_its_key_is_refused_unsent() -> None:
    """Law: sends behind a failed one of their key are refused unsent; other keys go on."""
    async with (
        running(topics={"T": 2}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=0.01) as producer,
    ):
        bad = next(f"k{n}" for n in range(9) if hash_index(f"k{n}", 2) == 0)
        good = next(f"k{n}" for n in range(9) if hash_index(f"k{n}", 2) == 1)
        behind: list[asyncio.Future[SendResult]] = []

        def fail(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
            behind.extend(producer.send_nowait("T", "two", key=bad) for _ in range(2))
            behind.append(producer.send_nowait("T", "three", key=good))
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, remark="refused by the test")

        cluster.faults[SEND] = [fail]
        failed = producer.send_nowait("T", "one", key=bad)
        outcomes = [*await asyncio.gather(failed, return_exceptions=True)]
        outcomes += await asyncio.gather(*behind, return_exceptions=True)

    assert [type(each) for each in outcomes[:3]] == [SendRefused] * 3
    assert "an earlier send of the same key failed" in str(outcomes[1])
    assert cluster.bodies("T", 0) == []
    assert cluster.bodies("T", 1) == [b"three"]


async def test_what_no_batch_can_carry_leaves_alone_in_its_turn() -> None:
    """Law: a message that no batch can carry, such as a delayed one, is sent alone in its turn."""
    async with (
        running(topics={"T": 1}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=0.01) as producer,
    ):
        later = Message(topic="T", body=b"later", key="k", delay_level=1)
        wanted: list[str | Message] = ["a", "b", later, "c", "d"]
        await asyncio.gather(
            *(
                producer.send_nowait(each)
                if isinstance(each, Message)
                else producer.send_nowait("T", each, key="k")
                for each in wanted
            )
        )

    assert _codes(cluster) == [BATCH, SEND, BATCH]
    assert cluster.bodies("T", 0) == [b"a", b"b", b"later", b"c", b"d"]


@pytest.mark.parametrize("linger", [0.0, 0.01])
async def test_sends_that_nobody_waits_for_are_bounded_in_bytes(linger: float) -> None:
    """Law: the bytes of sends that are not awaited are limited; the error says the limit and what to do."""
    async with (
        running(topics={"T": 1}) as cluster,
        Producer(
            "G",
            cluster.address,
            settings=ProducerSettings(send_buffer_bytes=100),
            linger=linger,
        ) as producer,
    ):
        first = [producer.send_nowait("T", b"x" * 40, key="k") for _ in range(2)]
        with pytest.raises(SendRefused, match="send_buffer_bytes") as caught:
            producer.send_nowait("T", b"x" * 40, key="k")
        await asyncio.gather(*first)
        await producer.send_nowait("T", b"x" * 40, key="k")

    assert "80 bytes of sends are pending and 40 more pass" in str(caught.value)
    assert len(cluster.bodies("T", 0)) == 3


async def test_a_single_send_larger_than_the_bound_is_taken_when_nothing_is_pending() -> None:
    """Law: a single send larger than the limit is accepted when nothing is pending."""
    settings = ProducerSettings(send_buffer_bytes=10)
    async with (
        running(topics={"T": 1}) as cluster,
        Producer("G", cluster.address, settings=settings) as producer,
    ):
        await producer.send_nowait("T", b"x" * 40)

    assert len(cluster.bodies("T", 0)) == 1
