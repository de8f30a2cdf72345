"""
Labels of nodes, and the zone of a node or a consumer by the label `topology.kubernetes.io/zone`.

Rule: what watches show is enough here, and an unknown zone counts as none. A wrong zone costs a longer way, never the order.
"""

from collections.abc import Callable
from typing import Final

from orderlymq_operator.kube.resources import Json

ZONE: Final = "topology.kubernetes.io/zone"


class Zones:
    """The zones of all nodes.

    Args:
        node_of: the node of the pod that has an address (`host:port`); empty where it is not known.
    """

    def __init__(self, node_of: Callable[[str], str]) -> None:
        self._node_of = node_of
        self._labels: dict[str, dict[str, str]] = {}

    def node_shown(self, found: Json, *, gone: bool) -> None:
        """Note what a watch shows of a node."""
        meta = found["metadata"]
        if gone:
            self._labels.pop(meta["name"], None)
        else:
            self._labels[meta["name"]] = dict(meta.get("labels") or {})

    def label(self, node: str, key: str) -> str | None:
        """Return a label of a node, empty where it has none; None while no watch has shown the node."""
        labels = self._labels.get(node)
        return None if labels is None else labels.get(key, "")

    def of_node(self, node: str) -> str:
        """Return the zone of a node; empty where it is not known."""
        return self.label(node, ZONE) or ""

    def of_address(self, address: str) -> str:
        """Return the zone of the pod behind `host:port`; empty where it is not known."""
        return self.of_node(self._node_of(address))
