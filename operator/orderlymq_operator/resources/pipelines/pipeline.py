"""
The kind Pipeline: what a Spark pipeline does, and how the operator runs it.

Rules: `orderlymq pipeline run` reads the first part of the spec from the same file. The fields of all types form one
flat list, because a schema of Kubernetes has no alternatives; `jobtypes` says which field belongs to which type. Only
Kubernetes applies the second part. `plan.pipelines` decides what the operator does next.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from orderlymq_operator.resources.meta import (
    IMMUTABLE,
    ClusterRef,
    KubernetesObject,
    Model,
    Status,
    WireName,
)
from orderlymq_operator.resources.pipelines import jobtypes
from orderlymq_operator.resources.pipelines.jobtypes import PipelineType
from orderlymq_operator.resources.pipelines.spark import (
    DRIVER_RESOURCES,
    LIST_MAX,
    Catalog,
    CheckpointStorage,
    Cron,
    Executors,
    Groups,
    Keys,
    Options,
    PathText,
    Source,
    SparkSettings,
    Text,
    Trigger,
    Variables,
)
from orderlymq_operator.resources.workload import (
    Image,
    ImagePullPolicy,
    ImagePullSecrets,
    Placement,
    PodSecurityContext,
    Resources,
)

Backend = Literal["pod", "kubernetes", "sparkApplication"]
# All objects of a Pipeline are named NAME-pipeline; a CronJob needs 11 characters for the names of its Jobs.
NAME_MAX: Final = 40
QUEUES_MAX: Final = 4096  # the most queues whose offsets a status lists


class PipelineSpec(Model):
    """A pipeline and how it is run."""

    type: PipelineType = Field(
        description="Type of the work; `orderlymq pipeline list` explains the types.",
        json_schema_extra=IMMUTABLE,
    )
    source: Source | None = Field(default=None, description="Source of streams and reports.")
    bootstrap: Text | None = Field(
        default=None,
        description="Name servers of lag, dead-letters and redrive; as source.bootstrap.",
    )
    options: Options | None = Field(
        default=None,
        description="lag, dead-letters, redrive: options of the connection (client.*, auth.*, retryTimeout).",
    )
    checkpoint: PathText | None = Field(
        default=None,
        description="Folder that holds how far a stream is; in Kubernetes on the Pipeline's volume.",
    )
    trigger: Trigger | None = Field(
        default=None,
        description="availableNow ends with what is there now; a duration, as in 30s, goes on for ever. "
        "availableNow when absent.",
    )
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Port of Prometheus gauges; in Kubernetes 13910 has them, too."
    )
    spark: SparkSettings = Field(default=SparkSettings(), description="How Spark runs.")
    path: PathText | None = Field(
        default=None,
        description="Folder of the archive or the table: archive, unless its format is iceberg, compact, cdc-apply.",
    )
    format: Literal["parquet", "delta", "iceberg", "debezium", "canal", "maxwell"] | None = Field(
        default=None,
        description="Of the files of an archive: parquet (default), delta or iceberg. Of the events of "
        "cdc-apply: debezium, canal or maxwell.",
    )
    catalog: Catalog | None = Field(
        default=None, description="archive, format iceberg: the catalogue that has the table."
    )
    codec: Literal["zstd", "snappy", "none"] | None = Field(
        default=None, description="archive: compression of its files, zstd when absent."
    )
    target_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = Field(
        default=None, description="compact: size of the new files, 256 MiB when absent."
    )
    min_files: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default=None, description="compact: adjoining files that are worth it, 2 when absent."
    )
    archive: PathText | None = Field(
        default=None,
        description="order-audit: folder of the archive that is audited, in place of source.",
    )
    topics: Groups | None = Field(
        default=None, description="order-audit: topics of the archive, all when absent."
    )
    sequence_property: Text | None = Field(
        default=None, description="order-audit: property with the numbers of each sharding key."
    )
    epoch_property: Text | None = Field(
        default=None,
        description="order-audit: property that rises when a producer starts its numbers again.",
    )
    stream: bool | None = Field(
        default=None, description="order-audit: audit the topic as it grows; needs checkpoint."
    )
    findings: PathText | None = Field(
        default=None, description="order-audit: file that gets the findings."
    )
    findings_max: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="order-audit: findings that are kept, 10000 when absent."
    )
    first_sequence: Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | None = Field(
        default=None,
        description="order-audit: number of each key's first message, any when absent.",
    )
    capacity_per_queue: Annotated[float, Field(ge=0.001, le=1e9)] | None = Field(
        default=None, description="skew-report: messages a second that one queue may get."
    )
    target_use: Annotated[float, Field(ge=0.001, le=1)] | None = Field(
        default=None, description="skew-report: part of the capacity to plan for, 0.7 when absent."
    )
    candidates: (
        Annotated[list[Annotated[int, Field(ge=1, le=65536)]], Field(max_length=LIST_MAX)] | None
    ) = Field(default=None, description="skew-report: numbers of queues to compare.")
    top: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="skew-report: hottest keys that are reported, 20 when absent."
    )
    html: PathText | None = Field(
        default=None, description="skew-report: file that gets a page with plots."
    )
    topic: Text | None = Field(default=None, description="lag: the topic.")
    groups: Groups | None = Field(
        default=None,
        description="lag: the consumer groups. mirror: those whose offsets follow to the target; none when absent.",
    )
    quantiles: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(max_length=64)] | None = (
        Field(default=None, description="lag: quantiles of the time from producer to log.")
    )
    group: WireName | None = Field(
        default=None, description="dead-letters, redrive: the consumer group."
    )
    plan: PathText | None = Field(
        default=None,
        description="redrive: file that holds the plan that is shown, then carried out.",
    )
    target: WireName | None = Field(
        default=None,
        description="redrive: topic that gets the dead letters, their own when absent. replay: topic that "
        "gets the copy.",
    )
    target_bootstrap: Text | None = Field(
        default=None,
        description="replay: name servers of the target, those of the source when absent. mirror: name servers of the other "
        "cluster.",
    )
    target_options: Options | None = Field(
        default=None,
        description="replay, mirror: options of the connection to the target (client.*, auth.*, retryTimeout); those of the source for a "
        "replay when this and targetBootstrap are absent.",
    )
    keys: Keys | None = Field(
        default=None,
        description="cdc-apply: columns of the primary key. redrive, replay: sharding keys, all when absent.",
    )
    send: bool | None = Field(
        default=None, description="redrive: false only shows the plan, true carries it out."
    )
    on_overtaken: Literal["skip", "send", "hold-key"] | None = Field(
        default=None,
        description="redrive: what to do with a letter whose key has gone on; hold-key when absent.",
    )
    on_doubtful: Literal["skip", "send", "hold-key"] | None = Field(
        default=None,
        description="redrive: what to do with a letter that no message of its topic says the same as, without a target; "
        "hold-key when absent.",
    )
    max_redrives: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None, description="redrive: times that one message is sent again, 3 when absent."
    )
    rate: Annotated[float, Field(ge=0.001, le=1e9)] | None = Field(
        default=None, description="redrive: messages a second, as many as go when absent."
    )
    speed: Annotated[float, Field(ge=0.001, le=1e9)] | None = Field(
        default=None,
        description="replay: 1 as stored, 2 twice as fast; as fast as it goes when absent.",
    )
    table: Text | None = Field(
        default=None,
        description="cdc-apply: only events of this table, named alone or as database.table; all when absent. archive, format iceberg: the table, "
        "namespace.name; a new one is made.",
    )
    errors: PathText | None = Field(
        default=None, description="cdc-apply: folder for events that cannot be read."
    )
    scd: Literal[1, 2] | None = Field(
        default=None,
        description="cdc-apply: 1 keeps each row as it is now (default), 2 every version that it has had.",
    )

    # -- what only Kubernetes obeys

    cluster_ref: ClusterRef | None = Field(
        default=None,
        description="Cluster whose name servers are used where no bootstrap is given; only in Kubernetes.",
    )
    backend: Backend = Field(
        default="pod",
        description="pod: one driver that does all the work. kubernetes: executors in pods of their own. "
        "sparkApplication: a SparkApplication for Kubeflow's Spark operator. Only in Kubernetes.",
    )
    schedule: Cron | None = Field(
        default=None,
        description="When a run begins, in cron's form and UTC, for pipelines that end; immediately and once "
        "when absent. Only in Kubernetes.",
    )
    suspend: bool = Field(
        default=False,
        description="Let no driver run; a stream ends after its batch. Only in Kubernetes.",
    )
    storage: CheckpointStorage = Field(
        default=CheckpointStorage(), description="Its volume; only in Kubernetes."
    )
    executors: Executors = Field(
        default=Executors(),
        description="Executors of the backends kubernetes and sparkApplication; only in Kubernetes.",
    )
    env: Variables = Field(
        default=[],
        description="Variables from Secrets, for options such as auth.secretKeyEnv; only in Kubernetes.",
    )
    image: Image | None = Field(
        default=None,
        description="Image with Spark, the operator's setting when absent; only in Kubernetes.",
    )
    image_pull_policy: ImagePullPolicy = None
    image_pull_secrets: ImagePullSecrets = Field(default=[])
    resources: Resources = Field(
        default=DRIVER_RESOURCES,
        description="Resources of the driver's pod; only in Kubernetes.",
    )
    placement: Placement = Placement()
    security_context: PodSecurityContext | None = Field(
        default=None,
        description="As whom drivers and executors run. User, group and fsGroup 10001 when absent; {} leaves them to the "
        "cluster's admission, as OpenShift wants it. Spark needs a line for the user in /etc/passwd: the image has one "
        "for 10001, and CRI-O adds one for any other. Only in Kubernetes.",
    )

    @property
    def continuous(self) -> bool:
        """Whether the driver runs until it is stopped."""
        streams = "checkpoint" in jobtypes.FIELDS[self.type] and (
            self.type != "order-audit" or bool(self.stream)
        )
        return streams and self.trigger not in (None, jobtypes.AVAILABLE_NOW)

    def said(self) -> dict[str, Any]:
        """Return the fields of its type that are set, in the form that `orderlymq pipeline run` reads."""
        names = {"type", "spark", *jobtypes.FIELDS[self.type]}
        every = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {name: value for name, value in every.items() if name in names}

    @model_validator(mode="after")
    def _fields_fit_the_type(self) -> Self:
        given = self.model_dump(by_alias=True, exclude_none=True)
        for name, owners in jobtypes.owners().items():
            if name in given and self.type not in owners:
                raise ValueError(jobtypes.foreign(name, owners))
        for name in jobtypes.REQUIRED[self.type]:
            if name not in given:
                raise ValueError(f"{self.type} needs {name}")
        if self.format is not None and self.format not in jobtypes.FORMATS[self.type]:
            raise ValueError(jobtypes.format_of(self.type))
        if self.type == "order-audit" and (self.source is None) == (self.archive is None):
            raise ValueError(jobtypes.ONE_SOURCE)
        if self.type == "archive":
            named = self.catalog is not None and "." in (self.table or "")
            plain = self.catalog is None and self.table is None
            if (self.path is None) != (self.format == "iceberg") or not (
                plain if self.path else named
            ):
                raise ValueError(jobtypes.ONE_PLACE)
        if self.stream and self.checkpoint is None:
            raise ValueError(jobtypes.STREAM_CHECKPOINT)
        if self.schedule is not None and self.continuous:
            raise ValueError(jobtypes.ENDS)
        if self.schedule is not None and self.backend == "sparkApplication":
            raise ValueError(jobtypes.NO_SCHEDULE)
        return self


class QueueOffset(Model):
    """How far the pipeline has read a queue."""

    topic: str
    broker: str
    queue: Annotated[int, Field(ge=0)]
    offset: Annotated[int, Field(ge=0)] = Field(description="The next message to be read.")


class PipelineStatus(Status):
    """Observed state of a pipeline; figures are the driver's own, some seconds old."""

    phase: (
        Literal["Waiting", "Starting", "Running", "Scheduled", "Suspended", "Finished", "Failed"]
        | None
    ) = Field(default=None, description="One word for people; programs take the condition Ready.")
    last_batch: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Number of the last finished batch of a stream."
    )
    rows: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Messages that the present run has moved."
    )
    rows_per_second: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Rate of the last batch."
    )
    lag: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Messages that waited when the last batch ended."
    )
    offsets: list[QueueOffset] = Field(
        default=[], max_length=QUEUES_MAX, description="Where the checkpoint stands."
    )
    result: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Result of the last run that ended."
    )
    last_error: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Why the last run failed; absent after one that did not."
    )
    driver: str | None = Field(default=None, description="Pod of the driver.")
    claim: str | None = Field(default=None, description="Claim that holds the checkpoint.")


class Pipeline(KubernetesObject):
    """A pipeline over topics: archive, audit, reports, redrive, replay, mirror, change capture."""

    kind: Literal["Pipeline"] = "Pipeline"
    spec: PipelineSpec
    status: PipelineStatus | None = None
