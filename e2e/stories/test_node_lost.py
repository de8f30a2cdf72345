"""A worker is lost with the leader and a consumer on it."""

import time

import pytest

from e2e.orders import Orders, kept
from e2e.space import Space, lost_node
from orderlymq.oracle import Kind

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_a_lost_node_costs_seconds_and_its_return_heals_everything(
    space: Space, orders: Orders
) -> None:
    """The other replicas go on; queues of the consumer there are given away when its node is out of service."""
    if not space.machine.kind:
        pytest.skip("only kind's nodes can be stopped from here")
    space.example("quickstart.yaml")
    space.ready(*READY)
    victim = space.node(space.leader("demo"))
    others = [node for node in space.workers() if node != victim]
    orders.start(placed={"orders-history": others, "orders-producer": others})
    orders.busiest()

    with lost_node(space.machine, victim):
        orders.note(Kind.FAULT, detail="node lost")
        for client in orders.clients_on(victim):
            orders.note(Kind.GONE, client=client, detail="node lost")
        space.machine.run(
            "kubectl", "taint", "node", victim, "node.kubernetes.io/out-of-service=lost:NoExecute"
        )
        orders.until_acknowledged(300)
        time.sleep(5)
    space.machine.run(
        "kubectl", "taint", "node", victim, "node.kubernetes.io/out-of-service:NoExecute-"
    )

    space.ready(*READY, timeout_s=240)
    orders.until_acknowledged(200)
    kept(orders.finish())
