"""Two clusters with the same name in two namespaces are independent."""

from dataclasses import replace

from e2e.conftest import sweep
from e2e.orders import Orders, kept
from e2e.space import Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_what_happens_to_one_does_not_touch_the_other(space: Space, orders: Orders) -> None:
    """The second one is made and deleted while the first works; no message crosses."""
    other = replace(space, name=f"{space.name}-two")
    try:
        for place in (space, other):
            place.example("quickstart.yaml")
        for place in (space, other):
            place.ready(*READY)
        orders.start()
        pods = space.uids("orderlymq.io/cluster=demo")
        away = Orders(other, orders.folder / "other")
        away.folder.mkdir()
        away.start(consumers=1)
        away.until_acknowledged(50)

        other.kubectl("delete", "cluster/demo", "--timeout=90s")

        orders.until_acknowledged(100)
        assert space.uids("orderlymq.io/cluster=demo") == pods
        kept(orders.finish())
    finally:
        sweep(other)
