"""One of three zones is lost: each raft group keeps a majority; later each zone leads the same number of groups again."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from e2e.canary import Canary
from e2e.installed import Operator
from e2e.orders import Orders, kept
from e2e.space import Json, Property, Space, lost_node
from orderlymq.oracle.verdict import Kind

ZONE = "topology.kubernetes.io/zone"
GROUPS = 3
pytestmark = pytest.mark.timeout(900)

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
# The operator moves a leader only after every replica was ready for a minute, one leader at a time.
BALANCED_S = 240.0


@pytest.fixture
def zones(space: Space) -> Iterator[dict[str, str]]:
    """Give each worker a zone; return the zones by node."""
    if not space.machine.kind:
        pytest.skip("only kind's nodes can be stopped from here")
    found = dict(zip(space.workers(), ("north", "east", "west"), strict=True))
    for node, zone in found.items():
        space.kubectl("label", "node", node, f"{ZONE}={zone}", "--overwrite")
    yield found
    for node in found:
        space.kubectl("label", "node", node, f"{ZONE}-")


def test_a_lost_zone_leaves_every_group_a_majority_and_leaders_spread_when_it_is_back(
    space: Space,
    orders: Orders,
    canary: Canary,
    operator: Operator,
    zones: dict[str, str],
    record_property: Property,
) -> None:
    """There are three groups with a replica in each zone. Clients are elsewhere: `test_node_lost` loses those, too."""
    space.example("quickstart.yaml", _over_zones)
    space.ready(*READY, timeout_s=300)
    one_each = Counter(zones.values())
    for group in range(GROUPS):
        assert len({zones[space.node(pod)] for pod in _replicas(space, group)}) == len(zones)
    space.until(lambda: _leading(space, zones) == one_each, "each zone leads one", BALANCED_S)
    canary.verifies()
    victim = space.node(space.leader("demo"))
    others = [node for node in zones if node != victim]
    operator.leave(victim)
    names = ("orders-history", "orders-producer", "orders-consumer")
    orders.start(placed=dict.fromkeys(names, others))
    queues = {event.queue for event in orders.history() if event.kind is Kind.ACK}

    with lost_node(space.machine, victim):
        at = time.monotonic()
        orders.note(Kind.FAULT, detail=f"zone {zones[victim]} lost")
        space.until(
            lambda: _acknowledged_in(orders, at) >= queues, "sends go on in every queue", 120
        )
        record_property("every_queue_goes_on_s", round(time.monotonic() - at, 1))
        space.until(
            lambda: (led := _leading(space, zones)).total() == GROUPS and zones[victim] not in led,
            "the two other zones lead all groups",
            90,
        )

    space.ready(*READY, timeout_s=300)
    record_property(
        "balanced_again_s",
        round(space.until(lambda: _leading(space, zones) == one_each, "as before", BALANCED_S)),
    )
    canary.accuses_nobody()
    orders.until_acknowledged(200)
    kept(orders.finish())


def _over_zones(made: Json) -> None:
    if made["kind"] == "Cluster":
        placement = {"zoneKey": ZONE, "antiAffinity": "Required"}
        servers = {"replicas": 3}
        made["spec"] |= {"groups": GROUPS, "nameServers": servers, "placement": placement}


def _replicas(space: Space, group: int) -> list[str]:
    found = space.pods(f"orderlymq.io/cluster=demo,orderlymq.io/group={group}")
    return [str(pod["metadata"]["name"]) for pod in found]


def _leading(space: Space, zones: dict[str, str]) -> Counter[str]:
    """Return the number of groups that each zone leads; empty while leaders change."""
    pods = space.pods("orderlymq.io/cluster=demo,orderlymq.io/role=leader")
    if len({pod["metadata"]["labels"]["orderlymq.io/group"] for pod in pods}) != len(pods):
        return Counter()
    return Counter(zones[pod["spec"]["nodeName"]] for pod in pods)


def _acknowledged_in(orders: Orders, since: float) -> set[str]:
    found = [event for event in orders.history() if event.kind is Kind.ACK]
    return {event.queue for event in found if event.at > since * 1e9}
