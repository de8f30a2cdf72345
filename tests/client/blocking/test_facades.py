"""The blocking classes: the same as the async ones, for programs without asyncio."""

import asyncio
import inspect
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orderlymq import blocking
from orderlymq.admin import client as admin
from orderlymq.blocking import LoopThread
from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.assignment import Averagely
from orderlymq.consumer.core.events import Assigned, OrderedResult, Released
from orderlymq.consumer.group.requests import PullStatus
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.pull import consumer as pullconsumer
from orderlymq.consumer.pull import litepull
from orderlymq.consumer.push import consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.errors import SendRefused, StateError
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer import producer
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client import fakecluster
from tests.client.fakecluster import FakeCluster
from tests.client.forks import in_child


@pytest.mark.parametrize(
    ("facade", "original"),
    [
        (blocking.Producer, producer.Producer),
        (blocking.Consumer, consumer.Consumer),
        (blocking.PullConsumer, pullconsumer.PullConsumer),
        (blocking.LitePullConsumer, litepull.LitePullConsumer),
        (blocking.AdminClient, admin.AdminClient),
    ],
)
def test_every_public_method_has_its_blocking_twin(facade: type, original: type) -> None:
    """Law: every public method of the async classes has a blocking one."""
    # The calls of the instance and the brokers are not meant for users.
    internal = {"post", "heartbeat", "on_request", "routes_changed", "rebalance_now", "core"}
    internal |= {"subscriptions", "listeners", "instance", "client_id", "take_back"}
    names = {name for name, _ in inspect.getmembers(original) if not name.startswith("_")}

    assert {name for name in names - internal if not hasattr(facade, name)} == set()


def test_sends_wait_for_their_result_and_raise_the_same_errors(cluster: FakeCluster) -> None:
    """Law: send, send_batch, send_oneway and queues wait for their result and raise the same errors."""
    with blocking.Producer("G", cluster.address) as sender:
        result = sender.send("T", "x", key="k")
        sender.send_batch([Message(topic="T", body=b"y")], key="k")
        cluster.faults[310] = [fakecluster.refuse(13)]
        with pytest.raises(SendRefused):
            sender.send("T", "z", key="k")
        assert len(sender.queues("T")) == 2

    assert cluster.bodies("T", result.queue.queue_id) == [b"x", b"y"]
    with pytest.raises(StateError, match="closed"):
        sender.send("T", "x")


def test_a_child_of_the_process_that_made_it_is_asked_to_make_its_own(cluster: FakeCluster) -> None:
    """Law: in a forked child (gunicorn --preload, Celery), a client made by the parent is refused with advice;
    its thread stays in the parent.
    """
    with blocking.Producer("G", cluster.address) as sender:
        said = [
            in_child(lambda: sender.send("T", "child", key="k")),
            in_child(lambda: sender.send_nowait("T", "child", key="k")),
            in_child(sender.close),
        ]
        result = sender.send("T", "parent", key="k")

    assert all(
        text.startswith("StateError: the blocking client was created before") for text in said
    )
    assert cluster.bodies("T", result.queue.queue_id) == [b"parent"]


def test_sends_of_one_thread_that_do_not_wait_keep_their_order(cluster: FakeCluster) -> None:
    """Law: sends without waiting keep the order of the calls with one key."""
    with blocking.Producer("G", cluster.address) as sender:
        futures = [sender.send_nowait("T", f"m{n}", key="k") for n in range(20)]
        offsets = [future.result(5).queue_offset for future in futures]

    assert offsets == list(range(20))


def test_a_plain_listener_consumes_in_order(cluster: FakeCluster) -> None:
    """Law: a plain function as a listener runs in a thread and consumes in order."""
    for number in range(6):
        cluster.append("T", 0, f"m{number}".encode())
    texts: list[str] = []
    done = threading.Event()

    def listener(messages: Sequence[ReceivedMessage], _context: OrderedContext) -> OrderedResult:
        texts.extend(message.text for message in messages)
        if len(texts) == 6:
            done.set()
        return OrderedResult.SUCCESS

    with blocking.Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    ) as member:
        assert done.wait(5)
        assert member.state == "RUNNING"
        assert len(member.queues) == 3
        member.suspend()
        member.resume()

    assert texts == [f"m{number}" for number in range(6)]
    assert cluster.offsets["G", "T", 0] == 6


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_listener_that_wants_the_program_to_end_interrupts_it(
    cluster: FakeCluster, error: BaseException
) -> None:
    """Law: a listener that raises KeyboardInterrupt interrupts the main thread; the message comes again."""
    cluster.append("T", 0, b"m0")
    calls, interrupted, done = list[str](), threading.Event(), threading.Event()

    def listener(messages: Sequence[ReceivedMessage], _context: OrderedContext) -> OrderedResult:
        calls.append(messages[0].text)
        if len(calls) == 1:
            raise error
        done.set()
        return OrderedResult.SUCCESS

    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        with blocking.Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            listener=listener,
            settings=ConsumerSettings(suspend_current_queue_time=0.01),
        ):
            assert done.wait(5)
            assert interrupted.wait(5)
    finally:
        signal.signal(signal.SIGINT, before)

    assert calls == ["m0", "m0"]
    assert cluster.offsets["G", "T", 0] == 1


def test_a_loop_has_the_promises_of_the_async_one(cluster: FakeCluster) -> None:
    """Law: a loop promises the same as the async one: done when the next is asked for, again after an error."""
    for number in range(3):
        cluster.append("T", 0, f"m{number}".encode())
    texts: list[str] = []

    def service() -> None:
        with blocking.Consumer(
            "G", cluster.address, topics="T", ordered=True, consume_from="first"
        ) as member:
            for message in member:
                texts.append(message.text)
                if message.text == "m2":
                    raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        service()

    assert texts == ["m0", "m1", "m2"]
    assert cluster.offsets["G", "T", 0] == 2


def test_run_ends_on_a_signal_and_raises_what_ended_the_consumer(cluster: FakeCluster) -> None:
    """Law: `run` ends in order on SIGTERM and raises the error of a background task."""

    class Broken(Averagely):
        def assign(self, *_: object) -> list[MessageQueue]:
            raise ZeroDivisionError("no members")

    def listener(_messages: Sequence[ReceivedMessage], _context: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    cluster.append("T", 0, b"m0")
    blocking.Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    ).run()
    assert cluster.offsets["G", "T", 0] == 1

    broken = ConsumerSettings(allocate_message_queue_strategy=Broken())
    with pytest.raises(ZeroDivisionError, match="no members"):
        blocking.Consumer(
            "G", cluster.address, topics="T", listener=listener, settings=broken
        ).run()


def test_pull_and_lite_pull_wait_for_messages(cluster: FakeCluster) -> None:
    """Law: the pull and lite pull consumers wait for messages."""
    cluster.append("T", 0, b"m0")
    cluster.append("T", 0, b"m1")
    with blocking.PullConsumer("P", cluster.address) as reader:
        queue = reader.fetch_queues("T")[0]
        found = reader.pull(queue, None, 0)
        following = reader.messages(queue, 1)
        assert (found.status, len(found.messages)) == (PullStatus.FOUND, 2)
        assert next(following).text == "m1"

    lite = blocking.LitePullConsumer("L", cluster.address)
    lite.assign([queue])
    with lite:
        lite.seek(queue, 0)
        polled: list[str] = []
        deadline = time.monotonic() + 30
        while len(polled) < 2 and time.monotonic() < deadline:
            polled += [message.text for message in lite.poll(timeout=0.5)]
        lite.pause([queue])
        assert lite.poll(timeout=0.01) == []
        lite.resume([queue])
        lite.commit()
        assert lite.committed(queue) == 2

    assert polled == ["m0", "m1"]


def test_a_call_from_the_loops_own_thread_is_refused() -> None:
    """Law: a call from the loop's own thread is refused, because it would wait for itself."""
    thread = LoopThread()

    async def inside() -> None:
        thread.run(asyncio.sleep(0))

    try:
        with pytest.raises(StateError, match="use the async classes"):
            thread.run(inside())
    finally:
        thread.close()
        thread.close()


def test_properties_may_be_read_from_any_thread_at_any_time(cluster: FakeCluster) -> None:
    """Law: properties may be read from any thread, at any time."""
    found: list[object] = []
    heard, stop = threading.Event(), threading.Event()

    async def listener(_messages: Sequence[ReceivedMessage], _context: object) -> None:
        found.append((member.queues, member.flow_control_times, member.lanes))
        heard.set()

    cluster.append("T", 0, b"m0")
    member = blocking.Consumer(
        "G",
        cluster.address,
        topics="T",
        consume_from="first",
        listener=listener,
        # Nothing is given back of what is churned.
        settings=ConsumerSettings(shutdown_timeout=0),
    )
    core = member.inner.core

    async def churn() -> None:
        """Assign and revoke queues as the rebalance does, as fast as possible."""
        number = 0
        while not stop.is_set():
            number += 1
            queues = frozenset(MessageQueue("X", "b", n) for n in range(number % 200))
            core.handle(Assigned(queues), 0)
            for queue in list(core.queues):
                core.handle(Released(queue), 0)
            await asyncio.sleep(0)

    with member:
        assert heard.wait(30)
        churning = member.thread.submit(churn()).future
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            assert member.flow_control_times >= 0
            assert len(set(member.queues)) <= 202
            assert member.lanes is None
        stop.set()
        churning.result(30)

    assert len(found) == 1
    assert (member.flow_control_times, member.lanes, member.state) == (0, None, "SHUTDOWN_ALREADY")
    assert member.queues == ()


CLIENTS: dict[str, Callable[..., blocking.Facade[Any]]] = {
    "producer": lambda **more: blocking.Producer("other", **more),
    "consumer": lambda **more: blocking.Consumer("G", topics="T", listener=print, **more),
    "pull": lambda **more: blocking.PullConsumer("G", **more),
    "lite": lambda **more: blocking.LitePullConsumer("G", **more),
    "admin": blocking.AdminClient,
}


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_clients_that_share_an_instance_share_its_loop(
    cluster: FakeCluster, make: Callable[..., blocking.Facade[Any]]
) -> None:
    """Law: clients with one instance share its loop; another loop is refused and leaves nothing behind."""
    instance = ClientInstance(cluster.address)
    with blocking.Producer("P", instance=instance) as first:
        with pytest.raises(StateError, match="thread="), make(instance=instance):
            pass
        assert first.send("T", "x", key="k").queue_offset == 0
        with make(instance=instance, thread=first.thread):
            pass
        assert first.send("T", "y", key="k").queue_offset == 1
