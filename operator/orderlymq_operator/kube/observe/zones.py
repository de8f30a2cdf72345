"""
Labels of nodes, and the zone of a node or a consumer by the label `topology.kubernetes.io/zone`.

Rule: watch events are accurate enough here, and an unknown zone counts as no zone. A wrong zone makes messages take a
longer way but never changes their order.
"""

from collections.abc import Callable
from typing import Final

from orderlymq_operator.kube.resources import Json

ZONE: Final = "topology.kubernetes.io/zone"


class Zones:
    """The zones of all nodes.

    Args:
        node_of: returns the node of the pod that has an address (`host:port`); empty if unknown.
    """

    def __init__(self, node_of: Callable[[str], str]) -> None:
        self._node_of = node_of
        self._labels: dict[str, dict[str, str]] = {}

    def node_shown(self, found: Json, *, gone: bool) -> None:
        """Store the labels of a node from a watch event."""
        meta = found["metadata"]
        if gone:
            self._labels.pop(meta["name"], None)
        else:
            self._labels[meta["name"]] = dict(meta.get("labels") or {})

    def label(self, node: str, key: str) -> str | None:
        """Return a label of a node, empty if it lacks the label; None if no watch has shown the node."""
        labels = self._labels.get(node)
        return None if labels is None else labels.get(key, "")

    def of_node(self, node: str) -> str:
        """Return the zone of a node; empty if unknown."""
        return self.label(node, ZONE) or ""

    def of_address(self, address: str) -> str:
        """Return the zone of the pod behind `host:port`; empty if unknown."""
        return self.of_node(self._node_of(address))
