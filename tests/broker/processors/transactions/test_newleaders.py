"""A new leader notes the open half messages in steps."""

from orderlymq_broker.processors.transactions.checks import NOTED_MAX
from orderlymq_broker.state.transactions.halfrecords import HalfOpened
from orderlymq_broker.state.transactions.halves import Half
from tests.broker.processors.driver import DAY_MS, Shell
from tests.broker.processors.halves import (
    COMMIT,
    GROUP,
    begin,
    end,
    join,
    questions,
    with_orders,
)


def noted(shell: Shell) -> int:
    """Return the number of notes of half messages."""
    return sum(map(len, shell.core.checks._due.values()))


def test_a_new_leader_notes_many_halves_some_at_a_time() -> None:
    """Law: a new leader notes many half messages in steps; half a million once took two seconds, in which another leader was elected.

    The same holds after the clock was set back.
    """
    shell = with_orders(Shell().lead())
    count = 2 * NOTED_MAX + 10
    for offset in range(count):
        record = HalfOpened(offset, 0, GROUP, "orders", "U", shell.wall_ms, 999_999_000)
        shell.state.transactions._add(Half(record))

    shell.lead()
    seen = [noted(shell)]
    for set_back_ms in (0, 0, DAY_MS, 0, 0):
        shell.set_clock(shell.wall_ms - set_back_ms)
        shell.pass_time(100)
        seen.append(noted(shell))

    assert seen == [NOTED_MAX, 2 * NOTED_MAX, count] * 2


def test_a_half_is_noted_once_that_is_asked_about_before_a_new_leader_comes_to_it() -> None:
    """Law: a half message that 323 asks about before its turn is noted once; one that has ended by then is not."""
    shell = with_orders(Shell().lead())
    for offset in range(1_000_000, 1_000_000 + NOTED_MAX):
        record = HalfOpened(offset, 0, "others", "orders", "U", shell.wall_ms, 999_999_000)
        shell.state.transactions._add(Half(record))
    asked, ended = begin(shell, key="U1"), begin(shell, key="U2")
    shell.pass_time(7_000)
    shell.lead()
    join(shell)

    message_id = f"C000026400002A9F{asked[1]:016X}"
    assert shell.call(323, {"topic": "orders", "msgId": message_id}).code == 0
    end(shell, ended, COMMIT)
    questions(shell)
    shell.pass_time(1_000)

    assert [question.ext["msgId"] for _, question in questions(shell)] == ["U1"]


def test_one_look_passes_over_a_limited_number_of_notes_of_ended_halves() -> None:
    """Law: one look skips a limited number of notes of ended half messages, and the next look follows soon."""
    orders = with_orders(Shell().lead())
    join(orders)
    count = 2 * NOTED_MAX
    for offset in range(1_000_000, 1_000_000 + count):
        record = HalfOpened(offset, 0, GROUP, "orders", "U", orders.wall_ms)
        orders.core.checks.watch(Half(record))
        orders.state.transactions.open_by_group[GROUP] += 1
    orders.pass_time(100)
    begin(orders, key="U1")
    orders.state.transactions.open_by_group[GROUP] = 1

    orders.wall_ms += 10_000
    seen = []
    for _ in range(2):
        orders.pass_time(100)
        seen.append(count + 1 - noted(orders))
    orders.pass_time(100)

    assert seen == [NOTED_MAX - 1, 2 * NOTED_MAX - 2]
    assert [question.ext["msgId"] for _, question in questions(orders)] == ["U1"]
