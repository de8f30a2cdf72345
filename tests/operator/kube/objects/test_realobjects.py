"""
The operator's objects at a real API server: an accepted manifest never leads to a refused object or pod, or to endless drift.

Pods are made in a namespace with the restricted profile. ORDERLYMQ_OBJECTS is the number of manifests, ORDERLYMQ_SEED
the first seed.
"""

import asyncio
import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest
from bench.apiload import NAMESPACE, Kube
from pydantic import ValidationError

from orderlymq_operator.kube.objects.backups.job import (
    ToolEnvironment,
    creation_job,
    deletion_job,
)
from orderlymq_operator.kube.objects.cluster import group_set
from orderlymq_operator.kube.objects.drift import contains, stamped
from orderlymq_operator.kube.objects.pipeline import (
    DriverEnvironment,
    pipeline_workload,
    supporting_objects,
)
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.reconcile.desiredobjects import early_objects, late_objects
from orderlymq_operator.kube.resources import PODS, Json, resource_of
from orderlymq_operator.resources import crd
from orderlymq_operator.resources.kinds import KINDS, Backup, Cluster, Pipeline
from tests.operator.kube.fakes.specs import change_somewhere
from tests.operator.kube.realapi import administrator, needs_api_server, real_api_server
from tests.operator.kube.samples import IMAGE, environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600), needs_api_server]

COUNT: Final = int(os.environ.get("ORDERLYMQ_OBJECTS", "60"))
SEED: Final = int(os.environ.get("ORDERLYMQ_SEED", "1"))
_DEMO: Final = {"clusterRef": {"name": "demo"}}
BEGINNINGS: Final[dict[str, Json]] = {
    "Cluster": {},
    "Pipeline": {
        **_DEMO,
        "type": "archive",
        "source": {"topic": "orders"},
        "checkpoint": "checkpoint",
        "path": "archive",
    },
    "Backup": {**_DEMO, "destination": {"pvc": {"claimName": "backups"}}},
}
# Values that the API server rewrites, omits or has twice; chance seldom finds them.
_RESOURCES: Final = {"requests": {"cpu": "1000m", "memory": "1.0001Gi"}, "limits": {"cpu": 1}}
_PLACED: Final = {"tolerations": [{"key": "spot", "operator": "Exists", "value": ""}]}
_TWICE: Final = [
    {"name": "certs", "mountPath": path, "subPath": path[1:]} for path in ("/one", "/two")
]
_SIDECAR: Final = {
    "name": "one",
    "image": "one",
    "resources": _RESOURCES,
    "volumeMounts": _TWICE,
    "env": [{"name": "EMPTY", "value": ""}],
    "securityContext": {"readOnlyRootFilesystem": False},
}
AWKWARD: Final[dict[str, Json]] = {
    "Cluster": {
        "resources": _RESOURCES,
        "placement": _PLACED,
        "podTemplate": {
            "labels": {"empty": ""},
            "volumes": [{"name": "certs", "secret": {"secretName": "certs", "optional": False}}],
            "volumeMounts": _TWICE,
            "sidecars": [_SIDECAR],
            "tolerations": [{"key": "old", "value": ""}],
        },
    },
    "Pipeline": {**BEGINNINGS["Pipeline"], "resources": _RESOURCES, "placement": _PLACED},
    "Backup": {**BEGINNINGS["Backup"], "resources": _RESOURCES},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_api_server(tmp_path_factory.mktemp("api")) as found:
        yield found


def with_spec(kind: str, spec: Json) -> Any:
    """Return a manifest with *spec*."""
    meta = {"name": "demo", "namespace": NAMESPACE, "uid": "00000000-0000-0000-0000-000000000000"}
    made = {"apiVersion": "orderlymq.io/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
    return KINDS[kind].model_validate(made)


def manifest(kind: str, chance: Random) -> Any:
    """Return a random manifest that can be used."""
    schema = crd.schema(kind)["properties"]["spec"]
    while True:
        spec = copy.deepcopy(BEGINNINGS[kind])
        for _ in range(chance.choice([1, 2, 3, 5])):
            change_somewhere(spec, schema, chance)
        if kind == "Cluster":
            spec["groups"] = min(spec.get("groups", 1), 2)  # They are all alike.
        try:
            return with_spec(kind, spec)
        except ValidationError:
            continue


def objects(found: Any) -> list[Json]:
    """Return the operator's objects for it."""
    match found:
        case Cluster():
            given = replace(environment(found), image=found.spec.image or IMAGE)
            made = [*early_objects(found, given), *late_objects(found, given, Live())]
            return [*made, group_set(found, next(iter(given.groups)), given)]
        case Pipeline() if found.spec.backend != "sparkApplication":
            drivers = DriverEnvironment(found.spec.image or IMAGE, "IfNotPresent")
            return [*supporting_objects(found, drivers), pipeline_workload(found, drivers)]
        case Backup():
            tools = ToolEnvironment(IMAGE, "IfNotPresent", None)
            backup_id = "20260101T000000000Z-00000000"
            return [
                creation_job(found, manifest("Cluster", Random(1)), ["demo-0"], tools),
                deletion_job(found, backup_id, tools),
            ]
    return []


def pod_of(made: Json) -> Json | None:
    """Return the pod of a workload; None if it has none."""
    spec = made.get("spec") or {}
    template = (spec.get("jobTemplate") or {"spec": spec})["spec"].get("template")
    if template is None:
        return None
    volumes = [
        {"name": claim["metadata"]["name"], "emptyDir": {}}
        for claim in spec.get("volumeClaimTemplates", ())
    ]
    inside = {**template["spec"], "volumes": [*template["spec"].get("volumes", ()), *volumes]}
    inside.pop("priorityClassName", None)  # It must exist.
    meta = {**template["metadata"], "generateName": "pod-"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": inside}


async def troubles(kube: Kube, made: Json) -> list[str]:
    """Return why the API server refuses an object or its pod, or stores it with drift."""
    found, pod = [], pod_of(made)
    asked = [(resource_of(made), made), *([] if pod is None else [(PODS, pod)])]
    for resource, each in asked:
        try:
            path = resource.path(NAMESPACE)
            kept = await kube.call("POST", path, each, dryRun="All", fieldValidation="Strict")
        except RuntimeError as error:
            found.append(str(error))
        else:
            if each is made and not contains(kept, made):
                found.append(f"it would be applied again and again: {made}\nis kept as {kept}")
    return found


def test_of_no_manifest_that_is_taken_is_an_object_refused_or_drift(address: str) -> None:
    """Law: what the API server would refuse later is refused in the manifest, and accepted objects do not drift."""
    found: list[str] = []

    async def run() -> None:
        async with administrator(address) as kube:
            profile = {"pod-security.kubernetes.io/enforce": "restricted"}
            change = {"metadata": {"labels": profile}}
            await kube.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}", change)
            given = [(f"awkward {kind}", with_spec(kind, spec)) for kind, spec in AWKWARD.items()]
            for seed in range(SEED, SEED + COUNT):
                chance = Random(seed)
                given.append((f"seed {seed}", manifest(chance.choice(list(BEGINNINGS)), chance)))
            for label, each in given:
                said = each.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"]
                for made in map(stamped, objects(each)):
                    found.extend(f"{label}: {why}\n{said}" for why in await troubles(kube, made))

    asyncio.run(run())

    assert not found, "\n\n".join(found)
