"""
What a Cluster adds to its pods: labels, variables, volumes, sidecars, where they run and as which user.

Names and forms are those of Kubernetes' pods; `pod` has the parts. Rules: a template adds to the operator's parts and
replaces none of them; `kube.objects.podtemplate` merges both. Only Kubernetes applies it: the local backend ignores
it.
"""

from functools import partial
from typing import Annotated, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from orderlymq_operator.resources.meta import (
    BY_NAME,
    Model,
    Name,
    check_names,
    each_once,
    rule,
    rules,
)
from orderlymq_operator.resources.pod.affinity import (
    TERMS_MAX,
    Affinity,
    TopologySpreadConstraint,
)
from orderlymq_operator.resources.pod.containers import (
    MOUNTS_LIST,
    MOUNTS_RULE,
    VOLUMES_MAX,
    EnvironmentVariable,
    Mounts,
    Sidecar,
    Variables,
    Volume,
    VolumeMount,
    Word,
    check_mounts,
)
from orderlymq_operator.resources.pod.ownership import (
    OWN_CONTAINERS,
    OWN_LABELS,
    OWN_PATHS,
    OWN_PORTS,
    OWN_PREFIX,
    OWN_VARIABLE_PREFIXES,
    OWN_VARIABLES,
    OWN_VOLUME_PREFIX,
    OWN_VOLUMES,
    OwnedByOperatorError,
    is_own_port,
    is_own_volume,
    not_own,
    words,
)
from orderlymq_operator.resources.workload import (
    TOLERATIONS_MAX,
    LabelKey,
    LabelValue,
    PodSecurityContext,
    Toleration,
)

_LABELS_MAX: Final = 32
_SIDECARS_MAX: Final = 8


def _without_own(what: str, given: dict[str, str]) -> dict[str, str]:
    for key in given:
        if key in OWN_LABELS or key.startswith(OWN_PREFIX):
            raise OwnedByOperatorError(what, key, "choose another key")
    return given


def _variables(variables: list[EnvironmentVariable]) -> list[EnvironmentVariable]:
    check_names("variable", [each.name for each in variables])
    for each in variables:
        if each.name in OWN_VARIABLES or each.name.startswith(OWN_VARIABLE_PREFIXES):
            advice = "set broker settings in spec.config"
            raise OwnedByOperatorError("variable", each.name, advice)
    return variables


def _volumes(volumes: list[Volume]) -> list[Volume]:
    check_names("volume", [each.name for each in volumes])
    for each in volumes:
        if is_own_volume(each.name):
            raise OwnedByOperatorError("volume", each.name, "choose another name")
    return volumes


def _own_mounts(mounts: list[VolumeMount]) -> list[VolumeMount]:
    path = next(
        (each.mount_path for each in check_mounts(mounts) if any(map(each.overlaps, OWN_PATHS))),
        None,
    )
    if path is not None:
        advice = "choose a path that is neither below nor above one of its paths"
        raise OwnedByOperatorError("path", path, advice)
    return mounts


def _sidecars(sidecars: list[Sidecar]) -> list[Sidecar]:
    check_names("sidecar", [each.name for each in sidecars])
    ports = [port for each in sidecars for port in each.ports]
    check_names("port", [f"{port.container_port}/{port.protocol}" for port in ports])
    for each in sidecars:
        if each.name in OWN_CONTAINERS:
            raise OwnedByOperatorError("container", each.name, "choose another name")
        check_names("variable", [variable.name for variable in each.env])
        check_names("port", [port.name for port in each.ports])
    for port in ports:
        if port.container_port in OWN_PORTS or is_own_port(port.name):
            called = f"{port.name} {port.container_port}"
            raise OwnedByOperatorError("port", called, "choose another number and name")
    return sidecars


_KEY_RULES: Final = rules(
    rule(
        f"self.all(name, {not_own(words(OWN_LABELS), [OWN_PREFIX])})",
        "a key is set by the operator; choose another one",
    )
)
_PATH_RULE: Final = rule(
    f"self.all(mount, mount.mountPath != '/' && {words(OWN_PATHS)}.all(own, mount.mountPath != own "
    "&& !mount.mountPath.startsWith(own + '/') && !own.startsWith(mount.mountPath + '/')))",
    "a path is set by the operator; choose one that is neither below nor above one of its paths",
)
_SAME_PORT: Final = "each.containerPort == port.containerPort && each.protocol == port.protocol"
_NAMED_RULE: Final = "{} is set by the operator; choose another name"


class PodTemplate(Model):
    """Additions to the pods of brokers and name servers."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.volumeMounts.all(mount, self.volumes.exists(each, each.name == mount.name)) && "
                "self.sidecars.all(one, one.volumeMounts.all(mount, self.volumes.exists(each, each.name == mount.name)))",
                "a mount names a volume that is not in volumes; add it there",
            )
        )
    )

    labels: Annotated[
        dict[LabelKey, LabelValue],
        Field(max_length=_LABELS_MAX),
        AfterValidator(partial(_without_own, "label")),
    ] = Field(default={}, description="Labels.", json_schema_extra=_KEY_RULES)
    annotations: Annotated[
        dict[LabelKey, Word],
        Field(max_length=_LABELS_MAX),
        AfterValidator(partial(_without_own, "annotation")),
    ] = Field(default={}, description="Annotations.", json_schema_extra=_KEY_RULES)
    env: Annotated[Variables, AfterValidator(_variables)] = Field(
        default=[],
        description="Variables of the broker and the name server.",
        json_schema_extra=BY_NAME
        | rules(
            rule(
                "self.all(each, [each.name].all(name, "
                f"{not_own(words(OWN_VARIABLES), OWN_VARIABLE_PREFIXES)}))",
                "a variable is set by the operator; set broker settings in spec.config",
            )
        ),
    )
    volumes: Annotated[list[Volume], Field(max_length=VOLUMES_MAX), AfterValidator(_volumes)] = (
        Field(
            default=[],
            description="Volumes in addition to the operator's own.",
            json_schema_extra=BY_NAME
            | rules(
                rule(
                    f"self.all(each, !(each.name in {words(OWN_VOLUMES)}) "
                    f"&& !each.name.startsWith('{OWN_VOLUME_PREFIX}'))",
                    _NAMED_RULE.format("a volume"),
                )
            ),
        )
    )
    volume_mounts: Annotated[Mounts, AfterValidator(_own_mounts)] = Field(
        default=[],
        description="Mounts of these volumes in the broker and the name server.",
        json_schema_extra=MOUNTS_LIST | rules(MOUNTS_RULE, _PATH_RULE),
    )
    sidecars: Annotated[
        list[Sidecar], Field(max_length=_SIDECARS_MAX), AfterValidator(_sidecars)
    ] = Field(
        default=[],
        description="Containers in addition to the broker or name server.",
        json_schema_extra=BY_NAME
        | rules(
            rule(
                f"self.all(each, !(each.name in {words(OWN_CONTAINERS)}))",
                _NAMED_RULE.format("a container"),
            ),
            rule(
                "self.all(one, one.ports.all(port, "
                f"self.exists_one(other, other.ports.exists(each, {_SAME_PORT})) && "
                f"one.ports.exists_one(each, {_SAME_PORT})))",
                "a port is given twice; remove one",
            ),
        ),
    )
    affinity: Affinity | None = Field(
        default=None,
        description="Affinity to nodes and pods, in addition to what placement requires.",
    )
    topology_spread_constraints: Annotated[
        list[TopologySpreadConstraint],
        Field(max_length=TERMS_MAX),
        each_once("topologyKey", lambda each: each.topology_key),
    ] = Field(
        default=[],
        description="Further failure domains over which the replicas of a group are spread; a constraint with a topologyKey "
        "of placement replaces placement's constraint for it.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["topologyKey"],
        },
    )
    tolerations: Annotated[list[Toleration], Field(max_length=TOLERATIONS_MAX)] = Field(
        default=[],
        description="Taints that the pods tolerate, in addition to placement.tolerations.",
    )
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=_LABELS_MAX)] = Field(
        default={},
        description="Labels that a node must have, in addition to placement.nodeSelector; for the same label, the value here "
        "wins.",
    )
    priority_class_name: Name | None = Field(
        default=None, description="PriorityClass of the pods; overrides placement's."
    )
    security_context: PodSecurityContext | None = Field(
        default=None,
        description="User and groups of the containers. If absent, user, group and fsGroup are 10001; {} leaves them to the "
        "cluster's admission, as OpenShift requires.",
    )

    @model_validator(mode="after")
    def _mounts_what_is_there(self) -> Self:
        known = {each.name for each in self.volumes}
        mounts = [*self.volume_mounts, *(m for each in self.sidecars for m in each.volume_mounts)]
        for mount in mounts:
            if mount.name not in known:
                raise ValueError(
                    f"{mount.mount_path} mounts the volume {mount.name!r}, which is not in volumes; add it there"
                )
        return self
