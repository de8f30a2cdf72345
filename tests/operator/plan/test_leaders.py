"""Leaders over zones and nodes: where they go, one at a time, when they stay, and what the loss of a zone does."""

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
    """A settled cluster over three zones, whose every group is led by its first replica."""
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
    """All of six lead in one zone; each plan moves one, and the last ones move nothing."""
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
    """Zones come first, and then the nodes of each."""
    world, wanted = _placed(6, nodes_of_a_zone=2)

    world.settle(wanted)

    assert sorted(_leading(world).values()) == [2, 2, 2]
    assert sorted(_leading(world, 1).values()) == [1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("seed", range(40))
def test_moves_come_to_an_end_and_every_one_makes_the_balance_better(seed: int) -> None:
    """From any leaders, with any number of groups."""
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
    """Another group's trouble counts, too: a move is never worth a risk."""
    world, wanted = _placed(6)
    for group in world.groups.values():
        group.leader = 1
    replicas = world.groups["demo-5"].replicas
    replicas[3] = replace(replicas[3], **change)  # type: ignore[arg-type]  # fields by name

    assert list(leader_move(wanted.cluster, world.observed().groups)) == []


def test_no_leader_is_moved_under_a_roll() -> None:
    """A roll hands leaders over by itself; balance comes after its end."""
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
    """A topic that brokers refuse, or a name that is deleted without end, is no danger to who leads; a fence is."""
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
    """A fence refuses writes: it must not wait for an election."""
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
    """Whichever is lost, the planner waits for it; when it is back leaders go back to it."""
    world, wanted = _placed(6, replicas=replicas)
    world.settle(wanted)

    _lose(world, zone)

    assert all(group.leader is not None for group in world.groups.values())
    assert zone not in _leading(world)
    assert _moves(plan(wanted, world.observed())) == []
    rolled = desired(groups=6, replicasPerGroup=replicas, config={"logLevel": "DEBUG"})
    if replicas == 3:  # one more would end the majority
        assert _moves(plan(rolled, world.observed())) == []

    world.heal()
    world.settle(wanted)
    assert _leading(world) == {"a": 2, "b": 2, "c": 2}
