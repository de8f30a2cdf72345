"""Half messages that need no answer, and those next to them."""

from orderlymq_broker.settings import StorageSettings, TimerSettings
from orderlymq_broker.state.records import Append
from orderlymq_broker.state.transactions.halfrecords import HalfGivenUp
from tests.broker.processors.driver import ALICE, BOB, Shell, settings
from tests.broker.processors.halves import begin, join, questions, with_orders


def without_producer(shell: Shell) -> None:
    shell.run(shell.core.connection_closed(ALICE.connection))
    shell.settle()


def test_a_half_that_was_asked_about_often_enough_waits_behind_none_that_nobody_answers_for() -> (
    None
):
    """Law: a half message that was checked often enough is given up even if others wait for a missing producer."""
    shell = with_orders(Shell(settings(timers=TimerSettings(transaction_check_max=1))).lead())
    begin(shell, key="U1")
    shell.pass_time(7_000)
    assert len(questions(shell)) == 1
    for number in range(3):
        begin(shell, key=f"V{number}")
    without_producer(shell)

    shell.pass_time(62_000, step=500)

    assert [half.opened.unique_key for half in shell.state.transactions.given_up.values()] == ["U1"]
    assert len(shell.state.transactions.open) == 3
    join(shell, caller=BOB)
    shell.pass_time(1_000)
    assert len(questions(shell)) == 3


def test_a_half_that_is_old_waits_behind_none_that_nobody_answers_for() -> None:
    """Law: so is one that is older than the retention time, even if it was checked late."""
    storage = StorageSettings(retention_ms=100_000)
    shell = with_orders(Shell(settings(storage=storage)).lead())
    begin(shell, key="U1", CHECK_IMMUNITY_TIME_IN_SECONDS="50")
    shell.pass_time(45_000, step=500)
    begin(shell, key="V1")
    shell.pass_time(5_500, step=500)
    assert len(questions(shell)) == 1
    without_producer(shell)

    shell.pass_time(52_000, step=500)

    assert [half.opened.unique_key for half in shell.state.transactions.given_up.values()] == ["U1"]
    assert len(shell.state.transactions.open) == 1


def test_who_waits_for_a_producer_is_not_looked_at_each_time() -> None:
    """Law: half messages without a producer are looked at rarely, because there may be a hundred thousand."""
    shell = with_orders(Shell().lead())
    begin(shell)
    without_producer(shell)
    shell.pass_time(7_000)
    heap = next(iter(shell.core.checks._due.values()))

    assert heap[0][0] > shell.wall_ms + 60_000
    before = shell.core.context.counters["transaction_checks_without_producer"]
    shell.pass_time(1_000)
    assert shell.core.context.counters["transaction_checks_without_producer"] == before + 2


def test_a_half_that_is_noted_for_two_times_is_given_up_once() -> None:
    """Law: a half message that is noted for two times (its end was under way, then lost) is given up only once."""
    shell = with_orders(Shell(settings(timers=TimerSettings(transaction_check_max=1))).lead())
    begin(shell)
    shell.pass_time(7_000)
    (half,) = shell.state.transactions.open.values()
    ending = shell.core.context.view.ending
    ending[half.offset] = []
    shell.pass_time(60_000, step=500)
    shell.core.checks.watch(half)
    del ending[half.offset]
    shell.proposed.clear()

    shell.pass_time(1_000, step=1_000)

    assert [type(each) for each in shell.proposed] == [Append, HalfGivenUp]
