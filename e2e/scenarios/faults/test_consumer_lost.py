"""A consumer's pod is force-deleted: its queues are taken over immediately and in order, ten times in a row."""

import json
import os
import statistics

import pytest

from e2e.orders import Orders, kept
from e2e.space import Property, Space
from orderlymq.oracle.verdict import Kind

pytestmark = pytest.mark.ci

LEASE_S = 60  # the longest lease that brokers grant
KILLS = int(os.environ.get("ORDERLYMQ_E2E_KILLS", "10"))


def test_the_queues_of_a_killed_consumer_go_on_without_its_lease(
    space: Space, orders: Orders, record_property: Property
) -> None:
    """From `kubectl delete pod --force` to the next message of the queue; target: 1 s median, 2 s maximum."""
    space.example("quickstart.yaml")
    space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
    orders.start(crash=True, lease_s=LEASE_S)

    seconds: list[float] = []
    for _ in range(KILLS):
        victim = orders.busiest()
        at = space.kill(victim)
        orders.note(Kind.FAULT, detail=f"consumer {victim} killed")
        seconds.append(max(orders.taken_over(victim, at)))
    record_property("takeover_s", json.dumps([round(value, 3) for value in seconds]))
    record_property("takeover_median_s", round(statistics.median(seconds), 3))
    kept(orders.finish())
    # Times far below the lease were orderly hand-overs.
    assert max(seconds) < LEASE_S / 2, seconds
