"""
The nodes whose ports clients of other networks connect to: their addresses, and whether they are ready.

Rule: after all nodes were listed, watch events are accurate enough. If a node wrongly counts as ready, its clients get
refused connections until the next list.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.resources import NODES, Json

# All nodes are listed again after this time, because a watch may miss a deletion. It is less than a resync's interval.
KEPT_S: Final = 45.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node.

    Attributes:
        external, internal: its addresses, in the order that the node reports: IPv4 before IPv6.
    """

    name: str
    external: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    ready: bool = False


class Nodes:
    """All nodes; *clock* returns monotonic seconds."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, NodeFacts] = {}
        self._read_at: float | None = None

    def shown(self, found: Json, *, gone: bool) -> bool:
        """Store a node from a watch event; return whether its facts have changed."""
        facts = node_facts(found)
        if gone:
            return self._known.pop(facts.name, None) is not None
        is_news = self._known.get(facts.name) != facts
        self._known[facts.name] = facts
        return is_news

    async def read(self) -> list[NodeFacts]:
        """Return all nodes.

        Raises:
            ApiError: they cannot be read now.
        """
        now = self._clock()
        if self._read_at is None or now - self._read_at >= KEPT_S:
            found = await self._api.list(NODES, None)
            self._known = {facts.name: facts for facts in map(node_facts, found)}
            self._read_at = now
        return sorted(self._known.values(), key=lambda each: each.name)


def node_facts(found: Json) -> NodeFacts:
    """Return the facts about a node."""
    status = found.get("status") or {}
    addresses = status.get("addresses") or []

    def of_type(kind: str) -> tuple[str, ...]:
        return tuple(each["address"] for each in addresses if each.get("type") == kind)

    return NodeFacts(
        found["metadata"]["name"],
        of_type("ExternalIP"),
        of_type("InternalIP"),
        any(
            each.get("type") == "Ready" and each.get("status") == "True"
            for each in status.get("conditions") or []
        ),
    )
