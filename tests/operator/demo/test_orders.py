from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.demo.orders import STEPS, Ledger, Step, decode


def _step(order: str, number: int) -> Step:
    return Step("run", "producer-1", order, number)


@given(st.text(), st.text(), st.integers(0, len(STEPS) - 1))
def test_a_step_reads_back(producer: str, order: str, number: int) -> None:
    """Law: a step is decoded as it was encoded, for any names."""
    step = Step("run", producer, order, number)

    assert decode(step.encode()) == step


def test_messages_of_others_are_no_steps() -> None:
    """Law: other messages in the topic are no steps."""
    strangers = [b"", b"paid", b'{"run": 1}', b"\xff", _step("a", 9).encode()]

    assert [decode(body) for body in strangers] == [None] * len(strangers)


def test_a_ledger_counts_an_order_once_when_its_last_step_has_come() -> None:
    """Law: an order counts once, when its last step has come; redeliveries change nothing."""
    ledger = Ledger()
    last = len(STEPS) - 1

    for number in (*range(last), last, last - 1, last):
        ledger.enter(_step("a", number))
    ledger.enter(_step("b", last))
    ledger.enter(_step("c", 0))

    assert ledger.completed == 2
