"""
The parts of Kubernetes that a bare API server lacks and the operator's objects need: controllers of StatefulSets, budgets and volumes, and nodes.

`Controllers.work` moves everything one step on and returns whether it did something. Pods run immediately, and are gone as
soon as they are deleted.
"""

from typing import Any, Final

from bench.apiload import NAMESPACE, Kube, running

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.resources import (
    BUDGETS,
    CLAIMS,
    PODS,
    STATEFUL_SETS,
    Resource,
)
from tests.operator.kube.fakes.brokers import Brokers, RaftGroup, address_of

Json = dict[str, Any]
CLASS: Final = "standard"


class Controllers:
    """The controllers of one namespace with one Cluster, `demo`, whose processes are *brokers*."""

    def __init__(self, kube: Kube, brokers: Brokers) -> None:
        self._kube = kube
        self._brokers = brokers
        self.restarted: list[str] = []

    async def begin(self) -> None:
        """Create the storage class, whose volumes can grow."""
        made = {
            "metadata": {"name": CLASS},
            "provisioner": "example.com/none",
            "allowVolumeExpansion": True,
        }
        await self._kube.call("POST", "/apis/storage.k8s.io/v1/storageclasses", made)

    async def work(self) -> bool:
        """Do the work that is due; return whether there was any."""
        sets = {each["metadata"]["name"]: each for each in await self._items(STATEFUL_SETS)}
        pods = {each["metadata"]["name"]: each for each in await self._items(PODS)}
        claims = {each["metadata"]["name"]: each for each in await self._items(CLAIMS)}
        count = 0
        wanted = {
            f"{name}-{number}"
            for name, made in sets.items()
            for number in range(made["spec"]["replicas"])
        }
        for name, pod in pods.items():
            if name not in wanted or "deletionTimestamp" in pod["metadata"]:
                if name in wanted:
                    self.restarted.append(name)
                self._brokers.running.discard(pod["status"].get("podIP", ""))
                await self._end(PODS, name)
                count += 1
        for name in wanted - pods.keys():
            await self._start(sets[name.rpartition("-")[0]], name, claims)
            count += 1
        for made in sets.values():
            count += await self._note(made)
        for name, claim in claims.items():
            count += await self._serve_claim(claim, name.removeprefix("data-") in wanted)
        for budget in await self._items(BUDGETS):
            count += await self._allow(budget)
        self._brokers.elect()
        return bool(count + await self._label()) or bool(wanted - pods.keys())

    async def _items(self, resource: Resource) -> list[Json]:
        found: list[Json] = (await self._kube.call("GET", resource.path(NAMESPACE)))["items"]
        return found

    async def _end(self, resource: Resource, name: str) -> None:
        await self._kube.call(
            "DELETE",
            resource.path(NAMESPACE, name),
            {"gracePeriodSeconds": 0, "kind": "DeleteOptions", "apiVersion": "v1"},
        )

    async def _start(self, made: Json, name: str, claims: dict[str, Json]) -> None:
        """Create a pod and its volume, and let it run."""
        meta, template = made["metadata"], made["spec"]["template"]
        number = int(name.rpartition("-")[2])
        label = meta["labels"].get(names.LABEL_GROUP)
        group = None if label is None else int(label)
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": meta["name"]}
        owner |= {"uid": meta["uid"], "controller": True}
        claim = f"data-{name}"
        if claim not in claims:
            await self._claim(made["spec"]["volumeClaimTemplates"][0], claim)
        data = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
        volumes = [*template["spec"].get("volumes", []), data]
        pod = {
            "metadata": {
                "name": name,
                "labels": template["metadata"].get("labels") or {},
                "annotations": template["metadata"].get("annotations") or {},
                "ownerReferences": [owner],
            },
            "spec": {**template["spec"], "volumes": volumes, "nodeName": f"worker-{number}"},
        }
        await self._kube.call("POST", PODS.path(NAMESPACE), pod)
        told = running(template["spec"]["containers"][0]["name"])
        address = address_of(group, number)
        told["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
        await self._kube.call("PATCH", PODS.path(NAMESPACE, name, "status"), told)
        self._brokers.running.add(address)
        if group is None:
            lists = self._brokers.lists
            lists.setdefault(number, dict(next(iter(lists.values()), {})))
        elif group not in self._brokers.groups:
            first = int(meta["annotations"][names.ANNOTATION_FIRST])
            self._brokers.groups[group] = RaftGroup(set(range(1, first + 1)))

    async def _claim(self, template: Json, name: str) -> None:
        meta = {"name": name, "labels": template["metadata"].get("labels") or {}}
        made = {"metadata": meta, "spec": {"storageClassName": CLASS, **template["spec"]}}
        await self._kube.call("POST", CLAIMS.path(NAMESPACE), made)

    async def _serve_claim(self, claim: Json, used: bool) -> int:
        """Bind a volume, let it grow, and delete it when no pod uses it."""
        meta, status = claim["metadata"], claim.get("status") or {}
        place = CLAIMS.path(NAMESPACE, meta["name"])
        if "deletionTimestamp" in meta:
            if not used:
                await self._kube.call("PATCH", place, {"metadata": {"finalizers": None}})
            return int(not used)
        size = claim["spec"]["resources"]["requests"]["storage"]
        if (status.get("capacity") or {}).get("storage") == size:
            return 0
        told = {"phase": "Bound", "capacity": {"storage": size}}
        await self._kube.call("PATCH", f"{place}/status", {"status": told})
        return 1

    async def _note(self, made: Json) -> int:
        """Take up a change of a StatefulSet."""
        meta, count = made["metadata"], made["spec"]["replicas"]
        told = {"observedGeneration": meta["generation"], "replicas": count, "readyReplicas": count}
        if {key: made["status"].get(key, 0) for key in told} == told:
            return 0
        place = STATEFUL_SETS.path(NAMESPACE, meta["name"], "status")
        await self._kube.call("PATCH", place, {"status": told})
        return 1

    async def _allow(self, budget: Json) -> int:
        """Let a pod of a disruption budget be evicted."""
        meta = budget["metadata"]
        told = {
            "observedGeneration": meta["generation"],
            "disruptionsAllowed": 1,
            "currentHealthy": 1,
            "desiredHealthy": 0,
            "expectedPods": 1,
        }
        present = budget.get("status") or {}
        if {key: present.get(key) for key in told} == told:
            return 0
        place = BUDGETS.path(NAMESPACE, meta["name"], "status")
        await self._kube.call("PATCH", place, {"status": {**told, "disruptedPods": None}})
        return 1

    async def _label(self) -> int:
        """Label the leading pods, as their brokers do."""
        count = 0
        for pod in await self._items(PODS):
            meta = pod["metadata"]
            labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
            group = self._brokers.groups.get(int(labels.get(names.LABEL_GROUP, -1)))
            if group is None:
                continue
            leads = group.leader == names.node_of(meta["name"])
            term = str(group.term)
            if leads == (labels.get(names.LABEL_ROLE) == names.LEADER) and (
                not leads or notes.get(names.ANNOTATION_TERM) == term
            ):
                continue
            change: Json = {"labels": {names.LABEL_ROLE: names.LEADER if leads else None}}
            if leads:
                change["annotations"] = {names.ANNOTATION_TERM: term}
            await self._kube.call("PATCH", PODS.path(NAMESPACE, meta["name"]), {"metadata": change})
            count += 1
        return count
