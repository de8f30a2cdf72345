"""
Objects as an API server keeps them: by path, with selectors, watches, applies, merges and deletes; HTTP is real.

It has the difficulties of the real one: each write gives a new resource version, items of a list lack their kind, a
status has its own path, an apply leaves others' fields alone, lists have pages, a watch may end at any time and does
not know old versions, and requests without the chart's rights are refused.
"""

import asyncio
import copy
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from orderlymq_operator.kube import resources
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.resources import TLS_ROUTES, Json, Resource
from tests.operator.kube.apiserver import absent, serving_api
from tests.operator.kube.rights import granted, needed

_IDENTITY = {"apiVersion", "kind", "metadata"}
# The two ways in which a watch ends: quietly, or as when a machine goes down.
END, BREAK = object(), object()
_RESOURCES = [each for each in vars(resources).values() if isinstance(each, Resource)]
_PLURALS = {each.plural for each in _RESOURCES}


def _discovery() -> dict[str, Json]:
    """Return the API server's discovery documents, by path."""
    groups: list[Json] = []
    found: dict[str, Json] = {"/api": {"versions": ["v1"]}, "/apis": {"groups": groups}}
    for each in (*_RESOURCES, Resource("v1", "Namespace", "namespaces", namespaced=False)):
        if each.root not in found:
            found[each.root] = {"resources": []}
            group, _, version = each.api_version.rpartition("/")
            if group:
                told = {"version": version}
                groups.append({"name": group, "preferredVersion": told, "versions": [told]})
        kind = {"name": each.plural, "kind": each.kind, "singularName": each.kind.lower()}
        verbs = ["list", "watch", "patch"]
        found[each.root]["resources"].append(
            {**kind, "namespaced": each.namespaced, "verbs": verbs}
        )
    return found


_DISCOVERY = _discovery()
_GATEWAY = TLS_ROUTES.root.removesuffix("v1")
_VERSION_DEPTH = TLS_ROUTES.root.count("/")


@dataclass(eq=False)
class Watch:
    """One open watch."""

    path: str
    selector: str
    told: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    def tell(self, kind: str, path: str, found: Json) -> None:
        """Send a change of the object at *path*, if this watch covers it."""
        if _is_in(path, self.path) and _selected(found, self.selector):
            self.told.put_nowait({"type": kind, "object": found})


class ObjectServer:
    """The objects of one API server, and the requests that it got.

    Attributes:
        asked: verb and path of each request, in order; deletions with their propagation.
        refused: answers (status and sentence) by the begin of a path, optionally with a method before it.
        budgets: the answer of a disruption budget, by the pod that it protects.
        overlapping: pods that two disruption budgets select.
        terminating: its namespaces are being deleted, so nothing can be created.
        admit: what an admission rule makes of a copy of each applied object.
        rights: what the operator may do.
        slow: called before a list is made and before it is answered; the caller waits for it.
        watches: the open watches.
        watched: the path of each watch that was requested, in order.
        mute: open watches send nothing more, as when a machine in between has forgotten them.
        routes: the served version of Gateway API's TLSRoute; empty for none.
        oldest: a watch or further page of an earlier version gets 410, within the stream if *gone_within* is true.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.asked: list[tuple[str, ...]] = []
        self.refused: dict[str, tuple[int, str]] = {}
        self.budgets: dict[str, str] = {}
        self.overlapping: set[str] = set()
        self.slow: Callable[[], Awaitable[None]] = _at_once
        self.terminating = False
        self.admit: Callable[[Json], Json] = copy.deepcopy
        self.watches: list[Watch] = []
        self.watched: list[str] = []
        self.oldest = 0
        self.gone_within = True
        self.mute = False
        self.routes = "v1"
        self._changes: list[tuple[int, str, str, Json]] = []
        self._version = 0
        self.rights = granted()

    # -- for tests

    def put(self, resource: Resource, found: Json) -> Json:
        """Store an object, as another client would have made it."""
        meta = found["metadata"]
        return self._write(resource.path(meta.get("namespace"), meta["name"]), found)

    def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return an object as it is stored."""
        return self.objects.get(resource.path(namespace, name))

    def drop(self, resource: Resource, namespace: str, name: str) -> Json:
        """Remove an object, as when Kubernetes has ended it."""
        return self._end(resource.path(namespace, name))

    def collect_garbage(self) -> int:
        """Delete the objects whose owner is gone, as Kubernetes does later; return how many."""
        count = 0
        present = {found["metadata"]["uid"] for found in self.objects.values()}
        for path, found in list(self.objects.items()):
            owners = found["metadata"].get("ownerReferences") or []
            if owners and not any(each["uid"] in present for each in owners):
                self._end(path)
                count += 1
        return count

    def tell(self, what: Any, resource: Resource | None = None) -> None:
        """Send every watch, or those of one kind, an event: END, BREAK, a bookmark, or an error by its code."""
        if isinstance(what, int):
            error = {"kind": "Status", "code": what, "message": "sent by a test"}
            what = {"type": "ERROR", "object": error}
        for each in self.watches:
            if resource is None or each.path.endswith(f"/{resource.plural}"):
                each.told.put_nowait(what)

    def bookmark(self) -> Json:
        """Return the bookmark up to which a watch has sent everything."""
        meta = {"resourceVersion": str(self._version)}
        return {"type": "BOOKMARK", "object": {"metadata": meta}}

    def compact(self) -> None:
        """Forget all changes so far; a watch that wants them gets 410."""
        self._version += 1
        self.oldest = self._version
        self._changes.clear()

    def writes(self) -> list[tuple[str, ...]]:
        """Return the writes since the last call."""
        found = [each for each in self.asked if each[0] != "GET"]
        self.asked.clear()
        return found

    # -- HTTP

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Api]:
        """Serve, and return the operator's client."""
        async with serving_api(web.route("*", "/{path:.+}", self._serve)) as api:
            try:
                yield api
            finally:
                self.tell(END)  # The watcher is gone, which nothing reports to the server.

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        if request.path.startswith(_GATEWAY) and request.path.count("/") == _VERSION_DEPTH:
            if request.path != f"{_GATEWAY}{self.routes}":
                return await absent(request)
            return web.json_response(_DISCOVERY[TLS_ROUTES.root])
        if request.path in _DISCOVERY:
            return web.json_response(_DISCOVERY[request.path])
        return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.Response:
        path, method = request.path, request.method
        body = orjson.loads(await request.read() or b"{}")
        told = body.get("propagationPolicy", "") if method == "DELETE" else ""
        self.asked.append((method, path, told) if told else (method, path))
        refusal = self._refusal(method, path)
        if refusal is not None:
            return refusal
        match method:
            case "GET":
                await self.slow()
                is_metadata = "as=PartialObjectMetadataList" in request.headers.get("Accept", "")
                answer = self._read(path, request.query, is_metadata=is_metadata)
                await self.slow()
                return answer
            case "POST" if path.endswith("/eviction"):
                return self._evict(path.removesuffix("/eviction"), body)
            case "POST" if f"{path}/{body['metadata']['name']}" in self.objects:
                return web.json_response({"message": "already exists"}, status=409)
            case "POST":
                where = f"{path}/{body['metadata']['name']}"
                is_dry = "dryRun" in request.query
                return web.json_response(body if is_dry else self._write(where, body))
            case "PUT" if path in self.objects:
                return self._replace(path, body)
            case "PATCH" if "apply" in request.content_type:
                return self._apply(path, body)
            case "PATCH" if path in self.objects:
                return self._merge(path, body)
            case "DELETE" if path in self.objects:
                return self._delete(path, body)
        return web.json_response({"message": "not found"}, status=404)

    def _refusal(self, method: str, path: str) -> web.Response | None:
        right = needed(method, path)
        if self.terminating and method == "POST":
            causes = [{"reason": "NamespaceTerminating", "message": "it is being terminated"}]
            text = "unable to create new content in namespace shop because it is being terminated"
            return web.json_response({"message": text, "details": {"causes": causes}}, status=403)
        if right not in self.rights:
            text = f'the chart grants no {right}: User "operator" cannot do that'
            return web.json_response({"message": text}, status=403)
        for begin, (status, message) in self.refused.items():
            if f"{method} {path}".startswith(begin) or path.startswith(begin):
                return web.json_response({"message": message}, status=status)
        return None

    def _replace(self, path: str, made: Json) -> web.Response:
        before = self.objects[path]["metadata"]
        if made["metadata"].get("resourceVersion") != before["resourceVersion"]:
            return web.json_response({"message": "somebody was first"}, status=409)
        kept = {"uid": before["uid"], "creationTimestamp": before["creationTimestamp"]}
        meta = {**made["metadata"], **kept}
        return web.json_response(self._write(path, {**made, "metadata": meta}))

    def _merge(self, path: str, change: Json) -> web.Response:
        before, said = self.objects[path]["metadata"], change.get("metadata") or {}
        if any(said.get(key, before[key]) != before[key] for key in ("uid", "resourceVersion")):
            return web.json_response({"message": "somebody was first"}, status=409)
        return web.json_response(self._write(path, _merged(self.objects[path], change)))

    def _delete(self, path: str, body: Json) -> web.Response:
        present = self.objects[path]["metadata"]["uid"]
        if (body.get("preconditions") or {}).get("uid", present) != present:
            return web.json_response({"message": "the UID is another one"}, status=409)
        return web.json_response(self._end(path))

    def _evict(self, path: str, body: Json) -> web.Response:
        """Evict a pod as the API server does: not another one of its name, not against its budget, never immediately."""
        if path not in self.objects:
            return web.json_response({"message": "not found"}, status=404)
        meta = self.objects[path]["metadata"]
        if body["deleteOptions"]["preconditions"]["uid"] != meta["uid"]:
            return web.json_response({"message": "the UID is another one"}, status=409)
        if meta["name"] in self.overlapping:
            text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            return web.json_response({"message": text, "code": 500}, status=500)
        kept = self.budgets.get(meta["name"])
        if kept is not None:
            cause = {"reason": "DisruptionBudget", "message": kept}
            text = "Cannot evict pod as it would violate the pod's disruption budget."
            answer = {"message": text, "reason": "TooManyRequests", "details": {"causes": [cause]}}
            return web.json_response(answer, status=429)
        self._write(path, {**self.objects[path], "metadata": {**meta, "deletionTimestamp": "now"}})
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        group, plural, _ = needed("GET", request.path)
        self.watched.append(request.path)
        if (group, plural, "watch") not in self.rights:
            text = f"the chart grants no watch of {plural}"
            return web.json_response({"message": text}, status=403)
        since = int(request.query["resourceVersion"])
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        if since < self.oldest and not self.gone_within:
            return web.json_response(gone, status=410)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        watch = Watch(request.path, request.query.get("labelSelector", ""))
        if since < self.oldest:
            watch.told.put_nowait({"type": "ERROR", "object": gone})
            watch.told.put_nowait(END)
        for version, kind, path, found in self._changes:
            if version > since:
                watch.tell(kind, path, found)
        self.watches.append(watch)
        try:
            while (told := await watch.told.get()) is not END:
                if told is BREAK:
                    assert request.transport is not None
                    request.transport.abort()
                    break
                await answer.write(orjson.dumps(told) + b"\n")
        finally:
            self.watches.remove(watch)
        return answer

    def _read(self, path: str, query: Mapping[str, str], *, is_metadata: bool) -> web.Response:
        if path in self.objects:
            return web.json_response(self.objects[path])
        if path.rpartition("/")[2] not in _PLURALS:
            return web.json_response({"message": "not found"}, status=404)
        items = [
            {key: value for key, value in found.items() if key not in ("apiVersion", "kind")}
            for each, found in sorted(self.objects.items())
            if _is_in(each, path)
            and _selected(found, query.get("labelSelector", ""))
            and _has_fields(found, query.get("fieldSelector", ""))
        ]
        version, _, skip = query.get("continue", f"{self._version}-0").partition("-")
        if int(version) < self.oldest:
            return web.json_response({"message": "the continue token is too old"}, status=410)
        begin = int(skip)
        end = begin + int(query.get("limit", len(items) + 1))
        meta = {"resourceVersion": version}
        if end < len(items):
            meta["continue"] = f"{version}-{end}"
        # A real server has null where there are no managed fields.
        found = items[begin:end] or (None if is_metadata else [])
        return web.json_response({"items": found, "metadata": meta})

    def _apply(self, path: str, made: Json) -> web.Response:
        if not path.endswith("/status"):
            if taken := self._taken_port(path, made):
                text = f"spec.ports[0].nodePort: {taken}: provided port is already allocated"
                return web.json_response({"message": text}, status=422)
            made, before = self.admit(copy.deepcopy(made)), self.objects.get(path, {})
            kept = {key: value for key, value in before.items() if key not in _IDENTITY}
            meta = _merged(before.get("metadata", {}), made["metadata"])
            return web.json_response(self._write(path, {**kept, **made, "metadata": meta}))
        path = path.removesuffix("/status")
        if path not in self.objects:
            return web.json_response({"message": "not found"}, status=404)
        present = self.objects[path]["metadata"]["resourceVersion"]
        if made["metadata"].get("resourceVersion", present) != present:
            return web.json_response({"message": "somebody was first"}, status=409)
        return web.json_response(
            self._write(path, {**self.objects[path], "status": made["status"]})
        )

    def _taken_port(self, path: str, made: Json) -> int | None:
        """Return the node port of a Service that another one has already."""
        others = [found for place, found in self.objects.items() if place != path]
        taken = {port for found in others for port in _node_ports(found)}
        return next((port for port in _node_ports(made) if port in taken), None)

    def _write(self, path: str, found: Json) -> Json:
        self._version += 1
        before = self.objects.get(path, {})
        meta = {
            "uid": f"uid-{self._version}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **found["metadata"],
            "resourceVersion": str(self._version),
        }
        if "stringData" in found:
            texts = {
                key: b64encode(text.encode()).decode() for key, text in found["stringData"].items()
            }
            found = {key: value for key, value in found.items() if key != "stringData"}
            found["data"] = {**found.get("data", {}), **texts}
        if found.get("kind") == "Service":
            found = {**found, "spec": {"clusterIP": "10.96.0.7", **found["spec"]}}
        generation = before.get("metadata", {}).get("generation", 0)
        meta["generation"] = generation + (before.get("spec") != found.get("spec"))
        made = copy.deepcopy({**found, "metadata": meta})
        if made.get("kind") == "StatefulSet":  # Its controller takes up a change immediately.
            made["status"] = {
                **made.get("status", {}),
                "observedGeneration": meta["generation"],
            }
        self.objects[path] = made
        self._tell("MODIFIED" if before else "ADDED", path, made)
        return made

    def _end(self, path: str) -> Json:
        self._version += 1
        found = self.objects.pop(path)
        meta = {**found["metadata"], "resourceVersion": str(self._version)}
        ended = {**found, "metadata": meta}
        self._tell("DELETED", path, ended)
        return ended

    def _tell(self, kind: str, path: str, found: Json) -> None:
        self._changes.append((self._version, kind, path, found))
        for watch in [] if self.mute else self.watches:
            watch.tell(kind, path, found)


async def _at_once() -> None:
    """Do not wait."""


def _is_in(path: str, collection: str) -> bool:
    """Return whether an object is in a collection, of its namespace or of all."""
    place = path.rpartition("/")[0]
    if place == collection:
        return True
    root, _, plural = collection.rpartition("/")
    return place.startswith(f"{root}/namespaces/") and place.endswith(f"/{plural}")


def _node_ports(found: Json) -> list[int]:
    ports = found["spec"].get("ports") or [] if found.get("kind") == "Service" else []
    return [each["nodePort"] for each in ports if "nodePort" in each]


def _selected(found: Json, selector: str) -> bool:
    labels = found["metadata"].get("labels") or {}
    wanted = [each.partition("=") for each in selector.split(",") if each]
    return all(
        labels.get(name) == value if equal else name in labels for name, equal, value in wanted
    )


def _has_fields(found: Json, selector: str) -> bool:
    wanted = [each.split("=", 1) for each in selector.split(",") if each]
    return all(_field(found, path.split(".")) == value for path, value in wanted)


def _field(found: Any, path: list[str]) -> Any:
    return _field(found.get(path[0]) or {}, path[1:]) if path else found


def _merged(old: Any, new: Any) -> Any:
    """Return the result of a JSON merge patch; null removes a field."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    found = {key: value for key, value in old.items() if new.get(key, value) is not None}
    return found | {k: _merged(old.get(k), v) for k, v in new.items() if v is not None}
