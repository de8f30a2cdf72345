"""
The spec of a Pipeline: the models of its YAML, one per type.

Rules: this module imports no Spark module, so that `pipeline list` and the checks of a file work without Spark. The
error for an unknown field suggests the nearest known one. Fields that apply only to Kubernetes are left to the operator.
The module that `jobs.catalogue` names describes what each pipeline does.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from orderlymq.settings import DEFAULT_NAME_SERVER
from orderlymq_protocol.plurals import counted
from orderlymq_spark.errors import OptionError, hint
from orderlymq_spark.locations.addresses import LocationField
from orderlymq_spark.locations.location import Location
from orderlymq_spark.options import (
    Connect,
    as_texts,
    parse_connect,
    parse_source,
    parse_stream,
)
from orderlymq_spark.times import parse_duration_ms

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Model(BaseModel):
    """A model with camelCase fields that refuses unknown fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class Source(Model):
    """The topic to read. `options` are those of the format "orderlymq"."""

    bootstrap: str = DEFAULT_NAME_SERVER
    topic: str
    options: dict[str, str | int | bool] = {}

    def all_options(self, **more: str) -> dict[str, str]:
        """Return the options for Spark."""
        return {
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            **as_texts(self.options),
            **more,
        }


class SparkSettings(Model):
    """Settings of the Spark session."""

    master: str = "local[*]"
    memory: str = "1g"
    settings: dict[str, str] = {}


class PipelineSpec(Model):
    """Fields of all pipelines."""

    type: str
    spark: SparkSettings = SparkSettings()


class ClusterSpec(PipelineSpec):
    """A pipeline that queries a cluster; `options` are those of the connection: client.*, auth.*, retryTimeout."""

    bootstrap: str = DEFAULT_NAME_SERVER
    options: dict[str, str | int | bool] = {}

    @property
    def connect(self) -> Connect:
        """The connection to the cluster.

        Raises:
            OptionError: An option is unknown or has a wrong value.
        """
        return parse_connect({"bootstrap": self.bootstrap, **as_texts(self.options)})


_AVAILABLE_NOW: Final = "availableNow"


def _check_trigger(trigger: str) -> str:
    if trigger != _AVAILABLE_NOW:
        try:
            parse_duration_ms(trigger)
        except OptionError as error:
            raise ValueError(f"{error}, or {_AVAILABLE_NOW}") from error
    return trigger


Trigger = Annotated[str, AfterValidator(_check_trigger)]

# The fields that a checkpoint is bound to; the operator refuses changes of the same fields.
_BOUND: Final = ("path", "target", "target_bootstrap", "format", "scd", "table")


class StreamSpec(PipelineSpec):
    """A streaming pipeline; `trigger` is availableNow (it ends after the messages stored now) or a duration."""

    source: Source
    checkpoint: LocationField
    trigger: Trigger = _AVAILABLE_NOW
    metrics_port: int | None = Field(default=None, ge=1, le=65535)

    @property
    def ends(self) -> bool:
        """Whether the pipeline ends after the messages that are stored now."""
        return self.trigger == _AVAILABLE_NOW

    @property
    def about(self) -> dict[str, str]:
        """The values that the checkpoint is bound to.

        A pipeline with other values would lack everything that was read before the change.
        """
        fields = {to_camel(name): getattr(self, name, None) for name in _BOUND}
        given = {name: str(value) for name, value in fields.items() if value is not None}
        if (catalog := getattr(self, "catalog", None)) is not None:
            given["catalog"] = catalog.name
        return {"type": self.type, "source.topic": self.source.topic, **given}

    @property
    def trigger_options(self) -> dict[str, Any]:
        """The trigger options for Spark."""
        if self.ends:
            return {"availableNow": True}
        return {"processingTime": f"{parse_duration_ms(self.trigger)} milliseconds"}


class Catalog(Model):
    """An Iceberg catalogue with pyiceberg's name and properties; pyiceberg's own configuration is read first."""

    name: str
    properties: dict[str, str | int | bool] = {}


class ArchiveSpec(StreamSpec):
    """A pipeline that writes topics to files that hold every offset once."""

    type: Literal["archive"]
    path: LocationField | None = None
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    codec: Literal["zstd", "snappy", "none"] = "zstd"
    catalog: Catalog | None = None
    table: str | None = None

    @property
    def folder(self) -> Location:
        """The path of an archive that has no catalogue."""
        assert self.path is not None, "checked with the other fields"
        return self.path

    @property
    def place(self) -> str:
        """A readable description of the archive's location."""
        return f"the Iceberg table {self.table}" if self.path is None else str(self.path)

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.format == "iceberg":
            named = self.catalog is not None and "." in (self.table or "")
            fits = named and self.path is None
        else:
            fits = self.path is not None and self.catalog is None and self.table is None
        if not fits:
            raise ValueError(
                "an archive needs path, or with format: iceberg catalog and table (namespace.name) in its place"
            )
        return self


class CompactSpec(PipelineSpec):
    """A pipeline that merges many small files of an archive into a few large ones, in offset order."""

    type: Literal["compact"]
    path: LocationField
    target_bytes: int = Field(default=256 << 20, ge=1)
    min_files: int = Field(default=2, ge=2)


# With these options an audit task sees only part of a queue: it reports the
# rest as lost, or checks a piece without its predecessor.
_NOT_AUDITED: Final = ("tags", "minPartitions", "maxRecordsPerPartition", "valueFormat")


class OrderAuditSpec(PipelineSpec):
    """An audit that proves the order or reports where it broke; it reads a topic (batch or stream) or an archive."""

    type: Literal["order-audit"]
    source: Source | None = None
    archive: LocationField | None = None
    topics: list[str] | None = None
    sequence_property: str = ""
    epoch_property: str = ""
    stream: bool = False
    checkpoint: LocationField | None = None
    trigger: Trigger = _AVAILABLE_NOW
    findings: LocationField | None = None
    findings_max: int = Field(default=10_000, ge=1)
    first_sequence: int | None = None

    @field_validator("source")
    @classmethod
    def _whole_queues(cls, source: Source | None) -> Source | None:
        given = {name.lower() for name in source.options} if source is not None else set()
        wrong = [name for name in _NOT_AUDITED if name.lower() in given]
        if wrong:
            raise ValueError(
                f"options.{wrong[0]}: the audit reads each queue completely, in one piece, as it is stored"
            )
        return source


class SkewSpec(PipelineSpec):
    """A report on how evenly keys load the queues, and how many queues the topic should have."""

    type: Literal["skew-report"]
    source: Source
    capacity_per_queue: float = Field(
        gt=0, description="messages per second that one queue may get"
    )
    target_use: float = Field(default=0.7, gt=0, le=1)
    candidates: list[Annotated[int, Field(ge=1)]] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    top: int = Field(default=20, ge=1)
    html: LocationField | None = None


class LagSpec(ClusterSpec):
    """A report on the lag of consumer groups, in messages and in time."""

    type: Literal["lag"]
    topic: str
    groups: list[str]
    quantiles: list[Annotated[float, Field(ge=0, le=1)]] = [0.5, 0.9, 0.99, 0.999]


class DeadLetterSpec(ClusterSpec):
    """A report on why messages became dead letters, and which of them were overtaken."""

    type: Literal["dead-letters"]
    group: str


class RedriveSpec(ClusterSpec):
    """A pipeline that sends dead letters back to their topic, in order; unless `send` is true, it only shows its plan."""

    type: Literal["redrive"]
    group: str
    plan: LocationField
    target: str | None = None
    keys: list[str] | None = None
    send: bool = False
    on_overtaken: Literal["skip", "send", "hold-key"] = "hold-key"
    on_doubtful: Literal["skip", "send", "hold-key"] = "hold-key"
    max_redrives: int = Field(default=3, ge=1)
    rate: float | None = Field(default=None, gt=0, description="messages a second")


_LIMITS: Final = ("maxoffsetspertrigger", "maxbytespertrigger")
_PACED_BATCH: Final = 1000
# Bytes as stored. The driver holds the events as Python objects several times that size; compressed ones grow even more.
_MERGED_BYTES: Final = 32 << 20


def _limited(given: dict[str, str], name: str, most: int) -> dict[str, str]:
    """Return the options of a source with a limit per batch, unless they already have one."""
    has_one = not {*map(str.lower, given)}.isdisjoint(_LIMITS)
    return given if has_one else {**given, name: str(most)}


class ReplaySpec(StreamSpec):
    """A pipeline that copies messages of a topic to another topic, in order per key."""

    type: Literal["replay"]
    target: str
    target_bootstrap: str | None = None
    target_options: dict[str, str | int | bool] = Field(
        default={},
        description="of the connection to targetBootstrap: client.*, auth.*, retryTimeout",
    )
    keys: list[str] | None = None
    speed: float | None = Field(
        default=None, gt=0, description="1: as stored, 2: twice as fast; none: as fast as possible"
    )

    def read_options(self) -> dict[str, str]:
        """Return the options for reading the source.

        With `speed` batches are small, because a batch is sent when its last message is due.
        """
        given = self.source.all_options(oneQueueList="true")
        return (
            given if self.speed is None else _limited(given, "maxOffsetsPerTrigger", _PACED_BATCH)
        )

    @property
    def target_connect(self) -> Connect:
        """The connection to the target: like the source, or for another cluster only by the target's own options.

        Raises:
            OptionError: An option is unknown or has a wrong value.
        """
        if self.target_bootstrap is None and not self.target_options:
            return parse_source(self.source.all_options()).connect
        bootstrap = self.target_bootstrap or self.source.bootstrap
        return parse_connect({"bootstrap": bootstrap, **as_texts(self.target_options)})


# The only options allowed besides client.* and auth.*: a mirror copies each
# queue whole, so it cannot select messages or a start.
_OF_MIRRORS: Final = ("topics", "retrytimeout")


class MirrorSpec(StreamSpec):
    """A pipeline that copies topics to another cluster, each queue as a prefix of its source; it needs no Spark.

    The target's offsets show where to continue. `checkpoint` keeps a second driver out, and its status.json records which
    source was copied.
    """

    type: Literal["mirror"]
    target_bootstrap: str
    target_options: dict[str, str | int | bool] = Field(
        default={}, description="of the connection to targetBootstrap"
    )
    groups: list[str] = []

    @property
    def target_connect(self) -> Connect:
        """The connection to the target, set only by its own options.

        Raises:
            OptionError: An option is unknown or has a wrong value.
        """
        return parse_connect({"bootstrap": self.target_bootstrap, **as_texts(self.target_options)})

    @field_validator("source")
    @classmethod
    def _whole_topics(cls, source: Source) -> Source:
        for name in source.options:
            if name.lower() not in _OF_MIRRORS and not name.lower().startswith(
                ("client.", "auth.")
            ):
                raise ValueError(
                    f"options.{name}: a mirror copies each queue completely, from its first message on; its options are topics, "
                    "retryTimeout, client.* and auth.*"
                )
        return source


class CdcSpec(StreamSpec):
    """A pipeline that applies a binlog topic to a copy of the source table or its history; deleted rows stay, marked."""

    type: Literal["cdc-apply"]
    path: LocationField
    format: Literal["debezium", "canal", "maxwell"]
    keys: list[str] = Field(min_length=1)
    table: str | None = None
    errors: LocationField | None = None
    scd: Literal[1, 2] = Field(
        default=1, description="1: each row as it is now, 2: every version of each row"
    )

    def read_options(self) -> dict[str, str]:
        """Return the options for reading the source.

        A batch is limited because it passes through the driver's memory, and a planned batch never shrinks.
        """
        return _limited(self.source.all_options(), "maxBytesPerTrigger", _MERGED_BYTES)

    @property
    def about(self) -> dict[str, str]:
        """The values that the checkpoint is bound to; with other keys the table would contain rows twice."""
        return {**super().about, "keys": json.dumps(self.keys)}


SPECS: dict[str, type[PipelineSpec]] = {
    "archive": ArchiveSpec,
    "compact": CompactSpec,
    "order-audit": OrderAuditSpec,
    "skew-report": SkewSpec,
    "lag": LagSpec,
    "dead-letters": DeadLetterSpec,
    "redrive": RedriveSpec,
    "replay": ReplaySpec,
    "mirror": MirrorSpec,
    "cdc-apply": CdcSpec,
}


# Fields of the resource that tell the operator how to run it; `orderlymq pipeline run` ignores them.
KUBERNETES_ONLY: Final = (
    "clusterRef",
    "backend",
    "schedule",
    "suspend",
    "storage",
    "executors",
    "env",
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "resources",
    "placement",
    "securityContext",
)


class Metadata(Model):
    """The pipeline's metadata; the name identifies its work at the sink, so it must not change."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: str


class Pipeline(Model):
    """One manifest."""

    name: str
    spec: PipelineSpec


def read_pipeline(path: Path) -> Pipeline:
    """Read a manifest.

    Raises:
        OptionError: The file is missing, is not YAML, has another kind or a wrong field; the text says where.
    """
    try:
        documents = _documents(path.read_text())
    except OSError as error:
        raise OptionError(
            f"{path}: {error.strerror}; give the path of a Pipeline manifest"
        ) from error
    except yaml.YAMLError as error:
        raise OptionError(f"{path} is not YAML: {error}") from error
    if len(documents) != 1:
        raise OptionError(
            f"{path} has {counted(len(documents), 'document')}; give a file with one Pipeline"
        )
    return parse_pipeline(documents[0], str(path))


def _documents(text: str) -> list[object]:
    """Return the documents of a JSON or YAML text.

    Raises:
        YAMLError: The text is neither.
    """
    try:
        # PyYAML reads a character that JSON writes as two escapes as two half characters.
        return [json.loads(text)]
    except ValueError:
        return [each for each in yaml.safe_load_all(text) if each is not None]


def parse_pipeline(document: object, where: str = "the manifest") -> Pipeline:
    """Check a manifest.

    Raises:
        OptionError: As in `read_pipeline`.
    """
    if not isinstance(document, dict) or document.get("kind") != "Pipeline":
        raise OptionError(f"{where}: kind must be Pipeline (apiVersion orderlymq.io/v1alpha1)")
    spec = document.get("spec")
    if isinstance(spec, dict):
        spec = {name: value for name, value in spec.items() if name not in KUBERNETES_ONLY}
    kind = spec.get("type") if isinstance(spec, dict) else None
    model = SPECS.get(str(kind))
    if model is None:
        raise OptionError(f"{where}: spec.type is {kind!r}; {hint(str(kind), SPECS)}")
    try:
        name = Metadata.model_validate(document.get("metadata") or {}).name
        found = model.model_validate(spec)
    except ValidationError as error:
        raise OptionError(f"{where}: {_sentence(error, model)}") from error
    if not NAME.fullmatch(name):
        raise OptionError(f"{where}: metadata.name {name!r}: letters a-z, digits and -, at most 63")
    source = getattr(found, "source", None)
    if source is not None:
        streams = isinstance(found, StreamSpec) or getattr(found, "stream", False)
        (parse_stream if streams else parse_source)(source.all_options())
    if isinstance(found, ClusterSpec):
        assert found.connect
    if isinstance(found, ReplaySpec | MirrorSpec):
        assert found.target_connect
    return Pipeline(name=name, spec=found)


def _sentence(error: ValidationError, model: type[PipelineSpec]) -> str:
    texts = []
    for each in error.errors():
        place = ".".join(str(part) for part in each["loc"])
        if each["type"] == "extra_forbidden":
            fields = [*model.model_fields.items(), *Source.model_fields.items()]
            names = [*(field.alias or name for name, field in fields), *KUBERNETES_ONLY]
            texts.append(f"spec.{place} is unknown; {hint(str(each['loc'][-1]), names)}")
        else:
            text = each["msg"].removeprefix("Value error, ")
            texts.append(f"{place}: {text}" if place else text)
    return "; ".join(texts)
