"""How blocking clients and their loop's thread end."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from orderlymq import Consumer, blocking
from orderlymq.blocking import LoopThread
from orderlymq.errors import StateError, TopicNotFound
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from tests.client import fakecluster
from tests.client.fakecluster import FakeCluster


def test_a_start_that_fails_leaves_no_thread(cluster: FakeCluster) -> None:
    lite = blocking.LitePullConsumer("G", cluster.address)
    lite.subscribe("missing")

    with pytest.raises(TopicNotFound), lite:
        raise AssertionError("it has started")

    assert "orderlymq" not in {thread.name for thread in threading.enumerate()}


def waiting_in(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run *call* in its own thread; return the thread and the errors of the call."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, raised


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing() -> None: ...


def test_a_call_that_waits_when_its_client_is_closed_ends(cluster: FakeCluster) -> None:
    """Law: a waiting call ends with an error when its client is closed; later calls are refused."""
    lite = blocking.LitePullConsumer("L", cluster.address)
    lite.assign([MessageQueue("T", fakecluster.BROKER, 0)])
    lite.start()
    caller, raised = waiting_in(lambda: lite.poll(timeout=60))
    until(lambda: any(each.code == RequestCode.LITE_PULL_MESSAGE for each in cluster.seen))

    began = time.monotonic()
    lite.close()
    caller.join(10)

    assert time.monotonic() - began < 10
    assert [type(error) for error in raised] == [StateError]
    assert "was closed while this call ran" in str(raised[0])
    assert "orderlymq" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(StateError, match="is closed"):
        lite.poll()


def test_a_future_ends_when_its_thread_is_closed() -> None:
    """Law: a future ends when its thread is closed, even if its work had not begun."""
    thread = LoopThread()
    entered, leave = threading.Event(), threading.Event()

    async def hold() -> None:
        entered.set()
        leave.wait(5)

    held = thread.submit(hold()).future
    assert entered.wait(5)
    futures = [thread.submit(forever()).future for _ in range(3)]
    closer, _ = waiting_in(thread.close)
    leave.set()
    held.result(5)
    closer.join(5)

    for future in futures:
        with pytest.raises(StateError, match="a message may be stored"):
            future.result(1)


def test_calls_beside_the_close_of_their_thread_are_refused_or_end() -> None:
    """Law: calls during the close of their thread are refused or end; none waits for ever."""
    for _ in range(50):
        thread = LoopThread()
        begun = threading.Event()

        def call(thread: LoopThread = thread, begun: threading.Event = begun) -> None:
            while True:
                thread.run(nothing())
                begun.set()

        callers = [waiting_in(call) for _ in range(2)]
        assert begun.wait(5)
        thread.close()

        for caller, raised in callers:
            caller.join(5)
            assert [type(error) for error in raised] == [StateError]


def test_what_ends_with_a_thread_begins_nothing_and_cleans_up() -> None:
    """Law: when the thread ends, cancelled tasks start nothing new and clean up;
    a client that was not closed returns no message.
    """
    thread = LoopThread()
    seen: list[str] = []

    async def note(text: str) -> None:
        seen.append(text)

    async def work() -> None:
        try:
            await forever()
        finally:
            again.append(asyncio.create_task(note("begun again")))
            seen.append("ended")

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await nothing()
            seen.append("generator closed")

    async def begin() -> None:
        again.append(asyncio.create_task(work()))
        assert await anext(generator) == 1

    again: list[asyncio.Task[None]] = []
    generator = numbers()
    thread.run(begin())
    thread.close()

    assert seen == ["ended", "generator closed"]


def test_a_task_that_wants_the_program_to_end_does_not_keep_its_thread() -> None:
    """Law: a task that raises SystemExit or KeyboardInterrupt does not keep its thread, also when it is cancelled."""
    thread = LoopThread()
    interrupted = threading.Event()

    async def work() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            raise SystemExit(3) from None

    async def begin() -> None:
        tasks.append(asyncio.create_task(work()))

    tasks: list[asyncio.Task[None]] = []
    waiting = thread.submit(forever()).future
    thread.run(begin())
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        thread.close()
        assert interrupted.wait(5)
    finally:
        signal.signal(signal.SIGINT, before)

    with pytest.raises(StateError):
        waiting.result(1)


def test_a_close_from_the_loops_own_thread_is_refused() -> None:
    """Law: a close from the loop's own thread is refused, because it would wait for itself."""
    thread = LoopThread()

    async def inside() -> None:
        thread.close()

    with pytest.raises(StateError, match="from an async listener"):
        thread.run(inside())
    thread.run(nothing())
    thread.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda address: blocking.Producer("P", address),
        lambda address: blocking.Consumer("G", address, topics="T"),
        lambda address: blocking.PullConsumer("G", address),
        lambda address: blocking.LitePullConsumer("G", address),
        blocking.AdminClient,
    ],
    ids=["producer", "push", "pull", "lite", "admin"],
)
def test_a_second_close_does_nothing(
    cluster: FakeCluster,
    make: Callable[..., blocking.Producer],
) -> None:
    """Law: a second close does nothing, also inside a `with` block."""
    with make(cluster.address) as client:
        client.close()
        client.close()

    client.close()


# Ends its main thread while a listener runs, says so, and lets the listener go on until its input ends.
ENDS_WITHOUT_CLOSE = """
    import sys, threading
    from concurrent.futures import ThreadPoolExecutor
    from orderlymq import Consumer, blocking
    from orderlymq.consumer.settings import ConsumerSettings

    running, other = threading.Event(), ThreadPoolExecutor(1)

    def listener(messages, context):
        running.set()
        try:
            while True:
                other.submit(running.wait).result()
        except RuntimeError:
            print("over", flush=True)
            sys.stdin.read()

    settings = ConsumerSettings(max_reconsume_times=1, suspend_current_queue_time=0.01)
    arguments = {"topics": "T", "consume_from": "first", "listener": listener, "settings": settings}
    blocking.Consumer("G", sys.argv[1], ordered=sys.argv[2] == "ordered", **arguments).start()
    running.wait()
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ordered", "concurrent"])
def test_a_message_that_comes_while_the_program_ends_spends_no_try(
    cluster: FakeCluster, kind: str
) -> None:
    """Law: a message that arrives while the program ends without `close` loses no try; only a called listener can fail."""

    def awaits(offset: int) -> bool:
        pulls = (each.ext for each in cluster.seen if each.code == RequestCode.PULL_MESSAGE)
        place = {"topic": "T", "queueId": "1", "queueOffset": str(offset)}
        return any(place.items() <= each.items() for each in pulls)

    cluster.append("T", 0, b"long")
    program = [sys.executable, "-c", textwrap.dedent(ENDS_WITHOUT_CLOSE), cluster.address, kind]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "over\n"
        for number in range(4):
            until(partial(awaits, number))
            cluster.append("T", 1, b"late")
        until(lambda: awaits(4))
        child.stdin.close()

    given_up = {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2}
    assert not given_up & set(cluster.codes())


@pytest.mark.parametrize("by", ["thread", "signal", "body"])
def test_close_keeps_what_the_body_of_a_loop_works_on(cluster: FakeCluster, by: str) -> None:
    """Law: `close` from another thread waits for the body of a loop, so that there is one consumer at a time."""
    cluster.append("T", 0, b"m0")
    cluster.append("T", 0, b"m1")
    consumer = blocking.Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first"
    )
    consumer.start()
    closer = threading.Thread(target=consumer.close)
    texts: list[str] = []
    if by == "signal":
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
    for message in consumer:
        texts.append(message.text)
        if by == "thread":
            closer.start()
        elif by == "signal":
            signal.raise_signal(signal.SIGUSR1)
        else:
            consumer.close()
        until(lambda: consumer.state == "SHUTDOWN_ALREADY" and len(cluster.locks) == 1)
    if by == "thread":
        closer.join()
    if by == "signal":
        signal.signal(signal.SIGUSR1, before)

    assert texts == ["m0"]
    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}
    assert consumer.thread.is_closed


@pytest.mark.parametrize("how", ["break", "raise"])
def test_a_loop_that_is_left_gives_its_message_back_when_the_consumer_is_closed(
    cluster: FakeCluster, how: str
) -> None:
    """Law: a loop that was left gives its message back as soon as the consumer is closed."""
    cluster.append("T", 0, b"m0")
    consumer = blocking.Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first"
    )
    consumer.start()
    try:
        for _ in consumer:
            if how == "raise":
                raise ValueError("no")
            break
    except ValueError:
        pass
    began = time.monotonic()
    closer = threading.Thread(target=consumer.close)
    closer.start()
    closer.join()

    assert time.monotonic() - began < 5
    assert cluster.offsets.get(("G", "T", 0), 0) == 0
    assert cluster.locks == {}


def test_a_listener_in_a_thread_closes_its_consumer(cluster: FakeCluster) -> None:
    """Law: a listener in a thread may close its consumer without waiting for itself; its messages are done."""
    cluster.append("T", 0, b"m0")
    called = threading.Event()

    def listener(*_: object) -> None:
        consumer.close()
        called.set()

    consumer = blocking.Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    )
    consumer.start()
    assert called.wait(10), "the default shutdown_timeout is longer"
    consumer.close()

    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}
    assert consumer.thread.is_closed


def test_a_body_that_closes_and_breaks_has_its_message_done_at_the_end_of_the_block(
    cluster: FakeCluster,
) -> None:
    """Law: a body that closes and breaks has its message done at the end of the block,
    without waiting for `shutdown_timeout`.
    """
    cluster.append("T", 0, b"m0")
    began = time.monotonic()
    with blocking.Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first"
    ) as consumer:
        for _ in consumer:
            consumer.close()
            break

    assert time.monotonic() - began < 10
    assert cluster.offsets["G", "T", 0] == 1
    assert cluster.locks == {}
    assert consumer.thread.is_closed


def test_a_later_loop_gets_what_another_thread_has_left_inside_the_block(
    cluster: FakeCluster,
) -> None:
    """Law: a later loop gets the message that another thread left inside the block."""
    cluster.append("T", 0, b"m0")
    left, may_end = threading.Event(), threading.Event()
    with blocking.Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first"
    ) as consumer:

        def former() -> None:
            for _ in consumer:
                break
            left.set()
            may_end.wait()  # So that the later thread has another number.

        first = threading.Thread(target=former)
        first.start()
        left.wait()
        later = threading.Thread(target=lambda: next(iter(consumer)), daemon=True)
        later.start()
        later.join(10)
        may_end.set()
        first.join()
        assert not later.is_alive()


@pytest.mark.parametrize("how", ["break", "raise"])
def test_a_loop_in_another_thread_has_its_last_message_again(
    cluster: FakeCluster, how: str
) -> None:
    """Law: the last message of a loop in another thread comes again; the block once counted it as done."""
    cluster.append("T", 0, b"m0")
    cluster.append("T", 0, b"m1")
    with blocking.Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first"
    ) as consumer:

        def loop() -> None:
            for message in consumer:
                if message.text == "m1":
                    if how == "raise":
                        raise ValueError("no")
                    break

        thread, _ = waiting_in(loop)
        thread.join()

    assert cluster.offsets["G", "T", 0] == 1


def test_a_program_that_closes_in_a_loop_and_keeps_its_iterator_ends(cluster: FakeCluster) -> None:
    """Law: a program that closes in a loop and keeps its iterator ends."""
    cluster.append("T", 0, b"m0")
    program = f"""
        from orderlymq import Consumer, blocking

        consumer = blocking.Consumer("G", "{cluster.address}", topics="T", consume_from="first")
        consumer.start()
        messages = iter(consumer)
        print(next(messages).text)
        consumer.close()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        timeout=30,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout == "m0\n"


@pytest.mark.parametrize("by", ["body", "listener"])
def test_a_program_that_ends_behind_close_in_a_body_or_listener_leaves_its_group(
    cluster: FakeCluster, by: str
) -> None:
    """Law: a program that ends right after `close` in a body or listener leaves its group and frees its locks."""
    cluster.append("T", 0, b"m0")

    async def program() -> None:
        called = asyncio.Event()

        async def listener(*_: object) -> None:
            await consumer.close()
            called.set()

        consumer = Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            listener=listener if by == "listener" else None,
        )
        await consumer.start()
        if by == "listener":
            await called.wait()
            return
        async for _ in consumer:
            await consumer.close()
            return

    asyncio.run(program())

    assert cluster.codes()[-1] == RequestCode.UNREGISTER_CLIENT
    assert cluster.locks == {}
