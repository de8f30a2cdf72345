"""A Cluster is deleted and made again: with Retain its messages, offsets and message ids still exist."""

from e2e.orders import Orders, kept
from e2e.space import Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_a_deleted_cluster_comes_back_with_everything(space: Space, orders: Orders) -> None:
    """Producers and consumers wait and then continue; no message is lost, repeated or out of order."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    orders.start()
    orders.until_acknowledged(200)
    claims = {claim["metadata"]["uid"] for claim in space.items("pvc")}

    space.kubectl("delete", "cluster/demo", "--timeout=90s")
    space.until(lambda: not space.pods("orderlymq.io/cluster=demo"), "no pod is left", 90)
    assert claims <= {claim["metadata"]["uid"] for claim in space.items("pvc")}

    space.example("quickstart.yaml")
    space.ready(*READY)
    orders.until_acknowledged(200)
    kept(orders.finish())


def test_a_namespace_can_be_deleted_in_any_order(space: Space) -> None:
    """The Cluster is deleted first, topics with deletionPolicy Delete later: none waits for a deleted object."""
    space.example("quickstart.yaml")
    space.ready("cluster/demo")
    space.patch("topic/orders", {"deletionPolicy": "Delete"})
    space.ready("topic/orders")

    space.kubectl("delete", "cluster/demo", "--timeout=90s")
    space.kubectl("delete", "topic/orders", "consumergroup/billing", "--timeout=90s")

    assert space.get("topic/orders") is None
