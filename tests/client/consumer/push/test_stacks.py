"""A consumer reports the stacks of its threads and tasks."""

import asyncio
import threading

from orderlymq.consumer.push.stacks import LENGTH_MAX, stacks


async def test_threads_and_tasks_are_reported_with_their_names_and_calls() -> None:
    """Law: the report has the stacks of threads and tasks by name, so that a hanging listener is found."""
    goes_on = threading.Event()

    def hang_in_a_thread() -> None:
        goes_on.wait()

    async def hang_in_a_task() -> None:
        await asyncio.Event().wait()

    thread = threading.Thread(target=hang_in_a_thread, name="ConsumeMessageThread-1")
    thread.start()
    task = asyncio.create_task(hang_in_a_task(), name="listener of orders")
    await asyncio.sleep(0)

    text = stacks()
    goes_on.set()
    thread.join()
    task.cancel()

    assert "thread ConsumeMessageThread-1, id" in text
    assert "in hang_in_a_thread" in text
    assert "task listener of orders" in text
    assert "in hang_in_a_task" in text
    assert len(text) <= LENGTH_MAX


def test_without_a_loop_only_threads_are_reported() -> None:
    lines = stacks().splitlines()

    assert any(line.startswith("thread MainThread, id") for line in lines)
    assert not any(line.startswith("task ") for line in lines)
