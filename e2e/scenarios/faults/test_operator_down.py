"""The operator is away for two minutes while pods die, and comes back."""

import os
import time

from e2e.canary import Canary
from e2e.installed import Operator
from e2e.orders import Orders, kept
from e2e.space import Space
from orderlymq.oracle.verdict import Kind

AWAY_S = float(os.environ.get("ORDERLYMQ_E2E_AWAY_S", "120"))
RESYNC_S = 20.0  # by then the operator has read everything again, as conftest.py says
BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_the_data_plane_needs_no_operator(
    space: Space, orders: Orders, canary: Canary, operator: Operator
) -> None:
    """Brokers fail over, consumers take over when leases end; the operator restarts nothing when it is back."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    canary.verifies()
    orders.start(crash=True)

    with operator.away():
        begun = time.monotonic()
        space.kill(space.leader("demo"))
        orders.note(Kind.FAULT, detail="leader killed without an operator")
        orders.until_acknowledged(200)
        space.kill(orders.busiest())
        space.kubectl("delete", "topic/orders", "--wait=false")
        space.example("quickstart.yaml")
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - begun)))
        space.until(lambda: len(space.pods(BROKERS)) == 3, "three brokers", 60)
        before = space.uids(BROKERS)

    space.ready(*READY)
    orders.until_acknowledged(200)
    time.sleep(RESYNC_S)
    assert space.uids(BROKERS) == before
    canary.accuses_nobody()
    kept(orders.finish())
