"""What a leader does about proposals whose outcome is known."""

from collections import Counter
from typing import NoReturn

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.state.records import TopicSet
from tests.broker.processors.driver import Shell


class Unwalked(Counter[str]):
    """A counter that nobody goes over."""

    def items(self) -> NoReturn:
        raise AssertionError("went over all that is under way")


def test_settling_goes_over_nothing_but_what_is_settled() -> None:
    """Ten thousand creations may be under way; each is forgotten with the last change of its topic."""
    entries = Shell().core.context.entries
    entries.changing = Unwalked()
    proposals = [Propose([TopicSet("orders", count, count)]) for count in (1, 2)]
    other = Propose([TopicSet("invoices", 1, 1)])
    for proposal in (*proposals, other):
        assert entries.admit(proposal) is None

    entries.settle(proposals[:1])
    assert dict.copy(entries.changing) == {"orders": 1, "invoices": 1}
    entries.settle(proposals[1:])

    assert dict.copy(entries.changing) == {"invoices": 1}
