"""Key lanes: one attempt per lane, order within the lane, and the owed messages."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.groups.lockrecords import ClientDead
from orderlymq_broker.state.lanes.lane import RUN_MAX, Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    Granted,
    HandOut,
    LaneDeadLettered,
    LaneFreed,
    LaneRef,
    LanesExpired,
    LanesFetched,
    LanesReturned,
    QueueFetch,
    ReportKind,
)
from orderlymq_broker.state.records import Commit, OffsetsReset, Refused
from tests.broker.state.lanes.world import GROUP, TOPIC, LaneWorld

Make = Callable[..., LaneWorld]


@pytest.fixture
def make() -> Iterator[Make]:
    """A factory of worlds; at the end of the test their replicas are consistent and survive a restart."""
    made: list[LaneWorld] = []

    def build(keys: list[str]) -> LaneWorld:
        made.append(LaneWorld(keys))
        return made[-1]

    yield build
    for world in made:
        world.check()


def test_messages_of_one_key_come_one_after_the_other_and_other_keys_beside_them(
    make: Make,
) -> None:
    """Law: messages of a key come one after the other, in parallel to other keys;
    a lane in hand holds back only its own later messages.
    """
    world = make(["x", "x", "y", "", ""])

    first = world.fetch(scan=5)
    second = world.fetch("b")

    assert [(each.key, each.offsets) for each in first] == [
        ("x", (0,)),
        ("y", (2,)),
        ("", (3,)),
        ("", (4,)),
    ]
    assert second == ()
    assert (world.done(first[0]), world.committed) == ("done", 1)
    assert [each.offsets for each in world.fetch("b")] == [(1,)]


def test_a_lane_that_owes_nothing_has_no_state(make: Make) -> None:
    """Law: a lane whose messages are all complete has no state; only the position of the scan stays."""
    world = make(["x", "y", "x"])

    for granted in world.fetch(scan=3, take=2):
        world.done(granted)

    assert (world.queue.lanes, world.queue.owed, world.committed) == ({}, 0, 3)


def test_the_committed_offset_is_the_first_that_is_owed(make: Make) -> None:
    """Law: the committed offset is the first owed message; completions behind it count when that one is complete."""
    world = make(["x", "y", "z"])
    x, y, z = world.fetch(scan=3)

    assert (world.done(z), world.committed) == ("done", 0)
    assert (world.done(x), world.committed) == ("done", 1)
    assert (world.done(y), world.committed) == ("done", 3)


def test_what_is_said_twice_is_answered_the_same_and_changes_nothing(make: Make) -> None:
    """Law: a repeated report (done, parked, released) gets the same answer and changes nothing."""
    world = make(["x", "y", "z"])
    x, y, z = world.fetch(scan=3)

    assert [world.done(x), world.done(x)] == ["done"] * 2
    assert [world.say("a", ReportKind.RETRY, y, due_ms=9) for _ in "ab"] == ["parked"] * 2
    assert [world.say("a", ReportKind.RELEASE, z) for _ in "ab"] == ["released"] * 2
    assert world.lane("y").tries == 1


def test_a_former_holder_changes_nothing(make: Make) -> None:
    """Law: after a lane went to another member, reports of the former one are stale, for that lane only."""
    world = make(["x", "y"])
    x, y = world.fetch("a", scan=2)
    world.take(LanesExpired(GROUP, (LaneRef(TOPIC, 0, x.lane, x.attempt),)))
    (again,) = world.fetch("b")

    said = [world.done(x), *(world.say("a", each, x, 0) for each in ReportKind)]

    assert said == ["stale"] * 5
    assert again.attempt > x.attempt
    assert (world.done(again, "b"), world.done(y)) == ("done", "done")
    assert (world.done(x), world.committed) == ("done", 2)


def test_what_was_never_handed_out_is_nobodys_to_complete(make: Make) -> None:
    """Law: reports of other members or with invented numbers are stale and change no lane."""
    world = make(["x"])
    (x,) = world.fetch("a", scan=1)
    made_up = [
        Granted(0, x.lane, 99, "x", (0,), 0, 0, 0),
        Granted(0, 99, 99, "x", (0,), 0, 0, 0),
    ]

    assert [world.done(x, "b"), *map(world.done, made_up)] == ["stale"] * 3
    assert world.lane("x").state == LaneState.IN_HAND


def test_a_failed_message_parks_its_lane_from_that_message_on(make: Make) -> None:
    """Law: a failed message parks its lane; messages before it in the attempt are complete, those behind it wait."""
    world = make(["x", "x", "x", "y"])
    x, y = world.fetch(scan=4, take=3)

    assert world.say("a", ReportKind.RETRY, x, 0, due_ms=77) == "parked"

    lane = world.lane("x")
    assert (lane.state, lane.head, lane.tries, lane.due_ms) == (LaneState.PARKED, (1, 2), 1, 77)
    assert (world.done(y), world.committed) == ("done", 1)
    assert [(each.offsets, each.tries) for each in world.fetch("b", take=3)] == [((1, 2), 1)]


@pytest.mark.parametrize(
    ("policy", "state", "verdict"),
    [
        (DeadPolicy.CONTINUE, LaneState.DEAD_LETTERING, "dead"),
        (DeadPolicy.HOLD, LaneState.HELD, "held"),
        (DeadPolicy.STOP, LaneState.PARKED, "parked"),
    ],
)
def test_after_as_many_tries_as_the_group_allows_the_policy_decides(
    make: Make, policy: DeadPolicy, state: LaneState, verdict: str
) -> None:
    """Law: after the maximum of tries, Continue makes a dead letter, HoldKey holds the lane,
    and StopQueue stops the queue and tries for ever.
    """
    world = make(["x"])
    (first,) = world.fetch(scan=1)
    said = [world.say("a", ReportKind.RETRY, first, tries_max=2, policy=policy)]
    (second,) = world.fetch()
    said.append(world.say("a", ReportKind.RETRY, second, tries_max=2, policy=policy))

    assert said == ["parked", verdict]
    assert world.lane("x").state == state
    assert world.queue.stopping == (policy == DeadPolicy.STOP)


def test_nothing_is_held_for_a_message_without_a_key(make: Make) -> None:
    """Law: a failed message without a key holds nothing; under HoldKey it becomes a dead letter immediately."""
    world = make([""])
    (alone,) = world.fetch(scan=1)

    assert world.say("a", ReportKind.RETRY, alone, tries_max=1, policy=DeadPolicy.HOLD) == "dead"


def test_a_dead_letter_lets_its_lane_go_on_once_it_is_stored(make: Make) -> None:
    """Law: a lane with a dead letter waits until that letter is stored; a record about another message changes nothing."""
    world = make(["x", "x"])
    (x,) = world.fetch(scan=2)
    world.say("a", ReportKind.RETRY, x, tries_max=1)
    assert world.fetch() == ()

    world.take(LaneDeadLettered(GROUP, TOPIC, 0, x.lane, 1))
    assert world.committed == 0
    world.take(LaneDeadLettered(GROUP, TOPIC, 0, x.lane, 0))
    world.take(LaneDeadLettered(GROUP, TOPIC, 0, x.lane, 0))

    assert world.committed == 1
    assert [(each.offsets, each.tries) for each in world.fetch()] == [((1,), 0)]


@pytest.mark.parametrize("skip", [False, True])
def test_an_administrator_frees_a_held_lane(make: Make, *, skip: bool) -> None:
    """Law: an administrator's retry hands a held message out again with all its tries; a skip makes it a dead letter."""
    world = make(["x", "y"])
    x, y = world.fetch(scan=2)
    world.say("a", ReportKind.RETRY, x, tries_max=1, policy=DeadPolicy.HOLD)
    assert world.fetch() == ()

    world.take(LaneFreed(GROUP, TOPIC, "x", skip))

    lane = world.lane("x")
    assert lane.state == (LaneState.DEAD_LETTERING if skip else LaneState.READY)
    assert lane.tries == (1 if skip else 0)
    assert world.queue.attempt_of(y.lane, y.attempt) is not None


def test_renewal_keeps_the_attempt_and_what_is_complete(make: Make) -> None:
    """Law: a renewal keeps the attempt and stores the messages completed so far;
    they do not come again if the member dies.
    """
    world = make(["x", "x", "x"])
    (x,) = world.fetch(scan=3, take=3)

    assert world.say("a", ReportKind.RENEW, x, 1) == "renewed"
    assert world.committed == 2
    world.take(ClientDead("a", "gone"))

    assert [each.offsets for each in world.fetch("b", take=3)] == [(2,)]


@pytest.mark.parametrize(
    "record", [ClientDead("a", "gone"), LanesReturned(GROUP, "a")], ids=["dead", "leaves"]
)
def test_a_member_that_goes_costs_its_own_lanes(make: Make, record: ClientDead) -> None:
    """Law: the lanes of a member that leaves are handed out again from their first message; others keep theirs."""
    world = make(["x", "y", "z"])
    x, y = world.fetch("a", scan=2)
    (z,) = world.fetch("b", scan=1)
    world.done(y)

    world.take(record)

    assert [each.offsets for each in world.fetch("b")] == [(0,)]
    assert world.queue.attempt_of(z.lane, z.attempt) is not None
    assert not world.replica.state.lanes.holds(GROUP, "a")
    assert world.done(x) == "stale"


def test_the_backlog_of_a_busy_lane_is_on_disk(make: Make) -> None:
    """Law: memory holds one run of a lane's backlog; the rest is read from the store run by run, in order."""
    count = 3 * RUN_MAX + 5
    world = make(["x"] * count)
    (x,) = world.fetch(scan=count)
    assert (len(world.lane("x").head), world.lane("x").behind) == (RUN_MAX, count - RUN_MAX)
    world.done(x)

    seen = [0]
    while world.queue.lanes:
        (granted,) = world.fetch(take=32)
        seen += granted.offsets
        world.done(granted)

    assert seen == list(range(count))
    assert world.committed == count
    assert world.runs(x.lane) == []


def test_what_is_gone_from_the_store_is_passed_over(make: Make) -> None:
    """Law: a lane skips messages that are no longer stored."""
    world = make(["x", "x", "x"])
    (x,) = world.fetch(scan=3)
    world.say("a", ReportKind.RELEASE, x)
    gone = HandOut(x.lane, 0, gone=2)

    world.take(LanesFetched(GROUP, TOPIC, "a", 2, 1_000, (QueueFetch(0, 3, 3, (gone,)),)))

    assert (world.lane("x").head, world.committed) == ((2,), 2)


def test_a_fetch_from_another_place_of_the_scan_is_void(make: Make) -> None:
    """Law: a fetch planned for another position of the scan is refused, so that messages are handed out once."""
    world = make(["x", "y"])
    plan = world.plan("a", scan=2)
    world.take(plan)

    assert isinstance(world.take(plan), Refused)
    assert world.queue.scanned == 2


@pytest.mark.parametrize("offset", [0, 2])
def test_a_reset_leaves_a_lane_in_hand_until_its_attempt_ends(make: Make, offset: int) -> None:
    """Law: a reset leaves a lane in hand to its member until the attempt ends; nobody else gets that key."""
    world = make(["x", "y", "x"])
    x, y = world.fetch(scan=3)
    world.done(y)

    world.take(OffsetsReset((Commit(GROUP, TOPIC, 0, offset),)))

    found = [(each.key, each.offsets) for each in world.fetch("b", scan=3)]
    assert found == ([("y", (1,))] if offset == 0 else [])
    assert world.say("a", ReportKind.RENEW, x) == "renewed"
    assert world.done(x) == "done"
    assert [each.offsets for each in world.fetch("b")] == [(offset,)]


def test_parked_lanes_are_due_when_they_were_said_to_be(make: Make) -> None:
    """Law: only lanes that are due are looked at, however many are due later; a restart changes nothing."""
    world = make([f"k{number}" for number in range(100)])
    lanes = world.fetch(scan=100)
    for number, lane in enumerate(lanes):
        assert world.say("a", ReportKind.RETRY, lane, due_ms=100 - number) == "parked"
    again = world.replica.restarted().state.lanes.queues_of(GROUP, TOPIC)[0]

    for queue in (world.queue, again):
        looked_at = Lookups(queue.lanes)
        queue.lanes = looked_at
        assert sorted(lane.key for lane in queue.due(2)) == ["k98", "k99"]
        assert set(looked_at.keys_asked) == {lanes[number].lane for number in (98, 99)}
        assert queue.due(0) == []


class Lookups(dict[int, Lane]):
    """Lanes that record which of them are looked up."""

    def __init__(self, lanes: dict[int, Lane]) -> None:
        super().__init__(lanes)
        self.keys_asked: list[int] = []

    def get(self, key: int, default: Any = None) -> Any:
        self.keys_asked.append(key)
        return super().get(key, default)
