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
            f"{path}: the scheme {scheme}: is not supported; supported are {_ADDRESSES} and paths of a mounted volume "
            "without a scheme, as /data/archive or data/archive"
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
                f"the scheme is not supported; supported are {_ADDRESSES} and paths of a mounted volume without a scheme",
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
    """The source."""

    bootstrap: Text | None = Field(
        default=None,
        description="Name servers, host:port;host:port. In Kubernetes those of clusterRef when absent, "
        "otherwise 127.0.0.1:9876.",
    )
    topic: Text = Field(description="The topic; with the option topics several, by commas.")
    options: Options = Field(
        default={},
        description="Options of the Spark source, as docs/howto/pipelines.md lists them.",
    )


class Catalog(Model):
    """An Iceberg catalogue."""

    name: Text = Field(
        description="As pyiceberg's configuration names it: a variable of env such as "
        "PYICEBERG_CATALOG__NAME__TOKEN adds a property."
    )
    properties: Options = Field(
        default={}, description="Its properties: type, uri, warehouse and others of pyiceberg's."
    )


class SparkSettings(Model):
    """How Spark runs."""

    master: Text = Field(
        default="local[*]",
        description="Where Spark runs. In Kubernetes the backend decides: backend pod makes local[*] "
        "local[N] by resources.",
    )
    memory: Annotated[
        str, StringConstraints(pattern=r"^[1-9][0-9]{0,6}[kmgKMG]$", max_length=8)
    ] = Field(
        default="1g",
        description="Memory of the driver's JVM, as Spark writes it; the pod needs half as much again.",
    )
    settings: Settings = Field(default={}, description="More of Spark's own settings; they win.")


class CheckpointStorage(Model):
    """The volume that holds the checkpoint, and every path that does not begin with a slash."""

    claim_name: Name | None = Field(
        default=None,
        description="A claim that exists, such as that of the Pipeline whose archive is read here; the "
        "operator makes one when absent, called NAME-pipeline.",
        json_schema_extra=IMMUTABLE,
    )
    size: Quantity = Field(
        default=Quantity("10Gi"),
        description="Size of the claim that is made. Never shrinks.",
        json_schema_extra=rules(
            rule(
                "quantity(self).compareTo(quantity(oldSelf)) >= 0",
                "storage never shrinks; keep the old size or choose a larger one",
            )
        ),
    )
    class_name: DnsName | None = Field(
        default=None,
        description="StorageClass of the claim that is made, the default one when absent.",
        json_schema_extra=IMMUTABLE,
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        default="ReadWriteOnce",
        description="ReadWriteMany lets executors on several nodes write to it.",
        json_schema_extra=IMMUTABLE,
    )
    delete_claim: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="Whether the claim that was made, and all that is on it, is kept or deleted when the Pipeline is "
        "deleted. A new Pipeline of the same name goes on with what was retained.",
    )


class Executors(Model):
    """Executors in pods of their own."""

    instances: Annotated[int, Field(ge=1, le=EXECUTORS_MAX)] = Field(
        default=2, description="How many."
    )
    cores: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Tasks that each runs."
    )
    memory: Annotated[
        str, StringConstraints(pattern=r"^[1-9][0-9]{0,6}[kmgKMG]$", max_length=8)
    ] = Field(default="1g", description="Memory of each JVM.")


class SecretKey(Model):
    """A key of a Secret in the namespace of the Pipeline."""

    name: Name = Field(description="Name of the Secret.")
    key: DataKey = Field(description="Key in the Secret.")


class Variable(Model):
    """An environment variable of driver and executors, from a Secret."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=127)] = (
        Field(description="Name of the variable.")
    )
    secret: SecretKey = Field(description="Where its value stands.")


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
