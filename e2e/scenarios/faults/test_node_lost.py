"""A worker node is lost, with the leader and a consumer on it."""

import time

import pytest

from e2e.canary import Canary
from e2e.installed import Operator
from e2e.orders import Orders, kept
from e2e.space import Property, Space, lost_node
from orderlymq.oracle.verdict import Kind

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
TAINT = "node.kubernetes.io/out-of-service"
# The SDK's lease is 15 s, renewed every 5 s: without a proof, no other consumer may have the queues in that time.
UNPROVEN_S = 7.0
# Plus the time in which its end is noticed. On a slow machine the lease ends before the node is reported as lost.
LEASE_OVER_S = 20.0


def test_a_lost_node_costs_seconds_and_its_return_heals_everything(
    space: Space,
    orders: Orders,
    canary: Canary,
    operator: Operator,
    record_property: Property,
) -> None:
    """Other replicas continue; the consumer's queues are taken over when its end is proven, and not before."""
    if not space.machine.kind:
        pytest.skip("only kind's nodes can be stopped from here")
    space.example("quickstart.yaml")
    space.ready(*READY)
    canary.verifies()
    victim = space.node(space.leader("demo"))
    others = [node for node in space.workers() if node != victim]
    operator.leave(victim)
    orders.start(placed={"orders-history": others, "orders-producer": others})
    lost = orders.busiest_on(victim)

    with lost_node(space.machine, victim):
        at = time.monotonic()
        orders.note(Kind.FAULT, detail="node lost")
        orders.until_acknowledged(100)
        record_property("sends_go_on_s", round(time.monotonic() - at, 1))
        time.sleep(max(0.0, UNPROVEN_S - (time.monotonic() - at)))
        early = [
            each
            for each in orders.takeovers(lost, at)
            if each.seconds is not None and each.seconds < UNPROVEN_S
        ]
        assert not early, "queues went elsewhere although their consumer might have lived"

        for client in orders.clients_on(victim):
            orders.note(Kind.GONE, client=client, detail="node lost")
        vouched = time.monotonic()
        space.machine.run("kubectl", "taint", "node", victim, f"{TAINT}=lost:NoExecute")
        latest = max(orders.taken_over(lost, at))
        record_property("takeover_s", round(latest - (vouched - at), 2))
        orders.until_acknowledged(300)
    space.machine.run("kubectl", "taint", "node", victim, f"{TAINT}:NoExecute-")

    proven = f"node {victim} of pod {space.name}/{lost}" in operator.log()
    record_property("proven", proven)
    assert proven or latest < LEASE_OVER_S, (
        "neither the proof nor the end of the lease freed the queues"
    )
    space.ready(*READY, timeout_s=240)
    canary.accuses_nobody()
    orders.until_acknowledged(200)
    kept(orders.finish())
