"""
The pod template of a Cluster, merged into the pods that the operator makes.

Pure. Rules: the operator's own container stays the first one, and its values win should both name the same thing, which
`resources.podtemplate` refuses before. A sidecar runs locked down as the others do and has no probes.
"""

from collections.abc import Iterable

from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.meta import Model
from orderlymq_operator.resources.pod.containers import (
    EnvironmentVariable,
    Sidecar,
    SidecarSecurity,
)
from orderlymq_operator.resources.pod.template import PodTemplate


def with_template(made: Json, template: PodTemplate) -> Json:
    """Return a pod with one container of the operator, and what *template* adds to it."""
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
    """Return what *model* says beyond Kubernetes' defaults, which the API server leaves out, too."""
    found: Json = model.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return found


def locked_down() -> Json:
    """Return what a container may not do."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
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
    # The API server keeps a False here.
    return {**locked_down(), **chosen, "readOnlyRootFilesystem": not writes}


def _variables(given: Iterable[EnvironmentVariable]) -> list[Json]:
    """Return variables; one with an empty value has none in the API server's words."""
    made = [plain(each) for each in given]
    return [{key: value for key, value in each.items() if value != ""} for each in made]
