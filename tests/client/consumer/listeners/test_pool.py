"""Calls of listeners: what they get, and that no way to end one stops a queue."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.core.events import ConcurrentResult, OrderedResult
from orderlymq.consumer.listeners.context import (
    ConcurrentContext,
    ConsumeContext,
    ConsumeHook,
    Listener,
    OrderedContext,
)
from orderlymq.consumer.listeners.pool import ListenerPool
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import ReceivedMessage
from orderlymq.settings import ClientSettings
from orderlymq_protocol.body.lanes import LaneReport, LaneReports
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand
from tests.client.fakecluster import BROKER, FakeCluster
from tests.client.inbox import Inbox, fill
from tests.client.messages import QUEUE, message
from tests.waiting import until


async def test_the_messages_of_a_call_cannot_be_changed(cluster: FakeCluster) -> None:
    """Law: the listener gets a tuple, so that it cannot change the messages of a call (ODL-10)."""
    fill(cluster, 1, queues=1)
    refused: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> OrderedResult:
        for change in ("messages[0] = None", "messages.append(None)", "del messages[0]"):
            try:
                exec(change, {"messages": messages})
            except (TypeError, AttributeError):
                refused.append(change)
        return OrderedResult.SUCCESS

    async with Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    ):
        await until(lambda: len(refused) == 3)


REQUEST: ContextVar[str] = ContextVar("REQUEST", default="nothing")


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_listener_sees_no_context_variable_that_another_call_has_set(
    cluster: FakeCluster, *, ordered: bool
) -> None:
    """Law: a call sees the context variables of the consumer's start, not those that another call has set."""
    fill(cluster, 3, queues=1)
    seen: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: object) -> None:
        seen.append(REQUEST.get())
        REQUEST.set(messages[0].text)

    REQUEST.set("the start")
    async with Consumer(
        "G", cluster.address, topics="T", ordered=ordered, consume_from="first", listener=listener
    ):
        await until(lambda: len(seen) == 3)

    assert seen == ["the start"] * 3


class Bare(BaseException):
    """An exception outside the usual hierarchy."""


def raise_it(error: BaseException) -> None:
    raise error


async def await_a_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


def cancel_myself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


ENDS = (asyncio.CancelledError(), GeneratorExit(), StopIteration(), Bare(), ValueError("no"))
SOON = ConsumerSettings(suspend_current_queue_time=0.01)


@pytest.mark.parametrize("error", ENDS, ids=repr)
async def test_a_message_comes_again_whatever_a_thread_listener_raises(
    cluster: FakeCluster, error: BaseException
) -> None:
    """Law: a message comes again whatever a thread listener raises; a `CancelledError` once stopped its queue."""
    fill(cluster, 2, queues=1)
    seen: list[str] = []

    def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> OrderedResult:
        seen.extend(message.text for message in messages)
        if len(seen) == 1:
            raise error
        return OrderedResult.SUCCESS

    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=listener,
        settings=SOON,
    ):
        await until(lambda: len(seen) == 3)

    assert seen == ["m0", "m0", "m1"]
    assert cluster.offsets["G", "T", 0] == 2


@pytest.mark.parametrize(
    "end", [*(lambda e=e: raise_it(e) for e in ENDS), await_a_cancelled_task, cancel_myself]
)
async def test_a_message_comes_again_however_an_async_listener_ends(
    cluster: FakeCluster, end: Callable[[], object]
) -> None:
    """Law: so it does however an async listener ends: a cancelled inner task, a cancelled call, any exception."""
    fill(cluster, 2, queues=1)
    seen: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> OrderedResult:
        seen.extend(message.text for message in messages)
        if len(seen) == 1:
            ended = end()
            if asyncio.iscoroutine(ended):
                await ended
            await asyncio.sleep(0)
        return OrderedResult.SUCCESS

    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=listener,
        settings=SOON,
    ):
        await until(lambda: len(seen) == 3)

    assert seen == ["m0", "m0", "m1"]
    assert cluster.offsets["G", "T", 0] == 2


def pool_of(listener: Listener) -> ListenerPool:
    return ListenerPool(
        "G", listener, ordered=True, workers=1, slots=1, timeout_ms=60_000, hooks=()
    )


def by_coroutine(work: Callable[[], Awaitable[None]]) -> Sequence[Listener]:
    """Return an async listener, and a plain one that returns a coroutine."""

    async def listener(_messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        await work()

    def plain(messages: Sequence[ReceivedMessage], context: OrderedContext) -> Any:
        return listener(messages, context)

    return listener, plain


@pytest.mark.parametrize("form", [0, 1])
async def test_a_coroutine_that_outlives_its_limit_has_ended_before_it_counts_as_failed(
    form: int,
) -> None:
    """Law: a coroutine over its time limit has ended before it counts as failed, so that no other member works on its key."""
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    call = await pool_of(by_coroutine(forever)[form]).call(
        (message(0),), OrderedContext(QUEUE), 0.01
    )

    assert ended == ["ended"]
    assert call.result is None
    assert call.raised
    assert "because it ran for longer than the consumeTimeout of 0.01 s" in call.raised


async def test_a_time_out_of_the_listener_s_own_is_reported_as_such() -> None:
    async def own() -> None:
        raise TimeoutError("the card service is slow")

    call = await pool_of(by_coroutine(own)[0]).call((message(0),), OrderedContext(QUEUE), 60.0)

    assert call.raised == "TimeoutError: the card service is slow"


async def test_a_concurrent_message_is_sent_back_whatever_its_listener_raises(
    cluster: FakeCluster,
) -> None:
    """Law: a concurrent message is returned whatever its listener raises, and comes again by the retry topic."""
    fill(cluster, 1, queues=1)
    seen: list[str] = []

    async def listener(
        messages: Sequence[ReceivedMessage], _: ConcurrentContext
    ) -> ConcurrentResult:
        seen.extend(message.text for message in messages)
        if len(seen) == 1:
            raise asyncio.CancelledError
        return ConcurrentResult.SUCCESS

    async with Consumer("G", cluster.address, topics="T", consume_from="first", listener=listener):
        await until(lambda: len(seen) == 2)

    assert seen == ["m0", "m0"]


@pytest.mark.parametrize("name", ["ack_index", "delay_level_when_next_consume"])
@pytest.mark.parametrize("value", [0.5, "0", None, False], ids=repr)
@pytest.mark.parametrize("raises", [True, False])
async def test_what_a_listener_sets_wrong_counts_as_raised(
    cluster: FakeCluster, name: str, value: object, raises: bool
) -> None:
    """Law: a wrong value set by a listener counts as an exception; False is no index."""
    fill(cluster, 1, queues=1)
    seen: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], context: ConcurrentContext) -> None:
        seen.extend(message.text for message in messages)
        if len(seen) == 1:
            setattr(context, name, value)
            if raises:
                raise ValueError("no")

    async with Consumer("G", cluster.address, topics="T", consume_from="first", listener=listener):
        await until(lambda: len(seen) == 2, timeout_s=3)

    assert seen == ["m0", "m0"]
    assert cluster.offsets["G", "T", 0] == 1


async def test_a_message_does_not_come_again_beside_the_thread_that_still_has_it(
    cluster: FakeCluster,
) -> None:
    """Law: if a call is cancelled while its thread runs, the message comes again only after the thread has ended."""
    fill(cluster, 1, queues=1)
    began, goes_on = [threading.Event(), threading.Event()], threading.Event()
    calls: list[str] = []

    def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> OrderedResult:
        calls.append("began")
        began[min(1, len(calls) // 2)].set()
        goes_on.wait(5)
        calls.append("ended")
        return OrderedResult.SUCCESS

    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=listener,
        settings=SOON,
    ) as consumer:
        await until(began[0].is_set)
        for _ in range(2):
            for task in asyncio.all_tasks():
                if task.get_name() == "Deliver of G":
                    task.cancel()
            await asyncio.sleep(0.05)  # Longer than the pause after a failed call.
        assert calls == ["began"]
        goes_on.set()
        await until(began[1].is_set)
        await until(lambda: consumer.core.queues[MessageQueue("T", BROKER, 0)].committed == 1)

    assert calls == ["began", "ended", "began", "ended"]


class Odd(ConsumeHook):
    """A hook that raises an unusual error once at each moment."""

    def __init__(self) -> None:
        self.left = ["before", "after"]

    def before(self, _context: ConsumeContext) -> None:
        self._fail("before")

    def after(self, _context: ConsumeContext) -> None:
        self._fail("after")

    def _fail(self, moment: str) -> None:
        if self.left[:1] == [moment]:
            del self.left[0]
            raise asyncio.CancelledError


async def test_a_hook_that_raises_a_cancellation_loses_no_message(cluster: FakeCluster) -> None:
    """Law: a hook that raises a cancellation, before or after the listener, loses no message."""
    fill(cluster, 2, queues=1)
    inbox, hook = Inbox(), Odd()

    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=inbox.ordered,
        settings=SOON,
        hooks=[hook],
    ):
        await until(lambda: cluster.offsets.get(("G", "T", 0)) == 2 or len(inbox.seen) == 3)

    assert not hook.left
    assert inbox.texts == ["m0", "m0", "m1"]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Bare(), KeyError("a bug")], ids=repr)
async def test_a_filter_or_an_interceptor_that_fails_ends_no_work_for_good(
    cluster: FakeCluster, error: BaseException
) -> None:
    """Law: an error in a hook during each kind of request (members, locks, start, pulls) stops nothing for good."""
    fill(cluster, 2, queues=1)
    inbox, failed, filtered = Inbox(), set[int](), list[bool]()

    def before(_address: str, command: RemotingCommand) -> None:
        if command.code in (11, 14, 38, 41) and command.code not in failed:
            failed.add(command.code)
            raise error

    def refuse(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if not filtered:
            filtered.append(True)
            raise error
        return messages

    instance = ClientInstance(
        cluster.address,
        ClientSettings(persist_consumer_offset_interval=1),
        before_request=before,
    )
    async with Consumer(
        "G",
        topics="T",
        ordered=True,
        consume_from="first",
        listener=inbox.ordered,
        settings=SOON,
        instance=instance,
        filters=[refuse],
    ):
        await until(lambda: len(inbox.seen) == 2)

    assert inbox.texts == ["m0", "m1"]
    assert failed == {11, 14, 38, 41}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
async def test_a_listener_that_returns_nothing_has_done_its_messages(
    cluster: FakeCluster, ordered: bool, blocking: bool
) -> None:
    """Law: a listener that returns None has done its messages; only an error delivers them again."""
    fill(cluster, 3, queues=1)
    seen: list[str] = []

    def plain(messages: Sequence[ReceivedMessage], _: object) -> None:
        seen.extend(message.text for message in messages)

    async def listener(messages: Sequence[ReceivedMessage], context: object) -> None:
        plain(messages, context)

    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=ordered,
        consume_from="first",
        listener=plain if blocking else listener,
    ):
        await until(lambda: len(seen) == 3)

    assert sorted(seen) == ["m0", "m1", "m2"]
    assert cluster.offsets["G", "T", 0] == 3


async def test_why_a_listener_raised_is_text_that_can_be_sent() -> None:
    """Law: the reason of a failure is always valid text, so that its report can be sent;
    one once blocked all lanes' reports.
    """

    def listener(messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        raise OSError("no file caf\udce9")

    pool = ListenerPool("G", listener, ordered=True, workers=1, slots=1, timeout_ms=1_000, hooks=())
    queue = MessageQueue("T", BROKER, 0)

    call = await pool.call((message(0),), OrderedContext(queue))

    assert call.raised == "OSError: no file caf?"
    report = LaneReport(0, 1, 1, "retry", reason=call.raised)
    assert LaneReports.from_json(LaneReports((report,)).to_json()).lanes == (report,)


@pytest.mark.parametrize("error", [SystemExit(1), GeneratorExit(), KeyboardInterrupt()], ids=repr)
async def test_hooks_see_the_end_of_a_call_whatever_it_raises(error: BaseException) -> None:
    """Law: hooks see the end of a call whatever it raises, so that spans end."""
    seen: list[str] = []

    class Hook(ConsumeHook):
        def before(self, context: ConsumeContext) -> None:
            seen.append("before")

        def after(self, context: ConsumeContext) -> None:
            seen.append(f"after {context.success}")

    async def listener(messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        raise error

    pool = ListenerPool(
        "G", listener, ordered=True, workers=1, slots=1, timeout_ms=1_000, hooks=(Hook(),)
    )

    with pytest.raises(type(error)):
        await pool.call((message(0),), OrderedContext(MessageQueue("T", BROKER, 0)))
    assert seen == ["before", "after False"]
