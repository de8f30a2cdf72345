import asyncio

from orderlymq_operator.kube.workqueue import RETRY_FIRST_S, WorkQueue


async def test_a_key_waits_once_however_often_it_is_added() -> None:
    """Law: a key waits once, however often it is added: a thousand events about one Cluster are one pass."""
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(1000):
        queue.add("a")
    queue.add("b")

    assert len(queue) == 2
    assert [await queue.take(), await queue.take()] == ["a", "b"]


async def test_a_key_that_is_added_while_it_is_handled_is_handled_again() -> None:
    """Law: a key that is added during its pass gets another pass, and no second worker gets it meanwhile."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.take() == "a"

    queue.add("a")
    assert len(queue) == 0
    queue.done("a")

    assert await queue.take() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_failures_come_later_and_later_and_success_forgets_them() -> None:
    """Law: failures are retried after 0.25 s, then twice as long each time, never sooner than the server asks;
    a success resets that.
    """
    queue: WorkQueue[str] = WorkQueue()
    delays = []
    for _ in range(3):
        queue.add("a")
        await queue.take()
        delays.append(queue.failed("a"))
    assert delays == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S]

    queue.add("a")
    await queue.take()
    queue.done("a")
    queue.add("a")
    await queue.take()
    assert queue.failed("a", pause_s=9) == 9


async def test_a_later_turn_gives_way_to_an_earlier_one() -> None:
    """Law: a key that is woken does not wait for its timer, and the timer adds no second pass."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0)

    async with asyncio.timeout(30):
        assert await queue.take() == "a"
    queue.done("a")

    assert len(queue) == 0
