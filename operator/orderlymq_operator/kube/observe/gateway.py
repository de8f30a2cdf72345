"""
Gateway API's TLSRoutes: the version that the API server serves, and whether a gateway has accepted a route.

The operator does not watch routes, because the served version may change while it runs, and a watch of a removed
version would end. It reads them at each resync, and every few seconds while an address is missing.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.kube.resources import TLS_ROUTES, Json, Resource
from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_operator.resources.cluster.listeners import Listener

# The newest first. All have the fields that the operator uses.
_VERSIONS: Final = tuple(
    replace(TLS_ROUTES, api_version=f"gateway.networking.k8s.io/{version}")
    for version in ("v1", "v1alpha3", "v1alpha2")
)
# Users install and remove Gateway API while the operator runs; it is enough to notice that a minute later.
_KEPT_S: Final = 60.0


class GatewayApi:
    """The Gateway API version that the API server serves; *clock* returns monotonic seconds."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._known: tuple[float, Resource | None] | None = None

    async def routes(self) -> Resource | None:
        """Return the newest version of TLSRoute; None if the API server serves none.

        Raises:
            ApiError: the API server cannot answer now.
        """
        now = self._clock()
        if self._known is None or now - self._known[0] >= _KEPT_S:
            self._known = (now, await self._find())
        return self._known[1]

    async def _find(self) -> Resource | None:
        for each in _VERSIONS:
            if await self._api.serves(each):
                return each
        return None


def has_routes(listeners: Iterable[Listener]) -> bool:
    """Return whether clients reach one of the listeners through TLSRoutes."""
    return any(each.type == "TLSRoute" for each in listeners)


def may_have_routes(item: Item) -> bool:
    """Return whether a Cluster should have TLSRoutes, or had some when its status was written."""
    listeners = item.status.get("listeners") or []
    return any(each.get("type") == "TLSRoute" for each in listeners) or (
        isinstance(item.manifest, Cluster) and has_routes(item.manifest.spec.listeners)
    )


def refusal_of(route: Json) -> str | None:
    """Return why no gateway serves a route; None if one does.

    The operator's routes have one parent each; each controller that knows the parent writes its own status entry.
    """
    generation = route["metadata"].get("generation")
    text = "no gateway has accepted it yet"
    for parent in (route.get("status") or {}).get("parents") or []:
        conditions = {
            each["type"]: each
            for each in parent.get("conditions") or []
            if each.get("observedGeneration", generation) == generation
        }
        accepted, resolved = conditions.get("Accepted", {}), conditions.get("ResolvedRefs", {})
        if accepted.get("status") == "True" and resolved.get("status") != "False":
            return None
        wrong = resolved if accepted.get("status") == "True" else accepted
        if wrong.get("reason"):
            text = f"{wrong['reason']}: {wrong.get('message', '')}".rstrip(": ")
    return text
