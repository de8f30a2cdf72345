"""A single lane, and how many lanes a record moves."""

import pytest

from orderlymq_broker.state.groups.lockrecords import ClientDead
from orderlymq_broker.state.lanes.lane import Lane
from orderlymq_broker.state.lanes.lanerecords import LaneFreed, LanesReturned
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    OffsetsReset,
    Record,
    Refused,
)
from tests.broker.state.lanes.world import GROUP, TOPIC, LaneWorld


def test_a_lane_owes_what_is_in_its_head_and_in_its_index() -> None:
    """Law: a lane owes the messages of its head and of its index, each counted once."""
    owed = [Lane(1, "k", head, behind=behind).owed for head in ((), (7, 9)) for behind in (0, 5)]

    assert owed == [0, 5, 2, 7]


@pytest.mark.parametrize(
    ("head", "taken", "behind", "offset", "ends"),
    [
        ((7,), 1, 0, 6, False),
        ((7,), 1, 0, 7, True),
        ((7,), 1, 0, 8, True),
        ((7, 9), 2, 0, 8, False),
        ((7, 9), 2, 0, 9, True),
        ((7, 9), 1, 0, 9, False),
        ((7, 9), 2, 3, 9, False),
        ((), 0, 0, 9, False),
    ],
)
def test_an_attempt_ends_its_lane_when_it_has_all_that_is_owed(
    head: tuple[int, ...], taken: int, behind: int, offset: int, *, ends: bool
) -> None:
    """Law: an attempt ends its lane if it holds all owed messages and completed the last of them."""
    assert Lane(1, "k", head, taken=taken, behind=behind).ends_at(offset) == ends


@pytest.mark.parametrize(
    ("record", "moved"),
    [
        (LanesReturned(GROUP, "a"), 2),
        (LanesReturned(GROUP, "b"), 0),
        (LanesReturned("other", "a"), 0),
        (ClientDead("a", "gone"), 2),
        (ClientDead("b", "gone"), 0),
        (ClientDead("a", "gone", most=1), 0),
        (LaneFreed(GROUP, TOPIC, ""), 3),
        (LaneFreed(GROUP, TOPIC, "x"), 0),
        (OffsetsReset((Commit(GROUP, TOPIC, 0, 0), Commit(GROUP, TOPIC, 1, 0))), 3),
        (OffsetsReset((Commit("other", TOPIC, 0, 0),)), 0),
        (GroupDeleted(GROUP), 0),
    ],
)
def test_a_record_that_moves_many_lanes_says_how_many(record: Record, moved: int) -> None:
    """Law: a record that moves lanes without naming them says how many; other records say 0."""
    world = LaneWorld(["x", "y", "z"])
    world.fetch(scan=2)
    world.take(world.plan("b", scan=1, ready=0, sequence=2))
    world.take(LanesReturned(GROUP, "b"))

    assert world.replica.state.lanes.moved_by(record) == moved


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (GroupSet(GROUP), "while it has 2 lanes in hand"),
        (
            GroupSet(GROUP, concurrency="Key", lane_key_property="K"),
            "while it has 4 messages left in lanes",
        ),
    ],
)
def test_a_group_that_may_not_change_yet_hears_what_is_in_the_way(
    wanted: GroupSet, says: str
) -> None:
    """Law: the refusal to change a consumer group says in plain words what must end first."""
    world = LaneWorld(["x", "y"])
    world.fetch(scan=2)

    outcome = world.take(wanted)

    assert isinstance(outcome, Refused)
    assert says in outcome.reason


def test_the_first_that_is_owed_is_that_of_the_queue_that_is_asked_about() -> None:
    """Law: first_owed answers for the queue that is asked about; a queue without owed messages has none."""
    world = LaneWorld(["x", "y"], queues=2)
    before = [world.replica.state.lanes.first_owed(TOPIC, queue) for queue in (0, 1)]
    world.fetch(scan=2)

    after = [world.replica.state.lanes.first_owed(TOPIC, queue) for queue in (0, 1)]

    assert (before, after) == ([None, None], [0, None])
