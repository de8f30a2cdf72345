from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orderlymq_operator.plan.actions import (
    Action,
    AddLearner,
    Member,
    ObservedGroup,
    ObservedNameServer,
    ObservedReplica,
    PromoteReplica,
    RemoveReplica,
    RestartReplica,
    StartReplica,
    StopReplica,
    TransferLeadership,
)
from orderlymq_operator.plan.replicas import group_problem, replica_actions, stale_name_server
from orderlymq_operator.plan.settings import revision
from tests.operator.examples import cluster, desired
from tests.operator.world import World


def _replica(member: Member = "voter", **facts: Any) -> ObservedReplica:
    defaults = {
        "running": True,
        "healthy": True,
        "caught_up": True,
        "revision": revision(cluster()),
    }
    return ObservedReplica(member, **{**defaults, **facts})


def _next(
    replicas: Mapping[int, ObservedReplica], *, leader: int | None = 1, wanted: int = 3
) -> list[Action]:
    found = {"demo-0": ObservedGroup(leader, replicas, {}, {})}
    return replica_actions(cluster(replicasPerGroup=wanted), found)


_THREE = {1: _replica(), 2: _replica(), 3: _replica()}
_FIVE = {**_THREE, 4: _replica(), 5: _replica()}


def test_of_groups_with_one_replica_one_restarts_at_a_time() -> None:
    """Law: groups with one replica restart one after the other, each when the previous one leads again."""
    wanted = cluster(replicasPerGroup=1, groups=3)
    current = revision(wanted)

    def asked(*states: tuple[int | None, str]) -> list[Action]:
        groups = {
            f"demo-{index}": ObservedGroup(leader, {1: _replica(revision=known)}, {}, {})
            for index, (leader, known) in enumerate(states)
        }
        return replica_actions(wanted, groups)

    assert asked((1, "old"), (1, "old"), (1, "old")) == [RestartReplica("demo-0", 1)]
    assert asked((None, current), (1, "old"), (1, "old")) == []
    assert asked((1, current), (1, "old"), (1, "old")) == [RestartReplica("demo-1", 1)]


def test_three_replicas_become_five_one_after_the_other() -> None:
    """Law: three replicas become five one by one: start, catch up, get a vote; then the next one."""
    world = World()
    world.settle(desired())

    done = world.settle(desired(replicasPerGroup=5))

    steps = [action for action in done if not type(action).__name__.startswith("Report")]
    assert steps == [
        StartReplica("demo-0", 4, join=True),
        AddLearner("demo-0", 4),
        PromoteReplica("demo-0", 4),
        StartReplica("demo-0", 5, join=True),
        AddLearner("demo-0", 5),
        PromoteReplica("demo-0", 5),
    ]


def test_five_replicas_become_three_from_the_upper_end() -> None:
    """Law: five replicas become three from the highest number down, since StatefulSets have no gaps;
    a leader hands over first.
    """
    world = World()
    world.settle(desired(replicasPerGroup=5))
    world.groups["demo-0"].leader = 5

    done = world.settle(desired(replicasPerGroup=3))

    steps = [action for action in done if not type(action).__name__.startswith("Report")]
    assert steps == [
        TransferLeadership("demo-0", 1),
        RemoveReplica("demo-0", 5),
        StopReplica("demo-0", 5),
        RemoveReplica("demo-0", 4),
        StopReplica("demo-0", 4),
    ]


def test_in_a_group_without_a_leader_only_the_dead_are_replaced() -> None:
    """Law: in a group without a leader only dead replicas are replaced;
    pods with a wrong image would otherwise wait forever.
    """
    dead = _replica("outside", healthy=False, revision="old", ended=True)
    alive = _replica("outside", healthy=False, revision="old", answers=True)
    fresh = _replica("outside", healthy=False, ended=True)

    assert _next({1: alive, 2: dead, 3: dead}, leader=None) == [RestartReplica("demo-0", 2)]
    assert _next({1: alive, 2: fresh, 3: alive}, leader=None) == []
    # Another one is already on its way: one at a time.
    assert _next({1: alive, 2: dead, 3: replace(dead, leaving=True)}, leader=None) == []


def test_one_look_without_an_answer_restarts_nobody() -> None:
    """Law: one look without an answer restarts nothing; a healthy replica may answer late."""
    blind = _replica(healthy=False, revision="old")
    stale = _replica(revision="old", answers=True)
    restarting = _replica(healthy=False)

    assert _next({1: restarting, 2: blind, 3: stale}, leader=None) == []
    assert _next({1: stale, 2: blind, 3: stale}) == []
    assert _next({**_FIVE, 2: _replica(healthy=False), 5: _replica(healthy=False)}) == []


def test_while_a_replica_is_being_replaced_no_other_one_is_touched() -> None:
    """Law: while a replica is being replaced no other one is touched."""
    stale = _replica(revision="old")

    assert _next({1: stale, 2: stale, 3: replace(stale, leaving=True)}) == []


def test_a_name_server_is_replaced_while_all_others_answer() -> None:
    """Law: a name server is replaced only while all others answer; one proven silent goes first,
    one just silent delays all.
    """
    well, blind = ObservedNameServer({}), ObservedNameServer()
    failing = ObservedNameServer(failing=True)

    assert stale_name_server({0, 1}, {0: well, 1: well}) == 0
    assert stale_name_server({0, 1}, {0: well, 1: failing}) == 1
    assert stale_name_server({0, 1}, {0: blind, 1: blind}) is None
    assert stale_name_server({0}, {0: well, 1: failing}) is None
    assert stale_name_server({0, 1}, {0: well, 1: ObservedNameServer({}, leaving=True)}) is None
    assert stale_name_server(set(), {0: well}) is None


def test_nothing_is_restarted_while_another_replica_still_catches_up() -> None:
    """Law: no replica is restarted while another one catches up; the lagging one itself may be."""
    stale = {node: _replica(revision="old") for node in (1, 2, 3)}

    assert _next({**stale, 2: _replica(caught_up=False)}) == []
    assert _next({**stale, 2: _replica()}) == [RestartReplica("demo-0", 3)]
    # A lagging replica itself may be restarted: the others already do without it.
    behind = _replica(revision="old", caught_up=False)
    assert _next({**stale, 2: behind}) == [RestartReplica("demo-0", 2)]


def test_new_settings_restart_followers_first_and_the_leader_after_a_handover() -> None:
    """Law: new settings restart followers one at a time, then the leader after a hand-over."""
    world = World()
    world.settle(desired())
    world.groups["demo-0"].leader = 2

    done = world.settle(desired(config={"logLevel": "DEBUG"}))

    steps = [action for action in done if not type(action).__name__.startswith("Report")]
    assert steps == [
        RestartReplica("demo-0", 1),
        RestartReplica("demo-0", 3),
        TransferLeadership("demo-0", 1),
        RestartReplica("demo-0", 2),
    ]


def test_a_single_replica_is_restarted_where_it_stands() -> None:
    """Law: a single replica is restarted without a hand-over."""
    stale = {1: _replica(revision="old")}

    assert _next(stale, wanted=1) == [RestartReplica("demo-0", 1)]


@pytest.mark.parametrize(
    ("replicas", "wanted"),
    [
        ({**_THREE, 2: _replica(healthy=False)}, 5),
        ({**_FIVE, 2: _replica(healthy=False)}, 3),
        ({**_THREE, 2: _replica(healthy=False), 3: _replica(revision="old")}, 3),
        ({**_THREE, 4: _replica("outside", healthy=False)}, 5),
        ({**_THREE, 4: _replica("learner", caught_up=False)}, 5),
    ],
)
def test_nothing_is_touched_while_another_replica_is_not_well(
    replicas: Mapping[int, ObservedReplica], wanted: int
) -> None:
    """Law: nothing is restarted while another replica is not well (voter down, newcomer silent, learner behind)."""
    assert _next(replicas, wanted=wanted) == []


def test_a_dead_replica_that_is_too_many_may_go() -> None:
    """Law: a dead surplus replica may be removed, because that makes the majority safer."""
    assert _next({**_FIVE, 5: _replica(healthy=False)}) == [RemoveReplica("demo-0", 5)]
    lost = {2: _replica(healthy=False), 5: _replica(healthy=False, failing=True)}
    assert _next({**_FIVE, **lost}) == [RemoveReplica("demo-0", 5)]


def test_a_replica_that_is_down_anyway_is_restarted_with_new_settings_first() -> None:
    """Law: a dead replica with old settings is restarted first with the new ones, which may be the cure."""
    replicas = {
        1: _replica(revision="old"),
        2: _replica(revision="old"),
        3: _replica(healthy=False, failing=True, revision="old"),
    }

    assert _next(replicas) == [RestartReplica("demo-0", 3)]


@pytest.mark.parametrize("member", ["outside", "learner", "voter"])
def test_a_replica_that_fails_with_previous_settings_gets_the_new_ones_while_its_group_grows(
    member: Member,
) -> None:
    """Law: a failing replica with old settings gets the new ones even while its group grows; growth would wait for it."""
    lost = _replica(member, healthy=False, failing=True, caught_up=False, revision="old")
    old = _replica(revision="old")
    restart = [RestartReplica("demo-0", 3)]

    assert _next({1: old, 2: old, 3: lost}, wanted=5) == restart
    assert _next({**_FIVE, 3: lost, 4: _replica("outside")}, wanted=5) == restart
    for waits in (replace(lost, leaving=True), replace(lost, failing=False)):
        assert _next({1: old, 2: old, 3: waits}, wanted=5) == []


def test_a_voter_that_fails_with_previous_settings_is_restarted_before_another_one_goes() -> None:
    """Law: a failing voter with old settings is restarted before another replica is removed; a surplus one is removed."""
    lost = _replica(healthy=False, failing=True, caught_up=False, revision="old")

    assert _next({**_FIVE, 2: lost}, wanted=3) == [RestartReplica("demo-0", 2)]
    assert _next({**_FIVE, 5: lost}, wanted=3) == [RemoveReplica("demo-0", 5)]


def test_missing_processes_are_started_all_at_once_as_what_they_were() -> None:
    """Law: all missing processes are started at once in their former roles;
    after a machine's restart a majority is needed.
    """
    replicas = {
        1: ObservedReplica(running=False),
        2: _replica(),
        3: ObservedReplica(running=False, join=True),
    }

    assert _next(replicas, leader=None) == [
        StartReplica("demo-0", 1, join=False),
        StartReplica("demo-0", 3, join=True),
    ]


def test_without_a_leader_the_membership_is_left_alone() -> None:
    """Law: without a leader the membership is not changed, because only the leader knows it."""
    assert _next(_FIVE, leader=None) == []


def test_leadership_goes_only_to_a_voter_that_could_lead_immediately() -> None:
    """Law: leadership goes only to a voter that answers and has caught up."""
    replicas = {
        1: _replica(caught_up=False),
        2: _replica("learner"),
        3: _replica(revision="old"),
    }

    assert _next({**replicas, 2: _replica(caught_up=False)}, leader=3) == []
    assert _next({**replicas, 2: _replica()}, leader=3) == [TransferLeadership("demo-0", 2)]


def test_what_is_wrong_with_a_group_is_said_in_words() -> None:
    """Law: the message names the first thing that a group lacks, or nothing."""
    wanted = cluster()

    problems = [
        group_problem(wanted, None),
        group_problem(wanted, ObservedGroup()),
        group_problem(wanted, ObservedGroup(1, {1: _replica()}, {}, {})),
        group_problem(wanted, ObservedGroup(1, {**_THREE, 4: _replica("outside")}, {}, {})),
        group_problem(wanted, ObservedGroup(1, {**_THREE, 3: _replica(healthy=False)}, {}, {})),
        group_problem(wanted, ObservedGroup(1, _THREE)),
        group_problem(wanted, ObservedGroup(1, {**_THREE, 3: _replica(revision="old")}, {}, {})),
        group_problem(wanted, ObservedGroup(1, _THREE, {}, {})),
    ]

    assert problems == [
        "not started",
        "no leader",
        "its voters are [1]",
        "a removed replica still runs",
        "replica 3 does not answer",
        "its address does not answer",
        "a replica runs with previous settings",
        None,
    ]
