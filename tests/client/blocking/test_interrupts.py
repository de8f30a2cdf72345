"""Blocking calls interrupted by an exception in the main thread: no message is lost."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from orderlymq import blocking
from orderlymq.blocking import LoopThread
from orderlymq.consumer.listeners.context import ConsumeContext, ConsumeHook
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client import fakecluster
from tests.client.fakecluster import FakeCluster


class _Interrupted(Exception):  # noqa: N818 - says what happened
    """The exception that a program's signal handler raises, as Ctrl-C does."""


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A loop, and a signal handler that raises in the middle of the main thread's work."""

    def raising(*_: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGUSR1, raising)
    made = LoopThread()
    yield made
    made.close()
    signal.signal(signal.SIGUSR1, before)


async def _interrupt(turns: int) -> None:
    """Interrupt the main thread in so many turns of the loop; the loop waits until it has reacted."""
    for _ in range(turns):
        await asyncio.sleep(0)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)
    time.sleep(0.01)  # noqa: ASYNC251 - the loop must stand still meanwhile


class _Interrupting(ConsumeHook):
    """Interrupts the main thread a moment after a message is first offered to it."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.task: asyncio.Task[None] | None = None

    def before(self, context: ConsumeContext) -> None:
        if self.task is None:
            self.task = asyncio.create_task(_interrupt(self.turns))

    def after(self, context: ConsumeContext) -> None:
        pass


@pytest.mark.parametrize("turns", range(7))
def test_a_message_that_an_interrupted_loop_did_not_get_comes_again(
    cluster: FakeCluster, thread: LoopThread, turns: int
) -> None:
    """Law: a message that an interrupted loop did not return is not done, even if the block ends without an error."""
    cluster.append("T", 0, b"m")
    seen = []
    with blocking.Consumer(
        *("G", cluster.address),
        topics="T",
        ordered=True,
        consume_from="first",
        hooks=[_Interrupting(turns)],
        thread=thread,
    ) as member:
        try:
            seen += [next(iter(member)).text]
            time.sleep(1)
        except _Interrupted:
            pass

    assert cluster.offsets.get(("G", "T", 0), 0) == len(seen)


@pytest.mark.parametrize("turns", range(7))
def test_messages_that_an_interrupted_poll_did_not_return_are_returned_by_the_next(
    cluster: FakeCluster, thread: LoopThread, turns: int
) -> None:
    """Law: messages that an interrupted poll did not return are returned by the next one and not committed before."""
    queue = MessageQueue("T", fakecluster.BROKER, 0)
    cluster.append("T", 0, b"m")
    lite = blocking.LitePullConsumer("L", cluster.address, consume_from="first", thread=thread)
    lite.assign([queue])
    seen = []
    with lite:
        thread.run(asyncio.sleep(0.1))
        try:
            thread.submit(_interrupt(turns))
            seen += lite.poll(timeout=1)
            time.sleep(1)
        except _Interrupted:
            seen += lite.poll(timeout=1)
        lite.commit()

    assert [message.text for message in seen] == ["m"]
