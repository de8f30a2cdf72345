"""
The custom resources as they were last read, as models.

Rules: a kind is read again when a watch reports a change of it, and at every resync, by one reader at a time. A caller
gets what was there when it asked, or newer. An object that has not changed is not parsed again. An object that cannot be
parsed is kept with its error, so that its status can report it.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.resources import OWN_KINDS, PARTS, Json, Resource
from orderlymq_operator.resources.kinds import KINDS, USING
from orderlymq_operator.resources.kinds import Resource as Manifest

# Name and namespace of a Cluster.
ClusterKey = tuple[str, str]
_META: Final = {
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
}
_NOT_OURS: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Item:
    """One custom resource.

    Attributes:
        manifest: the model; None when it cannot be used, *error* says why.
        cluster: the Cluster that it is or belongs to; None when it does not say, and of what uses one.
        status: as it stands in the API server.
        deleting_since: when its deletion was asked for, None when it was not.
    """

    resource: Resource
    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    created: str
    finalizers: tuple[str, ...]
    annotations: Mapping[str, str]
    status: Json
    deleting_since: str | None
    cluster: ClusterKey | None
    manifest: Manifest | None
    error: str

    @property
    def kind(self) -> str:
        """Its kind."""
        return self.resource.kind

    @property
    def age_order(self) -> tuple[str, str, str]:
        """A key that puts the oldest first; equal ages are told apart by name."""
        return self.created, self.namespace, self.name


def read_item(resource: Resource, found: Json) -> Item:
    """Return a custom resource as it was read."""
    meta = found["metadata"]
    own = {key: value for key, value in meta.items() if key in _META}
    notes = {
        key: value for key, value in (meta.get("annotations") or {}).items() if key != _NOT_OURS
    }
    own["annotations"] = {}
    own["labels"] = {}
    own.pop("finalizers", None)
    manifest: Manifest | None = None
    error = ""
    try:
        manifest = KINDS[resource.kind].model_validate(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": own,
                "spec": found.get("spec") or {},
            }
        )
    except ValidationError as invalid:
        first = invalid.errors()[0]
        error = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return Item(
        resource=resource,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=meta["resourceVersion"],
        generation=meta.get("generation", 0),
        created=meta.get("creationTimestamp", ""),
        finalizers=tuple(meta.get("finalizers") or ()),
        annotations=notes,
        status=found.get("status") or {},
        deleting_since=meta.get("deletionTimestamp"),
        cluster=cluster_of(resource.kind, found),
        manifest=manifest,
        error=error,
    )


def cluster_of(kind: str, found: Json) -> ClusterKey | None:
    """Return the Cluster that an object is or belongs to; None when it does not say, and of what uses one."""
    namespace = found["metadata"]["namespace"]
    if kind == "Cluster":
        return namespace, found["metadata"]["name"]
    if kind in USING:
        return None  # it uses a Cluster as clients do
    reference = (found.get("spec") or {}).get("clusterRef") or {}
    if not isinstance(reference.get("name"), str):
        return None
    return reference.get("namespace") or namespace, reference["name"]


class Inventory:
    """
    All custom resources of the watched namespaces.

    Args:
        changed: is told of every object that a list showed otherwise than it was known: the first reader learns what
            concerns others, and no watch wakes them, because what it shows is known by then.
    """

    def __init__(
        self,
        api: Api,
        namespaces: tuple[str, ...],
        changed: Callable[[Item], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._changed = changed
        kinds = [resource.kind for resource in OWN_KINDS]
        self._items: dict[str, dict[tuple[str, str], Item]] = {kind: {} for kind in kinds}
        # How often a kind was said to have changed, and how many of that the last list had seen.
        self._wanted = dict.fromkeys(kinds, 1)
        self._read = dict.fromkeys(kinds, 0)
        self._reading = {kind: asyncio.Lock() for kind in kinds}
        self._written: dict[str, set[tuple[str, str]]] = {kind: set() for kind in kinds}

    def invalidate(self, kind: str | None = None) -> None:
        """Read a kind, or all of them, again before the next use."""
        for each in [kind] if kind else self._wanted:
            self._wanted[each] += 1

    async def refresh(self, own: tuple[str, str] | None = None) -> None:
        """Read what may have changed since it was read last, or wait for the caller that reads it.

        *own* is the Cluster or Pipeline that the caller looks at afterwards anyway.

        Raises:
            ApiError: it cannot be read now.
        """
        for resource in OWN_KINDS:
            needed = self._wanted[resource.kind]
            # A caller that comes while a list is under way needs its answer, and another list if it is too old.
            async with self._reading[resource.kind]:
                if self._read[resource.kind] < needed:
                    begun = self._wanted[resource.kind]
                    await self._refresh(resource, own)
                    self._read[resource.kind] = begun

    async def _refresh(self, resource: Resource, own: tuple[str, str] | None) -> None:
        written = self._written[resource.kind] = set()
        lists = [await self._api.list(resource, namespace) for namespace in self._namespaces]
        before = self._items[resource.kind]
        now: dict[tuple[str, str], Item] = {}
        changed: list[Item] = []
        for found in itertools.chain(*lists):
            key = (found["metadata"]["namespace"], found["metadata"]["name"])
            known = before.get(key)
            # What was written while the list was read is newer than the list.
            same = known is not None and known.version == found["metadata"]["resourceVersion"]
            if known is not None and (same or key in written):
                now[key] = known
            else:
                now[key] = read_item(resource, found)
                changed.append(now[key])
        changed += [before[key] for key in before.keys() - now.keys()]
        self._items[resource.kind] = now
        for item in changed:
            if (item.cluster or (item.namespace, item.name)) != own:
                self._changed(item)

    def written(self, resource: Resource, found: Json) -> None:
        """Take over an object as a write returned it."""
        item = read_item(resource, found)
        self._items[resource.kind][(item.namespace, item.name)] = item
        self._written[resource.kind].add((item.namespace, item.name))

    def knows(self, kind: str, namespace: str, name: str, version: str) -> bool:
        """Return whether an object is known exactly as a watch shows it, as after a write of ours."""
        item = self._items[kind].get((namespace, name))
        return item is not None and item.version == version

    def clusters(self) -> Iterator[Item]:
        """Return all Clusters."""
        return iter(tuple(self._items["Cluster"].values()))

    def cluster(self, key: ClusterKey) -> Item | None:
        """Return a Cluster; None when there is none."""
        return self._items["Cluster"].get(key)

    def parts(self, key: ClusterKey) -> list[Item]:
        """Return every Topic, ConsumerGroup and User of a Cluster, the oldest of a kind first."""
        return [
            item
            for resource in PARTS
            for item in sorted(self._items[resource.kind].values(), key=lambda item: item.age_order)
            if item.cluster == key
        ]

    def names(self, kind: str) -> set[tuple[str, str, str]]:
        """Return namespace, name and UID of every object of a kind."""
        return {(item.namespace, item.name, item.uid) for item in self._items[kind].values()}

    def items(self, kind: str) -> list[Item]:
        """Return all objects of a kind, the oldest first."""
        return sorted(self._items[kind].values(), key=lambda item: item.age_order)

    def item(self, kind: str, key: tuple[str, str]) -> Item | None:
        """Return an object by namespace and name; None when there is none."""
        return self._items[kind].get(key)

    def pipelines(self) -> list[Item]:
        """Return all Pipelines."""
        return list(self._items["Pipeline"].values())

    def pipeline(self, key: tuple[str, str]) -> Item | None:
        """Return a Pipeline by namespace and name; None when there is none."""
        return self._items["Pipeline"].get(key)

    def cluster_keys(self) -> set[ClusterKey]:
        """Return every Cluster that exists or is referred to."""
        return {
            item.cluster for kind in self._items.values() for item in kind.values() if item.cluster
        }
