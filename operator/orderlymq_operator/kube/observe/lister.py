"""
Lists the objects that were made for one Cluster or Pipeline, with as few requests as possible.

Rules: a kind is read again when a watch shows one of its objects in another state than the read one, or when the watch
was interrupted. All kinds are read after an action or a failure, and when the last read is old. Cached lists may only
show whether there is something to do. What to do is decided from a fresh read, see `cachedstate`.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError, RetryLaterError
from orderlymq_operator.kube.resources import Json, Resource
from orderlymq_runtime.process.supervisor import end_tasks

# How long the cache is valid if watches report changes. Only objects that disappear while a watch is interrupted stay
# in the cache for so long.
WATCHED_KEPT_S: Final = 1_800.0
# How long the cache is valid without watches. It is less than the interval of a resync, so that each resync reads
# everything.
KEPT_S: Final = 45.0
# Lists of one owner that are read at the same time. Other requests need connections, too.
_AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True)
class _Known:
    edition: Hashable
    at: float
    lists: dict[Resource, list[Json]]
    refused: dict[Resource, ApiError] = field(default_factory=dict)


class Lister:
    """The last lists of each owner; *clock* returns monotonic seconds."""

    def __init__(self, api: Api, clock: Callable[[], float], kept_s: float = KEPT_S) -> None:
        self._api = api
        self._clock = clock
        self._kept_s = kept_s
        self._known: dict[Hashable, _Known] = {}
        self._read: dict[Hashable, _Known] = {}  # lists of reconciles that have not ended yet
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
        """Return the objects with *labels*, by kind.

        Cached lists of another *edition* of the owner are not used. If the API server refuses to list a kind of
        *spare*, the kind has no objects, see `refused`.

        Raises:
            ApiError: the objects cannot be read now; all requests for them have ended.
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
        # Objects from watch events during the read may be newer or older than the answers, so their kinds are read
        # again.
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
            await end_tasks(tasks)  # after a failure, cancel the remaining requests
        lists = {**known.lists, **dict(zip(due, found, strict=True))}
        self._read[owner] = _Known(edition, known.at, lists, refused)
        return lists

    def refused(self, owner: Hashable) -> dict[str, ApiError]:
        """Return the kinds that the API server refused in the last read of an owner, with the errors."""
        known = self._read[owner]
        return {resource.kind: error for resource, error in known.refused.items()}

    def keeps(self, owner: Hashable) -> bool:
        """Return whether the cache has lists of an owner."""
        return owner in self._known

    def interrupted(self, kinds: Collection[str]) -> None:
        """Have *kinds* of every owner read again, because their watches may have missed changes."""
        for owner in (*self._known, *self._read, *self._reading):
            self._again.setdefault(owner, set()).update(kinds)

    def shown(self, owner: Hashable, found: Json, *, gone: bool) -> bool:
        """Note an owner's object from a watch event; return False if the object is known in this version."""
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
        """Keep the last lists in the cache, because nothing had to be done; *again* are kinds to read next time."""
        found = self._read.pop(owner, None)
        if found is not None:
            self._known[owner] = found
            self._again.setdefault(owner, set()).update(resource.kind for resource in again)

    def forget(self, owner: Hashable) -> None:
        """Drop all lists of an owner, so that everything is read again."""
        for kept in (self._known, self._read, self._again):
            kept.pop(owner, None)
