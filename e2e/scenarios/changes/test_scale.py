"""Replicas per group change while messages flow: 1, 3, 5, 3."""

import pytest

from e2e.canary import Canary
from e2e.orders import Orders, kept
from e2e.space import Space

BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_replicas_come_and_go_under_load(space: Space, orders: Orders, canary: Canary) -> None:
    """Each number is reached through raft membership changes; no message is lost or out of order."""
    space.example("quickstart.yaml", _one_replica)
    space.ready(*READY)
    canary.verifies()
    orders.start()

    for replicas in (3, 5, 3):
        space.kubectl("scale", "cluster.orderlymq.io/demo", f"--replicas={replicas}")
        space.until(
            lambda replicas=replicas: len(space.pods(BROKERS)) == replicas,  # type: ignore[misc]
            f"{replicas} brokers",
            180,
        )
        space.ready("cluster/demo", timeout_s=240)
        orders.until_acknowledged(100)

    canary.accuses_nobody()
    kept(orders.finish())


@pytest.mark.ci
def test_a_group_is_added_and_existing_ordered_topics_do_not_move(
    space: Space, canary: Canary
) -> None:
    """The new group is used by new topics; the queue list of an existing ordered topic stays the same."""
    space.example("quickstart.yaml", _one_replica)
    space.ready(*READY)
    canary.verifies()
    before = space.must("topic/orders")["status"]["queueLayout"]

    space.patch("cluster/demo", {"groups": 2})
    space.ready(*READY, timeout_s=240)

    assert space.must("topic/orders")["status"]["queueLayout"] == before
    space.apply(_topic("spread", "Ordered"))
    space.ready("topic/spread")
    layout = space.must("topic/spread")["status"]["queueLayout"]
    assert sorted(part["group"] for part in layout) == ["demo-0", "demo-1"]
    canary.accuses_nobody()


def _topic(name: str, kind: str) -> str:
    return f"""
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: {name}}}
spec: {{clusterRef: {{name: demo}}, type: {kind}, queues: 8}}
"""


def _one_replica(made: dict[str, object]) -> None:
    if made["kind"] == "Cluster":
        made["spec"] = {"groups": 1, "replicasPerGroup": 1, "nameServers": {"replicas": 1}}
