"""Sends while the number of a topic's queues changes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from orderlymq.consumer.core.events import ConcurrentResult
from orderlymq.consumer.listeners.context import ConcurrentContext
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.errors import SendRefused, SendUnknown
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.producer import Producer
from orderlymq.producer.selectors import hash_index
from orderlymq.producer.transactions import TransactionProducer, TransactionState
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.extensions import EXT_QUEUE_TOTAL
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, Fault, refuse, running, serve_then_reset
from tests.waiting import until

SEND = int(RequestCode.SEND_MESSAGE_V2)
BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
CHANGED = int(ResponseCode.ORDERLYMQ_QUEUES_CHANGED)


def _said(cluster: FakeCluster, code: int = SEND) -> list[str | None]:
    return [each.ext.get(EXT_QUEUE_TOTAL) for each in cluster.seen if each.code == code]


def _grow(cluster: FakeCluster, count: int) -> Fault:
    """Refuse a send because the topic has more queues now."""

    def fault(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        cluster.topics["T"] = count
        return command.reply(CHANGED, remark="choose again")

    return fault


async def test_a_send_says_from_how_many_queues_it_was_chosen() -> None:
    """Law: in an ordered topic a send says from how many queues it was chosen."""
    for ordered, said in ((True, ["4"]), (False, [None])):
        async with (
            running(topics={"T": 4}, ordered=ordered) as cluster,
            Producer("G", cluster.address) as producer,
        ):
            await producer.send("T", b"x", key="k")
            assert _said(cluster) == said


async def test_a_send_that_was_chosen_from_an_old_list_is_chosen_again() -> None:
    """Law: a send chosen from an old list is chosen again; the caller sees one success, and the message is stored once."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address) as producer,
    ):
        cluster.faults[SEND] = [_grow(cluster, 7)]
        result = await producer.send("T", b"x", key="order-4711")

        assert result.queue.queue_id == hash_index("order-4711", 7)
        assert _said(cluster) == ["4", "7"]
        assert sum(len(log) for log in cluster.logs.values()) == 1


async def test_a_send_waits_while_writes_are_fenced() -> None:
    """Law: while the topic is fenced a send waits, beyond the time-out of a try, because nothing is unknown."""
    settings = ProducerSettings(send_message_timeout=0.05)
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address, settings=settings) as producer,
    ):
        cluster.faults[SEND] = [refuse(CHANGED)] * 6
        result = await producer.send("T", b"x", key="k")
        assert result.queue_offset == 0
        assert len(_said(cluster)) == 7


async def test_patience_ends_with_a_definite_refusal() -> None:
    """Law: the wait ends with a definite refusal, after queue_change_patience or the caller's time-out."""
    settings = ProducerSettings(queue_change_patience=0.1)
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address, settings=settings) as producer,
    ):
        cluster.faults[SEND] = [refuse(CHANGED)] * 1_000
        with pytest.raises(SendRefused) as caught:
            await producer.send("T", b"x", key="k")
        assert caught.value.code == CHANGED
        with pytest.raises(SendRefused):
            await producer.send("T", b"x", key="k", timeout=0.06)


async def test_a_send_that_lingers_waits_no_longer_than_its_own_time() -> None:
    """Law: a lingering send waits no longer than its own time-out; others go on, except those behind it with its key."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=0.005) as producer,
    ):
        for code in (SEND, BATCH):
            cluster.faults[code] = [refuse(CHANGED)] * 1_000
        short = producer.send_nowait("T", b"short", key="k", timeout=0.2)
        behind = producer.send_nowait("T", b"behind", key="k", timeout=60)
        long = producer.send_nowait("T", b"long", key="l", timeout=60)
        others = [producer.send_nowait("T", b"other", key=f"o{n}") for n in range(8)]
        await until(lambda: bool({SEND, BATCH}.intersection(cluster.codes())))
        late = producer.send_nowait("T", b"late", key="m", timeout=0.1)
        async with asyncio.timeout(5):
            refused, unsent, next_round = await asyncio.gather(
                short, behind, late, return_exceptions=True
            )
        assert not any(each.done() for each in (long, *others))
        for code in (SEND, BATCH):
            cluster.faults[code] = []
        await asyncio.gather(long, *others)

    for each in (refused, next_round):
        assert isinstance(each, SendRefused)
        assert each.code == CHANGED
    assert isinstance(unsent, SendRefused)
    assert "an earlier send of the same key failed" in str(unsent)
    assert sorted(body for log in cluster.logs.values() for body in (m.body for m in log)) == [
        b"long",
        *[b"other"] * 8,
    ]


async def test_the_own_time_of_a_send_that_lingers_wins_over_patience() -> None:
    """Law: a lingering send's own time-out wins over queue_change_patience."""
    settings = ProducerSettings(queue_change_patience=0.05)
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address, settings=settings, linger=0.005) as producer,
    ):
        for code in (SEND, BATCH):
            cluster.faults[code] = [refuse(CHANGED)] * 1_000
        patient = producer.send_nowait("T", b"patient", key="k", timeout=60)
        with pytest.raises(SendRefused):
            await producer.send("T", b"other", key="o")
        for code in (SEND, BATCH):
            cluster.faults[code] = []

        assert (await patient).queue_offset == 0


async def test_sends_of_one_key_stay_in_the_order_of_their_calls_through_a_change() -> None:
    """Law: sends of one key stay in order through a change; those behind a refused one follow it to the new queue."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address) as producer,
    ):
        cluster.faults[SEND] = [cluster.serve, refuse(CHANGED), _grow(cluster, 9)]
        futures = [producer.send_nowait("T", str(n).encode(), key="k") for n in range(5)]
        await asyncio.gather(*futures)

        old, new = hash_index("k", 4), hash_index("k", 9)
        assert old != new
        assert cluster.bodies("T", old) == [b"0"]
        assert cluster.bodies("T", new) == [b"1", b"2", b"3", b"4"]


async def test_a_batch_is_chosen_again_as_a_whole() -> None:
    """Law: a batch is chosen again as a whole."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address) as producer,
    ):
        cluster.faults[BATCH] = [_grow(cluster, 9)]
        await producer.send_batch(
            [Message(topic="T", body=b"a"), Message(topic="T", body=b"b")], key="k"
        )

        assert _said(cluster, BATCH) == ["4", "9"]
        assert len(cluster.logs["T", hash_index("k", 9)]) == 2


async def test_a_consumer_that_learns_of_other_queues_asks_for_them_immediately() -> None:
    """Law: a consumer that hears of new queues asks for them immediately, not half a minute later."""
    seen: list[bytes] = []

    async def listener(
        messages: Sequence[ReceivedMessage], _context: ConcurrentContext
    ) -> ConcurrentResult:
        seen.extend(message.body for message in messages)
        return ConcurrentResult.SUCCESS

    async with (
        running(topics={"T": 1, "%RETRY%G": 1}) as cluster,
        Consumer("G", cluster.address, topics="T", consume_from="first", listener=listener),
        Producer("P", cluster.address) as producer,
    ):
        await until(lambda: bool(cluster.members["G"]))
        cluster.topics["T"] = 3
        for conn in cluster.members["G"].values():
            ext = {"consumerGroup": "G", "omqQueues": "true"}
            conn.send(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext, oneway=True))
        await producer.send("T", b"new", queue=2)
        await until(lambda: seen == [b"new"])


async def _keyed(producer: Producer) -> None:
    await producer.send("T", b"paid", key="k")


async def _batch(producer: Producer) -> None:
    await producer.send_batch([Message(topic="T", body=b"paid")], key="k")


async def _half(producer: Producer) -> None:
    assert isinstance(producer, TransactionProducer)
    await producer.send_in_transaction(
        "T", b"paid", key="k", execute=lambda _: TransactionState.COMMIT
    )


def _gone(cluster: FakeCluster) -> Fault:
    """Refuse a send because its topic was deleted."""

    def fault(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        cluster.topics.clear()
        return command.reply(CHANGED, remark="choose again")

    return fault


@pytest.mark.parametrize("send", [_keyed, _batch, _half])
@pytest.mark.parametrize("linger", [0, 0.005])
@pytest.mark.parametrize("end", ["fence", "refusal", "no topic"])
async def test_a_send_that_may_be_stored_is_not_refused_after_a_change(
    send: Callable[[Producer], Awaitable[None]], linger: float, end: str
) -> None:
    """Law: a send whose answer was lost stays unknown, whatever happens after the queues changed."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        TransactionProducer(
            "G",
            cluster.address,
            settings=ProducerSettings(queue_change_patience=0.1),
            linger=linger,
            check=lambda _: TransactionState.UNKNOWN,
        ) as producer,
    ):
        later = {
            "fence": [refuse(CHANGED)] * 1_000,
            "refusal": [refuse(CHANGED), refuse(13)],
            "no topic": [_gone(cluster)],
        }[end]
        for code in (SEND, BATCH):
            cluster.faults[code] = [serve_then_reset(cluster), *later]

        with pytest.raises(SendUnknown, match="an earlier try may have stored the message"):
            await send(producer)
        assert sum(len(log) for log in cluster.logs.values()) == 1


async def test_of_sends_that_linger_only_those_that_may_be_stored_are_unknown() -> None:
    """Law: of lingering sends only those to the queue with the lost answer are unknown."""
    settings = ProducerSettings(queue_change_patience=0.1)
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address, settings=settings, linger=0.01) as producer,
    ):

        def lose_answer(_command: RemotingCommand, conn: Connection) -> None:
            # The answer to the other send has been read by then.
            asyncio.get_running_loop().call_later(0.05, partial(conn.close, orderly=False))

        cluster.faults[SEND] = [refuse(CHANGED), lose_answer] + [refuse(CHANGED)] * 1_000
        sends = [producer.send_nowait("T", b"x", queue=number) for number in (0, 1)]
        refused, lost = await asyncio.gather(*sends, return_exceptions=True)

    assert isinstance(refused, SendRefused)
    assert isinstance(lost, SendUnknown)
