"""
The custom resources in their last known state, as models.

Rules: an object from a watch event is stored unless a newer version is known. Kinds are listed at the start and after a
watch was interrupted, by one reader at a time. An answer to a request that began after an object was stored replaces
the object, even if its version is smaller: versions go back when the API server's store is restored. An object that has
not changed is not parsed again. An object that cannot be parsed is kept with its error, so that its status can report
it. If a namespace cannot be read, because it is gone or the right is missing, its known objects are kept, and other
namespaces are still served.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.objects.names import ANNOTATION_PAUSE
from orderlymq_operator.kube.resources import OWN_KINDS, PARTS, Json, Resource
from orderlymq_operator.resources.kinds import KINDS, NAME_FIELDS, USING, declared_name
from orderlymq_operator.resources.kinds import Resource as Manifest

_log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace and name
ClusterKey = Key
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
# Forbidden, and not found. A deleted namespace gives the first one, too, because its RoleBinding is deleted with it.
_UNREADABLE: Final = (403, 404)
# The number of deleted objects to remember. The answer to a write that was running at the deletion comes within
# seconds.
GONE_MAX: Final = 20_000
#: The annotation in which `kubectl apply` stores the manifest that it applied.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Item:
    """One custom resource.

    Attributes:
        manifest: the model; None if it is invalid, see *error*.
        planned: the model for the planner: its name is unique over namespaces, and the name for clients is unchanged.
        cluster: the Cluster that it is or belongs to; None if it names none, or if its kind only uses a Cluster.
        status: the status in the API server.
        deleting_since: when its deletion was requested; None if it was not.
        owners: UIDs of its owners.
        declared: the name that clients use; also set if the manifest is invalid.
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
    planned: Manifest | None
    error: str
    owners: frozenset[str]
    declared: str

    @property
    def kind(self) -> str:
        """Its kind."""
        return self.resource.kind

    @property
    def key(self) -> Key:
        """Its namespace and name."""
        return self.namespace, self.name

    @property
    def is_paused(self) -> bool:
        """True if the annotation for a pause tells the operator to do nothing for the object."""
        return self.annotations.get(ANNOTATION_PAUSE) == "true"

    @property
    def age_order(self) -> tuple[str, str, str]:
        """A sort key that puts the oldest first; namespace and name decide between equal ages."""
        return self.created, self.namespace, self.name


def read_item(resource: Resource, found: Json) -> Item:
    """Parse a custom resource."""
    meta = found["metadata"]
    own = {key: value for key, value in meta.items() if key in _META}
    notes = {
        key: value for key, value in (meta.get("annotations") or {}).items() if key != LAST_APPLIED
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
        planned=None if manifest is None else _planned(manifest),
        error=error,
        owners=frozenset(each["uid"] for each in meta.get("ownerReferences") or ()),
        declared=_declared(resource.kind, found) if manifest is None else declared_name(manifest),
    )


def _planned(manifest: Manifest) -> Manifest:
    field = NAME_FIELDS.get(manifest.kind)
    if field is None:
        return manifest
    meta, declared = manifest.metadata, {field: declared_name(manifest)}
    named = meta.model_copy(update={"name": f"{meta.namespace}/{meta.name}"})
    return manifest.with_spec(**declared).model_copy(update={"metadata": named})


def _declared(kind: str, found: Json) -> str:
    """Return the name that clients use, as an invalid object states it; the name itself may be invalid."""
    field = NAME_FIELDS.get(kind)
    said = (found.get("spec") or {}).get(to_camel(field)) if field else None
    return said if isinstance(said, str) else str(found["metadata"]["name"])


def cluster_of(kind: str, found: Json) -> ClusterKey | None:
    """Return the Cluster that an object is or belongs to; None if it names none, or if its kind only uses a Cluster."""
    namespace = found["metadata"]["namespace"]
    if kind == "Cluster":
        return namespace, found["metadata"]["name"]
    if kind in USING:
        return None  # it uses a Cluster as clients do
    reference = (found.get("spec") or {}).get("clusterRef") or {}
    if not isinstance(reference.get("name"), str):
        return None
    return reference.get("namespace") or namespace, reference["name"]


async def list_each(
    api: Api, resource: Resource, namespaces: tuple[str, ...], *, whole: bool = True
) -> tuple[list[Json], dict[str, ApiError]]:
    """Return all objects of a kind in *namespaces* (empty for all), and the errors of namespaces that cannot be read.

    Raises:
        ApiError: none of the namespaces can be read, or the API server does not answer.
    """
    found: list[Json] = []
    unread: dict[str, ApiError] = {}
    if not namespaces:
        return await api.list(resource, whole=whole), unread
    for namespace in namespaces:
        try:
            found += await api.list(resource, namespace, whole=whole)
        except ApiError as error:
            if error.status not in _UNREADABLE:
                raise
            unread[namespace] = error
            if len(unread) == len(namespaces):
                raise
    return found, unread


def _is_newer(version: str, known: Item) -> bool:
    """Return whether an object's resourceVersion is newer than the known one."""
    if version.isdecimal() and known.version.isdecimal():
        return int(version) > int(known.version)
    return version != known.version


def _read_changed(
    resource: Resource, lists: Iterable[Json], known: Mapping[tuple[str, str], Item]
) -> dict[tuple[str, str], Item]:
    """Parse the objects of a list that are new or have another version than the known ones."""
    made = {}
    for found in lists:
        meta = found["metadata"]
        before = known.get((meta["namespace"], meta["name"]))
        if before is None or meta["resourceVersion"] != before.version:
            made[meta["namespace"], meta["name"]] = read_item(resource, found)
    return made


class Inventory:
    """
    All custom resources of the watched namespaces.

    Attributes:
        unread: by namespace that cannot be read, the refused kind and the error.

    Args:
        changed: called with every object that a list showed in another state than the known one. A later watch event
            finds that state known and wakes no worker, so only this call wakes the workers of other objects.
    """

    def __init__(
        self,
        api: Api,
        namespaces: tuple[str, ...],
        changed: Callable[[Item], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._namespaces = namespaces
        self._changed = changed
        self.unread: dict[str, tuple[Resource, ApiError]] = {}
        kinds = [resource.kind for resource in OWN_KINDS]
        self._items: dict[str, dict[tuple[str, str], Item]] = {kind: {} for kind in kinds}
        # How often a kind was invalidated, and how many of these invalidations the last list covers.
        self._wanted = dict.fromkeys(kinds, 1)
        self._read = dict.fromkeys(kinds, 0)
        self._reading = {kind: asyncio.Lock() for kind in kinds}
        self._unlisted = {kind: frozenset[str]() for kind in kinds}
        # Deleted objects by UID, oldest first, with the moment of the deletion.
        self._gone: dict[str, int] = {}
        # A counter that orders events in this process: when an object was stored, when a read began.
        self._moment = 0
        self._learned: dict[str, dict[tuple[str, str], int]] = {kind: {} for kind in kinds}

    def invalidate(self, kind: str | None = None) -> None:
        """Read a kind, or all of them, again before the next use."""
        for each in [kind] if kind else self._wanted:
            self._wanted[each] += 1

    async def refresh(self, own: tuple[str, str] | None = None) -> set[str]:
        """Read the invalidated kinds, or wait for another caller that reads them; return the kinds that this call read.

        *own* is the Cluster or Pipeline that the caller reconciles afterwards anyway; `changed` is not called for it.

        Raises:
            ApiError: a kind cannot be read now.
        """
        read = set()
        for resource in OWN_KINDS:
            needed = self._wanted[resource.kind]
            # A caller that arrives while a list is running waits for its answer, and lists again if that is too old.
            async with self._reading[resource.kind]:
                if self._read[resource.kind] < needed:
                    begun = self._wanted[resource.kind]
                    await self._refresh(resource, own)
                    self._read[resource.kind] = begun
                    read.add(resource.kind)
        return read

    async def _refresh(self, resource: Resource, own: tuple[str, str] | None) -> None:
        begun = self._next_moment()
        lists, unread = await list_each(self._api, resource, self._namespaces)
        self.note_unread(resource, unread)
        self._unlisted[resource.kind] = frozenset(unread)
        # Parse in another thread, because thousands of objects take seconds and the loop must serve others.
        made = await beside_loop(_read_changed, resource, lists, dict(self._items[resource.kind]))
        before, learned = self._items[resource.kind], self._learned[resource.kind]
        now = {
            key: item
            for key, item in before.items()
            if item.namespace in unread or learned[key] > begun
        }
        changed: list[Item] = []
        for found in lists:
            key = (found["metadata"]["namespace"], found["metadata"]["name"])
            known = before.get(key)
            if known is not None and self._stands(known, found, begun):
                now[key] = known
            else:
                now[key] = made.get(key) or read_item(resource, found)
                learned[key] = begun
                changed.append(now[key])
            self._revive(found, begun)
        changed += [before[key] for key in before.keys() - now.keys()]
        self._items[resource.kind] = now
        self._learned[resource.kind] = {key: learned[key] for key in now}
        for item in changed:
            if (item.cluster or item.key) != own:
                self._changed(item)

    def _next_moment(self) -> int:
        self._moment += 1
        return self._moment

    def _stands(self, known: Item, found: Json, begun: int) -> bool:
        """Return whether the known state of an object is no older than *found*, the answer to a request at *begun*."""
        version = found["metadata"]["resourceVersion"]
        if version == known.version:
            return True
        learned = self._learned[known.kind][known.namespace, known.name]
        return learned > begun and not _is_newer(version, known)

    def _revive(self, found: Json, begun: int) -> None:
        """Note that an object exists again after its deletion was shown, because the store was restored."""
        if self._gone.get(found["metadata"]["uid"], begun) < begun:
            del self._gone[found["metadata"]["uid"]]

    def note_unread(self, resource: Resource, unread: Mapping[str, ApiError]) -> None:
        """Store why namespaces cannot be read; remove namespaces in which *resource* was refused before and is not now.

        The operator may list its own kinds in all namespaces, so that it can remove finalizers in a namespace that
        loses its Role. It may not list Pods everywhere.
        """
        for namespace, error in unread.items():
            if namespace not in self.unread:
                _log.error("namespace %r is not served: %s", namespace, error)
                self.unread[namespace] = resource, error
        for namespace, (refused, _) in list(self.unread.items()):
            if refused == resource and namespace not in unread:
                _log.info("namespace %r is served again", namespace)
                del self.unread[namespace]

    async def can_read_more(self) -> bool:
        """Return whether a namespace that could not be read can be read now.

        Raises:
            ApiError: the API server does not answer.
        """
        for namespace, (refused, _) in list(self.unread.items()):
            try:
                await self._api.list(refused, namespace, whole=False)
            except ApiError as error:
                if error.status not in _UNREADABLE:
                    raise
            else:
                return True
        return False

    def written(self, resource: Resource, found: Json) -> None:
        """Store an object that a write returned, unless a watch has shown a newer version or its deletion since."""
        meta, items = found["metadata"], self._items[resource.kind]
        known = items.get((meta["namespace"], meta["name"]))
        if meta["uid"] in self._gone or (
            known is not None and not _is_newer(meta["resourceVersion"], known)
        ):
            return
        self._take(resource, found)

    def _take(self, resource: Resource, found: Json) -> None:
        item = read_item(resource, found)
        self._items[resource.kind][item.key] = item
        self._learned[resource.kind][item.key] = self._next_moment()

    async def read(self, resource: Resource, key: tuple[str, str]) -> Item | None:
        """Read one object now and return it; None if it does not exist. It may be a new object of the same name.

        Raises:
            ApiError: it cannot be read now.
        """
        namespace, name = key
        before, begun = self.item(resource.kind, key), self._next_moment()
        found = await self._api.list(resource, namespace, fields=f"metadata.name={name}")
        for each in found:
            self._revive(each, begun)
            known = self.item(resource.kind, key)
            is_over = each["metadata"]["uid"] in self._gone
            if not is_over and (known is None or not self._stands(known, each, begun)):
                self._take(resource, each)
        # An object that a watch has shown meanwhile is newer than an empty answer.
        if not found and before is not None and self.item(resource.kind, key) is before:
            self._drop(resource.kind, key)
        return self.item(resource.kind, key)

    async def read_changed(self, item: Item) -> Item | None:
        """Read an object that another client has written since it was stored, and call `changed` with it.

        Raises:
            ApiError: it cannot be read now.
        """
        found = await self.read(item.resource, item.key)
        self._changed(found or item)
        return found

    def shown(self, resource: Resource, found: Json, *, gone: bool) -> bool:
        """Store an object from a watch event. Return False if its state is known, such as after our own write."""
        meta, kind = found["metadata"], resource.kind
        key = (meta["namespace"], meta["name"])
        if gone:
            self._gone[meta["uid"]] = self._next_moment()
            if len(self._gone) > GONE_MAX:
                del self._gone[next(iter(self._gone))]
        known = self._items[kind].get(key)
        ends = gone and known is not None and known.uid == meta["uid"]
        if known is not None and not ends and not _is_newer(meta["resourceVersion"], known):
            return False
        if self._reading[kind].locked() or not self._read[kind]:
            # A running list may be older than this event, and does not show deletions.
            self.invalidate(kind)
        elif not gone:
            self.written(resource, found)
        elif ends:
            self._drop(kind, key)
        return True

    def _drop(self, kind: str, key: tuple[str, str]) -> None:
        del self._items[kind][key]
        del self._learned[kind][key]

    def cluster(self, key: ClusterKey) -> Item | None:
        """Return a Cluster; None if it does not exist."""
        return self._items["Cluster"].get(key)

    def parts(self, key: ClusterKey) -> list[Item]:
        """Return every Topic, ConsumerGroup and User of a Cluster, the oldest of a kind first.

        Other threads may call it, because it copies the objects before it iterates over them.
        """
        return [
            item
            for resource in PARTS
            for item in sorted(
                [
                    item
                    for item in tuple(self._items[resource.kind].values())
                    if item.cluster == key
                ],
                key=lambda item: item.age_order,
            )
        ]

    def unlisted(self, kind: str) -> frozenset[str]:
        """Return the namespaces that may have unknown objects of a kind, because the last list was refused there."""
        return self._unlisted[kind]

    def names(self, kind: str) -> set[tuple[str, str, str]]:
        """Return namespace, name and UID of every object of a kind."""
        return {(item.namespace, item.name, item.uid) for item in self._items[kind].values()}

    def items(self, kind: str) -> list[Item]:
        """Return all objects of a kind, the oldest first."""
        return sorted(self._items[kind].values(), key=lambda item: item.age_order)

    def item(self, kind: str, key: tuple[str, str]) -> Item | None:
        """Return an object by namespace and name; None if it does not exist."""
        return self._items[kind].get(key)

    def cluster_keys(self) -> set[ClusterKey]:
        """Return every Cluster that exists or is referred to."""
        return {
            item.cluster for kind in self._items.values() for item in kind.values() if item.cluster
        }
