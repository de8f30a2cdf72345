"""
The common part of all pods that the operator makes, and the merge of a Cluster's pod template into them.

Pure. Rules: the operator's own container stays the first one. Its values have priority if both set the same thing, but
`resources.pod.template` refuses that earlier. A sidecar has the same restrictions as other containers, and no probes.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.meta import Model
from orderlymq_operator.resources.pod.containers import (
    EnvironmentVariable,
    Sidecar,
    SidecarSecurity,
)
from orderlymq_operator.resources.pod.template import PodTemplate
from orderlymq_operator.resources.workload import PodSecurityContext

# A volume of a pod and its mount in the container.
Mounted: TypeAlias = tuple[Json, Json]
_USER: Final = 10_001


def with_template(made: Json, template: PodTemplate) -> Json:
    """Return a pod with the additions of *template*; *made* has one container, that of the operator."""
    meta, spec = made["metadata"], made["spec"]
    (own,) = spec["containers"]
    container = {
        **own,
        "env": [*own["env"], *_variables(template.env)],
        "volumeMounts": [*own["volumeMounts"], *map(plain, template.volume_mounts)],
    }
    return {
        "metadata": {
            **meta,
            "labels": {**template.labels, **meta["labels"]},
            "annotations": {**template.annotations, **meta["annotations"]},
        },
        "spec": {
            **spec,
            "containers": [container, *map(_sidecar, template.sidecars)],
            "volumes": [*spec["volumes"], *map(plain, template.volumes)],
        },
    }


def plain(model: Model) -> Json:
    """Return the fields of *model* that differ from Kubernetes' defaults; the API server leaves out defaults, too."""
    found: Json = model.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return found


def locked_down() -> Json:
    """Return a security context that restricts a container as far as possible."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_user(given: PodSecurityContext | None = None) -> Json:
    """Return the security context of a pod: the user from *given* and nothing more, or the image's user if None."""
    chosen: Json = {
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    if given is not None:
        # A different user may have written the files in the volume, even if its root folder has the right group.
        chosen = {**plain(given), "fsGroupChangePolicy": "Always"}
    return {"runAsNonRoot": True, **chosen, "seccompProfile": {"type": "RuntimeDefault"}}


def mounted(name: str, path: str, source: Json) -> Mounted:
    """Return a volume with *source*, and its read-only mount at *path*."""
    return {"name": name, **source}, {"name": name, "mountPath": path, "readOnly": True}


def secret_source(name: str, items: Sequence[Json] = ()) -> Json:
    """Return the source of a volume with a whole Secret, or with *items* of it."""
    named: Json = {"secretName": name, "defaultMode": 0o440}
    return {"secret": {**named, "items": [*items]} if items else named}


def pull_secrets(secrets: Sequence[str]) -> Json:
    """Return the field of a pod that names the Secrets with which its images are pulled."""
    return {"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}


def pod_field(name: str, path: str) -> Json:
    """Return an environment variable with the value of the pod's field *path*."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def probe(path: str, *, scheme: str, period_s: int, timeout_s: int, failures: int) -> Json:
    """Return a probe of a page on the container's port "http"."""
    return {
        "httpGet": {"path": path, "port": "http", "scheme": scheme.upper()},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _sidecar(sidecar: Sidecar) -> Json:
    made = plain(sidecar)
    if sidecar.env:
        made["env"] = _variables(sidecar.env)
    if sidecar.ports:
        made["ports"] = [each.model_dump(mode="json", by_alias=True) for each in sidecar.ports]
    return {**made, "securityContext": _security(sidecar.security_context or SidecarSecurity())}


def _security(given: SidecarSecurity) -> Json:
    writes = not given.read_only_root_filesystem
    chosen = given.model_dump(mode="json", by_alias=True, exclude_none=True)
    # The API server keeps a False in this field.
    return {**locked_down(), **chosen, "readOnlyRootFilesystem": not writes}


def _variables(given: Iterable[EnvironmentVariable]) -> list[Json]:
    """Return environment variables; empty values are left out, as the API server does."""
    made = [plain(each) for each in given]
    return [{key: value for key, value in each.items() if value != ""} for each in made]
