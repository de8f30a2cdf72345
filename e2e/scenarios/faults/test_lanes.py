"""A consumer group by key: killed consumers delay only their own lanes, and a killed leader delays none."""

from e2e.orders import Orders, kept
from e2e.space import Json, Space
from orderlymq.oracle.verdict import Kind

KILLS = 3


def test_lanes_go_on_in_order_when_consumers_and_the_leader_are_killed(
    space: Space, orders: Orders
) -> None:
    """The manifest says concurrency Key; the status counts lanes, and the oracle checks each of them."""
    space.example("quickstart.yaml", _by_key)
    space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
    orders.start(crash=True, by_key=True)
    space.says("consumergroup/billing", "LanesFlowing", "LanesFlowing")

    for _ in range(KILLS):
        victim = orders.consumers()[0]
        space.kill(victim)
        orders.note(Kind.FAULT, detail=f"consumer {victim} killed")
        orders.until_acknowledged(100)
    space.kill(space.leader("demo"))
    orders.note(Kind.FAULT, detail="leader killed")
    orders.until_acknowledged(200)

    kept(orders.finish())
    space.until(lambda: _waiting(space) == (0, 0), "no lane waits for a try or for a release", 120)


def _waiting(space: Space) -> tuple[int, int]:
    lanes = space.must("consumergroup/billing")["status"]["lanes"]
    return lanes["parked"], lanes["held"]


def _by_key(made: Json) -> None:
    if made["kind"] == "ConsumerGroup":
        made["spec"]["concurrency"] = "Key"
