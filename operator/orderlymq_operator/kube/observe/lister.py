"""
Lists of the objects that were made for one Cluster or Pipeline, with as few requests as possible.

Rule: pods and their workloads are read at every reconcile, because decisions follow from them. Objects that only the
operator changes are kept for KEPT_S while nothing had to be done, and are read again after an action or a failure. A
change by hand is repaired by the first reconcile after that time; a resync wakes one each minute.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.resources import Json, Resource

# Less than the interval of a resync, so that each resync reads everything.
KEPT_S: Final = 45.0


@dataclass(frozen=True, slots=True)
class _Known:
    edition: Hashable
    at: float
    lists: dict[Resource, list[Json]]


class Lister:
    """What was read of each owner; *clock* gives seconds that never go back."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[Hashable, _Known] = {}
        self._read: dict[Hashable, _Known] = {}  # by reconciles that have not ended yet

    async def read(
        self,
        owner: Hashable,
        edition: Hashable,
        namespace: str | None,
        labels: str,
        *,
        fresh: Collection[Resource],
        kept: Collection[Resource],
    ) -> tuple[dict[Resource, list[Json]], bool]:
        """Return the objects with *labels* by kind, and whether all of them were read just now.

        What is kept of another *edition* of the owner is not used; kinds that are *fresh* are read again in any case.

        Raises:
            ApiError: they cannot be read now.
        """
        known = self._known.pop(owner, None)
        usable = (
            known is not None
            and known.edition == edition
            and self._clock() - known.at < KEPT_S
            and known.lists.keys() >= set(kept)
        )
        kinds = list(fresh) if usable else [*fresh, *kept]
        found = await asyncio.gather(
            *(self._api.list(resource, namespace, labels=labels) for resource in kinds)
        )
        lists = dict(zip(kinds, found, strict=True))
        if known is None or not usable:
            self._read[owner] = _Known(edition, self._clock(), lists)
            return lists, True
        self._read[owner] = known
        return {**known.lists, **lists}, False

    def keep(self, owner: Hashable) -> None:
        """Keep what was read last: nothing had to be done. Everything else is read again."""
        found = self._read.pop(owner, None)
        if found is not None:
            self._known[owner] = found

    def forget(self, owner: Hashable) -> None:
        """Drop everything about an owner that is gone."""
        self._known.pop(owner, None)
        self._read.pop(owner, None)
