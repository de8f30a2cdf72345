"""
The audit of watches: it compares what they showed with what exists.

An interrupted watch never shows what disappeared meanwhile. It shows again what is still there: by that the audit knows
the interruption, and reads the kind. It counts and names such stale objects, and informs the parts that rely on hints.
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
# Against an interruption that showed nothing, because nothing was left. Pods of all applications are not read for that:
# a stale one costs a lease at most.
EVERY_S: Final = 1_800.0
Name = tuple[str, str, str]  # namespace, name, UID


class Audit:
    """Remembers what watches show, by UID."""

    def __init__(
        self, metrics: OperatorMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._interrupted: set[str] = set()
        self._read_at: float | None = None
        self._shown: dict[str, set[Name]] = {kind: set() for kind in _AUDITED}

    def shown(self, kind: str, found: Json, *, gone: bool, listed: bool = False) -> None:
        """Note what a watch shows; *listed* where it begins, and where it begins again."""
        known = self._shown.get(kind)
        if known is None:
            return
        name = _name(found)
        if listed and name in known:
            self._interrupted.add(kind)
        (known.discard if gone else known.add)(name)

    async def compare(
        self, api: Api, inventory: Inventory, namespaces: tuple[str, ...]
    ) -> list[tuple[str, Name]]:
        """Read what may have vanished unseen; return and forget the objects that only the watches know.

        Raises:
            ApiError: what there is cannot be read.
        """
        # Taken before the lists are read: what appears meanwhile is not stale.
        before = {kind: set(names) for kind, names in self._shown.items()}
        now, interrupted = self._clock(), set(self._interrupted)
        if self._read_at is None or now - self._read_at >= EVERY_S:
            inventory.invalidate()
        for kind in interrupted - {PODS.kind}:
            inventory.invalidate(kind)
        read = await inventory.refresh()
        present = {kind: inventory.names(kind) for kind in read}
        if PODS.kind in interrupted:
            lists = await asyncio.gather(
                *(api.list(PODS, place, whole=False) for place in namespaces or (None,))
            )
            present[PODS.kind] = {_name(item) for found in lists for item in found}
        self._interrupted -= present.keys()
        if len(read) == len(OWN_KINDS):
            self._read_at = now
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
