"""Queue expansions that have begun, and whose manifest says something else by now."""

import pytest

from orderlymq_operator.plan.actions import Action, FenceTopic, ReportCondition
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.resources.kinds import Desired
from tests.operator.examples import desired, topic
from tests.operator.plan.restlessworld import RestlessWorld

OLD, NEW = "demo-0:4;demo-1:4", "demo-0:6;demo-1:6"
GROWN = topic(queues=12, queueChangePolicy="DrainAndSwitch")


def _begun() -> RestlessWorld:
    world = RestlessWorld()
    world.settle(desired(topic(), groups=2))
    return world


def _after(world: RestlessWorld, wanted: Desired, step: type[Action]) -> None:
    """Let *wanted* be carried out until an action of the kind *step* has been done."""
    world.accepted = world.told = wanted
    done = False
    while not done:
        for action in plan(wanted, world.observed()):
            world.perform(action, wanted)
            done |= isinstance(action, step)
        world.pass_time()


def test_an_expansion_that_has_begun_somewhere_is_led_on_when_its_policy_forbids_growth() -> None:
    """Law: raft groups that were not asked before, because the policy is Reject, are asked: none switches without the others."""
    world = _begun()
    first = world.brokers["demo-0", "orders"]
    first.perform(FenceTopic("orders", "demo-0", 1, 12, 6, 60_000), world.now_ms)

    world.settle(desired(topic(queues=12, queueChangePolicy="Reject"), groups=2))

    assert {broker.total for broker in world.brokers.values()} == {12}
    assert [config["orders"] for config in world.lists.values()] == [NEW]
