"""Assignments: which are kept, how many, and who gets queues that no assignment names."""

import pytest

from orderlymq_broker.state.groups.assignment import (
    ASSIGNMENTS_MAX,
    AssignmentTable,
    full_assignment,
)
from orderlymq_broker.state.records import (
    AssignmentChanged,
    AssignmentSet,
    GroupDeleted,
    Refused,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.tables import TableWrites
from tests.broker.state.entries import Replica
from tests.broker.store.memory import MemoryStore

OWNERS = (("broker-a", 0, "c1"), ("broker-a", 1, "c2"))


def test_beyond_the_bound_only_what_is_there_may_change() -> None:
    """Law: beyond the limit a new assignment is refused; existing ones can be replaced and removed."""
    table, writes = AssignmentTable(MemoryStore()), TableWrites()
    for number in range(ASSIGNMENTS_MAX):
        table.set(AssignmentSet(f"g{number}", "t", OWNERS), writes)

    refused = table.set(AssignmentSet("new", "t", OWNERS), writes)
    replaced = table.set(AssignmentSet("g0", "t", OWNERS[:1]), writes)
    nothing = table.set(AssignmentSet("new", "t", ()), writes)
    ended = table.set(AssignmentSet("g1", "t", ()), writes)
    taken = table.set(AssignmentSet("new", "t", OWNERS), writes)

    assert isinstance(refused, Refused)
    assert [replaced, nothing, ended, taken] == [
        AssignmentChanged("g0", changed=True),
        AssignmentChanged("new", changed=False),
        AssignmentChanged("g1", changed=True),
        AssignmentChanged("new", changed=True),
    ]


def test_who_said_it_is_no_part_of_an_assignment(replica: Replica) -> None:
    """Law: an equal assignment of another operator changes nothing, because the token is not part of it."""
    said = [AssignmentSet("g", "t", OWNERS, token=token) for token in (5, 6)]

    assert replica.take(*said) == [
        AssignmentChanged("g", changed=True),
        AssignmentChanged("g", changed=False),
    ]
    assert list(replica.state.assignments.rows()) == [(AssignmentSet("g", "t", OWNERS),)]


def test_an_assignment_is_found_by_its_group_and_topic(replica: Replica) -> None:
    """Law: an assignment is found by consumer group and topic together."""
    replica.take(
        AssignmentSet("g", "u", OWNERS[:1]),
        AssignmentSet("g", "t", OWNERS),
        AssignmentSet("h", "t", OWNERS[1:]),
    )
    table = replica.state.assignments

    assert table.get("g", "t") == {("broker-a", 0): "c1", ("broker-a", 1): "c2"}
    assert table.get("h", "u") is None
    assert list(table.of_group("g").items()) == [("t", OWNERS), ("u", OWNERS[:1])]
    assert table.of_group("nobody") == {}


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (GroupDeleted("g"), [("h", "t")]),
        (TopicDeleted("t"), [("g", "u")]),
        (AssignmentSet("g", "t", ()), [("g", "u"), ("h", "t")]),
    ],
)
def test_what_goes_takes_its_assignments_along(
    replica: Replica, gone: GroupDeleted | TopicDeleted, left: list[tuple[str, str]]
) -> None:
    """Law: a deleted topic or consumer group takes its own assignments with it, in memory and in the store."""
    replica.take(TopicSet("t", 2, 2), TopicSet("u", 2, 2))
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
        replica.take(AssignmentSet(group, topic, OWNERS))

    replica.take(gone)

    rows = replica.restarted().state.assignments.rows()
    assert [(row.group, row.topic) for (row,) in rows] == left


@pytest.mark.parametrize(
    ("decided", "members", "owners"),
    [
        ({}, {}, {}),
        ({0: "a"}, {"b": 1}, {0: "b", 1: "b", 2: "b"}),
        # Among members with equally few queues the newest gets one, then the next newest.
        ({}, {"old": 1, "new": 2}, {0: "new", 1: "old", 2: "new"}),
        # The member with the fewest queues gets one, whatever its age.
        ({0: "new"}, {"old": 1, "new": 2}, {0: "new", 1: "old", 2: "new"}),
        ({2: "old"}, {"old": 1, "new": 2}, {2: "old", 0: "new", 1: "new"}),
        # Members of the same age are ordered by name; assignments of queues that are gone do not count.
        ({9: "a"}, {"b": 1, "a": 1}, {0: "a", 1: "b", 2: "a"}),
    ],
)
def test_what_nobody_decided_goes_to_the_newest_of_those_with_fewest(
    decided: dict[int, str], members: dict[str, int], owners: dict[int, str]
) -> None:
    """Law: an unassigned queue goes to the newest of the members with the fewest queues.

    In a rolling restart, queues of old members would move again.
    """
    queues = [("broker-a", number) for number in range(3)]

    found = full_assignment({("broker-a", q): who for q, who in decided.items()}, queues, members)

    assert found == {("broker-a", queue): owner for queue, owner in owners.items()}
