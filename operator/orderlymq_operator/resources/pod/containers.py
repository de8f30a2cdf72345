"""What users may add to a pod: variables, volumes, mounts and sidecars, in Kubernetes' names."""

import posixpath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from orderlymq_operator.resources.meta import (
    BY_NAME,
    DataKey,
    Model,
    Name,
    check_names,
    rule,
    rules,
)
from orderlymq_operator.resources.pod.ownership import (
    OWN_PORT_NAMES,
    OWN_PORT_PREFIX,
    OWN_PORTS,
    OWN_VOLUME_PREFIX,
    OWN_VOLUMES,
    OwnedByOperatorError,
    is_own_volume,
    words,
)
from orderlymq_operator.resources.quantities import Quantity
from orderlymq_operator.resources.workload import GroupId, Image, Resources, UserId

_VARIABLES_MAX: Final = 64
VOLUMES_MAX: Final = 16
_PORTS_MAX: Final = 16
_WORDS_MAX: Final = 64  # in a command
# As in pods: it has a letter, and no two dashes in a row.
_PORT_NAME: Final = r"^([0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$"


def _plain(path: str) -> str:
    """Return *path* if it is in normal form, as Kubernetes resolves it.

    Raises:
        ValueError: it contains `..` or an empty step, or ends with a slash.
    """
    if path != posixpath.normpath(path) or path.startswith("//"):
        raise ValueError(f"write the path as {posixpath.normpath('/' + path.lstrip('/'))}")
    return path


_Attribute = Annotated[str, StringConstraints(min_length=1, max_length=253)]
_Driver = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?([.][a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*$",
        max_length=63,
    ),
]
Word = Annotated[str, StringConstraints(max_length=4096)]
_Path = Annotated[
    str,
    StringConstraints(pattern=r"^/[^:\s]*$", max_length=512),
    AfterValidator(_plain),
    Field(
        json_schema_extra=rules(
            rule(
                "self == '/' || !self.matches('//|/[.]{1,2}(/|$)|/$')",
                "write the path without .., without empty parts and without a slash at its end",
            )
        )
    ),
]


class KeyReference(Model):
    """A key of a Secret or ConfigMap in the Cluster's namespace."""

    name: Name = Field(description="Name of the object.")
    key: DataKey = Field(description="Key in it.")
    optional: bool = Field(
        default=False, description="Whether the pod starts if it does not exist."
    )


class FieldReference(Model):
    """A field of the pod."""

    field_path: Annotated[
        str, StringConstraints(pattern=r"^(metadata|spec|status)\.[^\s]+$", max_length=316)
    ] = Field(description="Path of the field, such as status.hostIP.")


_ONE_SOURCE: Final = "set exactly one of {}"
_ONE_VALUE: Final = "set value or valueFrom, not both"


def _one_of(*names: str) -> ConfigDict:
    """Return the rule of `_check_one` for the API server."""
    count = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names)
    text = _ONE_SOURCE.format(", ".join(names))
    return ConfigDict(json_schema_extra=rules(rule(f"{count} == 1", text)))


class VariableSource(Model):
    """Source of the value of a variable."""

    model_config = _one_of("secretKeyRef", "configMapKeyRef", "fieldRef")

    secret_key_ref: KeyReference | None = Field(default=None, description="A key of a Secret.")
    config_map_key_ref: KeyReference | None = Field(
        default=None, description="A key of a ConfigMap."
    )
    field_ref: FieldReference | None = Field(default=None, description="A field of the pod.")

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        _check_one(self)
        return self


class EnvironmentVariable(Model):
    """A variable of a container."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("!has(self.value) || !has(self.valueFrom)", _ONE_VALUE))
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=127)] = (
        Field(description="Name of the variable.")
    )
    value: Annotated[str, StringConstraints(max_length=8192)] | None = Field(
        default=None,
        description="Value of the variable; empty if both value and valueFrom are absent.",
    )
    value_from: VariableSource | None = Field(
        default=None, description="Source of the value, instead of value."
    )

    @model_validator(mode="after")
    def _has_one_value(self) -> Self:
        if self.value is not None and self.value_from is not None:
            raise ValueError(_ONE_VALUE)
        return self


def _check_one(model: Model, *, without: frozenset[str] = frozenset()) -> None:
    """Raise ValueError unless exactly one field of *model* is set; fields in *without* do not count."""
    fields = {name: field.alias for name, field in type(model).model_fields.items()}
    names = [name for name in fields if name not in without]
    if sum(getattr(model, name) is not None for name in names) != 1:
        raise ValueError(_ONE_SOURCE.format(", ".join(str(fields[name]) for name in names)))


class ConfigMapVolume(Model):
    """The keys of a ConfigMap as files."""

    name: Name = Field(description="Name of the ConfigMap.")
    optional: bool = Field(
        default=False, description="Whether the pod starts if it does not exist."
    )


class SecretVolume(Model):
    """The keys of a Secret as files."""

    secret_name: Name = Field(description="Name of the Secret.")
    optional: bool = Field(
        default=False, description="Whether the pod starts if it does not exist."
    )


class EmptyDirVolume(Model):
    """An empty folder that is deleted with the pod."""

    medium: Literal["", "Memory"] = Field(
        default="", description="Memory keeps the folder in memory."
    )
    size_limit: Quantity | None = Field(
        default=None, description="Size at which the pod is evicted. Unlimited by default."
    )


class ClaimVolume(Model):
    """A PersistentVolumeClaim; all pods of the Cluster mount the same one."""

    claim_name: Name = Field(description="Name of the PersistentVolumeClaim.")
    read_only: bool = Field(default=False, description="Whether the volume is read-only.")


class CsiVolume(Model):
    """A volume of a CSI driver that is deleted with the pod, such as that of the Secrets Store driver."""

    driver: _Driver = Field(description="Name of the driver.")
    read_only: bool = Field(default=False, description="Whether the volume is read-only.")
    volume_attributes: Annotated[dict[_Attribute, _Attribute], Field(max_length=16)] = Field(
        default={}, description="Attributes for the driver."
    )


class Volume(Model):
    """A volume in addition to the operator's own; set exactly one source."""

    model_config = _one_of("configMap", "secret", "emptyDir", "persistentVolumeClaim", "csi")

    name: Name = Field(description="Name that mounts refer to.")
    config_map: ConfigMapVolume | None = Field(default=None, description="A ConfigMap.")
    secret: SecretVolume | None = Field(default=None, description="A Secret.")
    empty_dir: EmptyDirVolume | None = Field(default=None, description="An empty folder.")
    persistent_volume_claim: ClaimVolume | None = Field(
        default=None, description="An existing claim; several pods must be able to mount it."
    )
    csi: CsiVolume | None = Field(default=None, description="A volume of a CSI driver.")

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        _check_one(self, without=frozenset({"name"}))
        return self


_LEAVES: Final = "subPath must stay within the volume; remove the .."


class VolumeMount(Model):
    """The mount of a volume of the template in a container."""

    name: Name = Field(description="Name of a volume of podTemplate.volumes.")
    mount_path: _Path = Field(description="Absolute path in the container.")
    sub_path: (
        Annotated[str, StringConstraints(pattern=r"^[^/:\s][^:\s]*$", max_length=512)] | None
    ) = Field(
        default=None,
        description="Path within the volume. Defaults to the whole volume.",
        json_schema_extra=rules(rule("!self.matches('(^|/)[.][.](/|$)')", _LEAVES)),
    )
    read_only: bool = Field(default=False, description="Whether the volume is read-only.")

    @model_validator(mode="after")
    def _stays_in_its_volume(self) -> Self:
        if self.sub_path is not None and ".." in self.sub_path.split("/"):
            raise ValueError(_LEAVES)
        return self

    def overlaps(self, path: str) -> bool:
        """Return whether *path* is inside this mount, or this mount inside *path*."""
        one, other = self.mount_path.rstrip("/") + "/", path + "/"
        return one.startswith(other) or other.startswith(one)


def check_mounts(mounts: list[VolumeMount]) -> list[VolumeMount]:
    """Return *mounts* if each has its own path and none is a volume of the operator.

    Raises:
        OwnedByOperatorError, ValueError: otherwise.
    """
    check_names("mount", [each.mount_path for each in mounts])
    for each in mounts:
        if is_own_volume(each.name):
            advice = "mount a volume of podTemplate.volumes"
            raise OwnedByOperatorError("volume", each.name, advice)
    return mounts


class ContainerPort(Model):
    """A port of a sidecar."""

    name: Annotated[str, StringConstraints(pattern=_PORT_NAME, max_length=15)] = Field(
        description="Name of the port; it must contain a letter."
    )
    container_port: Annotated[int, Field(ge=1, le=65535)] = Field(description="Its number.")
    protocol: Literal["TCP", "UDP"] = Field(default="TCP", description="Its protocol.")


class SidecarSecurity(Model):
    """Security context of a sidecar. It never has capabilities and can never become root."""

    run_as_user: UserId | None = Field(
        default=None, description="User of its processes. Defaults to that of the pod."
    )
    run_as_group: GroupId | None = Field(
        default=None, description="Group of its processes. Defaults to that of the pod."
    )
    read_only_root_filesystem: bool = Field(
        default=True, description="Whether its root file system is read-only."
    )


MOUNTS_LIST: Final[dict[str, Any]] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["mountPath"],
}
MOUNTS_RULE: Final = rule(
    f"self.all(mount, !(mount.name in {words(OWN_VOLUMES)}) "
    f"&& !mount.name.startsWith('{OWN_VOLUME_PREFIX}'))",
    "a volume is set by the operator; mount a volume of podTemplate.volumes",
)
Variables = Annotated[list[EnvironmentVariable], Field(max_length=_VARIABLES_MAX)]
Mounts = Annotated[list[VolumeMount], Field(max_length=VOLUMES_MAX)]
_Command = Annotated[list[Word], Field(max_length=_WORDS_MAX)]


class Sidecar(Model):
    """A container in the same pod as the broker or name server.

    It has no probes, because a pod whose sidecar is not ready is taken out of service: only the end of the sidecar may do that.
    """

    name: Name = Field(description="Name of the container.")
    image: Image = Field(
        description="Image of the container; it is pulled with imagePullSecrets of the Cluster."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When the image is pulled. Defaults to Kubernetes' rule."
    )
    command: _Command = Field(default=[], description="Program. Defaults to that of the image.")
    args: _Command = Field(default=[], description="Arguments. Defaults to those of the image.")
    env: Variables = Field(default=[], description="Variables.", json_schema_extra=BY_NAME)
    ports: Annotated[list[ContainerPort], Field(max_length=_PORTS_MAX)] = Field(
        default=[],
        description="Ports that the sidecar listens on; all containers of a pod share one set of ports.",
        json_schema_extra=BY_NAME
        | rules(
            rule(
                f"self.all(port, !(port.containerPort in {words(OWN_PORTS)}) "
                f"&& !(port.name in {words(OWN_PORT_NAMES)}) "
                f"&& !port.name.startsWith('{OWN_PORT_PREFIX}'))",
                "a port or port name is set by the operator; choose another one",
            )
        ),
    )
    resources: Resources = Field(default=Resources(), description="Its resources.")
    volume_mounts: Annotated[Mounts, AfterValidator(check_mounts)] = Field(
        default=[],
        description="Mounts of volumes of podTemplate.volumes.",
        json_schema_extra=MOUNTS_LIST | rules(MOUNTS_RULE),
    )
    security_context: SidecarSecurity | None = Field(
        default=None, description="User and group of the container, and what it may write."
    )
