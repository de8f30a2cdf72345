"""A deletion that no watch sees is noticed when everything is read again."""

from e2e.installed import Operator
from e2e.space import Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_what_vanished_behind_the_operators_back_is_made_again(
    space: Space, operator: Operator
) -> None:
    """Service, ConfigMap and PodDisruptionBudget are deleted in the gap; the broker group keeps its address."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    address = space.must("service/demo-0")["spec"]["clusterIP"]

    with operator.away():
        space.kubectl("delete", "service/demo-0", "configmap/demo-0", "pdb/demo-0")

    for name in ("service/demo-0", "configmap/demo-0", "pdb/demo-0"):
        space.until(lambda name=name: space.get(name) is not None, f"{name} again", 60)  # type: ignore[misc]
    assert space.must("service/demo-0")["spec"]["clusterIP"] == address
    space.ready(*READY)
