"""A leader answers what its raft group has confirmed, however slow the links are."""

import math
from collections.abc import Iterator

import pytest

from tests.broker.replication.simulation import (
    ELECTION_S,
    TICK_S,
    SimulatedGroup,
    others,
    outcomes,
    propose,
)


@pytest.fixture
def group() -> Iterator[SimulatedGroup]:
    """Return three replicas; at the end their states agree and their invariants hold."""
    made = SimulatedGroup()
    yield made
    made.check()


@pytest.mark.parametrize("round_trip_s", [0.175, 0.25, 0.4, 0.8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_group_with_slow_links_elects_answers_and_keeps_its_leader(
    round_trip_s: float, seed: int
) -> None:
    """Law: with round trips longer than lease and election time-out, a raft group elects, answers and keeps its leader."""
    group = SimulatedGroup(seed=seed)
    group.way_s = lambda sender, target: round_trip_s / 2
    leader = group.elect(within_s=30.0)
    term = leader.node.term

    proposals = propose(leader, "a")
    number = leader.loop.request_confirmation()
    assert not leader.loop.is_confirmed(number)
    group.pass_time(2 * round_trip_s + 4 * TICK_S)

    assert not leader.loop.may_answer(), "the lease is over before the answers that would extend it"
    assert leader.loop.is_confirmed(number)
    assert outcomes(proposals) == ["applied"]
    group.pass_time(10.0)
    assert {each.node.term for each in group.replicas.values()} == {term}

    group.cut = {leader.id}
    group.pass_time(30.0)
    assert [each.id for each in others(group, leader) if each.loop.serving]
    assert not leader.loop.serving
    group.check()


def test_uneven_links_keep_their_leader(group: SimulatedGroup) -> None:
    """Law: a raft group keeps its leader if some links are slow, as long as its nearest majority is near."""
    group.way_s = lambda sender, target: 0.2 if 3 in {sender, target} else 0.05
    leader = group.elect(within_s=20.0)
    term = leader.node.term

    group.pass_time(10.0)

    assert {each.node.term for each in group.replicas.values()} == {term}


def test_links_that_become_slow_cost_one_election(group: SimulatedGroup) -> None:
    """Law: links that become slow cost one election; the next leader stays."""
    term = group.elect().node.term
    group.way_s = lambda sender, target: 0.2
    group.pass_time(20.0)
    settled = {each.node.term for each in group.replicas.values()}
    group.pass_time(10.0)

    assert {each.node.term for each in group.replicas.values()} == settled
    assert [each for each in group.replicas.values() if each.loop.serving]
    assert settled == {term + 1}


def test_a_confirmation_covers_only_what_came_before_its_round(group: SimulatedGroup) -> None:
    """Law: heartbeats confirm only requests that arrived before they were sent."""
    leader = group.elect()
    group.way_s = lambda sender, target: 3.5 * TICK_S
    group.pass_time(TICK_S)
    first = leader.loop.request_confirmation()
    assert leader.loop.request_confirmation() == first, "one round serves what comes together"
    group.step()
    second = leader.loop.request_confirmation()
    third = leader.loop.request_confirmation()
    assert second == third == first + 1, "the next round serves all that came after the first left"

    group.run()
    group.pass_time(8 * TICK_S)
    assert (leader.loop.is_confirmed(first), leader.loop.is_confirmed(second)) == (True, False)
    group.pass_time(2 * TICK_S)
    assert leader.loop.is_confirmed(second)


def test_a_leader_that_was_replaced_confirms_nothing(group: SimulatedGroup) -> None:
    """Law: without a lease, a leader answers only if it still led after the request; a replaced one confirms nothing."""
    leader = group.elect()
    group.cut = {leader.id}
    number = leader.loop.request_confirmation()
    group.pass_time(4 * ELECTION_S)
    group.cut = set()
    group.pass_time(2 * ELECTION_S)

    assert not leader.loop.is_confirmed(number)
    assert any(each.loop.serving for each in others(group, leader))


@pytest.mark.parametrize("stall_ticks", [1, 2, 3, 3.9, 10])
def test_a_voter_that_stood_still_sticks_as_long_as_the_lease_that_rests_on_it(
    group: SimulatedGroup, stall_ticks: float
) -> None:
    """Law: a voter that stood still sticks to its leader as long as the lease lasts,
    even if it reads a heartbeat before it makes up its ticks.
    """
    leader = group.elect()
    voter, rival = others(group, leader)
    apart = {leader.id, rival.id}
    group.way_s = lambda sender, target: math.inf if apart == {sender, target} else 0.0
    group.pass_time(4 * ELECTION_S)

    group.pass_time(int(stall_ticks) * TICK_S, paused=[voter.id])
    voter.clock.at_s += stall_ticks % 1 * TICK_S
    leader.loop.request_confirmation()
    group.run()
    voter.loop.tick()
    group.way_s = lambda sender, target: math.inf if leader.id in {sender, target} else 0.0
    leading = []
    for _ in range(10):
        rival.node.campaign()
        group.pass_time(TICK_S)
        leading.append((leader.loop.may_answer(), rival.node.is_leader))

    assert (True, True) not in leading, leading
    assert leading[4] == (True, False), "it could lead too early"
    assert leading[-1] == (False, True)
