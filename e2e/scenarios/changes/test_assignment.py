"""Consumers whose queues the operator assigns: a rollout moves each queue once, and zones are respected."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from e2e.orders import Orders, kept
from e2e.space import Json, Property, Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
ZONE = "topology.kubernetes.io/zone"
CONSUMERS = "app=orders-consumer"
DELAY_S = 30.0  # spec.assignment.rebalanceDelay


def test_a_rollout_of_the_consumers_moves_each_queue_at_most_once(
    space: Space, orders: Orders, record_property: Property
) -> None:
    """A queue moves from an old pod to a new one, and not again after the group has settled."""
    space.example("quickstart.yaml", _strategy("Sticky"))
    space.ready(*READY)
    orders.start(asked=True)
    space.until(lambda: orders.shares() == [2, 3, 3], "the queues are divided evenly", 120)

    begun = time.monotonic()
    space.kubectl("rollout", "restart", "deploy/orders-consumer")
    space.kubectl("rollout", "status", "deploy/orders-consumer", "--timeout=180s", timeout_s=200)
    time.sleep(DELAY_S + 10)

    moves = orders.moves(begun)
    counts = Counter(len(clients) - 1 for clients in moves.values())
    record_property("queues_by_moves", json.dumps(dict(sorted(counts.items()))))
    kept(orders.finish())
    assert len(moves) == 8
    assert max(counts) <= 1, moves


@pytest.fixture
def zoned(space: Space) -> Iterator[dict[str, str]]:
    """Give every worker its own zone; nodes are shared by all scenarios, so their zones are reset afterwards."""
    zones = {node: f"zone-{number}" for number, node in enumerate(space.workers())}
    for node, zone in zones.items():
        space.kubectl("label", "node", node, f"{ZONE}={zone}", "--overwrite")
    yield zones
    for node in zones:
        space.kubectl("label", "node", node, f"{ZONE}-")


def test_with_the_strategy_zone_queues_are_consumed_where_their_leader_is(
    space: Space, orders: Orders, zoned: dict[str, str]
) -> None:
    """The status shows the members' zones; every queue has an owner in the zone of its raft group's leader."""
    if len(zoned) < 2:
        pytest.skip("one worker makes one zone")
    space.example("quickstart.yaml", _strategy("Zone", groups=len(zoned)))
    space.ready(*READY)
    orders.start(asked=True, consumers=len(zoned))

    space.until(lambda: _all_near(space, zoned), "every queue is consumed in its zone", 150)
    members = space.must("consumergroup/billing")["status"]["memberList"]
    assert {member["zone"] for member in members} <= set(zoned.values())
    kept(orders.finish())


def _all_near(space: Space, zones: dict[str, str]) -> bool:
    status = space.must("consumergroup/billing").get("status", {})
    own = {member["clientId"]: member["zone"] for member in status.get("memberList", [])}
    leaders = {}
    for group in space.must("cluster/demo")["status"]["groups"]:
        pod = next(
            (each["pod"] for each in group["members"] if each["node"] == group.get("leader")), None
        )
        leaders[group["name"]] = zones.get(space.node(pod), "") if pod else ""
    # The queues of a zone without a member may go to any member.
    queues = [
        queue for queue in status.get("assignment", []) if leaders[queue["group"]] in own.values()
    ]
    return bool(queues) and all(
        own.get(queue["clientId"]) == leaders[queue["group"]] for queue in queues
    )


def _strategy(name: str, groups: int = 1) -> Callable[[Json], None]:
    def change(made: Json) -> None:
        if made["kind"] == "ConsumerGroup":
            made["spec"]["assignment"] = {"strategy": name}
        elif made["kind"] == "Cluster" and groups > 1:
            made["spec"] |= {"groups": groups, "replicasPerGroup": 1}

    return change
