"""Where sends go while name servers know less than the sender, or a broker group has no leader."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from orderlymq.connection import instance
from orderlymq.errors import NameServersUnreachable, SendRefused, SendUnknown, TopicNotFound
from orderlymq.message import Message, SendStatus
from orderlymq.producer.producer import Producer
from orderlymq.producer.requests import send_request
from orderlymq.producer.selectors import hash_index
from orderlymq.producer.sendoutcome import Attempts
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.catalogue import BrokerData, QueueData, TopicRouteData
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import (
    FakeCluster,
    Fault,
    refuse,
    reset,
    running,
    serve_then_reset,
    silence,
)

SEND = RequestCode.SEND_MESSAGE_V2
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
TEMPLATE = "TBW102"


def _two_groups(first: FakeCluster, second: FakeCluster) -> Fault:
    """Answer as a name server that knows two broker groups with one queue each."""

    def fault(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        names = {"a": first.address, "b": second.address}
        route = TopicRouteData(
            tuple(QueueData(name, 1, 1, 6) for name in names),
            tuple(BrokerData("fake", name, {0: address}) for name, address in names.items()),
        )
        return command.reply(body=route.to_json())

    return fault


def _stored(cluster: FakeCluster, status: SendStatus) -> Fault:
    """Store a message, and answer with this status."""

    def fault(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        answer = cluster.serve(command, conn)
        assert answer is not None
        answer.code = status.value
        return answer

    return fault


def _unknown(cluster: FakeCluster, topic: str) -> Fault:
    """Answer as a restarted name server while the topic's only broker group has no leader."""

    def fault(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        if command.ext["topic"] == topic:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        return cluster.serve(command, conn)

    return fault


async def test_a_key_keeps_its_queue_when_name_servers_do_not_know_its_topic_any_more() -> None:
    """Law: a key keeps its queue when name servers forget the topic; the template's route is not used (SEL-05, ORD-08)."""
    key = next(f"k{n}" for n in range(99) if hash_index(f"k{n}", 3) != hash_index(f"k{n}", 4) < 3)
    async with (
        running(topics={"T": 3, TEMPLATE: 4}) as cluster,
        Producer("P", cluster.address) as producer,
    ):
        before = await producer.send("T", "1", key=key)
        cluster.faults[ROUTE] = [_unknown(cluster, "T")] * 9
        await producer._instance.try_refresh("T")
        while_unknown = await producer.send("T", "2", key=key)
        cluster.faults[ROUTE] = []
        after = await producer.send("T", "3", key=key)

    assert before.queue == while_unknown.queue == after.queue
    assert cluster.bodies("T", before.queue.queue_id) == [b"1", b"2", b"3"]


async def test_a_try_without_time_hides_no_refusal() -> None:
    """Law: no try is begun with too little time for an answer; else a refusal would end as unknown."""
    async with running(topics={"T": 1}) as cluster, Producer("P", cluster.address) as producer:
        (queue,) = await producer.queues("T")
        cluster.faults[SEND] = [silence]
        command = send_request(Message(topic="T", body=b"x"), queue, producer._options, 0)
        attempts = Attempts(time.monotonic() + 0.009, "T")
        busy = command.reply(ResponseCode.SYSTEM_BUSY, remark="too much to do")
        attempts.note_refusal(cluster.address, busy)

        assert await producer._delivery.attempt(queue, command, attempts) is None

    error = attempts.error()
    assert isinstance(error, SendRefused)
    assert "too much to do" in str(error)


async def test_a_topic_that_is_deleted_and_created_again_is_sent_to_by_its_new_queues() -> None:
    """Law: after a topic is deleted and created again, sends use its new queues; meanwhile the error names the topic."""
    async with running(topics={"T": 3}) as cluster, Producer("P", cluster.address) as producer:
        await producer.send("T", "1", key="k")
        del cluster.topics["T"]
        await producer._instance.try_refresh("T")
        for key in ("k", None):
            with pytest.raises(TopicNotFound, match="orderlymq topic create T"):
                await producer.send("T", "2", key=key)
        cluster.topics["T"] = 8
        again = await producer.send("T", "3", key="k7")

    assert again.queue.queue_id == hash_index("k7", 8)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_plain_send_to_the_only_broker_group_waits_for_its_leader(waits: bool) -> None:
    """Law: a plain send to the only broker group waits for its leader, longer than three tries take (SND-01)."""
    async with running(topics={"T": 2}) as cluster, Producer("P", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "no leader")] * 8
        await (producer.send("T", "x") if waits else producer.send_nowait("T", "x"))

    assert sum(map(len, cluster.logs.values())) == 1


@pytest.mark.parametrize("waits", [True, False])
async def test_a_plain_send_whose_answers_are_lost_stands_once(waits: bool) -> None:
    """Law: in an ordered topic a plain send with a lost answer is repeated to the same queue, where the broker knows it."""
    async with (
        running(ordered=True, topics={"T": 4}) as cluster,
        Producer("P", cluster.address) as producer,
    ):
        await producer.queues("T")
        cluster.faults[SEND] = [serve_then_reset(cluster)] * 2
        await (producer.send("T", "x") if waits else producer.send_nowait("T", "x"))

    assert cluster.codes().count(SEND) == 3
    assert sum(map(len, cluster.logs.values())) == 1


async def test_a_plain_send_waits_for_a_leader_no_longer_than_its_time() -> None:
    """Law: a plain send waits for a leader no longer than its time-out, and the error says that nothing is stored."""
    async with running(topics={"T": 2}) as cluster, Producer("P", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "no leader")] * 99
        began_s = time.monotonic()
        with pytest.raises(SendRefused, match="no leader"):
            await producer.send("T", "x", timeout=0.2)

    assert time.monotonic() - began_s < 2.5, "the 3 s of the setting were waited for"
    assert cluster.codes().count(SEND) > 3


async def test_a_send_reaches_its_broker_in_its_time_while_name_servers_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: while name servers hang, a send still reaches a broker at its known address in time."""
    async with running(topics={"T": 1}) as cluster, Producer("P", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [reset]
        cluster.faults[ROUTE] = [silence]
        monkeypatch.setattr(instance, "_NAME_SERVER_TIMEOUT_S", 600.0)
        async with asyncio.timeout(30):
            await producer.send("T", "x", key="k", timeout=2)

    assert cluster.bodies("T", 0) == [b"x"]
    assert cluster.codes().count(SEND) == 2


async def test_the_question_for_a_route_is_part_of_the_time_of_a_send() -> None:
    """Law: the time-out of a send covers the question for the route too."""

    def late(command: RemotingCommand, conn: Connection) -> None:
        answer = cluster.serve(command, conn)
        assert answer is not None
        asyncio.get_running_loop().call_later(2.5, conn.send, answer)

    async with running(topics={"T": 1}) as cluster, Producer("P", cluster.address) as producer:
        cluster.faults[ROUTE] = [late]
        cluster.faults[SEND] = [silence] * 9
        began_s = time.monotonic()
        with pytest.raises(SendUnknown):
            await producer.send("T", "x", key="k", timeout=4)

    assert time.monotonic() - began_s < 6


async def test_a_send_to_a_topic_that_no_name_server_tells_of_ends_with_its_time() -> None:
    """Law: a send to a topic without a known route ends with its time-out, and nothing is sent later."""
    async with running(topics={"T": 1}) as cluster, Producer("P", cluster.address) as producer:
        cluster.faults[ROUTE] = [silence]
        with pytest.raises(NameServersUnreachable, match=r"within 0\.\d+ s with the route of T"):
            await producer.send("T", "x", timeout=0.1)

    assert SEND not in cluster.codes()


@pytest.mark.parametrize("field", ["queueOffset", "places"])
@pytest.mark.parametrize("key", ["k", None])
async def test_an_acknowledgement_that_cannot_be_read_leaves_the_send_unknown(
    field: str, key: str | None
) -> None:
    """Law: an unreadable acknowledgement leaves the send unknown, and a later refusal does not change that."""

    def garble(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        answer = cluster.serve(command, conn)
        assert answer is not None
        answer.ext[field] = "x"
        return answer

    message = Message(topic="T", body=b"x", key=key)
    async with running(topics={"T": 1}) as cluster, Producer("P", cluster.address) as producer:
        cluster.faults[SEND] = [garble]
        with pytest.raises(SendUnknown, match="cannot be read"):
            await producer.send(message)

    assert message.maybe_stored


async def test_a_plain_send_that_must_not_be_repeated_is_tried_once() -> None:
    """Law: with no retries a plain send is tried once, even without a leader (SND-06)."""
    settings = ProducerSettings(retry_times_when_send_failed=0)
    async with (
        running(topics={"T": 2}) as cluster,
        Producer("P", cluster.address, settings=settings) as producer,
    ):
        await producer.queues("T")
        cluster.faults[SEND] = [refuse(ResponseCode.SERVICE_NOT_AVAILABLE, "no leader")]
        with pytest.raises(SendRefused, match="no leader"):
            await producer.send("T", "x")

    assert cluster.codes().count(SEND) == 1


NOT_SYNCED = SendStatus.FLUSH_DISK_TIMEOUT
ELSEWHERE = ProducerSettings(retry_another_broker_when_not_store_ok=True)


@asynccontextmanager
async def _between_two(
    settings: ProducerSettings = ELSEWHERE,
) -> AsyncIterator[tuple[Producer, FakeCluster, FakeCluster]]:
    """Yield a producer and the two broker groups of its topic; the first one stores without a sync."""
    async with (
        running(topics={"T": 1}) as first,
        running(topics={"T": 1}) as second,
        Producer("P", first.address, settings=settings) as producer,
    ):
        first.faults[ROUTE] = [_two_groups(first, second)] * 99
        first.faults[SEND] = [_stored(first, NOT_SYNCED)]
        yield producer, first, second


async def test_what_is_not_stored_safely_is_sent_to_another_broker_group() -> None:
    """Law: with the option, a message that is not stored safely is sent to another broker group;
    the better status counts (SND-07).
    """
    async with _between_two() as (producer, first, second):
        result = await producer.send("T", "x")

    assert (result.status, result.queue.broker_name) == (SendStatus.OK, "b")
    assert first.bodies("T", 0) == second.bodies("T", 0) == [b"x"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        refuse(ResponseCode.MESSAGE_ILLEGAL),
        refuse(ResponseCode.SERVICE_NOT_AVAILABLE),
        refuse(ResponseCode.ORDERLYMQ_QUEUES_CHANGED),
        reset,
        silence,
    ],
)
async def test_what_is_stored_is_acknowledged_whatever_other_brokers_say(elsewhere: Fault) -> None:
    """Law: a stored message is acknowledged even if the other broker group refuses it."""
    async with _between_two() as (producer, first, second):
        second.faults[SEND] = [elsewhere] * 99
        result = await producer.send("T", "x", timeout=1)

    assert (result.status, result.queue.broker_name) == (NOT_SYNCED, "a")
    assert first.bodies("T", 0) == [b"x"]
    assert second.codes().count(SEND) == 1


async def test_two_brokers_that_store_without_a_sync_get_a_message_once_each() -> None:
    """Law: if both store without a sync, each stores the message once, and the last acknowledgement counts."""
    async with _between_two() as (producer, first, second):
        second.faults[SEND] = [_stored(second, NOT_SYNCED)]
        result = await producer.send("T", "x")

    assert (result.status, result.queue.broker_name) == (NOT_SYNCED, "b")
    assert first.bodies("T", 0) == second.bodies("T", 0) == [b"x"]


async def test_what_is_stored_stays_alone_where_no_try_is_left() -> None:
    """Law: without retries left the first status is returned (SND-06)."""
    settings = replace(ELSEWHERE, retry_times_when_send_failed=0)
    async with _between_two(settings) as (producer, _, second):
        result = await producer.send("T", "x")

    assert (result.status, result.queue.broker_name) == (NOT_SYNCED, "a")
    assert SEND not in second.codes()


async def test_the_only_broker_group_stores_a_message_once_however_safely() -> None:
    """Law: a single broker group stores the message once, however safely."""
    async with (
        running(topics={"T": 2}) as cluster,
        Producer("P", cluster.address, settings=ELSEWHERE) as producer,
    ):
        cluster.faults[SEND] = [_stored(cluster, NOT_SYNCED)]
        result = await producer.send("T", "x")

    assert result.status is NOT_SYNCED
    assert sum(map(len, cluster.logs.values())) == 1
