"""The pod of a leader is killed under load."""

import pytest

from e2e.canary import Canary
from e2e.orders import Orders, kept
from e2e.space import Property, Space
from orderlymq.oracle.verdict import Kind

pytestmark = pytest.mark.ci


def test_a_killed_leader_costs_seconds_and_no_message(
    space: Space, orders: Orders, canary: Canary, record_property: Property
) -> None:
    """Another replica leads, the Service follows it, clients continue; every acknowledged message is delivered."""
    space.example("quickstart.yaml")
    space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
    canary.verifies()
    orders.start()

    for number in range(3):
        orders.note(Kind.FAULT, detail=f"leader {number}")
        space.lose_leader("demo")
        orders.until_acknowledged(200)

    canary.accuses_nobody()
    verdict = orders.finish()
    record_property("ack_gap_ms", str(verdict.ack_gap_ms))
    kept(verdict)
