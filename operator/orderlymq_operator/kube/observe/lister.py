"""
Lists of the objects that were made for one Cluster or Pipeline, with as few requests as possible.

Rules: a kind is read again when a watch shows an object of it otherwise than it was read, or was interrupted; all are read
after an action or a failure, and when the last reading is old. What is kept shows whether there is something to do, and
never what: `api.by_what_is_kept`.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from orderlymq_operator.kube.api import Api, ApiError, RetryLaterError
from orderlymq_operator.kube.resources import Json, Resource
from orderlymq_runtime.process.supervisor import end_tasks

# Where watches report changes: only what vanished while a watch was interrupted waits so long.
WATCHED_KEPT_S: Final = 1_800.0
# Where no watch reports; less than the interval of a resync, so that each resync reads everything.
KEPT_S: Final = 45.0
# Lists of one owner that are read at the same time: others find connections free, too.
_AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True)
class _Known:
    edition: Hashable
    at: float
    lists: dict[Resource, list[Json]]
    refused: dict[Resource, ApiError] = field(default_factory=dict)


class Lister:
    """Last reading of each owner; *clock* gives seconds that never go back."""

    def __init__(self, api: Api, clock: Callable[[], float], kept_s: float = KEPT_S) -> None:
        self._api = api
        self._clock = clock
        self._kept_s = kept_s
        self._known: dict[Hashable, _Known] = {}
        self._read: dict[Hashable, _Known] = {}  # by reconciles that have not ended yet
        self._reading: set[Hashable] = set()
        self._again: dict[Hashable, set[str]] = {}  # kinds that the next reconcile reads

    async def read(
        self,
        owner: Hashable,
        edition: Hashable,
        namespace: str | None,
        labels: str,
        kinds: Collection[Resource],
        spare: Collection[Resource] = (),
    ) -> dict[Resource, list[Json]]:
        """Return the objects with *labels* by kind.

        What is kept of another *edition* of the owner is not used. A kind of *spare* that the API server refuses to list has
        no objects, see `refused`.

        Raises:
            ApiError: they cannot be read now; no request for them is under way any more.
        """
        known = self._known.pop(owner, None)
        self._read.pop(owner, None)
        again = self._again.pop(owner, set())
        if (
            known is None
            or known.edition != edition
            or self._clock() - known.at >= self._kept_s
            or not known.lists.keys() >= set(kinds)
        ):
            known, due = _Known(edition, self._clock(), {}), list(kinds)
        else:
            due = [each for each in kinds if each.kind in again or each in known.refused]
        # Objects that are shown meanwhile may be newer or older than the answers, so they are read once more.
        self._reading.add(owner)
        refused: dict[Resource, ApiError] = {}
        gate = asyncio.Semaphore(_AT_ONCE)

        async def objects(resource: Resource) -> list[Json]:
            try:
                async with gate:
                    return await self._api.list(resource, namespace, labels=labels)
            except ApiError as error:
                if isinstance(error, RetryLaterError) or resource not in spare:
                    raise
                text = f"{resource.plural} cannot be listed: {error}"
                refused[resource] = type(error)(text, error.status, error.reason)
                return []

        tasks = [
            asyncio.create_task(objects(each), name=f"list {each.plural} of {owner}")
            for each in due
        ]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            self._reading.discard(owner)
            await end_tasks(tasks)  # after a failure those that nobody waits for any more
        lists = {**known.lists, **dict(zip(due, found, strict=True))}
        self._read[owner] = _Known(edition, known.at, lists, refused)
        return lists

    def refused(self, owner: Hashable) -> dict[str, ApiError]:
        """Return the kinds that the last reading of an owner was refused."""
        known = self._read[owner]
        return {resource.kind: error for resource, error in known.refused.items()}

    def keeps(self, owner: Hashable) -> bool:
        """Return whether something is kept of an owner."""
        return owner in self._known

    def interrupted(self, kinds: Collection[str]) -> None:
        """Read *kinds* of every owner again: their watches may have missed something."""
        for owner in (*self._known, *self._read, *self._reading):
            self._again.setdefault(owner, set()).update(kinds)

    def shown(self, owner: Hashable, found: Json, *, gone: bool) -> bool:
        """Note what a watch shows of an owner; return whether that is news."""
        kind, meta = found["kind"], found["metadata"]
        known = self._known.get(owner) or self._read.get(owner)
        if known is not None:
            versions = {
                each["metadata"]["name"]: each["metadata"]["resourceVersion"]
                for resource, items in known.lists.items()
                if resource.kind == kind
                for each in items
            }
            if versions.get(meta["name"]) == (None if gone else meta["resourceVersion"]):
                return False
        self._again.setdefault(owner, set()).add(kind)
        return True

    def keep(self, owner: Hashable, again: Iterable[Resource] = ()) -> None:
        """Keep what was read last: nothing had to be done. Kinds in *again* are read the next time all the same."""
        found = self._read.pop(owner, None)
        if found is not None:
            self._known[owner] = found
            self._again.setdefault(owner, set()).update(resource.kind for resource in again)

    def forget(self, owner: Hashable) -> None:
        """Drop everything about an owner, so that all of it is read again."""
        for kept in (self._known, self._read, self._again):
            kept.pop(owner, None)
