"""Assignments of queues to members, and how wrong ownership is found."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.plan.assignment import (
    ORPHAN_MS,
    AssignmentInput,
    AssignmentState,
    Examination,
    Holding,
    Member,
    Strategy,
    assign_queues,
    examine,
)
from orderlymq_protocol.body.messagequeue import MessageQueue

ALL: tuple[Strategy, ...] = (
    "Averagely",
    "AveragelyByCircle",
    "ConsistentHash",
    "Sticky",
    "Zone",
)
STICKY: tuple[Strategy, ...] = ("Sticky", "Zone")


def queues(count: int, groups: int = 2) -> list[MessageQueue]:
    return sorted(MessageQueue("orders", f"g{n % groups}", n // groups) for n in range(count))


def members(*names: str) -> list[Member]:
    return [Member(name) for name in names]


def aged(names: list[str], since: list[str]) -> list[Member]:
    """Return members that joined one after the other, as *since* says."""
    return [Member(name, since_ms=since.index(name)) for name in names]


def moved(before: dict[MessageQueue, str], after: dict[MessageQueue, str]) -> list[MessageQueue]:
    """Return the queues that changed to another owner."""
    return [queue for queue, owner in after.items() if before.get(queue, owner) != owner]


@given(st.sampled_from(ALL), st.integers(0, 20), st.integers(1, 8), st.randoms())
def test_every_queue_has_exactly_one_living_owner(
    strategy: Strategy, count: int, size: int, random: Random
) -> None:
    """Law: every queue has exactly one living owner, whatever was before,
    and the same input in any order gives the same result.
    """
    found = queues(count)
    group = members(*(f"m{number}" for number in range(size)))
    names = [member.client_id for member in group] + ["gone1", "gone2"]
    present = {queue: random.choice(names) for queue in found if random.random() < 0.7}
    division = AssignmentInput(found, group, present)

    owners = assign_queues(strategy, "billing", division)

    assert owners.keys() == set(found)
    assert set(owners.values()) <= {member.client_id for member in group}
    shuffled = AssignmentInput(random.sample(found, count), random.sample(group, size), present)
    assert assign_queues(strategy, "billing", shuffled) == owners
    again = AssignmentInput(found, group, owners)
    assert assign_queues(strategy, "billing", again) == owners, (
        "nothing moves when nothing has changed"
    )


@given(st.integers(1, 24), st.integers(1, 8), st.randoms())
def test_a_calm_group_shares_evenly(count: int, size: int, random: Random) -> None:
    """Law: in a calm group shares differ by at most one (Sticky), and no more queues move than necessary."""
    found = queues(count)
    group = members(*(f"m{number}" for number in range(size)))
    present = {queue: random.choice(group).client_id for queue in found}

    owners = assign_queues("Sticky", "billing", AssignmentInput(found, group, present))

    loads = Counter({member.client_id: 0 for member in group}) + Counter(owners.values())
    shares = [loads[member.client_id] for member in group]
    assert max(shares) - min(shares) <= 1
    before = Counter(present.values())
    surplus = sum(max(0, load - -(-count // size)) for load in before.values())
    lack = sum(max(0, count // size - before[member.client_id]) for member in group)
    assert len(moved(present, owners)) == max(surplus, lack)


@given(
    st.sampled_from(STICKY),
    st.integers(1, 24),
    st.integers(1, 6),
    st.integers(1, 3),
    st.permutations(("a", "b")),
)
def test_a_rolling_restart_moves_each_queue_at_most_once(
    strategy: Strategy, count: int, size: int, surge: int, prefixes: list[str]
) -> None:
    """Law: in a rolling restart (new pods before old ones end) each queue moves at most once,
    whatever the pods' names are.
    """
    found = queues(count)
    former, latter = prefixes
    old = [f"{former}{number}" for number in range(size)]
    fresh = [f"{latter}{number}" for number in range(size)]
    since = old + fresh
    alive = list(old)
    owners = assign_queues(strategy, "billing", AssignmentInput(found, aged(alive, since)))
    moves: Counter[MessageQueue] = Counter()

    def settle() -> None:
        nonlocal owners
        after = assign_queues(
            strategy, "billing", AssignmentInput(found, aged(alive, since), owners, calm=False)
        )
        moves.update(moved(owners, after))
        owners = after

    while old:
        wave, fresh = fresh[:surge], fresh[surge:]
        alive += wave
        settle()
        for _ in wave:
            alive.remove(old.pop(0))
            settle()
    calm = assign_queues(strategy, "billing", AssignmentInput(found, aged(alive, since), owners))

    assert max(moves.values(), default=0) <= 1
    assert moved(owners, calm) == [], "and the end is even already"


def test_a_zone_takes_its_own_queues_first() -> None:
    """Law: a zone's members get its queues, all share zones without members, and a queue goes back home only in calm."""
    found = queues(8)
    group = [Member("a", "west"), Member("b", "west"), Member("c", "east")]
    zones = {"g0": "west", "g1": "east"}

    owners = assign_queues("Zone", "billing", AssignmentInput(found, group, zones=zones))
    by_zone = {queue.broker_name: set() for queue in found}  # type: dict[str, set[str]]
    for queue, owner in owners.items():
        by_zone[queue.broker_name].add(owner)
    assert by_zone == {"g0": {"a", "b"}, "g1": {"c"}}

    without = assign_queues(
        "Zone", "billing", AssignmentInput(found, group[:2], owners, zones, calm=False)
    )
    assert set(without.values()) == {"a", "b"}
    busy = AssignmentInput(found, group, without, zones, calm=False)
    assert assign_queues("Zone", "billing", busy) == without
    assert assign_queues("Zone", "billing", AssignmentInput(found, group, without, zones)) == owners


def test_an_empty_group_keeps_its_last_owners_in_mind() -> None:
    """Law: members of an empty group that come back get their former queues."""
    found = queues(4)
    before = assign_queues("Sticky", "billing", AssignmentInput(found, members("a", "b")))
    nobody = assign_queues("Sticky", "billing", AssignmentInput(found, [], before))

    assert (
        assign_queues("Sticky", "billing", AssignmentInput(found, members("a", "b"), nobody))
        == before
    )


# -- what is wrong -------------------------------------------------------------------------------------


def look(
    holders: dict[int, str], *names: str, for_ms: int = ORPHAN_MS, **more: object
) -> Examination:
    """Examine an ordered group with four queues in one raft group."""
    found = queues(4, 1)
    holdings = {found[n]: Holding(holder, for_ms) for n, holder in holders.items()}
    fields: dict[str, object] = {"members": {"g0": members(*names)}, **more}
    return examine(AssignmentState(True, queues=found, holdings=holdings, **fields))  # type: ignore[arg-type]  # made of names


def test_a_group_in_which_every_queue_has_a_holder_and_nobody_else_asks_is_left_alone() -> None:
    """Law: if each queue has a holder and nobody else asks for it, the group is left alone,
    however unequal the shares are.
    """
    assert look({0: "a", 1: "b", 2: "b", 3: "b"}, "a", "b") == Examination()
    assert not look({0: "a", 1: "b", 2: "b", 3: "b"}, "a", "b").notify


def test_a_queue_that_nobody_has_is_found_and_the_group_notified() -> None:
    """Law: a queue without a holder is found and the group notified, but only after the time of a hand-over."""
    holders = {0: "a", 1: "", 2: "b", 3: "b"}

    assert look(holders, "a", "b") == Examination(orphans=(queues(4, 1)[1],))
    assert look(holders, "a", "b").notify
    assert not look(holders, "a", "b", for_ms=1_000).notify


def test_a_queue_that_was_refused_to_a_member_for_long_is_found() -> None:
    """Law: a queue that a living member was refused for long is found; refusals to members that are gone do not count."""
    second = queues(4, 1)[1]
    holders = {0: "a", 1: "b", 2: "b", 3: "b"}

    assert look(holders, "a", "b", wanted={second: "a"}) == Examination(contended=((second, "a"),))
    assert not look(holders, "a", "b", wanted={second: "a"}, for_ms=1_000).notify
    assert not look(holders, "a", "b", wanted={second: "gone"}).notify


def test_a_decision_is_what_members_that_ask_should_have() -> None:
    """Law: a member that holds a queue decided for another one is found, and should look again."""
    first = queues(4, 1)[0]
    found = look({0: "a", 1: "a", 2: "b", 3: "b"}, "a", "b", decided={first: "b"})

    assert found.contended == ((first, "b"),)


def test_a_holder_that_is_no_member_is_left_to_its_lease() -> None:
    """Law: a queue held by a client outside the group is left to its lease; notifying members would not help."""
    found = look({0: "a", 1: "a", 2: "gone", 3: "a"}, "a", decided={queues(4, 1)[2]: "a"})

    assert not found.notify


def test_raft_groups_that_see_other_members_are_named() -> None:
    """Law: raft groups that know other members than the rest are named, except for members that read no topic there."""
    reading = frozenset({("orders", "*")})
    a, b = (replace(member, subscriptions=reading) for member in members("a", "b"))
    views = {"g0": [a, b], "g1": [a], "g2": []}
    topics = {"g0": {"orders"}, "g1": {"orders", "fees"}, "g2": {"fees"}}
    found = examine(AssignmentState(False, views, queues(4), topics=topics))

    assert (found.parted, found.notify) == (("g1",), True)
    fewer = AssignmentState(False, {"g0": [a], "g2": []}, queues(4), topics=topics)
    assert examine(fewer) == Examination()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_group_with_nobody_online_is_left_alone(ordered: bool) -> None:
    """Law: a group without members is left alone; nobody can be notified."""
    assert examine(AssignmentState(ordered, {"g0": []}, queues(4))) == Examination()
