from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.demo.orders import STEPS, Ledger, Step, decode


def _step(order: str, number: int) -> Step:
    return Step("run", "producer-1", order, number)


@given(st.text(), st.text(), st.integers(0, len(STEPS) - 1))
def test_a_step_reads_back(producer: str, order: str, number: int) -> None:
    """Whatever the names are."""
    step = Step("run", producer, order, number)

    assert decode(step.encode()) == step


def test_messages_of_others_are_no_steps() -> None:
    """The topic may hold anything."""
    strangers = [b"", b"paid", b'{"run": 1}', b"\xff", _step("a", 9).encode()]

    assert [decode(body) for body in strangers] == [None] * len(strangers)


def test_a_ledger_sees_an_order_through() -> None:
    """Every step in its turn, completed with the last one."""
    ledger = Ledger()

    turns = [ledger.enter(_step("a", number)) for number in range(len(STEPS))]

    assert (turns, ledger.completed, ledger.out_of_turn) == ([True] * len(STEPS), 1, 0)


def test_a_ledger_notices_a_step_out_of_turn_and_forgives_a_redelivery() -> None:
    """A repeat changes nothing, a gap is counted, an order may begin elsewhere."""
    ledger = Ledger()

    turns = [ledger.enter(_step("a", number)) for number in (2, 3, 2, 3)]
    gap = [ledger.enter(_step("b", number)) for number in (0, 2)]

    assert (turns, gap, ledger.out_of_turn) == ([True] * 4, [True, False], 1)
