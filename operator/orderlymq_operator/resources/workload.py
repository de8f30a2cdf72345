"""
The part of a Cluster that only Kubernetes applies: images, resources, placement, updates, scaling down.

Rule: the local backend ignores all of it, as Kubernetes ignores `spec.local`; the descriptions say so. Names and
forms are those of Kubernetes' own pod fields.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from orderlymq_operator.resources.meta import Model, Name, each_once, rule, rules
from orderlymq_operator.resources.quantities import Duration, quantity

PULL_SECRETS_MAX: Final = 16
TOLERATIONS_MAX: Final = 32
_GROUPS_MAX: Final = 16
_ID_MAX: Final = (1 << 31) - 1  # Kubernetes' own limit for users and groups

GroupId = Annotated[int, Field(ge=0, le=_ID_MAX)]
UserId = Annotated[
    int, Field(ge=1, le=_ID_MAX)
]  # 0 is root, which the pods' security profile refuses

Image = Annotated[str, StringConstraints(pattern=r"^[^\s]+$", min_length=1, max_length=512)]
ImagePullPolicy = Annotated[
    Literal["Always", "IfNotPresent", "Never"] | None,
    Field(
        description="When the image is pulled. Defaults to the operator's setting. Only in Kubernetes."
    ),
]


ImagePullSecrets = Annotated[
    list[Name],
    Field(
        max_length=PULL_SECRETS_MAX,
        description="Secrets with the credentials of the image's registry. Defaults to the operator's setting. Only in "
        "Kubernetes.",
        # As in pods: the API server refuses a pod that names one twice.
        json_schema_extra={"x-kubernetes-list-type": "set"},
    ),
    each_once("Secret"),
]
# Label keys of Kubernetes: an optional DNS prefix and a name.
LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        max_length=316,
    ),
]
LabelValue = Annotated[
    str,
    StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$", max_length=63),
]


def _written(value: Any) -> Any:
    """Return a whole number as text, as Kubernetes does."""
    return str(value) if type(value) is int else value


# The smallest amount that Kubernetes accepts is a thousandth of a CPU.
_CPU: Final = (
    r"^([1-9][0-9]{0,6}m?|[1-9][0-9]{0,3}\.[0-9]{1,3}|0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9]))$"
)
_BYTES: Final = (
    r"^([1-9][0-9]{0,14}|[1-9][0-9]{0,8}\.[0-9]{1,6}|0\.[0-9]{0,5}[1-9][0-9]{0,5})"
    r"(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
)
_INT_OR_STRING: Final[dict[str, Any]] = {"x-kubernetes-int-or-string": True, "minimum": 1}
Cpu = Annotated[
    str,
    StringConstraints(pattern=_CPU, max_length=8),
    Field(json_schema_extra=_INT_OR_STRING | {"maximum": 10**7 - 1}),
    BeforeValidator(_written),
]
Bytes = Annotated[
    str,
    StringConstraints(pattern=_BYTES, max_length=18),
    Field(json_schema_extra=_INT_OR_STRING | {"maximum": 10**15 - 1}),
    BeforeValidator(_written),
]


class ComputeRequests(Model):
    """Requests of a pod."""

    cpu: Cpu | None = Field(default=None, description="CPU time, such as 500m, 0.5 or 2.")
    memory: Bytes | None = Field(default=None, description="Memory, such as 512Mi or 1.5Gi.")
    ephemeral_storage: Bytes | None = Field(
        default=None,
        alias="ephemeral-storage",
        description="Disk space of the node for logs and for files that containers write outside of volumes.",
    )


_TOO_MUCH: Final = "requests.{0} is more than limits.{0}, which the API server refuses in every pod"
# The names of the fields as CEL writes them.
_AMOUNTS: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "ephemeral-storage": "ephemeral__dash__storage",
}


def _within_limit(name: str, field: str) -> dict[str, str]:
    """Return the CEL rule that an amount is within its limit.

    Parts may be absent, because a default is checked before its parts are filled in.
    """
    request, limit = f"self.requests.{field}", f"self.limits.{field}"
    return rule(
        f"!has(self.requests) || !has(self.limits) || !has({request}) || !has({limit}) || "
        f"quantity(string({request})).compareTo(quantity(string({limit}))) <= 0",
        _TOO_MUCH.format(name),
    )


class Resources(Model):
    """Requests and limits of a pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(*(_within_limit(*each) for each in _AMOUNTS.items()))
    )

    requests: ComputeRequests = Field(
        default=ComputeRequests(), description="Amounts that the scheduler reserves for the pod."
    )
    limits: ComputeRequests = Field(
        default=ComputeRequests(), description="Amounts that the pod cannot exceed."
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        requests, limits = (
            self.requests.model_dump(by_alias=True),
            self.limits.model_dump(by_alias=True),
        )
        for name in _AMOUNTS:
            request, limit = quantity(requests[name]), quantity(limits[name])
            if request is not None and limit is not None and request > limit:
                raise ValueError(_TOO_MUCH.format(name))
        return self


# A broker with its default caches (64Mi and 64Mi) uses less than 400 MiB; the limit leaves room for a snapshot.
BROKER_RESOURCES: Final = Resources(
    requests=ComputeRequests(cpu="100m", memory="256Mi"),
    limits=ComputeRequests(memory="1Gi"),
)
NAME_SERVER_RESOURCES: Final = Resources(
    requests=ComputeRequests(cpu="20m", memory="64Mi"),
    limits=ComputeRequests(memory="256Mi"),
)


_EVERY_TAINT: Final = "operator must be Exists if key is absent"
_NO_VALUE: Final = "operator Exists takes no value"
_NO_EXECUTE: Final = "tolerationSeconds needs effect NoExecute"


class Toleration(Model):
    """A taint of nodes that the pods tolerate, in the form of Kubernetes' tolerations."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.key) || self.operator == 'Exists'", _EVERY_TAINT),
            rule("self.operator != 'Exists' || !has(self.value) || self.value == ''", _NO_VALUE),
            rule(
                "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
                _NO_EXECUTE,
            ),
        )
    )

    key: LabelKey | None = Field(
        default=None, description="Key of the taint; matches every taint if absent."
    )
    operator: Literal["Exists", "Equal"] = Field(
        default="Equal", description="Equal compares key and value, Exists only the key."
    )
    # An empty value counts as none, as in the API server: otherwise pods would differ from it for ever.
    value: Annotated[LabelValue | None, AfterValidator(lambda given: given or None)] = Field(
        default=None, description="Value of the taint."
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; matches every effect if absent."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = Field(
        default=None, description="How long a NoExecute taint is tolerated. For ever by default."
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.key is None and self.operator != "Exists":
            raise ValueError(_EVERY_TAINT)
        if self.operator == "Exists" and self.value:
            raise ValueError(_NO_VALUE)
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError(_NO_EXECUTE)
        return self


class Placement(Model):
    """On which nodes the pods run; only in Kubernetes."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(
        default={}, description="Labels that a node must have."
    )
    tolerations: Annotated[list[Toleration], Field(max_length=TOLERATIONS_MAX)] = Field(
        default=[], description="Taints that the pods tolerate."
    )
    topology_key: LabelKey = Field(
        default="kubernetes.io/hostname",
        description="Label of nodes whose value is a failure domain; the replicas of a group are spread over its values, and "
        "always over nodes.",
    )
    zone_key: LabelKey | None = Field(
        default=None,
        description="Label of nodes whose value is a larger failure domain, such as topology.kubernetes.io/zone; the replicas "
        "of a group are spread evenly over its values, too.",
    )
    anti_affinity: Literal["Preferred", "Required", "None"] = Field(
        default="Preferred",
        description="Required leaves a replica pending if otherwise two of its group would share a failure domain of "
        "topologyKey, or one zone would have two replicas more than another. Preferred allows both.",
    )
    priority_class_name: Name | None = Field(
        default=None, description="PriorityClass of the pods. None by default."
    )


class Update(Model):
    """How changed settings and images reach running pods."""

    mode: Literal["Automatic", "Paused"] = Field(
        default="Automatic",
        description="Automatic restarts one replica of a group at a time: first the followers, each only if the others have "
        "caught up, the leader last. Paused restarts nothing and reports what waits.",
    )
    on_operator_upgrade: Literal["Keep", "Adopt"] = Field(
        default="Keep",
        description="Keep leaves running pods unchanged when a new operator has another default image or pod template; Adopt "
        "rolls them.",
    )
    leaders: Literal["Balanced", "Kept"] = Field(
        default="Balanced",
        description="Balanced moves leaders until they are spread evenly over zones and nodes: one at a time, and only while "
        "no replica or name server changes and no topic grows. Kept leaves a leader where it was elected.",
    )
    min_ready: Duration = Field(
        default=Duration("1s"),
        description="How long a restarted replica must have caught up before the next one is restarted.",
    )


class ScaleDown(Model):
    """Whether groups may be removed."""

    policy: Literal["Refuse", "Drain"] = Field(
        default="Refuse",
        description="Refuse keeps every group. Drain stops writes to the surplus groups, and removes a group when its "
        "messages are consumed and none is retained.",
    )


class PodSecurityContext(Model):
    """User and groups of the containers. They never run as root, and always with the default seccomp profile."""

    run_as_user: UserId | None = Field(
        default=None,
        description="User of the processes. If absent, the cluster's admission or the image chooses one.",
    )
    run_as_group: GroupId | None = Field(default=None, description="Group of the processes.")
    fs_group: GroupId | None = Field(
        default=None, description="Group that owns the volumes; every process is a member of it."
    )
    supplemental_groups: Annotated[list[GroupId], Field(max_length=_GROUPS_MAX)] = Field(
        default=[], description="Further groups of the processes."
    )
