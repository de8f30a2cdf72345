"""Busy threads of a listener: those of its group that do not wait in their pool."""

import pytest

from orderlymq_console.models import Figure, MemberPage
from orderlymq_console.threads import busy_threads

JAVA = """\
main                                     TID: 1 STATE: RUNNABLE
main                                     com.example.App.main(App.java:9)

ConsumeMessageThread_billing_1           TID: 41 STATE: WAITING
ConsumeMessageThread_billing_1           sun.misc.Unsafe.park(Native Method)
ConsumeMessageThread_billing_1           java.util.concurrent.LinkedBlockingQueue.take(LinkedBlockingQueue.java:442)
ConsumeMessageThread_billing_1           java.util.concurrent.ThreadPoolExecutor.getTask(ThreadPoolExecutor.java:1074)

ConsumeMessageThread_billing_2           TID: 42 STATE: TIMED_WAITING
ConsumeMessageThread_billing_2           java.lang.Thread.sleep(Native Method)
ConsumeMessageThread_billing_2           com.example.Listener.consumeMessage(Listener.java:17)

ConsumeMessageThread_billing_eu_1        TID: 43 STATE: RUNNABLE
ConsumeMessageThread_billing_eu_1        com.example.Listener.consumeMessage(Listener.java:17)
"""
OLDER_JAVA = JAVA.replace("billing_eu_", "").replace("billing_", "")
POOL = '  File "/usr/lib/python3.11/concurrent/futures/thread.py", line {}, in {}\n    call\n'
PYTHON = f"""\
thread MainThread, id 1
  File "/app.py", line 3, in <module>

thread ConsumeMessageThread-billing_0, id 41
{POOL.format(81, "_worker")}
thread ConsumeMessageThread-billing_1, id 42
{POOL.format(83, "_worker")}{POOL.format(58, "run")}  File "/app.py", line 9, in charge
    wait()

task Task-1
  File "/app.py", line 3, in main
"""


@pytest.mark.parametrize(
    ("stacks", "group", "busy"),
    [
        (JAVA, "billing", 1),
        (JAVA, "billing_eu", 1),
        (OLDER_JAVA, "billing", 2),
        (PYTHON, "billing", 1),
    ],
)
def test_threads_that_wait_for_work_are_not_busy(stacks: str, group: str, busy: int) -> None:
    """Law: threads that wait for work are not busy, and only the group's own count;
    older clients do not distinguish groups.
    """
    assert busy_threads(stacks, group, is_cut=False) == Figure(value=busy)


def test_without_threads_of_a_listener_their_number_is_unknown() -> None:
    """Law: without known listener threads (coroutines, another language, cut stacks) their number is unknown."""
    assert busy_threads(PYTHON, "shipping", is_cut=False).unknown
    assert busy_threads("", "billing", is_cut=False).unknown
    assert busy_threads(PYTHON, "billing", is_cut=True) == Figure(value=1, at_least=True)


@pytest.mark.parametrize(
    ("threads", "busy", "is_saturated"),
    [
        (2, Figure(value=2), True),
        (2, Figure(value=1), False),
        (2, Figure(unknown="-"), False),
        (None, Figure(value=9), False),
    ],
)
def test_messages_wait_when_each_thread_is_at_work(
    threads: int | None, busy: Figure, is_saturated: bool
) -> None:
    """Law: a member is saturated only if all of its threads are known to be busy."""
    page = MemberPage(group="billing", client_id="a", threads=threads, busy=busy)

    assert page.is_saturated is is_saturated
