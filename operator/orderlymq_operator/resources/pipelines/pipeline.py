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
    """The work of a pipeline and how it runs."""

    type: PipelineType = Field(
        description="Type of the work; `orderlymq pipeline list` explains the types.",
        json_schema_extra=IMMUTABLE,
    )
    source: Source | None = Field(default=None, description="Source of streams and reports.")
    bootstrap: Text | None = Field(
        default=None,
        description="lag, dead-letters, redrive: name servers, in the form and with the default of source.bootstrap.",
    )
    options: Options | None = Field(
        default=None,
        description="lag, dead-letters, redrive: options of the connection (client.*, auth.*, retryTimeout).",
    )
    checkpoint: PathText | None = Field(
        default=None,
        description="Folder for the progress of a stream; in Kubernetes on the Pipeline's volume.",
    )
    trigger: Trigger | None = Field(
        default=None,
        description="availableNow reads what is there at the start, then ends. A duration such as 30s runs for ever, with a "
        "batch at this interval. Defaults to availableNow.",
    )
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None,
        description="Port for Prometheus metrics; in Kubernetes, port 13910 serves them as well.",
    )
    spark: SparkSettings = Field(default=SparkSettings(), description="How Spark runs.")
    path: PathText | None = Field(
        default=None,
        description="archive (unless its format is iceberg), compact, cdc-apply: folder of the archive or the table.",
    )
    format: Literal["parquet", "delta", "iceberg", "debezium", "canal", "maxwell"] | None = Field(
        default=None,
        description="archive: format of its files: parquet (default), delta or iceberg. cdc-apply: format of the events: "
        "debezium, canal or maxwell.",
    )
    catalog: Catalog | None = Field(
        default=None, description="archive with format iceberg: the catalogue of the table."
    )
    codec: Literal["zstd", "snappy", "none"] | None = Field(
        default=None, description="archive: compression of its files. Defaults to zstd."
    )
    target_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = Field(
        default=None, description="compact: size of the new files in bytes. Defaults to 256 MiB."
    )
    min_files: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        default=None,
        description="compact: least number of adjoining files that are merged. Defaults to 2.",
    )
    archive: PathText | None = Field(
        default=None,
        description="order-audit: folder of the archive to audit, instead of source.",
    )
    topics: Groups | None = Field(
        default=None, description="order-audit: topics of the archive to audit. Defaults to all."
    )
    sequence_property: Text | None = Field(
        default=None,
        description="order-audit: message property with the sequence number within the sharding key.",
    )
    epoch_property: Text | None = Field(
        default=None,
        description="order-audit: message property that increases when a producer restarts its sequence numbers.",
    )
    stream: bool | None = Field(
        default=None,
        description="order-audit: audit the topic continuously as it grows; needs checkpoint.",
    )
    findings: PathText | None = Field(
        default=None, description="order-audit: file for the findings."
    )
    findings_max: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None,
        description="order-audit: number of findings that are kept. Defaults to 10000.",
    )
    first_sequence: Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | None = Field(
        default=None,
        description="order-audit: sequence number of the first message of each key. Defaults to any number.",
    )
    capacity_per_queue: Annotated[float, Field(ge=0.001, le=1e9)] | None = Field(
        default=None, description="skew-report: messages per second that one queue can take."
    )
    target_use: Annotated[float, Field(ge=0.001, le=1)] | None = Field(
        default=None, description="skew-report: share of the capacity to plan for. Defaults to 0.7."
    )
    candidates: (
        Annotated[list[Annotated[int, Field(ge=1, le=65536)]], Field(max_length=LIST_MAX)] | None
    ) = Field(default=None, description="skew-report: numbers of queues to compare.")
    top: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="skew-report: number of hottest keys to report. Defaults to 20."
    )
    html: PathText | None = Field(
        default=None, description="skew-report: file for an HTML page with plots."
    )
    topic: Text | None = Field(default=None, description="lag: the topic.")
    groups: Groups | None = Field(
        default=None,
        description="lag: the consumer groups. mirror: the consumer groups whose offsets are mirrored to the target; none by "
        "default.",
    )
    quantiles: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(max_length=64)] | None = (
        Field(
            default=None,
            description="lag: quantiles of the time from the producer to the log that are reported.",
        )
    )
    group: WireName | None = Field(
        default=None, description="dead-letters, redrive: the consumer group."
    )
    plan: PathText | None = Field(
        default=None,
        description="redrive: file for the plan, which is first shown and then carried out.",
    )
    target: WireName | None = Field(
        default=None,
        description="redrive: topic to which the dead letters are sent. Defaults to their original topics. replay: topic for "
        "the copies.",
    )
    target_bootstrap: Text | None = Field(
        default=None,
        description="replay: name servers of the target. Defaults to those of the source. mirror: name servers of the other "
        "cluster.",
    )
    target_options: Options | None = Field(
        default=None,
        description="replay, mirror: options of the connection to the target (client.*, auth.*, retryTimeout). A replay "
        "without this and targetBootstrap uses those of the source.",
    )
    keys: Keys | None = Field(
        default=None,
        description="cdc-apply: columns of the primary key. redrive, replay: only messages with these sharding keys. Defaults "
        "to all keys.",
    )
    send: bool | None = Field(
        default=None, description="redrive: false only shows the plan, true carries it out."
    )
    on_overtaken: Literal["skip", "send", "hold-key"] | None = Field(
        default=None,
        description="redrive: what to do with a dead letter if later messages of its key have been consumed. Defaults to "
        "hold-key.",
    )
    on_doubtful: Literal["skip", "send", "hold-key"] | None = Field(
        default=None,
        description="redrive without target: what to do with a dead letter if no message of its topic has the same content. "
        "Defaults to hold-key.",
    )
    max_redrives: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="redrive: how many times one message may be sent again. Defaults to 3.",
    )
    rate: Annotated[float, Field(ge=0.001, le=1e9)] | None = Field(
        default=None, description="redrive: messages per second. Unlimited by default."
    )
    speed: Annotated[float, Field(ge=0.001, le=1e9)] | None = Field(
        default=None,
        description="replay: speed relative to the original: 1 is the original pace, 2 twice as fast. As fast as possible by "
        "default.",
    )
    table: Text | None = Field(
        default=None,
        description="cdc-apply: only events of this table, as table or database.table. Defaults to all. archive with format "
        "iceberg: the table, as namespace.name; it is created if it does not exist.",
    )
    errors: PathText | None = Field(
        default=None, description="cdc-apply: folder for events that cannot be read."
    )
    scd: Literal[1, 2] | None = Field(
        default=None,
        description="cdc-apply: 1 (default) keeps the current version of each row, 2 keeps every version.",
    )

    # -- what only Kubernetes obeys

    cluster_ref: ClusterRef | None = Field(
        default=None,
        description="Cluster whose name servers are used if no bootstrap is set; only in Kubernetes.",
    )
    backend: Backend = Field(
        default="pod",
        description="pod: one driver does all the work. kubernetes: executors in their own pods. sparkApplication: a "
        "SparkApplication for Kubeflow's Spark operator. Only in Kubernetes.",
    )
    schedule: Cron | None = Field(
        default=None,
        description="When runs begin, as a cron expression in UTC, for pipelines that end. If absent, one run begins "
        "immediately. Only in Kubernetes.",
    )
    suspend: bool = Field(
        default=False,
        description="Run no driver while true; a stream ends after its current batch. Only in Kubernetes.",
    )
    storage: CheckpointStorage = Field(
        default=CheckpointStorage(), description="The Pipeline's volume; only in Kubernetes."
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
        description="Image with Spark. Defaults to the operator's setting. Only in Kubernetes.",
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
        description="User and groups of drivers and executors. If absent, user, group and fsGroup are 10001; {} leaves them "
        "to the cluster's admission, as OpenShift requires. Spark needs an entry for the user in /etc/passwd: the image has "
        "one for 10001, and CRI-O adds one for other users. Only in Kubernetes.",
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
    """The progress of the pipeline in one queue."""

    topic: str
    broker: str
    queue: Annotated[int, Field(ge=0)]
    offset: Annotated[int, Field(ge=0)] = Field(description="Offset of the next message to read.")


class PipelineStatus(Status):
    """Observed state of a pipeline; the figures come from the driver and are some seconds old."""

    phase: (
        Literal["Waiting", "Starting", "Running", "Scheduled", "Suspended", "Finished", "Failed"]
        | None
    ) = Field(
        default=None, description="Summary for people; programs should read the condition Ready."
    )
    last_batch: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Number of the last finished batch of a stream."
    )
    rows: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Messages that the current run has moved."
    )
    rows_per_second: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Rows per second of the last batch."
    )
    lag: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Messages that waited when the last batch ended."
    )
    offsets: list[QueueOffset] = Field(
        default=[], max_length=QUEUES_MAX, description="Progress of the checkpoint by queue."
    )
    result: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Result of the last run that ended."
    )
    last_error: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Why the last run failed; absent if it succeeded."
    )
    driver: str | None = Field(default=None, description="Pod of the driver.")
    claim: str | None = Field(default=None, description="Claim that holds the checkpoint.")


class Pipeline(KubernetesObject):
    """A pipeline over topics: archive, audit, reports, redrive, replay, mirror, change capture."""

    kind: Literal["Pipeline"] = "Pipeline"
    spec: PipelineSpec
    status: PipelineStatus | None = None
