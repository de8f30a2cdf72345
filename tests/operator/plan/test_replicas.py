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
    """A change of a setting never stops two groups at once; the next one waits until the one before leads again."""
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
    """Start, let it learn, give it its vote; only then the next one."""
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
    """A StatefulSet has no gaps, so the highest goes first; one that leads hands over."""
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
    """The first pods of a group with an image that does not exist would wait for a leader for ever."""
    dead = _replica("outside", healthy=False, revision="old", ended=True)
    alive = _replica("outside", healthy=False, revision="old", answers=True)
    fresh = _replica("outside", healthy=False, ended=True)

    assert _next({1: alive, 2: dead, 3: dead}, leader=None) == [RestartReplica("demo-0", 2)]
    assert _next({1: alive, 2: fresh, 3: alive}, leader=None) == []
    # Another one is on its way: one at a time.
    assert _next({1: alive, 2: dead, 3: replace(dead, leaving=True)}, leader=None) == []


def test_one_look_without_an_answer_restarts_nobody() -> None:
    """A healthy replica answers late; with or without a leader in sight the planner waits."""
    blind = _replica(healthy=False, revision="old")
    stale = _replica(revision="old", answers=True)
    restarting = _replica(healthy=False)

    assert _next({1: restarting, 2: blind, 3: stale}, leader=None) == []
    assert _next({1: stale, 2: blind, 3: stale}) == []
    assert _next({**_FIVE, 2: _replica(healthy=False), 5: _replica(healthy=False)}) == []


def test_while_a_replica_is_being_replaced_no_other_one_is_touched() -> None:
    """Its successor counts for nothing yet, whatever the leader still believes."""
    stale = _replica(revision="old")

    assert _next({1: stale, 2: stale, 3: replace(stale, leaving=True)}) == []


def test_a_name_server_is_replaced_while_all_others_answer() -> None:
    """One that several looks found silent goes first; one that one look found silent holds everything back."""
    well, blind = ObservedNameServer({}), ObservedNameServer()
    failing = ObservedNameServer(failing=True)

    assert stale_name_server({0, 1}, {0: well, 1: well}) == 0
    assert stale_name_server({0, 1}, {0: well, 1: failing}) == 1
    assert stale_name_server({0, 1}, {0: blind, 1: blind}) is None
    assert stale_name_server({0}, {0: well, 1: failing}) is None
    assert stale_name_server({0, 1}, {0: well, 1: ObservedNameServer({}, leaving=True)}) is None
    assert stale_name_server(set(), {0: well}) is None


def test_nothing_is_restarted_while_another_replica_still_catches_up() -> None:
    """With one replica down and one behind the group could commit nothing."""
    stale = {node: _replica(revision="old") for node in (1, 2, 3)}

    assert _next({**stale, 2: _replica(caught_up=False)}) == []
    assert _next({**stale, 2: _replica()}) == [RestartReplica("demo-0", 3)]
    # One that lags may be restarted itself: the others do without it already.
    behind = _replica(revision="old", caught_up=False)
    assert _next({**stale, 2: behind}) == [RestartReplica("demo-0", 2)]


def test_new_settings_restart_followers_first_and_the_leader_after_a_handover() -> None:
    """One at a time, and never a replica that leads."""
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
    """There is nobody to hand over to."""
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
    """A voter that is down, a newcomer that does not answer, a learner that lags: wait."""
    assert _next(replicas, wanted=wanted) == []


def test_a_dead_replica_that_is_too_many_may_go() -> None:
    """Taking it out brings the group nearer to its majority, not farther."""
    assert _next({**_FIVE, 5: _replica(healthy=False)}) == [RemoveReplica("demo-0", 5)]
    lost = {2: _replica(healthy=False), 5: _replica(healthy=False, failing=True)}
    assert _next({**_FIVE, **lost}) == [RemoveReplica("demo-0", 5)]


def test_a_replica_that_is_down_anyway_is_restarted_with_new_settings_first() -> None:
    """The wrong settings may be the reason that it is down."""
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
    """The previous settings may be why; the growth would wait for it for ever."""
    lost = _replica(member, healthy=False, failing=True, caught_up=False, revision="old")
    old = _replica(revision="old")
    restart = [RestartReplica("demo-0", 3)]

    assert _next({1: old, 2: old, 3: lost}, wanted=5) == restart
    assert _next({**_FIVE, 3: lost, 4: _replica("outside")}, wanted=5) == restart
    for waits in (replace(lost, leaving=True), replace(lost, failing=False)):
        assert _next({1: old, 2: old, 3: waits}, wanted=5) == []


def test_a_voter_that_fails_with_previous_settings_is_restarted_before_another_one_goes() -> None:
    """Without it the group may lose nobody; one that is too many itself goes."""
    lost = _replica(healthy=False, failing=True, caught_up=False, revision="old")

    assert _next({**_FIVE, 2: lost}, wanted=3) == [RestartReplica("demo-0", 2)]
    assert _next({**_FIVE, 5: lost}, wanted=3) == [RemoveReplica("demo-0", 5)]


def test_missing_processes_are_started_all_at_once_as_what_they_were() -> None:
    """After a restart of the machine nobody leads, and a majority is needed for one who does."""
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
    """The leader alone knows who is a member."""
    assert _next(_FIVE, leader=None) == []


def test_leadership_goes_only_to_a_voter_that_could_lead_immediately() -> None:
    """A lagging or silent target would leave the group without a leader."""
    replicas = {
        1: _replica(caught_up=False),
        2: _replica("learner"),
        3: _replica(revision="old"),
    }

    assert _next({**replicas, 2: _replica(caught_up=False)}, leader=3) == []
    assert _next({**replicas, 2: _replica()}, leader=3) == [TransferLeadership("demo-0", 2)]


def test_what_is_wrong_with_a_group_is_said_in_words() -> None:
    """The first thing that is missing; nothing when all is well."""
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
