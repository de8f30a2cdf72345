"""
The SDK for programs without asyncio: the same classes, methods and errors, but each call blocks for its result.

Each object runs an event loop in its own thread; several objects can share a `LoopThread`. Rules: any thread may
call. Ctrl-C interrupts a blocked call and cancels the work that it waits for. A listener that is a plain function
runs in a worker thread and may block. A listener that raises `SystemExit` or `KeyboardInterrupt` interrupts the main
thread as Ctrl-C does; the loop goes on, so that the program can close its clients. A forked child cannot use its
parent's clients, because the thread does not exist in the child; the child makes its own clients.
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, wait
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from orderlymq.admin import client as admin
from orderlymq.consumer.lanes.core import LaneFigures
from orderlymq.consumer.pull import consumer as pullconsumer
from orderlymq.consumer.pull import litepull
from orderlymq.consumer.push import consumer
from orderlymq.durations import Duration
from orderlymq.errors import StateError
from orderlymq.message import ReceivedMessage, SendResult
from orderlymq.producer import producer, transactions
from orderlymq_protocol.body.messagequeue import MessageQueue

P = ParamSpec("P")
R = TypeVar("R")

_JOIN_TIMEOUT_S: Final = 10.0
_SIGNAL_POLL_S: Final = 0.1
_FORKED: Final = (
    "the blocking client was created before the process forked, and its thread does not exist in the child: create it in the child, in "
    "post_fork of gunicorn or worker_process_init of Celery"
)

_log = logging.getLogger(__name__)


class LoopThread:
    """An event loop in its own thread; it ends when the program ends or `close` is called."""

    def __init__(self, name: str = "orderlymq") -> None:
        self._loop = asyncio.new_event_loop()
        # Held while a call is handed to the loop, so that no call reaches a loop that has ended. The lock is
        # reentrant because a signal handler may close the client that its own thread is calling.
        self._handing = threading.RLock()
        self._is_closing = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._insist(self._loop.run_forever)
        end = self._loop.create_task(self._end(), name="end of the loop")
        self._insist(lambda: self._loop.run_until_complete(end))
        self._loop.close()

    def _insist(self, run: Callable[[], object]) -> None:
        """Run the loop until it ends normally."""
        while True:
            try:
                run()
            except (KeyboardInterrupt, SystemExit) as error:
                # If the loop ended here, every caller would wait for ever.
                _log.critical(
                    "%r was raised on the client's loop: the program is interrupted", error
                )
                main = threading.main_thread().ident
                if main is not None:
                    signal.pthread_kill(main, signal.SIGINT)
            else:
                return

    async def _end(self) -> None:
        # Every call that was handed over was scheduled before this task, so it has begun and can report why it ends.
        # A client that is still open would react to the end of its tasks by starting new ones, and would send back
        # messages that no listener has seen. The task factory prevents that.
        self._loop.set_task_factory(_stillborn)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.set_task_factory(None)
        await self._loop.shutdown_asyncgens()

    @property
    def is_closed(self) -> bool:
        """Whether this process's loop has ended or is about to end."""
        return self._is_closing and os.getpid() == self._process

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run *work* on the loop and return its result.

        Raises:
            StateError: The thread is closed, or was closed while *work* ran. Also if the caller is on the loop's own
                thread, where it would wait for itself, or in a child of the process that made this object.
        """
        return self.submit(work).result_or_cancel()

    def look(self, read: Callable[[], R]) -> R:
        """Return the result of *read*, called on the loop so that nothing else runs there, or after the loop has ended."""
        if threading.current_thread() is not self._thread:
            try:
                return self.run(_made(read))
            except StateError:
                if not self._is_closing:
                    raise
                self._thread.join(_JOIN_TIMEOUT_S)
        return read()

    def submit(self, work: Coroutine[Any, Any, R]) -> "Waiting[R]":
        """Start *work* on the loop."""
        if os.getpid() != self._process:
            work.close()
            raise StateError(_FORKED)  # and in the child the lock may be held for ever
        with self._handing:
            if self._is_closing or threading.current_thread() is self._thread:
                work.close()
                raise StateError(
                    "the blocking client is closed, or called from an async listener; use the async "
                    "classes there"
                )
            return Waiting(asyncio.run_coroutine_threadsafe(self._answered(work), self._loop))

    async def _answered(self, work: Coroutine[Any, Any, R]) -> R:
        try:
            return await work
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            raise StateError(
                "the blocking client was closed while this call ran; the call may have taken effect: "
                "a message may be stored"
            ) from None

    def close(self) -> None:
        """End the loop and its thread. Work that still runs there is cancelled, and its callers get `StateError`.

        Raises:
            StateError: The caller is on the loop's own thread, which cannot wait for its own end, or in a child of the
                process that made this object.
        """
        if os.getpid() != self._process:
            raise StateError(_FORKED)
        if threading.current_thread() is self._thread:
            raise StateError("the blocking client cannot be closed from an async listener")
        with self._handing:
            if not self._is_closing:
                self._is_closing = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning(
                "the thread %s has not ended yet: a listener does not return", self._thread.name
            )


def _stillborn(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, R] | Generator[Any, None, R],
    /,
    **options: Any,
) -> "asyncio.Task[R]":
    """Make a task that is cancelled before it starts."""
    task = asyncio.Task(work, loop=loop, **options)
    task.cancel()
    return task


class Waiting(Generic[R]):
    """The pending result of a call on the loop."""

    def __init__(self, future: "Future[R]") -> None:
        self.future = future

    def result_or_cancel(self) -> R:
        """Wait for the result; if the wait is interrupted, cancel the work."""
        try:
            return self.future.result()
        except BaseException:
            self.future.cancel()
            raise


class _Client(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


T = TypeVar("T", bound=_Client)


class Facade(Generic[T]):
    """An async client and the thread that its calls run on. `start` and `close` behave as those of the async class."""

    _make: Callable[..., T]

    def __init__(self, *args: Any, thread: LoopThread | None = None, **kwargs: Any) -> None:
        self.inner = type(self)._make(*args, **kwargs)
        self.thread = thread or LoopThread()
        self._owns_thread = thread is None

    def start(self) -> None:
        """Start the client; raises what the async class raises."""
        self.thread.run(self.inner.start())

    def close(self) -> None:
        """Close the client as the async class does, then the thread unless it is shared. Further calls do nothing."""
        if self._owns_thread and self.thread.is_closed:
            return
        try:
            self.thread.run(self.inner.close())
        finally:
            if self._owns_thread:
                self.thread.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return the blocking version of an async method, with the same arguments."""

    @functools.wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.thread.run(method(self.inner, *args, **kwargs))

    return call


def _on_loop(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return the blocking version of a plain method that must run on the loop's thread."""

    @functools.wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.thread.run(_made(lambda: method(self.inner, *args, **kwargs)))

    return call


class _Over(Exception):  # noqa: N818 - says what happened
    """The stream has ended. It replaces StopAsyncIteration, which cannot leave a coroutine."""


async def _made(make: Callable[[], R]) -> R:
    return make()


async def _following(stream: AsyncIterator[R]) -> R:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise _Over from None


class Producer(Facade[producer.Producer]):
    """The blocking `orderlymq.Producer`; takes *thread* to share one."""

    _make: Callable[..., producer.Producer] = producer.Producer

    send = _blocking(producer.Producer.send)
    send_oneway = _blocking(producer.Producer.send_oneway)
    send_batch = _blocking(producer.Producer.send_batch)
    recall = _blocking(producer.Producer.recall)
    request = _blocking(producer.Producer.request)
    reply = _blocking(producer.Producer.reply)
    queues = _blocking(producer.Producer.queues)

    def send_nowait(self, *args: Any, **kwargs: Any) -> "Future[SendResult]":
        """Send without waiting, as `orderlymq.Producer.send_nowait` does; keeps the order of calls per key."""

        async def work() -> SendResult:
            return await entered

        async def enter() -> "asyncio.Future[SendResult]":
            return self.inner.send_nowait(*args, **kwargs)

        # The send takes its place before this call returns, so the next call of this thread stands behind it.
        entered = self.thread.run(enter())
        return self.thread.submit(work()).future


class TransactionProducer(Producer):
    """The blocking `orderlymq.TransactionProducer`; *execute* and *check* may be plain functions that block."""

    _make = transactions.TransactionProducer

    send_in_transaction = _blocking(transactions.TransactionProducer.send_in_transaction)


class Consumer(Facade[consumer.Consumer]):
    """The blocking `orderlymq.Consumer`.

    A loop in another thread than that of the `with` block leaves its last message undone.
    """

    _make = consumer.Consumer
    _ends_with_loop = False
    _in_block = False

    subscribe = _on_loop(consumer.Consumer.subscribe)
    unsubscribe = _on_loop(consumer.Consumer.unsubscribe)
    suspend = _on_loop(consumer.Consumer.suspend)
    resume = _on_loop(consumer.Consumer.resume)
    stats = _on_loop(consumer.Consumer.stats)

    # Reads that walk over queues or lanes run on the loop, because the loop changes them. Single
    # values are read directly.

    @property
    def flow_control_times(self) -> int:
        """Return how often a pull of the present queues had to wait because enough messages are cached."""
        return self.thread.look(lambda: self.inner.flow_control_times)

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """Return the queues that this member holds or is trying to get."""
        return self.thread.look(lambda: self.inner.queues)

    @property
    def is_suspended(self) -> bool:
        """Whether `suspend` was called later than `resume`."""
        return self.inner.is_suspended

    @property
    def lanes(self) -> LaneFigures | None:
        """Return the figures of a consumer by key; None for any other consumer."""
        return self.thread.look(lambda: self.inner.lanes)

    @property
    def state(self) -> str:
        """Return CREATE_JUST, START_FAILED, RUNNING or SHUTDOWN_ALREADY."""
        return self.inner.state

    @property
    def client_id(self) -> str:
        """Return the id by which brokers know this client."""
        return self.inner.client_id

    def __iter__(self) -> Iterator[ReceivedMessage]:
        thread = threading.get_ident()
        stream = self.thread.run(_made(lambda: self.inner._begin_loop(thread)))
        try:
            while True:
                try:
                    message = self.thread.run(_following(stream))
                except _Over:
                    return
                except BaseException:
                    # If the wait was interrupted, the loop may hold a message that the caller has not seen.
                    with contextlib.suppress(StateError):
                        self.thread.run(_made(stream.leave))
                    raise
                yield message
        finally:
            del stream  # dropping the stream marks the loop as left
            # At the end of the program the thread has stopped already and would not answer.
            if self._ends_with_loop and not (self._in_block or sys.is_finalizing()):
                self.close()

    def close(self) -> None:
        """Close the consumer as the async class does, then the thread unless it is shared. Further calls do nothing.

        It may be called in a loop over the consumer, by a signal handler in such a loop, or in a listener. It then
        returns immediately, and the consumer ends after them. The thread ends with the loop, with the `with` block around it,
        or with the next call.
        """
        if self._owns_thread and self.thread.is_closed:
            return
        has_ended = True
        try:
            has_ended = self.thread.run(self.inner._close_by(threading.get_ident()))
        finally:
            self._ends_with_loop = not has_ended
            if has_ended and self._owns_thread:
                self.thread.close()

    def __enter__(self) -> Self:
        try:
            self.thread.run(self.inner.__aenter__())
        except BaseException:
            self.close()
            raise
        self._in_block = True
        return self

    def __exit__(self, *error: object) -> None:
        self._in_block = False
        if not self.thread.is_closed:
            thread, is_done = threading.get_ident(), error[0] is None
            self.thread.run(_made(lambda: self.inner._leave_block(thread, is_done=is_done)))
        super().__exit__(*error)

    def run(self) -> None:
        """Start, consume until SIGINT or SIGTERM, then close; only on the main thread.

        Raises:
            Exception: As `orderlymq.Consumer.run`.
        """
        received: list[int] = []
        before = {
            number: signal.signal(number, lambda number, _: received.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            self.start()
            over = self.thread.submit(self.inner.run()).future
            # A wait without a time-out would miss a signal that arrives just before it.
            while not received and not wait([over], _SIGNAL_POLL_S).done:
                pass
            self.thread.run(self.inner.close())
            over.result()
        finally:
            self.close()
            for number, handler in before.items():
                signal.signal(number, handler)


class PullConsumer(Facade[pullconsumer.PullConsumer]):
    """The blocking `orderlymq.PullConsumer`."""

    _make = pullconsumer.PullConsumer

    fetch_queues = _blocking(pullconsumer.PullConsumer.fetch_queues)
    pull = _blocking(pullconsumer.PullConsumer.pull)
    pull_block_if_not_found = _blocking(pullconsumer.PullConsumer.pull_block_if_not_found)
    max_offset = _blocking(pullconsumer.PullConsumer.max_offset)
    min_offset = _blocking(pullconsumer.PullConsumer.min_offset)
    offset_for_timestamp = _blocking(pullconsumer.PullConsumer.offset_for_timestamp)
    committed = _blocking(pullconsumer.PullConsumer.committed)
    commit = _blocking(pullconsumer.PullConsumer.commit)
    send_back = _blocking(pullconsumer.PullConsumer.send_back)
    update_offset = _on_loop(pullconsumer.PullConsumer.update_offset)

    def messages(
        self, queue: MessageQueue, offset: int, expression: str | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield the messages of a queue for ever; wait when there is none."""
        found = self.inner.messages(queue, offset, expression)
        while True:
            yield self.thread.run(_following(found))


class LitePullConsumer(Facade[litepull.LitePullConsumer]):
    """The blocking `orderlymq.LitePullConsumer`."""

    _make = litepull.LitePullConsumer

    fetch_queues = _blocking(litepull.LitePullConsumer.fetch_queues)
    commit = _blocking(litepull.LitePullConsumer.commit)
    committed = _blocking(litepull.LitePullConsumer.committed)
    seek_to_begin = _blocking(litepull.LitePullConsumer.seek_to_begin)
    seek_to_end = _blocking(litepull.LitePullConsumer.seek_to_end)
    offset_for_timestamp = _blocking(litepull.LitePullConsumer.offset_for_timestamp)
    subscribe = _on_loop(litepull.LitePullConsumer.subscribe)
    assign = _on_loop(litepull.LitePullConsumer.assign)
    seek = _on_loop(litepull.LitePullConsumer.seek)
    pause = _on_loop(litepull.LitePullConsumer.pause)
    resume = _on_loop(litepull.LitePullConsumer.resume)

    def poll(self, timeout: Duration = 5, count: int = 32) -> list[ReceivedMessage]:
        """As `orderlymq.LitePullConsumer.poll`; if a call is interrupted, the next call returns its messages."""
        found: list[ReceivedMessage] = []

        async def poll() -> None:
            found.extend(await self.inner.poll(timeout, count))

        try:
            self.thread.run(poll())
        except BaseException:
            with contextlib.suppress(StateError):
                self.thread.run(_made(lambda: self.inner.take_back(found)))
            raise
        return found

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """Return the queues that are read now."""
        return self.thread.look(lambda: self.inner.assignment)


class AdminClient(Facade[admin.AdminClient]):
    """The blocking `orderlymq.AdminClient`."""

    _make = admin.AdminClient

    def at(self, broker: str, address: str) -> "AdminClient":
        """Return a client that asks one broker group only; it shares these connections and this thread."""
        only = {broker: address}
        return AdminClient(instance=self.inner.instance, only=only, thread=self.thread)

    cluster_info = _blocking(admin.AdminClient.cluster_info)
    brokers = _blocking(admin.AdminClient.brokers)
    absent_groups = _blocking(admin.AdminClient.absent_groups)
    group_status = _blocking(admin.AdminClient.group_status)
    transfer_leadership = _blocking(admin.AdminClient.transfer_leadership)
    change_membership = _blocking(admin.AdminClient.change_membership)
    client_dead = _blocking(admin.AdminClient.client_dead)
    topics = _blocking(admin.AdminClient.topics)
    route = _blocking(admin.AdminClient.route)
    topic_configs = _blocking(admin.AdminClient.topic_configs)
    create_topic = _blocking(admin.AdminClient.create_topic)
    delete_topic = _blocking(admin.AdminClient.delete_topic)
    topic_stats = _blocking(admin.AdminClient.topic_stats)
    topic_groups = _blocking(admin.AdminClient.topic_groups)
    groups = _blocking(admin.AdminClient.groups)
    set_group = _blocking(admin.AdminClient.set_group)
    delete_group = _blocking(admin.AdminClient.delete_group)
    members = _blocking(admin.AdminClient.members)
    connections = _blocking(admin.AdminClient.connections)
    progress = _blocking(admin.AdminClient.progress)
    locks = _blocking(admin.AdminClient.locks)
    locking_groups = _blocking(admin.AdminClient.locking_groups)
    parked_keys = _blocking(admin.AdminClient.parked_keys)
    release_key = _blocking(admin.AdminClient.release_key)
    lanes = _blocking(admin.AdminClient.lanes)
    reset_offsets = _blocking(admin.AdminClient.reset_offsets)
    set_offsets = _blocking(admin.AdminClient.set_offsets)
    view_message = _blocking(admin.AdminClient.view_message)
    find_messages = _blocking(admin.AdminClient.find_messages)
    find_origin = _blocking(admin.AdminClient.find_origin)
    check_transaction = _blocking(admin.AdminClient.check_transaction)
    transactions = _blocking(admin.AdminClient.transactions)
    resend = _blocking(admin.AdminClient.resend)
    expansion = _blocking(admin.AdminClient.expansion)
    broker_config = _blocking(admin.AdminClient.broker_config)
    update_broker_config = _blocking(admin.AdminClient.update_broker_config)
    name_server_config = _blocking(admin.AdminClient.name_server_config)
    update_name_server_config = _blocking(admin.AdminClient.update_name_server_config)
    broker_runtime = _blocking(admin.AdminClient.broker_runtime)
    broker_stats = _blocking(admin.AdminClient.broker_stats)
    wipe_write_permission = _blocking(admin.AdminClient.wipe_write_permission)
    add_write_permission = _blocking(admin.AdminClient.add_write_permission)
    delete_expired = _blocking(admin.AdminClient.delete_expired)
    put_kv = _blocking(admin.AdminClient.put_kv)
    delete_kv = _blocking(admin.AdminClient.delete_kv)
    get_kv = _blocking(admin.AdminClient.get_kv)
    list_kv = _blocking(admin.AdminClient.list_kv)
    producers = _blocking(admin.AdminClient.producers)
    running_info = _blocking(admin.AdminClient.running_info)
    consume_directly = _blocking(admin.AdminClient.consume_directly)
    topics_of_group = _blocking(admin.AdminClient.topics_of_group)
    subscription = _blocking(admin.AdminClient.subscription)
    clone_offsets = _blocking(admin.AdminClient.clone_offsets)
    consume_time_span = _blocking(admin.AdminClient.consume_time_span)
    max_offset = _blocking(admin.AdminClient.max_offset)
    min_offset = _blocking(admin.AdminClient.min_offset)
    search_offset = _blocking(admin.AdminClient.search_offset)
    earliest_store_time = _blocking(admin.AdminClient.earliest_store_time)
    consume_queue = _blocking(admin.AdminClient.consume_queue)
