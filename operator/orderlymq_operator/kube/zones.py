"""
In which zone a node or a consumer is, as the label `topology.kubernetes.io/zone` of nodes says.

Rule: what watches show is enough here, and what is not known is no zone: a wrong zone costs a longer way, never the
order.
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
        self._zones: dict[str, str] = {}

    def node_shown(self, found: Json, *, gone: bool) -> None:
        """Note what a watch shows of a node."""
        meta = found["metadata"]
        zone = (meta.get("labels") or {}).get(ZONE)
        if zone and not gone:
            self._zones[meta["name"]] = zone
        else:
            self._zones.pop(meta["name"], None)

    def of_node(self, node: str) -> str:
        """Return the zone of a node; empty where it is not known."""
        return self._zones.get(node, "")

    def of_address(self, address: str) -> str:
        """Return the zone of the pod behind `host:port`; empty where it is not known."""
        return self.of_node(self._node_of(address))
