"""Owned tasks: any end but that by their owner is logged and reported."""

import asyncio
import gc
import weakref

import pytest

from orderlymq import ownedtasks
from orderlymq.consumer.core.events import (
    AskLocks,
    DeadLetter,
    Deliver,
    FindStart,
    ListenerDone,
    LocksFailed,
    Persist,
    Pull,
    PullFailed,
    SendBack,
    SendBackResult,
    StartFailed,
    failure,
)
from orderlymq.ownedtasks import OwnedTasks, Shutdown
from tests.client.messages import QUEUE, message


class Bare(BaseException):
    """An exception outside the usual hierarchy."""


async def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError(), Bare()], ids=repr)
async def test_a_caller_that_waits_learns_how_a_task_ended(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a task that raises, or that another one cancels, is logged with its name and reported once."""
    owned, told = OwnedTasks(), list[BaseException]()

    task = owned.start(raising(error), "some work", told.append)
    await asyncio.wait([task])
    await asyncio.sleep(0)

    assert len(told) == 1
    assert "some work" in caplog.text


async def test_nobody_is_notified_when_a_task_returns_or_its_owner_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a task that returns, or that its owner ends, is not reported."""
    owned, told = OwnedTasks(), list[BaseException]()

    done = owned.start(asyncio.sleep(0), "done", told.append)
    stopped = owned.start(asyncio.sleep(9), "stopped", told.append)
    cancelled = owned.start(asyncio.sleep(9), "cancelled", told.append)
    owned.stop(stopped)
    await asyncio.wait([done, stopped])
    await owned.cancel()
    await asyncio.sleep(0)

    assert cancelled.cancelled()
    assert told == []
    assert caplog.text == ""


async def test_a_task_that_has_ended_is_not_kept_when_it_is_stopped() -> None:
    """Law: a task that has ended is not kept when it is stopped."""
    owned = OwnedTasks()
    task = owned.start(asyncio.sleep(0), "pull")
    await asyncio.wait([task])
    ended = weakref.ref(task)

    owned.stop(task)
    del task
    gc.collect()

    assert ended() is None


async def test_what_is_kept_begins_again_however_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a kept task starts again however it ended, until its owner ends it."""
    monkeypatch.setattr(ownedtasks, "RESTART_S", 0.0)
    owned, enough = OwnedTasks(), asyncio.Event()
    ends = [ValueError("no"), asyncio.CancelledError(), Bare()]

    async def work() -> None:
        if not ends:
            enough.set()
            await asyncio.Event().wait()
        raise ends.pop()

    owned.keep(work, "rebalance")
    async with asyncio.timeout(30):
        await enough.wait()
    await owned.cancel()

    ends.append(ValueError("again"))
    monkeypatch.setattr(ownedtasks, "RESTART_S", 60.0)
    task = owned.keep(work, "rebalance")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    await owned.cancel()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("within_s", [None, 1.0])
async def test_what_fails_right_before_its_owner_ends_it_does_not_begin_again(
    monkeypatch: pytest.MonkeyPatch, within_s: float | None
) -> None:
    """Law: a task that fails right before its owner ends it does not start again."""
    monkeypatch.setattr(ownedtasks, "RESTART_S", 0.0)
    owned = OwnedTasks()

    task = owned.keep(lambda: raising(ValueError("no")), "rebalance")
    await asyncio.sleep(0)
    assert (task.done(), len(owned)) == (True, 1)
    await owned.cancel(within_s)
    await asyncio.sleep(0.01)

    assert len(owned) == 0
    assert owned._restarts == {}


def test_every_instruction_that_awaits_an_answer_has_one_for_its_failure() -> None:
    """Law: every instruction of a core that needs an answer has one for its failure."""
    one, pull = message(5), Pull(QUEUE, 1, 0, None, None)
    deliver, letter = Deliver(QUEUE, 1, 7, (one,), 3), DeadLetter(QUEUE, 1, one, 16, 3)

    assert failure(pull, "why") == PullFailed(QUEUE, 1, "why")
    assert failure(deliver, "why") == ListenerDone(QUEUE, 1, 7, None, "why")
    assert failure(AskLocks((QUEUE,)), "why") == LocksFailed((QUEUE,), "why")
    assert failure(FindStart(QUEUE, 1), "why") == StartFailed(QUEUE, 1, "why")
    assert failure(SendBack(QUEUE, 1, one, 0), "why") == SendBackResult(QUEUE, 1, 5, False, "why")
    assert failure(letter, "why") == SendBackResult(QUEUE, 1, 5, False, "why", letter.presumed)
    assert failure(Persist(QUEUE, None), "why") is None


async def test_a_shutdown_is_done_once_and_outlives_who_waits_for_it() -> None:
    """Law: a shutdown runs once and outlives a cancelled caller; all callers get the same end and error."""
    shutdown, goes_on, ended = Shutdown(), asyncio.Event(), list[str]()

    async def work() -> None:
        await goes_on.wait()
        ended.append("once")
        raise ValueError("no")

    await shutdown.wait()  # There is nothing to wait for yet.
    shutdown.begin(work(), "end of it")
    waits = [asyncio.create_task(shutdown.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.wait(waits[:1])
    goes_on.set()
    outcomes = await asyncio.gather(*waits, return_exceptions=True)

    assert [type(each) for each in outcomes] == [asyncio.CancelledError, ValueError, ValueError]
    assert ended == ["once"]
