"""The client instance: hooks for all requests, users one after the other, forks and event loops."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.assignment import AveragelyByCircle
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.consumer.pull.consumer import PullConsumer
from orderlymq.consumer.pull.litepull import LitePullConsumer
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.errors import BrokerError, BrokerUnreachable, NameServersUnreachable, StateError
from orderlymq.producer.producer import Producer
from orderlymq.settings import ClientSettings
from orderlymq_protocol.body.catalogue import BrokerData, TopicRouteData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.client.fakecluster import BROKER, FakeCluster, refuse, reset, running, silence
from tests.client.forks import in_child
from tests.client.inbox import Inbox, fill
from tests.protocol.uniquekeys import decode_unique_key
from tests.waiting import until


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 2}, ordered=True) as found:
        yield found


async def test_an_rpc_hook_sees_every_request_and_every_answer(cluster: FakeCluster) -> None:
    """Law: an RPC hook sees every request and answer, and fields that it adds are sent (TRC-04, CFG-C11, PSH-01)."""
    fill(cluster, 1)
    asked: list[int] = []
    answered: list[tuple[int, int]] = []

    def before(_address: str, command: RemotingCommand) -> None:
        command.ext["tenant"] = "blue"
        asked.append(command.code)

    def after(_address: str, command: RemotingCommand, answer: RemotingCommand) -> None:
        answered.append((command.code, answer.code))

    instance = ClientInstance(cluster.address, before_request=before, after_response=after)
    inbox = Inbox()
    settings = ConsumerSettings(allocate_message_queue_strategy=AveragelyByCircle())
    consumer = Consumer(
        "G",
        topics="T",
        ordered=True,
        consume_from="first",
        listener=inbox.ordered,
        settings=settings,
        instance=instance,
    )
    async with Producer("P", instance=instance) as producer, consumer:
        await producer.send("T", "sent", key="k")
        await producer.send_oneway("T", "thrown", key="k")
        await until(lambda: len(inbox.seen) == 3)

    assert sorted(asked) == sorted(cluster.codes())
    assert all(each.ext["tenant"] == "blue" for each in cluster.seen)
    assert {105, 34, 38, 41, 14, 310, 11, 42, 35} <= {code for code, _ in answered}


# -- users one after the other -----------------------------------------------------------------------------


async def test_an_instance_serves_users_one_after_the_other(cluster: FakeCluster) -> None:
    """Law: an instance serves users one after the other; it once stayed unusable after a moment without users."""
    instance = ClientInstance(cluster.address)
    for text in ("first", "second"):
        async with Producer("P", instance=instance) as producer:
            await producer.send("T", text, queue=0)
    lite = LitePullConsumer("G", consume_from="first", instance=instance)
    lite.subscribe("T")
    async with lite, asyncio.timeout(10):
        found: list[str] = []
        while len(found) < 2:
            found += [message.text for message in await lite.poll(1)]

    assert found == ["first", "second"]
    assert not cluster.connections


async def test_who_begins_while_the_last_user_ends_is_served(cluster: FakeCluster) -> None:
    """Law: a user that starts while the last one ends keeps its connections."""
    instance = ClientInstance(cluster.address)
    admin, producer = AdminClient(instance=instance), Producer("P", instance=instance)
    await admin.start()
    await admin.route("T")
    closing = asyncio.create_task(admin.close())
    for _ in range(10):
        if instance._users:
            await asyncio.sleep(0)
    async with producer:
        await closing
        await producer.send("T", "x", queue=0)

    async with admin:
        assert await admin.topics() == ["T"]


# -- forks -------------------------------------------------------------------------------------------------


async def names(consumer: Consumer, producer: Producer) -> str:
    """Return the client ids made here, and the key of the next message."""
    async with consumer, producer:
        result = await producer.send("T", "x", key="k")
        return f"{consumer.client_id} {producer.client_id} {result.message_id}"


def test_a_client_may_be_named_by_its_host() -> None:
    """Law: a client's id may contain a host name; its messages still have valid keys."""
    client = ClientInstance("127.0.0.1:9876", ClientSettings(client_ip="web-1"))

    assert client.client_id.startswith("web-1@")
    assert decode_unique_key(client.unique_keys.next(0))


async def test_children_are_clients_of_their_own_with_keys_of_their_own(
    cluster: FakeCluster,
) -> None:
    """Law: a forked child has its own client id and message keys; shared ones would share a lock or look like repeats."""
    inbox = Inbox()
    consumer = Consumer("G", cluster.address, topics="T", ordered=True, listener=inbox.ordered)
    producer = Producer("P", cluster.address)

    def child() -> str:
        return f"{os.getpid()} {asyncio.run(names(consumer, producer))}"

    said = [(await asyncio.to_thread(in_child, child)).split() for _ in range(2)]

    for pid, *ids, key in said:
        assert all(f"@{pid}#" in each for each in ids)
        assert decode_unique_key(key).pid == int(pid) & 0xFFFF


async def test_a_client_that_runs_already_is_refused_in_a_child(cluster: FakeCluster) -> None:
    """Law: a client started by the parent is refused in a child, because its connections are the parent's."""
    instance = ClientInstance(cluster.address)
    await instance.start()
    await instance.route("T")
    asked = len(cluster.seen)

    said = [
        in_child(lambda: asyncio.run(instance.start())),
        in_child(lambda: asyncio.run(instance.call(cluster.address, RequestCode.HEART_BEAT))),
    ]
    await instance.close()

    assert all(text.startswith("StateError: the client was started before") for text in said)
    assert len(cluster.seen) == asked


async def test_who_waits_for_a_route_of_a_client_that_closes_gets_an_error(
    cluster: FakeCluster,
) -> None:
    """Law: a caller that waits for a route gets an error when the client closes; only its own cancellation cancels it."""
    cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [silence]
    instance = ClientInstance(cluster.address)
    await instance.start()
    waiting = [asyncio.create_task(instance.route("T")) for _ in range(3)]
    await until(lambda: RequestCode.GET_ROUTEINFO_BY_TOPIC in cluster.codes())
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    await instance.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(each) for each in outcomes] == [
        asyncio.CancelledError,
        StateError,
        StateError,
    ]


async def test_what_is_only_looked_at_is_not_asked_for_later() -> None:
    """Law: a topic that was only looked at is not refreshed; one that is sent to or consumed is."""
    settings = ClientSettings(poll_name_server_interval=0.02)
    async with (
        running(topics={"looked": 1, "used": 1, "U": 1}) as cluster,
        AdminClient(cluster.address, client_settings=settings) as admin,
    ):

        def asked(topic: str) -> int:
            return sum(each.ext.get("topic") == topic for each in cluster.seen)

        await admin.route("looked")
        await admin.instance.route("used")
        cluster.faults[RequestCode.QUERY_MESSAGE] = [refuse(ResponseCode.QUERY_NOT_FOUND)]
        assert await admin.find_messages("looked", "k") == []
        before = asked("looked")
        await until(lambda: asked("used") > 3)
        assert asked("looked") == before
        await admin.instance.route("looked")
        await until(lambda: asked("looked") > before + 3)


async def test_a_topic_that_was_deleted_is_asked_for_a_while_and_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a deleted topic is asked for and reported for a while only;
    after a name server's restart it is asked for until known.
    """
    async with running(topics={"T": 1, "U": 1}) as cluster:
        instance = ClientInstance(cluster.address, ClientSettings(poll_name_server_interval=0.02))
        await instance.start()
        await instance.route("T")
        await instance.route("U")
        cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [
            refuse(ResponseCode.TOPIC_NOT_EXIST)
        ] * 999
        await until(lambda: instance.routes.topics == ())
        cluster.faults.clear()
        await until(lambda: len(instance.routes.topics) == 2)
        caplog.clear()
        monkeypatch.setattr("orderlymq.connection.instance._MISSING_S", 0.1)
        del cluster.topics["T"]
        await until(lambda: "T" not in instance._watched)
        asked = [each.ext["topic"] for each in cluster.seen].count("T")
        again = len(cluster.seen) + 5
        await until(lambda: len(cluster.seen) >= again)

        assert [each.ext["topic"] for each in cluster.seen].count("T") == asked
        assert [each.levelname for each in caplog.records].count("WARNING") == 1
        cluster.topics["T"] = 2
        assert len((await instance.route("T")).publish) == 2
        assert instance._watched == {"T", "U"}
        await instance.close()


async def test_without_name_servers_a_route_is_what_it_was() -> None:
    """Law: without name servers a known route stays usable for look-ups."""
    async with running(topics={"T": 1}) as cluster, AdminClient(cluster.address) as admin:
        route = await admin.route("T")
        cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [reset] * 2

        assert await admin.instance.route("T") == route
        with pytest.raises(NameServersUnreachable):
            await admin.route("T")


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("administrator", [False, True])
async def test_an_address_that_failed_is_asked_for_again(
    refused: bool, administrator: bool
) -> None:
    """Law: after a failed call, the broker's address is asked for again, even if nobody asked for its route."""
    queue = MessageQueue("T", BROKER, 0)
    async with running(topics={"T": 1}) as cluster, running() as former:
        instance = ClientInstance(cluster.address, administrator=administrator)
        reader = QueueReader(instance, "G")
        try:
            await reader.max_offset(queue)
            away = former.address if refused else "127.0.0.1:1"
            former.faults[RequestCode.GET_MAX_OFFSET] = [refuse(ResponseCode.SYSTEM_ERROR)] * 9
            broker = BrokerData("fake", BROKER, {0: away})
            instance.routes.update("T", TopicRouteData((), (broker,), None))

            with pytest.raises((BrokerError, BrokerUnreachable)):
                await reader.max_offset(queue)

            assert await reader.max_offset(queue) == 0
        finally:
            await instance.close()


async def test_name_servers_that_hang_hold_nobody_up_whose_broker_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: hanging name servers do not delay calls to a broker whose address is known."""
    monkeypatch.setattr("orderlymq.connection.instance._NAME_SERVER_TIMEOUT_S", 600.0)
    queue = MessageQueue("T", BROKER, 0)
    async with running(topics={"T": 1}) as cluster:
        instance = ClientInstance(cluster.address)
        reader = QueueReader(instance, "G")
        await reader.max_offset(queue)
        before = cluster.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [silence] * 99
        began_s = time.monotonic()
        for _ in range(20):
            cluster.faults[RequestCode.GET_MAX_OFFSET] = [refuse(ResponseCode.SYSTEM_ERROR)]
            with pytest.raises(BrokerError):
                await reader.max_offset(queue)
            async with asyncio.timeout(30):
                assert await reader.max_offset(queue) == 0
        took_s = time.monotonic() - began_s
        asked = cluster.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) - before
        await instance.close()

    assert asked == 1, "one question serves all"
    assert took_s < 5, "the wait for it is one, and short"


async def test_the_route_of_a_queue_that_is_pulled_is_kept_fresh() -> None:
    """Law: the route of a pulled queue is refreshed as long as the consumer lives."""
    settings = ClientSettings(poll_name_server_interval=0.02)
    async with (
        running(topics={"T": 1}) as cluster,
        PullConsumer("G", cluster.address, client_settings=settings) as consumer,
    ):
        await consumer.max_offset(MessageQueue("T", BROKER, 0))
        asked = len(cluster.seen)
        await until(lambda: len(cluster.seen) > asked + 3)


# -- event loops -------------------------------------------------------------------------------------------

_FOREIGN: list[Callable[[Producer, ClientInstance], Awaitable[object]]] = [
    lambda producer, _: producer.send("T", "x", key="k"),
    lambda producer, _: producer.send_nowait("T", "x", key="k"),
    lambda producer, _: producer.send_oneway("T", "x", key="k"),
    lambda _, instance: instance.route("T", refresh=True),
    lambda _, instance: instance.call(instance.name_servers[0], RequestCode.HEART_BEAT),
    lambda _, instance: instance.close(),
]


@pytest.mark.parametrize("call", _FOREIGN)
async def test_a_call_from_another_event_loop_is_refused_immediately(
    cluster: FakeCluster, call: Callable[[Producer, ClientInstance], Awaitable[object]]
) -> None:
    """Law: a call from another event loop is refused immediately, because its answer would come to the client's loop."""
    instance = ClientInstance(cluster.address)

    async def use(producer: Producer) -> object:
        return await call(producer, instance)

    async with Producer("P", instance=instance) as producer:
        await producer.send("T", "first", key="k")
        # The one that sends the heartbeat.
        await until(lambda: RequestCode.HEART_BEAT in cluster.codes())
        asked = len(cluster.seen)
        with pytest.raises(StateError, match="runs on another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(use(producer)))

        assert len(cluster.seen) == asked
        assert (await producer.send("T", "second", key="k")).queue_offset == 1
