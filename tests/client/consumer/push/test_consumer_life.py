"""The life of a push consumer: start, close, and sharing a client."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.core.events import OrderedResult
from orderlymq.consumer.group.offsets import LocalOffsets
from orderlymq.consumer.listeners.context import OrderedContext, OrderedListener
from orderlymq.consumer.listeners.pool import left_behind
from orderlymq.consumer.push import executor
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings, MessageModel
from orderlymq.errors import SettingError, StateError
from orderlymq.message import ReceivedMessage
from orderlymq.producer.producer import Producer
from orderlymq.settings import ClientSettings
from orderlymq_protocol.body.catalogue import BrokerData, QueueData, TopicRouteData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from tests.client.fakecluster import BROKER, FakeCluster, running, silence
from tests.client.inbox import Inbox, fill
from tests.waiting import until

QUEUE = MessageQueue("T", BROKER, 0)


async def test_closing_lets_the_running_listener_finish_and_commits_it(
    cluster: FakeCluster,
) -> None:
    """Law: closing lets a running listener finish and commits its messages (PSH-21)."""
    fill(cluster, 2, queues=1)
    started, finish = asyncio.Event(), asyncio.Event()

    async def listener(
        _messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        started.set()
        await finish.wait()
        return OrderedResult.SUCCESS

    consumer = Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    )
    await consumer.start()
    await started.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    finish.set()
    await closing

    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}


async def test_a_thread_that_does_not_end_keeps_its_lock_until_the_lease_is_over(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a thread that does not end keeps its queue's lock until the lease is over; other queues are free immediately."""
    fill(cluster, 3)
    started, finish = threading.Event(), threading.Event()
    contexts: list[OrderedContext] = []

    def listener(_messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        contexts.append(context)
        started.set()
        finish.wait(5)

    consumer = Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        concurrency=1,
        consume_from="first",
        listener=listener,
        settings=ConsumerSettings(shutdown_timeout=0.05),
    )
    await consumer.start()
    # The second queue waits for the only worker.
    await until(lambda: started.is_set() and len(cluster.locks) == 3)
    held = contexts[0].still_holds()
    await consumer.close()
    holds = contexts[0].still_holds()
    finish.set()

    assert (held, holds) == (True, False)
    assert [queue for _, queue in cluster.locks] == [contexts[0].queue]
    assert RequestCode.UNREGISTER_CLIENT not in cluster.codes()
    assert len(contexts) == 1
    assert "closed while listeners still ran" in caplog.text


async def test_a_consumer_under_the_same_client_id_waits_for_a_thread_of_the_closed_one(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a consumer with the same client id waits for a thread of the closed one, because brokers see one holder."""
    fill(cluster, 2, queues=1)
    started, finish, inbox = threading.Event(), threading.Event(), Inbox()

    def working(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        started.set()
        finish.wait(20)

    def member(listener: OrderedListener) -> Consumer:
        return Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            listener=listener,
            settings=ConsumerSettings(shutdown_timeout=0.05),
            client_settings=ClientSettings(instance_name="billing-1"),
        )

    first, second, third = member(working), member(inbox.ordered), member(inbox.ordered)
    await first.start()
    await until(started.is_set)
    await first.close()
    await second.start()
    await until(lambda: "because lock failed" in caplog.text)
    await until(lambda: len(cluster.locks) == 3)
    await second.close()
    assert inbox.seen == []
    assert [queue for _, queue in cluster.locks] == [QUEUE]
    assert RequestCode.UNREGISTER_CLIENT not in cluster.codes()
    finish.set()
    await until(lambda: not left_behind(first.client_id, "G", 0))
    async with third:
        await until(lambda: inbox.texts == ["m0", "m1"])


async def test_a_thread_that_hangs_keeps_its_queue_no_longer_than_the_lease(
    cluster: FakeCluster,
) -> None:
    """Law: a hanging thread keeps its queue from a restarted consumer no longer than the lease."""
    fill(cluster, 2, queues=1)
    started, finish, inbox = threading.Event(), threading.Event(), Inbox()

    def hanging(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        started.set()
        finish.wait(20)

    def member(listener: OrderedListener) -> Consumer:
        return Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            listener=listener,
            settings=ConsumerSettings(shutdown_timeout=0.05, lock_lease=2, lock_renew=0.2),
            client_settings=ClientSettings(instance_name="billing-2"),
        )

    try:
        first, second = member(hanging), member(inbox.ordered)
        await first.start()
        await until(started.is_set)
        await first.close()
        async with second:
            await until(lambda: inbox.texts == ["m0", "m1"])
    finally:
        finish.set()
    assert cluster.locks == {}


async def test_a_broadcasting_consumer_waits_for_a_thread_of_the_closed_one_too(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Law: a broadcasting consumer waits for a thread of the closed one too, although it has no locks."""
    fill(cluster, 2, queues=1)
    started, finish, inbox = threading.Event(), threading.Event(), Inbox()

    def working(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        started.set()
        finish.wait(20)

    def member(listener: OrderedListener) -> Consumer:
        return Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            message_model=MessageModel.BROADCASTING,
            listener=listener,
            settings=ConsumerSettings(shutdown_timeout=0.05),
            offset_store=LocalOffsets(tmp_path / "offsets.json"),
        )

    async with member(working):
        await until(started.is_set)
    async with member(inbox.ordered):
        await until(lambda: "thread of a closed consumer" in caplog.text)
        assert inbox.seen == []
        finish.set()
        await until(lambda: inbox.texts == ["m0", "m1"])


async def test_a_broker_that_hangs_holds_up_neither_the_locks_of_others_nor_the_end(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a broker that hangs delays neither the locks at others nor the end."""
    monkeypatch.setattr(executor, "_COMMIT_S", 0.5)
    inbox = Inbox()
    async with running(topics={"T": 2}, ordered=True) as hanging:
        route = TopicRouteData(
            tuple(QueueData(name, 2, 2, 6) for name in (BROKER, "broker-b")),
            (
                BrokerData("fake", BROKER, {0: cluster.address}),
                BrokerData("fake", "broker-b", {0: hanging.address}),
            ),
        ).to_json()
        cluster.faults[RequestCode.GET_ROUTEINFO_BY_TOPIC] = [
            lambda command, _: command.reply(body=route)
        ] * 100
        hanging.faults[RequestCode.UPDATE_CONSUMER_OFFSET] = [silence] * 100
        for each in (cluster, hanging):
            fill(each, 2)
        consumer = Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            listener=inbox.ordered,
            settings=ConsumerSettings(shutdown_timeout=0.1),
            client_settings=ClientSettings(request_timeout=60),
        )
        async with asyncio.timeout(20):
            await consumer.start()
            await until(lambda: len(inbox.seen) == 4)
            closing = asyncio.create_task(consumer.close())
            await until(lambda: not cluster.locks)
            assert hanging.locks
            await closing

    assert [cluster.offsets["G", "T", queue] for queue in (0, 1)] == [1, 1]


async def test_an_async_listener_that_is_cancelled_keeps_its_lock_until_it_has_ended(
    cluster: FakeCluster,
) -> None:
    """Law: a cancelled async listener keeps its lock until it has ended."""
    fill(cluster, 1, queues=1)
    started, seen = asyncio.Event(), list[tuple[bool, bool]]()

    async def listener(_messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            seen.append((("G", QUEUE) in cluster.locks, context.still_holds()))

    consumer = Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=listener,
        settings=ConsumerSettings(shutdown_timeout=0),
    )
    await consumer.start()
    await started.wait()
    await consumer.close()

    assert seen == [(True, True)]
    assert cluster.locks == {}
    assert cluster.offsets["G", "T", 0] == 0


async def test_what_a_listener_finishes_when_it_is_cancelled_is_committed(
    cluster: FakeCluster,
) -> None:
    """Law: a result that a cancelled listener still returns is committed."""
    fill(cluster, 1, queues=1)
    started = asyncio.Event()

    async def listener(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    consumer = Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=listener,
        settings=ConsumerSettings(shutdown_timeout=0),
    )
    await consumer.start()
    await started.wait()
    await consumer.close()

    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}


async def test_a_member_whose_machine_slept_for_longer_than_the_lease_holds_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: after a sleep of the machine longer than the lease, `still_holds` is False."""
    fill(cluster, 1, queues=1)
    read, slept_ns = time.clock_gettime_ns, 0

    def clock(which: int) -> int:
        return read(which) + (slept_ns if which == time.CLOCK_BOOTTIME else 0)

    monkeypatch.setattr(time, "clock_gettime_ns", clock)
    held = list[bool]()

    async def listener(_messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        nonlocal slept_ns
        held.append(context.still_holds())
        slept_ns = 16 * 10**9
        held.append(context.still_holds())

    async with Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    ):
        await until(lambda: len(held) == 2)

    assert held == [True, False]


async def test_two_consumers_of_one_group_in_one_client_are_refused(cluster: FakeCluster) -> None:
    """Law: two consumers of one group in one client are refused; the first goes on (PSH-10, LOG-02)."""
    inbox = Inbox()
    instance = ClientInstance(cluster.address)
    async with Consumer(
        "G", topics="T", listener=inbox.concurrent, instance=instance, consume_from="first"
    ):
        second = Consumer("G", topics="T", listener=inbox.concurrent, instance=instance)
        with pytest.raises(StateError, match=r"consumer group\[G\] has been created before"):
            await second.start()
        assert second.state == "CREATE_JUST"
        fill(cluster, 1)
        await until(lambda: inbox.texts == ["m0"])


async def test_a_start_that_is_cancelled_leaves_nothing_open(cluster: FakeCluster) -> None:
    """Law: a cancelled start leaves no connections or tasks."""
    cluster.faults[int(RequestCode.GET_ROUTEINFO_BY_TOPIC)] = [lambda *_: None] * 100
    consumer = Consumer("G", cluster.address, topics="T", listener=Inbox().concurrent)
    starting = asyncio.create_task(consumer.start())
    await until(lambda: bool(cluster.connections))

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    await until(lambda: not cluster.connections)


async def test_bad_configurations_are_refused_before_any_socket(cluster: FakeCluster) -> None:
    """Law: bad configurations are refused before a socket is opened (PSH-04, PSH-02)."""
    with pytest.raises(SettingError, match="DEFAULT_CONSUMER is reserved"):
        Consumer("DEFAULT_CONSUMER")
    with pytest.raises(SettingError, match="characters outside"):
        Consumer("a b")
    with pytest.raises(SettingError, match="names no tag"):
        Consumer("G", topics={"T": "||"})
    with pytest.raises(SettingError, match="subscribes to no topic"):
        await Consumer("G", cluster.address, listener=Inbox().concurrent).start()
    with pytest.raises(SettingError, match="has no listener"):
        await Consumer("G", cluster.address, topics="T").run()
    for listener in (lambda: None, lambda messages: None, lambda messages, context, more: None):
        with pytest.raises(SettingError, match="is called with messages and context"):
            await Consumer("G", cluster.address, topics="T", listener=listener).start()  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="pass a function"):
        await Consumer("G", cluster.address, topics="T", listener=7).start()  # type: ignore[arg-type]
    consumer = Consumer("G", cluster.address, topics="T", listener=Inbox().concurrent)
    async with consumer:
        with pytest.raises(StateError, match=r"the consumer G is started already \(RUNNING\)"):
            await consumer.start()
    assert consumer.state == "SHUTDOWN_ALREADY"
    with pytest.raises(StateError, match="is closed and cannot start again; create a new one"):
        await consumer.start()


async def test_producer_and_consumer_may_share_one_client(cluster: FakeCluster) -> None:
    """Law: a producer and a consumer may share a client, with one connection per broker (CLI-02, CLI-03)."""
    inbox = Inbox()
    instance = ClientInstance(cluster.address)
    async with (
        Producer("P", instance=instance) as producer,
        Consumer(
            "G",
            topics="T",
            ordered=True,
            listener=inbox.ordered,
            instance=instance,
            consume_from="first",
        ),
    ):
        await producer.send("T", "x", key="k")
        await until(lambda: inbox.texts == ["x"])
        assert len(cluster.connections) == 1
        beat = cluster.heartbeats[-1]

    assert [each.group_name for each in beat.producer_data_set] == ["P"]
    assert [each.group_name for each in beat.consumer_data_set] == ["G"]


async def test_a_topic_may_be_subscribed_while_the_consumer_starts() -> None:
    """Law: a topic may be subscribed while the consumer starts."""
    async with running(topics={"T": 1, "U": 1}) as cluster:
        cluster.append("T", 0, b"t")
        cluster.append("U", 0, b"u")
        inbox = Inbox()
        consumer = Consumer(
            "G", cluster.address, topics="T", consume_from="first", listener=inbox.concurrent
        )
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(0)
        consumer.subscribe("U")
        await starting
        await until(lambda: sorted(inbox.texts) == ["t", "u"], timeout_s=10)
        await consumer.close()


async def test_consumers_that_start_together_share_their_heartbeats() -> None:
    """Law: consumers that start together share heartbeats, each of which names all groups."""
    async with running(topics={"T": 1}, ordered=True) as cluster:
        instance = ClientInstance(cluster.address)
        consumers = [
            Consumer(f"G{number}", topics="T", listener=Inbox().concurrent, instance=instance)
            for number in range(20)
        ]
        await asyncio.gather(*(each.start() for each in consumers))

        assert cluster.codes().count(RequestCode.HEART_BEAT) <= 3
        assert len(cluster.heartbeats[-1].consumer_data_set) == 20
        await asyncio.gather(*(each.close() for each in consumers))


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_listener_closes_its_consumer(cluster: FakeCluster, ordered: bool) -> None:
    """Law: a listener may close its own consumer without waiting for itself; it once took `shutdown_timeout`."""
    fill(cluster, 1, queues=1)
    called = asyncio.Event()

    async def listener(*_: object) -> None:
        await consumer.close()
        called.set()

    consumer = Consumer(
        "G", cluster.address, topics="T", ordered=ordered, consume_from="first", listener=listener
    )
    async with asyncio.timeout(10):  # The default shutdown_timeout is longer.
        await consumer.run()

    assert called.is_set()
    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}


async def test_a_subscription_that_cannot_be_sent_ends_no_heartbeats(cluster: FakeCluster) -> None:
    """Law: a subscription that cannot be encoded does not stop the heartbeats of other groups."""
    inbox = Inbox()
    client = ClientSettings(heartbeat_broker_interval=0.01)
    consumer = Consumer(
        "G", cluster.address, topics="T", listener=inbox.concurrent, client_settings=client
    )
    async with consumer:
        with pytest.raises(SettingError, match="cannot be encoded as UTF-8"):
            consumer.subscribe("T", "\ud800")
        count = len(cluster.heartbeats)
        await until(lambda: len(cluster.heartbeats) > count + 1)
