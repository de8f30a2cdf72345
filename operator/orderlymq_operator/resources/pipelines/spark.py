"""
The parts of a Pipeline's spec: source, catalogue, Spark settings, checkpoint storage, executors, variables.

`pipeline` combines them; nothing here depends on the type of a pipeline.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from orderlymq_operator.resources.meta import (
    BY_NAME,
    IMMUTABLE,
    DataKey,
    DnsName,
    Model,
    Name,
    WireName,
    each_once,
    rule,
    rules,
)
from orderlymq_operator.resources.quantities import Quantity
from orderlymq_operator.resources.workload import ComputeRequests, Resources

EXECUTORS_MAX: Final = 256
LIST_MAX: Final = 1024

Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


_SCHEMES: Final = ("s3a", "s3", "gs", "abfss")
_ADDRESSES: Final = ", ".join(f"{each}://" for each in _SCHEMES)


def _place(path: str) -> str:
    scheme, slash, rest = path.partition(":/")
    if slash and "/" not in scheme and not (scheme in _SCHEMES and rest.startswith("/")):
        raise ValueError(
            f"{path}: the scheme {scheme}: is not supported; supported are {_ADDRESSES} and paths on a mounted volume without "
            "a scheme, such as /data/archive or data/archive"
        )
    return path


PathText = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1024),
    AfterValidator(_place),
    Field(
        json_schema_extra=rules(
            rule(
                f"!self.matches('^[^/]*:/') || self.matches('^({'|'.join(_SCHEMES)})://')",
                f"the scheme is not supported; supported are {_ADDRESSES} and paths on a mounted volume without a scheme",
            )
        )
    ),
]
Keys = Annotated[list[Text], Field(min_length=1, max_length=LIST_MAX)]
Groups = Annotated[list[WireName], Field(max_length=LIST_MAX)]
# The values of options may be text, numbers or booleans, which schemas cannot express.
_FREE: Final = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "maxProperties": 64,
}
Options = Annotated[
    dict[Text, Text | int | bool], Field(max_length=64), WithJsonSchema(dict[str, Any](_FREE))
]
Settings = Annotated[dict[Text, Annotated[str, Field(max_length=1024)]], Field(max_length=64)]
Trigger = Annotated[
    str,
    StringConstraints(
        pattern=r"^(availableNow|[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h))$", max_length=16
    ),
]
# Five fields or a word; the API server checks the resulting CronJob.
Cron = Annotated[
    str,
    StringConstraints(pattern=r"^(@[a-z]+|[^ ]+( [^ ]+){4})$", min_length=6, max_length=128),
]


class Source(Model):
    """The topics that a pipeline reads."""

    bootstrap: Text | None = Field(
        default=None,
        description="Name servers, as host:port;host:port. Defaults to those of clusterRef in Kubernetes and to "
        "127.0.0.1:9876 elsewhere.",
    )
    topic: Text = Field(
        description="The topic; with the option `topics` several, separated by commas."
    )
    options: Options = Field(
        default={},
        description="Options of the Spark source; docs/howto/pipelines.md lists them.",
    )


class Catalog(Model):
    """An Iceberg catalogue."""

    name: Text = Field(
        description="Name of the catalogue in pyiceberg's configuration; a variable of env such as "
        "PYICEBERG_CATALOG__NAME__TOKEN adds a property."
    )
    properties: Options = Field(
        default={},
        description="Properties of the catalogue: type, uri, warehouse and others that pyiceberg knows.",
    )


class SparkSettings(Model):
    """How Spark runs."""

    master: Text = Field(
        default="local[*]",
        description="Spark master. In Kubernetes the backend decides; backend pod turns local[*] into local[N], with N from "
        "the resources.",
    )
    memory: Annotated[
        str, StringConstraints(pattern=r"^[1-9][0-9]{0,6}[kmgKMG]$", max_length=8)
    ] = Field(
        default="1g",
        description="Memory of the driver's JVM in Spark's notation; the pod needs half as much again.",
    )
    settings: Settings = Field(
        default={},
        description="Further Spark settings; they override those that the pipeline sets.",
    )


class CheckpointStorage(Model):
    """The volume for the checkpoint and for all paths that do not begin with a slash."""

    claim_name: Name | None = Field(
        default=None,
        description="An existing claim, such as that of the Pipeline whose archive this one reads. If absent, the operator "
        "creates a claim named NAME-pipeline.",
        json_schema_extra=IMMUTABLE,
    )
    size: Quantity = Field(
        default=Quantity("10Gi"),
        description="Size of the claim that the operator creates. Never shrinks.",
        json_schema_extra=rules(
            rule(
                "quantity(self).compareTo(quantity(oldSelf)) >= 0",
                "storage never shrinks; keep the old size or choose a larger one",
            )
        ),
    )
    class_name: DnsName | None = Field(
        default=None,
        description="StorageClass of the claim that the operator creates. Defaults to the cluster's default StorageClass.",
        json_schema_extra=IMMUTABLE,
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        default="ReadWriteOnce",
        description="ReadWriteMany lets executors on several nodes write to it.",
        json_schema_extra=IMMUTABLE,
    )
    delete_claim: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="Whether the claim that the operator created is kept or deleted with the Pipeline. A new Pipeline with "
        "the same name continues with a retained claim.",
    )


class Executors(Model):
    """Executors in their own pods."""

    instances: Annotated[int, Field(ge=1, le=EXECUTORS_MAX)] = Field(
        default=2, description="How many."
    )
    cores: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Number of tasks that each executor runs at a time."
    )
    memory: Annotated[
        str, StringConstraints(pattern=r"^[1-9][0-9]{0,6}[kmgKMG]$", max_length=8)
    ] = Field(default="1g", description="Memory of the JVM of each executor.")


class SecretKey(Model):
    """A key of a Secret in the namespace of the Pipeline."""

    name: Name = Field(description="Name of the Secret.")
    key: DataKey = Field(description="Key in the Secret.")


class Variable(Model):
    """An environment variable of the driver and the executors, from a Secret."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=127)] = (
        Field(description="Name of the variable.")
    )
    secret: SecretKey = Field(description="Key of a Secret with its value.")


Variables = Annotated[
    list[Variable],
    Field(max_length=64, json_schema_extra=BY_NAME),
    each_once("variable", lambda each: each.name),
]


# A JVM of 1g with its overhead and two Python workers stay below the limit.
DRIVER_RESOURCES: Final = Resources(
    requests=ComputeRequests(cpu="500m", memory="1Gi"),
    limits=ComputeRequests(memory="3Gi"),
)
