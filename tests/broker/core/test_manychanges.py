"""Many changes at once: of what is under way, in one record, and in one entry."""

from collections import Counter, deque
from typing import NoReturn

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import ENTRY_CHANGES_USUAL, in_pieces, next_group
from orderlymq_broker.state.groups.lockrecords import LocksRequested
from orderlymq_broker.state.lanes.lanerecords import (
    Found,
    HandOut,
    LaneRef,
    LanesExpired,
    LanesFetched,
    LanesReported,
    QueueFetch,
    Report,
    Said,
)
from orderlymq_broker.state.records import Commit, OffsetsCommitted, Record, TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create


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


MANY = ENTRY_CHANGES_USUAL // 4
REPORTED = LanesReported("g", "t", "c", (Report(0, 1, 2, Said.DONE),) * MANY)
FOUND = QueueFetch(0, 0, MANY, (HandOut(1, 1),) * (MANY // 2), (Found("", (0,), 1),) * (MANY // 2))


@pytest.mark.parametrize(
    "record",
    [
        REPORTED,
        LanesFetched("g", "t", "c", 1, 5_000, (FOUND,)),
        LocksRequested("g", "c", "h:1", 5_000, (("t", 0),) * MANY),
        OffsetsCommitted((Commit("g", "t", 0, 1),) * MANY),
    ],
)
def test_an_entry_has_so_many_changes_and_no_more_be_they_in_few_records(record: Record) -> None:
    """A replica applies it in one go, and is heard of by nobody meanwhile."""
    shell = Shell().lead()
    proposals = [Propose([record]) for _ in range(10)]
    for proposal in proposals:
        assert shell.core.context.entries.admit(proposal) is None
    collected = deque(proposals)

    groups = [len(next_group(collected)) for _ in range(3)]

    assert (groups, len(collected)) == ([4, 4, 2], 0)


def test_works_of_many_changes_are_cut_into_pieces_of_an_entry() -> None:
    """Leases of thousands of lanes end together."""
    expired = LanesExpired("g", (LaneRef("t", 0, 1, 2),) * ENTRY_CHANGES_USUAL)

    pieces = in_pieces([expired, expired, REPORTED, REPORTED])

    assert pieces == [Propose([expired]), Propose([expired]), Propose([REPORTED, REPORTED])]


def test_a_replica_counts_what_it_applies_by_its_changes() -> None:
    """A turn of its loop ends behind so many."""
    shell = Shell().lead()
    before = shell.machine.changes

    create(shell, REPORTED, TopicSet("t", 1, 1))

    assert shell.machine.changes - before == MANY + 1
