"""The canary proves the order through kills and rolls without a false alarm, and finds what is planted from outside."""

import json

import pytest

from e2e.scenarios.changes.test_rolling_update import BROKERS
from e2e.space import Json, Property, Space
from orderlymq_operator.resources.cluster.canary import CANARY_PORT, canary_topic
from orderlymq_operator.resources.conditions.canary import REASONS

pytestmark = pytest.mark.timeout(900)

CANARY = "orderlymq.io/cluster=demo,app.kubernetes.io/component=canary"
SETTINGS = {"enabled": True, "interval": "500ms", "takeoverInterval": "20s", "hold": "20s"}
BROKEN = {reason.name for reason in REASONS if reason.status == "False"}
SERVERS = "demo-nameserver-0.demo-nameserver:9876"


def with_canary(made: Json) -> None:
    """Give the Cluster of an example a canary."""
    if made["kind"] == "Cluster":
        made["spec"]["canary"] = SETTINGS


def page(space: Space) -> Json:
    """Return what the canary itself says."""
    (pod,) = space.pods(CANARY)
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{space.name}/pods/{name}:{CANARY_PORT}/proxy/status"
    return dict(json.loads(space.kubectl("get", "--raw", path)))


def status(space: Space) -> str:
    """Return the status of the condition; empty where there is none."""
    return str((space.condition("cluster/demo", "OrderVerified") or {}).get("status", ""))


def kept(space: Space) -> None:
    """Wait until the order is verified."""
    space.until(lambda: status(space) == "True", "the order is verified", 120)


def ask(space: Space, *words: str) -> str:
    """Run our command in a pod that signs as the operator.

    It may fail behind the broker: name servers keep the topic's list, which needs the secret of the cluster.
    """
    command = ("orderlymq", *words, "--name-server", SERVERS)
    return space.kubectl("exec", "deployment/demo-canary", "--", *command, check=False)


def alarms(space: Space) -> list[str]:
    """Return the reasons of events that accuse the order."""
    return [each["reason"] for each in space.items("events") if each["reason"] in BROKEN]


def test_the_order_is_verified_through_kills_and_rolls_and_a_planted_trouble_is_found(
    space: Space, record_property: Property
) -> None:
    """No event accuses the order before it is broken; the deleted topic is reported, and forgiven after a while."""
    space.example("quickstart.yaml", with_canary)
    space.ready("cluster/demo")
    kept(space)

    for _ in range(2):
        space.lose_leader("demo")
        space.ready("cluster/demo")
        kept(space)
    before = space.uids(BROKERS)
    space.patch("cluster/demo", {"config": {"tailCacheSize": "32Mi"}})

    def rolled() -> bool:
        now = space.uids(BROKERS)
        return len(now) == len(before) and not set(now.values()) & set(before.values())

    space.until(rolled, "every pod is a new one", 300)
    space.ready("cluster/demo")
    kept(space)
    found = page(space)
    record_property("budget_good", str(found["budget"]["good"]))
    record_property("budget_bad", str(found["budget"]["bad"]))
    assert found["troubles"] == {}, found
    assert found["takeovers"] > 0, found
    assert alarms(space) == []

    ask(space, "topic", "delete", canary_topic("demo-0"), "--yes")
    seen_s = space.until(
        lambda: status(space) == "False",
        "the deleted topic is a broken promise",
        30,
    )
    record_property("seen_after_s", f"{seen_s:.1f}")
    assert set(page(space)["troubles"]) & {"TopicGone", "Lost"}
    space.until(lambda: bool(alarms(space)), "an event reports it", 30)
    kept(space)


def test_a_canary_that_is_switched_off_leaves_nothing(space: Space) -> None:
    """No pod, no topic, no consumer group, no condition; brokers run on."""
    space.example("quickstart.yaml", with_canary)
    space.ready("cluster/demo")
    kept(space)
    before = space.uids(BROKERS)

    space.patch("cluster/demo", {"canary": {"enabled": False}})
    space.until(lambda: not space.pods(CANARY), "the canary has ended")
    space.until(
        lambda: space.condition("cluster/demo", "OrderVerified") is None, "nothing is verified"
    )

    def left() -> str:
        command = ("orderlymq", "topic", "list", "--name-server", SERVERS)
        return space.kubectl("exec", "demo-0-0", "-c", "broker", "--", *command)

    space.until(lambda: "orderlymq_canary" not in left(), "its topic is gone", 60)
    assert space.uids(BROKERS) == before
