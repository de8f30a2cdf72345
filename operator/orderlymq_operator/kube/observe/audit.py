"""
The audit of watches: it compares what they showed with what exists.

An interrupted watch never shows what disappeared meanwhile. The audit counts and names such stale objects, and informs
the parts that rely on hints.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.resources import OWN_KINDS, PODS, Json

_AUDITED: Final = {resource.kind for resource in (*OWN_KINDS, PODS)}
# Of the pods of all applications a stale object costs a lease at most: that is not worth reading all of them each minute.
_PODS_S: Final = 600.0
Name = tuple[str, str, str]  # namespace, name, UID


class Audit:
    """Remembers what watches show, by UID."""

    def __init__(
        self, metrics: OperatorMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._pods_at = clock()
        self._shown: dict[str, set[Name]] = {kind: set() for kind in _AUDITED}

    def shown(self, kind: str, found: Json, *, gone: bool) -> None:
        """Note what a watch shows."""
        known = self._shown.get(kind)
        if known is not None:
            (known.discard if gone else known.add)(_name(found))

    async def compare(
        self, api: Api, inventory: Inventory, namespaces: tuple[str, ...]
    ) -> list[tuple[str, Name]]:
        """Read the custom resources again; return and forget the objects that only the watches know.

        Raises:
            ApiError: what there is cannot be read.
        """
        # Taken before the lists are read: what appears meanwhile is not stale.
        before = {kind: set(names) for kind, names in self._shown.items()}
        inventory.invalidate()
        await inventory.refresh()
        present = {resource.kind: inventory.names(resource.kind) for resource in OWN_KINDS}
        if self._clock() - self._pods_at >= _PODS_S:
            lists = await asyncio.gather(
                *(api.list(PODS, place, whole=False) for place in namespaces or (None,))
            )
            present[PODS.kind] = {_name(item) for found in lists for item in found}
            self._pods_at = self._clock()
        stale = []
        for kind, names in present.items():
            for name in before[kind] - names:
                if name in self._shown[kind]:
                    self._shown[kind].discard(name)
                    stale.append((kind, name))
        self._metrics.stale_objects.inc(len(stale))
        return stale


def _name(found: Json) -> Name:
    meta = found["metadata"]
    return meta["namespace"], meta["name"], meta["uid"]
