"""Listener calls of a consumer by key: what they share and what they do not."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from orderlymq.consumer.lanes.events import AttemptId, End, Ended, Listened, Place, Work
from orderlymq.consumer.lanes.workers import LaneWorkers
from orderlymq.ownedtasks import OwnedTasks
from orderlymq_protocol.body.lanes import Lane
from tests.client.messages import messages
from tests.waiting import until

PLACE = Place("orders", "broker-a")
SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


def work(number: int) -> Work:
    lane = Lane(0, number, number, f"key-{number}", (number,))
    return Work(AttemptId(PLACE, 0, number), lane, messages(number), 0)


class Called:
    """Workers with a listener that the test defines; *ends* lists the reported calls."""

    def __init__(self, call: Callable[[int], Awaitable[None]], *, slots: int = 8) -> None:
        self.posted: list[Ended] = []
        self.callers: list[asyncio.Task[object] | None] = []
        self.slots = asyncio.Semaphore(slots)
        self._call = call
        self.tasks = OwnedTasks()
        self.workers = LaneWorkers(
            "Work", self.tasks, self.slots, listen=self._listen, post=self.posted.append
        )

    async def _listen(self, given: Work) -> End:
        self.callers.append(asyncio.current_task())
        await self._call(given.attempt.number)
        return Listened(given.attempt, None)

    @property
    def ends(self) -> list[tuple[int, str | None]]:
        ends = [end for each in self.posted for end in each.ends]
        return [(end.attempt.number, end.error) for end in ends if isinstance(end, Listened)]

    def begin(self, *numbers: int) -> None:
        for number in numbers:
            self.workers.begin(work(number))

    async def ended(self, count: int) -> None:
        await until(lambda: len(self.ends) == count)


async def test_calls_that_wait_for_nothing_share_a_task_and_their_ends_an_event() -> None:
    async def call(_: int) -> None:
        pass

    place = Called(call)
    place.begin(1, 2, 3)
    await place.ended(3)
    place.begin(4)
    await place.ended(4)

    assert place.ends == [(1, None), (2, None), (3, None), (4, None)]
    assert [len(each.ends) for each in place.posted] == [3, 1]
    assert len(set(place.callers[:3])) == 1


async def test_a_call_that_waits_keeps_no_other_waiting() -> None:
    """Law: a call that waits does not delay others; each has its own task."""
    gates = {2: asyncio.Event(), 3: asyncio.Event()}

    async def call(number: int) -> None:
        if number in gates:
            await gates[number].wait()

    place = Called(call)
    place.begin(1, 2, 3, 4)
    await place.ended(2)
    gates[3].set()
    await place.ended(3)
    gates[2].set()
    await place.ended(4)

    assert [number for number, _ in place.ends] == [1, 4, 3, 2]
    assert len(set(place.callers)) == 3


async def test_a_call_sees_no_context_variable_that_another_one_has_set() -> None:
    """Law: a call sees the context variables of the consumer's start, not those that another call has set."""
    seen: list[str] = []

    async def call(number: int) -> None:
        seen.append(SEEN.get())
        if number == 2:
            await asyncio.sleep(0)
        SEEN.set(f"number {number}")
        place.begin(number + 1) if number in (1, 3) else None

    SEEN.set("the start")
    place = Called(call)
    place.begin(1)
    await place.ended(2)
    place.begin(3)
    await place.ended(4)

    assert seen == ["the start"] * 4
    assert SEEN.get() == "the start"


async def test_a_cancellation_reaches_no_later_call() -> None:
    """Law: a call that cancels its own task does not affect later calls."""

    async def call(number: int) -> None:
        if number == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)

    place = Called(call)
    place.begin(1, 2)
    await place.ended(2)

    assert place.ends == [(1, None), (2, None)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no eager task factory")
async def test_calls_are_made_by_tasks_that_begin_immediately() -> None:
    """Law: calls work with eager tasks, whether they wait for something or not."""
    gate = asyncio.Event()

    async def call(number: int) -> None:
        if number == 2:
            await gate.wait()

    if sys.version_info >= (3, 12):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    place = Called(call)
    place.begin(1, 2, 3)
    await place.ended(2)
    gate.set()
    await place.ended(3)

    assert place.ends == [(1, None), (3, None), (2, None)]


@pytest.mark.parametrize("error", [KeyError("a bug"), asyncio.CancelledError()], ids=repr)
async def test_a_call_that_ends_its_task_fails_alone(error: BaseException) -> None:
    async def call(number: int) -> None:
        if number == 2:
            raise error

    place = Called(call)
    place.begin(1, 2, 3)
    await place.ended(3)

    assert [number for number, _ in place.ends] == [1, 2, 3]
    assert [why is None for _, why in place.ends] == [True, False, True]


async def test_a_task_that_somebody_else_cancels_ends_its_call_and_no_other() -> None:
    """Law: cancelling a worker's task from outside ends its own call only."""
    gate = asyncio.Event()

    async def call(number: int) -> None:
        if number == 1:
            await gate.wait()

    place = Called(call, slots=1)
    place.begin(1, 2)
    await until(lambda: len(asyncio.all_tasks()) == 3)
    for task in asyncio.all_tasks():
        if task.get_name() == "Work":
            task.cancel()
    await place.ended(2)

    assert place.ends == [(1, "cancelled"), (2, None)]


async def test_nothing_is_called_without_a_slot() -> None:
    async def call(_: int) -> None:
        pass

    place = Called(call, slots=0)
    place.begin(1)
    await asyncio.sleep(0.01)
    assert not place.callers
    place.slots.release()
    await place.ended(1)


async def test_stopping_cancels_what_runs_and_posts_what_has_ended() -> None:
    """Law: stopping cancels running calls, reports ended ones, and begins no others."""
    cancelled: list[int] = []

    async def call(number: int) -> None:
        if number > 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(number)

    place = Called(call, slots=2)
    place.begin(1, 2, 3, 4)
    await until(lambda: len(place.callers) == 3)
    await place.workers.stop(5)

    assert sorted(cancelled) == [2, 3]
    assert place.ends == [(1, None)]
    assert len(asyncio.all_tasks()) == 1
