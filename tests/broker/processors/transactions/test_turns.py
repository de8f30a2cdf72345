"""Which producers of a group the leader asks, and what it keeps of them."""

from collections.abc import Sized

import pytest

from tests.broker.processors.driver import ALICE, BOB, DAY_MS, Shell
from tests.broker.processors.halves import (
    GROUP,
    ROLLBACK,
    begin,
    end_ext,
    half_properties,
    join,
    questions,
    with_orders,
)
from tests.broker.processors.requests import properties, send, send_ext


@pytest.fixture
def orders(shell: Shell) -> Shell:
    """A leader with the ordered topic orders of two queues."""
    return with_orders(shell)


def test_halves_of_one_group_are_divided_over_its_producers(orders: Shell) -> None:
    """Law: the checks of a group are divided over its producers."""
    join(orders, client="c1", caller=ALICE)
    join(orders, client="c2", caller=BOB)
    for number in range(6):
        begin(orders, key=f"U{number}")

    for _ in range(2):
        orders.pass_time(61_000, step=1_000)
        asked = [connection for connection, _ in questions(orders)]
        assert sorted(asked) == [ALICE.connection] * 3 + [BOB.connection] * 3


def test_nothing_is_kept_of_groups_whose_halves_have_ended(orders: Shell) -> None:
    """Law: nothing is kept of groups whose half messages have all ended."""
    service = orders.core.checks
    before = {name: len(kept) for name, kept in vars(service).items() if isinstance(kept, Sized)}
    for number in range(100):
        text = half_properties(f"U{number}").replace(GROUP, f"group-{number}")
        sent = send(
            orders, props=text + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x010", f=4, caller=ALICE
        )
        half = int(sent.ext["queueOffset"]), int(sent.ext["msgId"][16:], 16)
        orders.pass_time(1_000, step=500)
        assert len(questions(orders)) == 1
        if number % 2:
            assert orders.call(37, end_ext(half, ROLLBACK, f"group-{number}")).code == 0
        # Sixty-four groups are remembered for each connection.
        orders.run(orders.core.connection_closed(ALICE.connection))

    orders.wall_ms += 4 * DAY_MS
    orders.pass_time(60_000, step=5_000)

    assert not orders.state.transactions.open
    after = {name: len(kept) for name, kept in vars(service).items() if isinstance(kept, Sized)}
    assert after == before


def test_who_is_gone_before_its_half_is_stored_is_asked_nothing(orders: Shell) -> None:
    """Law: a producer that is gone before its half message is stored is not asked, and no check is counted."""
    ext = send_ext("new", properties(TRAN_MSG="true", PGROUP=GROUP), a=GROUP)
    orders.submit(310, ext, b"paid", caller=BOB)
    orders.run(orders.core.connection_closed(BOB.connection))
    orders.settle()

    orders.pass_time(60 * 60_000, step=10_000)

    assert orders.state.transactions.open[0].checks == 0
    assert orders.core.context.sessions.senders(GROUP) == []
