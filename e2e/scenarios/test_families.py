"""Clusters whose pods have IPv6 addresses only, or both families: the quick start, and a killed leader."""

from pathlib import Path

import pytest

from e2e import families
from e2e.installed import Operator
from e2e.machine import Machine
from e2e.orders import Orders, kept
from e2e.space import Property, Space

pytestmark = pytest.mark.timeout(900)

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
FAMILIES: dict[families.Family, set[bool]] = {"ipv6": {True}, "dual": {False, True}}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_quick_start_keeps_the_order(
    machine: Machine,
    image: str,
    family: families.Family,
    tmp_path: Path,
    record_property: Property,
) -> None:
    """Manifests and application are unchanged, because nothing in them depends on a family."""
    if not machine.kind:
        pytest.skip("clusters are made where kind makes them")
    with families.cluster(machine, family) as there:
        there.load(image)
        repository, _, tag = image.rpartition(":")
        values = (f"image.repository={repository}", f"image.tag={tag}", "watchNamespaces={*}")
        operator = Operator(there, "orderlymq", image, values)
        space = Space(there, "families", image)
        for name in (operator.name, space.name):
            there.run("kubectl", "create", "namespace", name)
        operator.install()
        space.example("quickstart.yaml")
        record_property("ready_s", round(space.ready(*READY), 1))
        orders = Orders(space, tmp_path)
        orders.start()

        space.lose_leader("demo")
        orders.until_acknowledged(200)

        kept(orders.finish(), at_least=200)
        for pod in space.items("pods"):
            assert {":" in each["ip"] for each in pod["status"]["podIPs"]} == FAMILIES[family]
