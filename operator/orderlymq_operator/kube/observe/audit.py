"""
The audit of watches: it compares the objects that watches showed with the objects that exist.

A watch that was interrupted never reports objects that disappeared meanwhile, but it reports the remaining objects
again. From that, the audit recognizes the interruption and reads the kind. It counts stale objects and returns them to
its caller.
"""

import time
from collections.abc import Callable, Collection
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.inventory import Inventory, list_each
from orderlymq_operator.kube.resources import CLAIMS, MADE, OWN_KINDS, PODS, Json

_MADE: Final = {resource.kind for resource in (*MADE, CLAIMS)}
_AUDITED: Final = {resource.kind for resource in (*OWN_KINDS, PODS)} | _MADE
# The interval for reading all own kinds, because an interrupted watch shows nothing if no object is left. Pods of all
# applications are not read for that: a stale pod delays a takeover by one lease at most.
EVERY_S: Final = 1_800.0
Name = tuple[str, str, str]  # namespace, name, UID


class Audit:
    """The objects that watches have shown, by kind."""

    def __init__(
        self, metrics: OperatorMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._interrupted: set[str] = set()
        self._read_at: float | None = None
        self._shown: dict[str, set[Name]] = {kind: set() for kind in _AUDITED}

    def shown(self, kind: str, found: Json, *, gone: bool, listed: bool = False) -> None:
        """Note an object from a watch; *listed* if it comes from the list at the start or restart of the watch."""
        known = self._shown.get(kind)
        if known is None:
            return
        name = _name(found)
        if listed and name in known:
            self._interrupted.add(kind)
        (known.discard if gone else known.add)(name)

    def lost(self) -> None:
        """Note that all watches were interrupted."""
        self._interrupted |= _AUDITED

    async def compare(
        self,
        api: Api,
        inventory: Inventory,
        namespaces: tuple[str, ...],
        made: Callable[[Collection[str]], None] = lambda _: None,
    ) -> list[tuple[str, Name]]:
        """Read the kinds whose watches were interrupted; return and forget the objects that do not exist any more.

        *made* is called with the interrupted kinds that the operator makes, because other modules must read those.

        Raises:
            ApiError: the objects cannot be read.
        """
        if await inventory.can_read_more():
            self.lost()
        # Copied before the lists are read, because an object that appears meanwhile is not stale.
        before = {kind: set(names) for kind, names in self._shown.items()}
        now, interrupted = self._clock(), self._interrupted
        self._interrupted = set()
        made(interrupted & _MADE)
        try:
            present = await self._read(api, inventory, namespaces, interrupted)
        except ApiError:
            self._interrupted |= interrupted
            raise
        if len(present) >= len(OWN_KINDS):
            self._read_at = now
        stale = []
        for kind, names in present.items():
            for name in before[kind] - names:
                if name in self._shown[kind]:
                    self._shown[kind].discard(name)
                    stale.append((kind, name))
        self._metrics.stale_objects.inc(len(stale))
        return stale

    async def _read(
        self,
        api: Api,
        inventory: Inventory,
        namespaces: tuple[str, ...],
        interrupted: set[str],
    ) -> dict[str, set[Name]]:
        """Return the existing objects of the kinds with interrupted watches, or of all own kinds if that is due."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= EVERY_S:
            inventory.invalidate()
        if inventory.unread:
            inventory.invalidate()  # no watch reports deletions in unread namespaces
        for kind in interrupted - {PODS.kind} - _MADE:
            inventory.invalidate(kind)
        read = await inventory.refresh()
        present = {kind: inventory.names(kind) for kind in read}
        if PODS.kind in interrupted:
            found, unread = await list_each(api, PODS, namespaces, whole=False)
            inventory.note_unread(PODS, unread)
            known = {name for name in self._shown[PODS.kind] if name[0] in unread}
            present[PODS.kind] = known | {_name(item) for item in found}
        return present


def _name(found: Json) -> Name:
    meta = found["metadata"]
    return meta["namespace"], meta["name"], meta["uid"]
