"""
The audit of watches: what they show against what there is.

A watch that was interrupted never shows what disappeared meanwhile: such ghosts are counted and named, and whoever
relies on hints learns of them here.
"""

import asyncio
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.resources import OWN_KINDS, PODS, Json

_AUDITED: Final = {resource.kind: resource for resource in (*OWN_KINDS, PODS)}
Name = tuple[str, str, str]  # namespace, name, UID


class Audit:
    """Remembers what watches show, by UID."""

    def __init__(self, metrics: OperatorMetrics) -> None:
        self._metrics = metrics
        self._shown: dict[str, set[Name]] = {kind: set() for kind in _AUDITED}

    def shown(self, kind: str, found: Json, *, gone: bool) -> None:
        """Note what a watch shows."""
        known = self._shown.get(kind)
        if known is not None:
            (known.discard if gone else known.add)(_name(found))

    async def compare(self, api: Api, namespaces: tuple[str, ...]) -> list[tuple[str, Name]]:
        """Return and forget the objects that only the watches know.

        Raises:
            ApiError: what there is cannot be read.
        """
        ghosts = []
        for kind, resource in _AUDITED.items():
            # Taken before the list is read: what appears meanwhile is no ghost.
            before = set(self._shown[kind])
            lists = await asyncio.gather(
                *(api.list(resource, namespace) for namespace in namespaces or (None,))
            )
            present = {_name(item) for found in lists for item in found}
            for name in before - present:
                if name in self._shown[kind]:
                    self._shown[kind].discard(name)
                    ghosts.append((kind, name))
        self._metrics.ghosts.inc(len(ghosts))
        return ghosts


def _name(found: Json) -> Name:
    meta = found["metadata"]
    return meta["namespace"], meta["name"], meta["uid"]
