"""The canary verifies the order through kills and rolls without a false alarm, and finds a planted fault."""

import pytest

from e2e.canary import PODS, Canary
from e2e.scenarios.changes.test_rolling_update import BROKERS
from e2e.space import Property, Space
from orderlymq_operator.resources.cluster.canary import canary_topic

pytestmark = pytest.mark.timeout(900)

SERVERS = "demo-nameserver-0.demo-nameserver:9876"


def ask(space: Space, *words: str) -> str:
    """Run our command in a pod that signs as the operator.

    It may fail after the broker's part: name servers keep the topic's list, whose change needs the cluster's secret.
    """
    command = ("orderlymq", *words, "--name-server", SERVERS)
    return space.kubectl("exec", "deployment/demo-canary", "--", *command, check=False)


def test_the_order_is_verified_through_kills_and_rolls_and_a_planted_trouble_is_found(
    space: Space, canary: Canary, record_property: Property
) -> None:
    """No event reports broken order before the fault; the deleted topic is reported, and cleared after a while."""
    space.example("quickstart.yaml")
    space.ready("cluster/demo")
    canary.verifies()

    for _ in range(2):
        space.lose_leader("demo")
        space.ready("cluster/demo")
        canary.verifies()
    before = space.uids(BROKERS)
    space.patch("cluster/demo", {"config": {"tailCacheSize": "32Mi"}})

    def rolled() -> bool:
        now = space.uids(BROKERS)
        return len(now) == len(before) and not set(now.values()) & set(before.values())

    space.until(rolled, "every pod is a new one", 300)
    space.ready("cluster/demo")
    found = canary.accuses_nobody()
    record_property("budget_good", str(found["budget"]["good"]))
    record_property("budget_bad", str(found["budget"]["bad"]))
    assert found["takeovers"] > 0, found

    ask(space, "topic", "delete", canary_topic("demo-0"), "--yes")
    seen_s = space.until(
        lambda: canary.status == "False",
        "the deleted topic is a broken promise",
        30,
    )
    record_property("seen_after_s", f"{seen_s:.1f}")
    assert set(canary.page()["troubles"]) & {"TopicGone", "Lost"}
    space.until(lambda: bool(canary.alarms()), "an event reports it", 30)
    canary.verifies()


def test_a_canary_that_is_switched_off_leaves_nothing(space: Space, canary: Canary) -> None:
    """No pod, topic, consumer group or condition remains; brokers continue."""
    space.example("quickstart.yaml")
    space.ready("cluster/demo")
    canary.verifies()
    before = space.uids(BROKERS)

    space.patch("cluster/demo", {"canary": {"enabled": False}})
    space.until(lambda: not space.pods(PODS), "the canary has ended")
    space.until(
        lambda: space.condition("cluster/demo", "OrderVerified") is None, "nothing is verified"
    )

    def left() -> str:
        command = ("orderlymq", "topic", "list", "--name-server", SERVERS)
        return space.kubectl("exec", "demo-0-0", "-c", "broker", "--", *command)

    space.until(lambda: "orderlymq_canary" not in left(), "its topic is gone", 60)
    assert space.uids(BROKERS) == before
