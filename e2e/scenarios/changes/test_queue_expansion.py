"""An ordered topic gets more queues under load."""

import pytest

from e2e.canary import Canary
from e2e.machine import MachineError
from e2e.orders import Orders, kept
from e2e.space import Property, Space
from orderlymq.oracle.verdict import Kind

OLD, NEW = 8, 12


def test_a_topic_grows_under_load_and_no_key_is_overtaken(
    space: Space, orders: Orders, canary: Canary, record_property: Property
) -> None:
    """Through fence, drain, switch and propagation, the status shows the phase; a leader dies meanwhile, and order holds."""
    space.example("quickstart.yaml")
    space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
    canary.verifies()
    orders.start()
    orders.until_acknowledged(200)

    orders.note(Kind.GROWN, topic="orders")
    space.patch("topic/orders", {"queueChangePolicy": "DrainAndSwitch", "queues": NEW})
    seen: set[str] = set()

    def propagates() -> bool:
        expansion = space.must("topic/orders").get("status", {}).get("expansion")
        if expansion:
            seen.add(expansion["phase"])
        return "Propagating" in seen

    space.until(propagates, "the new list is published", 120)
    space.kill(space.leader("demo"))
    orders.note(Kind.FAULT, detail="leader")
    seconds = space.ready("topic/orders", timeout_s=150)

    orders.until_acknowledged(400)
    canary.accuses_nobody()
    verdict = orders.finish()
    queues = {event.queue for event in orders.history() if event.kind is Kind.ACK}
    record_property("propagated_s", str(seconds))
    record_property("phases", str(sorted(seen)))
    record_property("ack_gap_ms", str(verdict.ack_gap_ms))
    kept(verdict)
    assert len(queues) > OLD
    assert "expansion" not in space.must("topic/orders")["status"]


@pytest.mark.ci
def test_an_ordered_topic_never_shrinks(space: Space) -> None:
    """The API server refuses it."""
    space.example("quickstart.yaml")
    space.ready("topic/orders")

    space.patch("topic/orders", {"queueChangePolicy": "DrainAndSwitch"})
    with pytest.raises(MachineError, match="queues cannot be removed"):
        space.patch("topic/orders", {"queues": OLD - 1})
