"""Leaders over zones and nodes: where they go, one at a time, when they stay, and the loss of a zone."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from orderlymq_operator.plan.actions import (
    Action,
    CreateTopic,
    FenceTopic,
    ObservedExpansion,
    ObservedGroup,
    ObservedReplica,
    PutOrderConfig,
    ReportCondition,
    RestartReplica,
    TransferLeadership,
)
from orderlymq_operator.plan.leaders import leader_move
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.resources.kinds import Desired
from tests.operator.examples import desired, topic
from tests.operator.world import World

ZONES = "abc"


def _placed(groups: int, *, nodes_of_a_zone: int = 1, replicas: int = 3) -> tuple[World, Desired]:
    """A settled cluster over three zones; each group is led by its first replica."""
    wanted = desired(groups=groups, replicasPerGroup=replicas)
    world = World()
    world.settle(wanted)
    for index, group in enumerate(world.groups.values()):
        for node, replica in group.replicas.items():
            zone = ZONES[(node - 1) % len(ZONES)]
            host = f"{zone}{(index + (node - 1) // len(ZONES)) % nodes_of_a_zone}"
            group.replicas[node] = replace(replica, domains=(zone, host))
    return world, wanted


def _leading(world: World, kind: int = 0) -> Counter[str]:
    """Return how many groups each zone (0) or node (1) leads."""
    return Counter(
        group.replicas[group.leader].domains[kind]
        for group in world.groups.values()
        if group.leader is not None
    )


def _moves(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, ReportCondition)]


def _lose(world: World, zone: str) -> None:
    for group in world.groups.values():
        for node, replica in group.replicas.items():
            if replica.domains[0] == zone:
                group.replicas[node] = replace(
                    replica, healthy=False, caught_up=False, answers=False
                )
        if group.leader is not None and not group.replicas[group.leader].healthy:
            voters = [node for node in group.voters() if group.replicas[node].healthy]
            has_majority = len(voters) > len(group.replicas) // 2
            group.leader = voters[0] if has_majority else None


def test_leaders_are_spread_over_zones_one_move_at_a_time() -> None:
    """Law: leaders in one zone are spread over all, one move per plan, until nothing more moves."""
    world, wanted = _placed(6)
    for group in world.groups.values():
        group.leader = 1
    plans = 0
    while actions := _moves(plan(wanted, world.observed())):
        (move,) = actions
        assert isinstance(move, TransferLeadership)
        assert move.balances
        world.perform(move, wanted)
        plans += 1

    assert plans == 4
    assert _leading(world) == {"a": 2, "b": 2, "c": 2}


def test_nodes_of_a_zone_share_its_leaders() -> None:
    """Law: leaders are spread over zones first, then over the nodes of each zone."""
    world, wanted = _placed(6, nodes_of_a_zone=2)

    world.settle(wanted)

    assert sorted(_leading(world).values()) == [2, 2, 2]
    assert sorted(_leading(world, 1).values()) == [1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("seed", range(40))
def test_moves_come_to_an_end_and_every_one_makes_the_balance_better(seed: int) -> None:
    """Law: from any leaders, each move improves the balance, and moves end."""
    random = Random(seed)
    world, wanted = _placed(random.randint(1, 9), nodes_of_a_zone=random.randint(1, 3))
    for group in world.groups.values():
        group.leader = random.choice([1, 2, 3])

    done = _moves(world.settle(wanted))

    assert all(isinstance(action, TransferLeadership) for action in done)
    assert len(done) <= len(world.groups)
    counts = [_leading(world)[zone] for zone in ZONES]
    assert max(counts) - min(counts) <= 1


def _stale(replica: ObservedReplica) -> ObservedReplica:
    return replace(replica, revision="previous")


@pytest.mark.parametrize(
    "change",
    [
        {"healthy": False},
        {"caught_up": False},
        {"leaving": True},
        {"failing": True},
        {"member": "learner"},
        {"domains": ()},
    ],
)
def test_no_leader_is_moved_while_a_replica_anywhere_is_not_what_it_should_be(
    change: dict[str, object],
) -> None:
    """Law: no leader is moved while any replica of any group is not well."""
    world, wanted = _placed(6)
    for group in world.groups.values():
        group.leader = 1
    replicas = world.groups["demo-5"].replicas
    replicas[3] = replace(replicas[3], **change)  # type: ignore[arg-type]  # fields by name

    assert list(leader_move(wanted.cluster, world.observed().groups)) == []


def test_no_leader_is_moved_under_a_roll() -> None:
    """Law: no leader is moved for balance during a rolling restart, only after it."""
    world, wanted = _placed(6)
    for group in world.groups.values():
        group.leader = 1
    last = world.groups["demo-5"]
    last.replicas = {node: _stale(replica) for node, replica in last.replicas.items()}

    done = _moves(world.settle(wanted))

    kinds = [(type(action), getattr(action, "balances", False)) for action in done]
    rolled = kinds.index((TransferLeadership, True))
    assert (RestartReplica, False) not in kinds[rolled:]
    assert kinds.count((RestartReplica, False)) == 3
    assert _leading(world) == {"a": 2, "b": 2, "c": 2}


def test_leaders_are_moved_while_a_part_of_the_cluster_waits_for_its_brokers() -> None:
    """Law: leaders are still moved while a refused topic or a waiting deletion is pending, but not during a fence."""
    world, wanted = _placed(6)
    grows = topic("grown", queues=6, queueChangePolicy="DrainAndSwitch")
    world.settle(replace(wanted, topics=(grows,)))
    for group in world.groups.values():
        group.leader = 1
    seen = world.observed()
    groups = {
        name: replace(each, expansion={"grown": ObservedExpansion(write_queues=1)})
        for name, each in seen.groups.items()
    }
    seen = replace(seen, groups=groups)
    more = topic("grown", queues=12, queueChangePolicy="DrainAndSwitch")

    refused = _moves(plan(replace(wanted, topics=(grows, topic("refused"))), seen))
    fenced = _moves(plan(replace(wanted, topics=(more,)), seen))

    assert {type(each) for each in refused} == {PutOrderConfig, CreateTopic, TransferLeadership}
    assert {type(each) for each in fenced} == {FenceTopic}


def test_no_leader_is_moved_while_a_topic_expands_or_where_nobody_wants_it() -> None:
    """Law: no leader is moved while a topic's fence refuses writes, or with the policy Kept."""
    world, wanted = _placed(6)
    for group in world.groups.values():
        group.leader = 1
    observed = world.observed()
    fenced: dict[str, ObservedGroup] = {
        **observed.groups,
        "demo-0": replace(
            observed.groups["demo-0"], expansion={"t": ObservedExpansion(phase="fenced")}
        ),
    }
    kept = desired(groups=6, update={"leaders": "Kept"}).cluster

    assert list(leader_move(wanted.cluster, fenced)) == []
    assert list(leader_move(kept, observed.groups)) == []
    assert list(leader_move(wanted.cluster, observed.groups)) != []


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("replicas", [3, 5])
def test_a_lost_zone_leaves_every_group_a_leader_and_touches_nobody(
    zone: str, replicas: int
) -> None:
    """Law: after the loss of any zone each group has a leader and the planner waits; when the zone is back leaders return."""
    world, wanted = _placed(6, replicas=replicas)
    world.settle(wanted)

    _lose(world, zone)

    assert all(group.leader is not None for group in world.groups.values())
    assert zone not in _leading(world)
    assert _moves(plan(wanted, world.observed())) == []
    rolled = desired(groups=6, replicasPerGroup=replicas, config={"logLevel": "DEBUG"})
    if replicas == 3:  # One more would end the majority.
        assert _moves(plan(rolled, world.observed())) == []

    world.heal()
    world.settle(wanted)
    assert _leading(world) == {"a": 2, "b": 2, "c": 2}
