"""
Common fields of manifests: version, metadata, a reference to its cluster, conditions.

Rule: unknown fields are errors and types are exact, because a manifest with a typo must not be applied in part.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from pydantic.alias_generators import to_camel

GROUP: Final = "orderlymq.io"
# The version that the API server stores, and the operator reads and writes.
VERSION: Final = "v1alpha1"
# Both are served with the same schema, so that objects need no conversion (ADR 31).
VERSIONS: Final = (VERSION, "v1beta1")
# A literal, because the models use it as a type.
API_VERSION: Final = "orderlymq.io/v1alpha1"
DATE_TIME: Final[dict[str, Any]] = {"format": "date-time"}  # for a field in RFC 3339
API_VERSIONS: Final = tuple(f"{GROUP}/{version}" for version in VERSIONS)


def _one_version(given: object) -> object:
    """Return the version that the models have, for any version with the same schema."""
    return API_VERSION if given in API_VERSIONS else given


ApiVersion = Annotated[Literal["orderlymq.io/v1alpha1"], BeforeValidator(_one_version)]

# A name must be a valid DNS label, because Services and pods are named after it.
Name = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)
]
# The name of a host, or of an object whose name may contain dots, such as a StorageClass.
DnsName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        min_length=1,
        max_length=253,
    ),
]
# RocketMQ's own rule for topics and consumer groups (`Validators`, 127 characters).
WireName = Annotated[
    str, StringConstraints(pattern=r"^[%a-zA-Z0-9_-]+$", min_length=1, max_length=127)
]
# A key of a Secret or ConfigMap, as the API server accepts it.
DataKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([.]?[-_a-zA-Z0-9][-._a-zA-Z0-9]*)$", min_length=1, max_length=253
    ),
]
_Text = Annotated[str, StringConstraints(max_length=63)]


def _path(text: str) -> str:
    if "\0" in text:
        raise ValueError("no path has a NUL character")
    return text


# A file on the machine of `orderlymq up`; a relative path is relative to the manifest.
FilePath = Annotated[str, StringConstraints(min_length=1, max_length=1024), AfterValidator(_path)]
# Kubernetes' own limit for all annotations together; `kubectl apply` keeps the manifest in one of them.
_LongText = Annotated[str, StringConstraints(max_length=262_144)]


def rule(expression: str, message: str, *, field: str | None = None) -> dict[str, str]:
    """Return one CEL rule for the schema of a kind; *expression* sees `self` and `oldSelf`."""
    found = {"rule": expression, "message": message}
    if field is not None:
        found["fieldPath"] = field
    return found


def rule_of_whole(
    expression: str, message: str, *, unless_kept: str | None = None
) -> dict[str, Any]:
    """Return one CEL rule for a whole object; it applies at creation, or when its field *unless_kept* changes.

    The API server also checks such a rule at each write of a status or a finalizer. Without the condition, an object
    older than the rule could never be deleted.
    """
    kept = "" if unless_kept is None else f" && self.{unless_kept} == oldSelf.value().{unless_kept}"
    found = rule(f"(oldSelf.hasValue(){kept}) || {expression}", message)
    return {**found, "optionalOldSelf": True}


def rules(*all_of: dict[str, Any]) -> dict[str, Any]:
    """Return schema extras that carry CEL rules."""
    return {"x-kubernetes-validations": list(all_of)}


def set_once(field: str, message: str | None = None) -> dict[str, str]:
    """Return the rule for an immutable *field* that may be absent: it can neither be set nor removed later."""
    expression = f"has(self.{field}) == has(oldSelf.{field})"
    text = message or f"{field.rpartition('.')[2]} cannot be set or removed later"
    return rule(expression, text, field=f".{field}")


# Kubernetes merges such lists by a key, and refuses the same key twice.
BY_NAME: Final[dict[str, Any]] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}


def check_names(what: str, names: Sequence[str]) -> None:
    """Raise ValueError if a name occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} {name!r} is given twice; remove one")


def each_once(what: str, name: Callable[[Any], str] = str) -> AfterValidator:
    """Return a validator that applies `check_names` to a list; *name* returns the name of an item."""

    def check(found: list[Any]) -> list[Any]:
        check_names(what, [name(each) for each in found])
        return found

    return AfterValidator(check)


IMMUTABLE: Final = rules(rule("self == oldSelf", "this field cannot be changed once it is set"))


class Model(BaseModel):
    """Part of a manifest: camelCase in files, strict types, no unknown fields, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
    )


class ObjectMeta(Model):
    """The part of Kubernetes' metadata that manifests use; fields that a server adds are accepted."""

    name: Name
    namespace: Name | None = None
    labels: Annotated[dict[str, _Text], Field(max_length=64)] = {}
    annotations: Annotated[dict[str, _LongText], Field(max_length=64)] = {}
    finalizers: Annotated[list[str], Field(max_length=16)] = []
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generate_name: str | None = None
    self_link: str | None = None
    owner_references: list[dict[str, Any]] = []
    managed_fields: list[dict[str, Any]] = []


class KubernetesObject(Model):
    """The fields of every kind; each kind sets its name in `kind` and adds a spec and a status."""

    api_version: ApiVersion = API_VERSION
    kind: str
    metadata: ObjectMeta
    spec: Model

    def with_spec(self, **changed: object) -> Self:
        """Return a copy of the object with these fields of its spec changed."""
        return self.model_copy(update={"spec": self.spec.model_copy(update=changed)})


class ClusterRef(Model):
    """The Cluster that an object belongs to."""

    name: Name = Field(description="Name of the Cluster.")
    namespace: Name | None = Field(
        default=None,
        description="Namespace of the Cluster. Defaults to the namespace of this object.",
    )


class Condition(Model):
    """One observation about an object, in the form of metav1.Condition."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    status: Literal["True", "False", "Unknown"]
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    last_transition_time: Annotated[str, Field(json_schema_extra=DATE_TIME)]
    reason: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_]*)$", min_length=1, max_length=64)
    ]
    message: Annotated[str, StringConstraints(max_length=1024)] = ""


Conditions = Annotated[
    list[Condition],
    Field(
        max_length=16,
        description="Observations; wait for the one of type Ready.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
]


class Status(Model):
    """Status of every kind."""

    observed_generation: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Generation of the spec that this status describes."
    )
    conditions: Conditions = []
