"""Queue expansions that have begun before their manifest was changed again."""

from dataclasses import replace
from random import Random

import pytest

from orderlymq_operator.plan.actions import Action, FenceTopic, PutOrderConfig, SwitchTopic
from orderlymq_operator.plan.forecast.forecast import forecast
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.resources.kinds import Desired
from tests.operator.examples import desired, topic
from tests.operator.plan.forecast.restlessworld import RestlessWorld

OLD, NEW = "demo-0:4;demo-1:4", "demo-0:6;demo-1:6"
GROWN = topic(queues=12, queueChangePolicy="DrainAndSwitch")


def _begun() -> RestlessWorld:
    world = RestlessWorld()
    world.settle(desired(topic(), groups=2))
    return world


def _after(world: RestlessWorld, wanted: Desired, step: type[Action]) -> None:
    """Carry *wanted* out until an action of type *step* is done."""
    world.accepted = world.told = wanted
    done = False
    while not done:
        for action in plan(wanted, world.observed()):
            world.perform(action, wanted)
            done |= isinstance(action, step)
        world.pass_time()


def test_an_expansion_that_has_begun_somewhere_is_led_on_when_its_policy_forbids_growth() -> None:
    """Law: an expansion that has begun in one raft group is completed in all, even if the policy is now Reject."""
    world = _begun()
    first = world.brokers["demo-0", "orders"]
    first.perform(FenceTopic("orders", "demo-0", 1, 12, 6, 60_000), world.now_ms)

    world.settle(desired(topic(queues=12, queueChangePolicy="Reject"), groups=2))

    assert {broker.total for broker in world.brokers.values()} == {12}
    assert [config["orders"] for config in world.lists.values()] == [NEW]


@pytest.mark.parametrize("seed", [None, *range(8)])
@pytest.mark.parametrize("is_declared", [True, False])
def test_attributes_that_a_tool_gave_a_topic_follow_an_expansion_to_further_raft_groups(
    seed: int | None, is_declared: bool
) -> None:
    """Law: a raft group that an expansion adds begins with the topic's attributes set by a tool;
    later each group has its own.
    """
    told = (("cleanup.policy", "COMPACTION"), ("duplicate.window", "true"))
    world = RestlessWorld()
    world.settle(desired(topic(), groups=1))
    world.settle(desired(topic(), groups=2))
    table = world.groups["demo-0"].topics
    table["orders"] = replace(table["orders"], attributes=told)
    wanted = desired(GROWN, groups=2)
    if seed is not None:
        world.random = Random(seed)
    if not is_declared:
        _after(world, wanted, SwitchTopic)
        wanted = desired(groups=2)

    world.settle(wanted)
    world.random = None

    later = world.groups["demo-1"].topics
    assert world.lists[0]["orders"] == "demo-0:8;demo-1:4"
    assert table["orders"].attributes == told
    assert later["orders"].attributes == told[1:]
    later["orders"] = replace(later["orders"], attributes=())
    assert world.settle(wanted) == []


@pytest.mark.parametrize(
    ("step", "queues"), [(FenceTopic, 8), (SwitchTopic, 12), (PutOrderConfig, 12)]
)
def test_an_expansion_ends_when_no_topic_asks_for_it_any_more(
    step: type[Action], queues: int
) -> None:
    """Law: if the topic's object is deleted (its messages stay) an expansion ends: fences are lifted,
    and finished switches are published.
    """
    world = _begun()
    _after(world, desired(GROWN, groups=2), step)

    said = forecast(desired(groups=2), world.observed())
    world.settle(desired(groups=2))

    listed = NEW if queues == 12 else OLD
    assert [config["orders"] for config in world.lists.values()] == [listed]
    assert [broker.writes for broker in world.brokers.values()] == [queues // 2] * 2
    assert {broker.phase for broker in world.brokers.values()} == {"open"}
    assert [
        (each.subject.name, effect.kind) for each in said.resources for effect in each.effects
    ] == [("orders", "Changes")]


def test_a_topic_that_is_deleted_while_it_expands_is_not_led_on() -> None:
    world = _begun()
    _after(world, desired(GROWN, groups=2), SwitchTopic)

    world.settle(replace(desired(groups=2), deleted_topics=frozenset({"orders"})))

    assert not world.brokers
    assert all("orders" not in config for config in world.lists.values())
