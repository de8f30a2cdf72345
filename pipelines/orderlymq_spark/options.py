"""
The options of the format "orderlymq": names, meanings, checks. Pure.

Rule: the error for an unknown name suggests the nearest known one; the error for a wrong value lists the allowed
values. Names are compared without case, as Spark does.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, cast

from orderlymq.errors import SettingError
from orderlymq.settings import DEFAULT_NAME_SERVER, ClientSettings
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.tags import TagExpressionError, TagFilter
from orderlymq_spark.columns import check_columns
from orderlymq_spark.errors import OptionError, hint
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.offsets import from_json, queues_from_json
from orderlymq_spark.times import parse_duration_ms, parse_timestamp_ms

# The largest value of Java's Long.
_NUMBER_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19
# The largest batch that brokers accept, in bytes, unless a Cluster sets another limit.
BATCH_BYTES_MAX: Final = 4 << 20

SOURCE_OPTIONS: Final = {
    "bootstrap": "addresses of the name servers, host:port;host:port",
    "topic": "one topic; load('orders') sets the same",
    "topics": "several topics, separated by commas",
    "topicsPattern": "a regular expression that whole topic names match",
    "queues": 'only these queues: {"orders": {"broker-a": [0, 1]}}',
    "startingOffsets": "earliest (default), latest, group, or JSON by topic, broker, queue",
    "startingTimestamp": "begin at the first message stored at this time or later (ISO, or ms)",
    "startingTimestampStrategy": "if no message is that recent: error (default) or latest",
    "startingOffsetsByTimestamp": 'a starting time for each queue, in ms: {"orders": {"broker-a": {"0": 1700000000000}}}; others begin at their first message',
    "endingOffsets": "batch: latest (default) or JSON; exclusive",
    "endingTimestamp": "batch: end before the first message stored at this time or later",
    "endingOffsetsByTimestamp": "batch: an ending time for each queue; others end at their last message",
    "endingTimestampStrategy": "if no message is that recent: latest (default) or error",
    "group": "the consumer group whose offsets startingOffsets=group uses",
    "maxOffsetsPerTrigger": "stream: messages per batch, shared among the queues",
    "maxBytesPerTrigger": "stream: bytes per batch, by the size of recent messages",
    "minOffsetsPerTrigger": "stream: wait for this many messages, at most for maxTriggerDelay",
    "maxTriggerDelay": "stream: longest wait for minOffsetsPerTrigger, for example 15m",
    "minPartitions": "split queues into more tasks; gives up the order within a queue",
    "maxRecordsPerPartition": "split queues into tasks of at most this many messages; gives up the order within a queue",
    "oneQueueList": "stream: true ends the stream before the first batch after an expansion, where keys have other queues",
    "failOnDataLoss": "true (default): end with an error that names the missing ranges; false: write them down and continue",
    "dataLossPath": "folder for the missing ranges, one JSON file each",
    "includeBody": "true (default) or false: no column body",
    "includeProperties": "true (default) or false: no column properties",
    "columns": "only these columns, separated by commas",
    "rangesOnly": "true: a row names a range of a queue, and its receiver reads the messages itself",
    "pushFilters": "batch: true reads only messages that pass Spark's filters on queue, offset, store time, key and tags (Spark 4.1)",
    "tags": "only messages with these tags: A || B; leaves holes in the offsets",
    "reportGroup": "stream: commit the end of finished batches for this group, so that listings show the progress",
    "valueFormat": "json, avro, protobuf or cloudevents: adds the columns value (the body decoded by valueSchema) and value_error",
    "valueSchema": "json: columns as Spark's DDL; avro: the schema; protobuf: a file of descriptors; cloudevents: columns of the data, bytes without it",
    "valueMessage": "protobuf: the full name of the message",
    "sequenceProperty": "the property that the column seq holds",
    "epochProperty": "the property that the column epoch holds",
    "startPath": "stream: file that records where the stream began; next to the checkpoint",
    "retryTimeout": "how long brokers and name servers may be unreachable, for example 2m (default)",
}
SINK_OPTIONS: Final = {
    "bootstrap": SOURCE_OPTIONS["bootstrap"],
    "topic": "target topic; overrides the column topic",
    "orderBy": "columns that give the order within a key, separated by commas",
    "appId": "a stable name of this job, by which rows that are sent again are recognised",
    "runId": "name of one load: after a failure, the same name sends only the missing rows; default: each load is new",
    "checkOrder": "true (default): refuse rows of one key in two tasks, and rows with neither key nor source in two tasks",
    "cloudEvents": "binary or structured: the column value is a CloudEvents 1.0 event, from which the message is made",
    "batchBytes": "size up to which messages of a queue are sent together, at most 4 MiB",
    "retryTimeout": SOURCE_OPTIONS["retryTimeout"],
}
# The file next to a checkpoint that stores where the stream began.
START_FILE: Final = "orderlymq-start.json"
SPARKS_OWN: Final = ("path", "queryname", "checkpointlocation")
"""Options that Spark itself gives a sink."""
_AUTH: Final = tuple(
    f"auth.{name}{env}" for name in ("accesskey", "secretkey", "token") for env in ("", "env")
)
# The types of the SDK's settings by name, and the spellings that options allow: client.use_tls, client.useTls.
_TYPES: Final[dict[str, Any]] = {each.name: type(each.default) for each in fields(ClientSettings)}
_SPELT: Final = {name.replace("_", ""): name for name in _TYPES}
_RETRY_TIMEOUT_MS: Final = 120_000  # an outage of a name server for a minute ends no query

Strategy: TypeAlias = Literal["error", "latest"]
FormatName: TypeAlias = Literal["json", "avro", "protobuf", "cloudevents"]
ContentMode: TypeAlias = Literal["binary", "structured"]
Word: TypeAlias = Literal["earliest", "latest", "group", "offsets", "timestamp", "timestamps"]


@dataclass(frozen=True, slots=True)
class Connect:
    """How to reach the cluster; equal values share connections.

    A secret may be given as the name of an environment variable, which is read by the process that connects.
    """

    bootstrap: str = DEFAULT_NAME_SERVER
    client: tuple[tuple[str, str], ...] = ()
    retry_timeout_ms: int = _RETRY_TIMEOUT_MS

    def settings(self) -> ClientSettings:
        """Return the SDK's settings.

        Raises:
            OptionError: As in `check`, or a named environment variable is not set.
        """
        for name, value in self.client:
            if name.endswith("_env") and value not in os.environ:
                raise OptionError(f"auth.{name}: the environment variable {value} is not set")
        return self._settings(os.environ)

    def check(self) -> None:
        """Check names and values, but not whether environment variables are set: the process that connects reads them.

        Raises:
            OptionError: The SDK has no such setting, rejects the value, or the setting would add a namespace to topic
                names.
        """
        self._settings({})

    def _settings(self, environment: Mapping[str, str]) -> ClientSettings:
        values: dict[str, object] = {}
        for name, value in self.client:
            if name.endswith("_env"):
                values[name.removesuffix("_env")] = environment.get(value, "")
            else:
                values[name] = _typed(name, value)
        if values.get("namespace"):
            # A send would add the namespace to the names; a read or a duplicate check would not.
            raise OptionError(
                f"client.namespace is {values['namespace']!r}, and frames, streams and pipelines name topics and groups as brokers "
                f"know them; leave it out and write them whole, as topic={values['namespace']}%orders"
            )
        try:
            return ClientSettings(**values)  # type: ignore[arg-type]  # names and types are checked
        except SettingError as error:
            raise OptionError(f"client.{error}") from error

    def to_options(self) -> dict[str, str]:
        """Return the options that produce this value."""
        found = {"bootstrap": self.bootstrap, "retryTimeout": f"{self.retry_timeout_ms}ms"}
        for name, value in self.client:
            secret = f"auth.{name.replace('_', '')}"
            found[secret if secret in _AUTH else f"client.{name}"] = value
        return found


def _typed(name: str, value: str) -> object:
    """Return the value of a client setting in the type that the SDK expects.

    Raises:
        OptionError: There is no such setting, or the value has another type.
    """
    kind = _TYPES.get(name)
    if kind is None:
        raise OptionError(f"there is no option client.{name}; {hint(name, _TYPES)}")
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise OptionError(f"client.{name} is {value!r}; it must be true or false")
        return value.lower() == "true"
    if kind is str:
        return value
    try:
        return kind(value)
    except ValueError:
        raise OptionError(f"client.{name} is {value!r}; it must be a number") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A start or an end: a word, explicit offsets, a time, or a time for each queue (in `offsets`, in ms)."""

    word: Word
    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)
    timestamp_ms: int = 0
    strategy: Strategy = "error"


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """The format and schema of bodies; `options.SOURCE_OPTIONS` describes the schema."""

    name: FormatName
    schema: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a read: the source, the range, and how it is divided."""

    connect: Connect
    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: frozenset[MessageQueue] = frozenset()
    start: Bound
    end: Bound
    group: str = ""
    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_max_ms: int = 15 * 60_000
    partitions_min: int = 0
    records_max: int | None = None
    one_queue_list: bool = False
    fail_on_data_loss: bool = True
    data_loss_path: str = ""
    columns: tuple[str, ...]
    ranges_only: bool = False
    push_filters: bool = False
    value: ValueFormat | None = None
    tags: str = "*"
    report_group: str = ""
    sequence_property: str = ""
    epoch_property: str = ""
    start_path: str = ""

    @property
    def keeps_start(self) -> bool:
        """Whether a start file must store where the stream begins.

        A stream from the earliest message needs no file, because its first batch records where the queues begin.
        """
        return self.start.word != "earliest" or bool(self.start_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The target of the rows, their order, and the name of the job."""

    connect: Connect
    topic: str = ""
    order_by: tuple[str, ...] = ()
    app_id: str
    run_id: str = ""
    check_order: bool = True
    batch_bytes: int
    cloud_events: ContentMode | None = None


class _Reader:
    """A reader of single options by lower-case name."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str], what: str) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for lower in self._values:
            if lower in names or lower in SPARKS_OWN:
                continue
            if lower.startswith("client.") or lower in _AUTH:
                continue
            raise OptionError(
                f"the {what} has no option {lower!r}; {hint(lower, names, names, cutoff=0.5)}"
            )

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default).strip()

    def path(self, name: str) -> str:
        value = self.text(name)
        return str(location(value)) if value else ""

    def word(self, name: str, default: str, *allowed: str) -> str:
        value = self.text(name, default).lower()
        if value not in allowed:
            raise OptionError(f"{name} is {value!r}; it must be {' or '.join(allowed)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        return self.word(name, str(default).lower(), "true", "false") == "true"

    def number(self, name: str, most: int = _NUMBER_MAX) -> int | None:
        value = self.text(name)
        if not value:
            return None
        if not value.isdecimal() or len(value) > _DIGITS_MAX or not 1 <= int(value) <= most:
            wanted = "from 1 on" if most == _NUMBER_MAX else f"from 1 to {most}"
            raise OptionError(f"{name} is {value!r}; it must be a whole number {wanted}")
        return int(value)

    def duration_ms(self, name: str, default_ms: int) -> int:
        value = self.text(name)
        return parse_duration_ms(value, name) if value else default_ms

    def json(self, name: str) -> object:
        try:
            return json.loads(self.text(name))
        except ValueError as error:
            raise OptionError(f"{name} is not JSON: {error}") from error

    def list(self, name: str) -> tuple[str, ...]:
        return tuple(part for each in self.text(name).split(",") if (part := each.strip()))

    def connect(self) -> Connect:
        client = []
        for name, value in sorted(self._values.items()):
            if name.startswith("auth."):
                key = name.removeprefix("auth.")
                client.append((key.replace("key", "_key").replace("env", "_env"), value))
            elif name.startswith("client."):
                key = name.removeprefix("client.").replace("-", "_").replace(".", "_")
                client.append((_SPELT.get(key.replace("_", ""), key), value.strip()))
        found = Connect(
            self.text("bootstrap", DEFAULT_NAME_SERVER),
            tuple(client),
            self.duration_ms("retryTimeout", _RETRY_TIMEOUT_MS),
        )
        found.check()
        return found


def parse_connect(given: Mapping[str, str]) -> Connect:
    """Read the options of a connection only.

    Raises:
        OptionError: As in `parse_source`.
    """
    names = ("bootstrap", "retryTimeout")
    return _Reader(given, {name: SOURCE_OPTIONS[name] for name in names}, "connection").connect()


def parse_source(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of a source.

    Raises:
        OptionError: An option is unknown, has a wrong value, or contradicts another one.
    """
    read = _Reader(given, SOURCE_OPTIONS, "source")
    topics = tuple(filter(None, (read.text("topic") or read.text("path"), *read.list("topics"))))
    pattern = read.text("topicsPattern")
    queues = queues_from_json(read.json("queues")) if read.text("queues") else frozenset()
    if not topics and not pattern:
        topics = tuple(sorted({queue.topic for queue in queues}))
    if bool(topics) == bool(pattern):
        raise OptionError("give one of topic, topics, topicsPattern and queues")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"topicsPattern is not a regular expression: {error}") from error
    start = _bound(read, "starting", "earliest", ("earliest", "latest", "group"), "error")
    group = read.text("group")
    if (start.word == "group") != bool(group):
        raise OptionError("startingOffsets=group and group=<consumer group> go together")
    tags = read.text("tags", "*")
    try:
        TagFilter.parse(tags)
    except TagExpressionError as error:
        raise OptionError(f"tags: {error}") from error
    return SourceOptions(
        connect=read.connect(),
        topics=topics,
        pattern=pattern,
        queues=queues,
        start=start,
        end=_bound(read, "ending", "latest", ("latest",), "latest"),
        group=group,
        offsets_max=read.number("maxOffsetsPerTrigger"),
        bytes_max=read.number("maxBytesPerTrigger"),
        offsets_min=read.number("minOffsetsPerTrigger"),
        delay_max_ms=read.duration_ms("maxTriggerDelay", 15 * 60_000),
        partitions_min=read.number("minPartitions") or 0,
        records_max=read.number("maxRecordsPerPartition"),
        one_queue_list=read.flag("oneQueueList", default=False),
        fail_on_data_loss=read.flag("failOnDataLoss", default=True),
        data_loss_path=read.path("dataLossPath"),
        columns=check_columns(
            read.list("columns"),
            body=read.flag("includeBody", default=True),
            properties=read.flag("includeProperties", default=True),
        ),
        ranges_only=read.flag("rangesOnly", default=False),
        push_filters=read.flag("pushFilters", default=False),
        value=_value_format(read),
        tags=tags,
        report_group=read.text("reportGroup"),
        sequence_property=read.text("sequenceProperty"),
        epoch_property=read.text("epochProperty"),
        start_path=read.path("startPath"),
    )


def parse_stream(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of a source that is read as a stream.

    Raises:
        OptionError: As in `parse_source`, or an end is given.
    """
    options = parse_source(given)
    if options.end.word != "latest":
        raise OptionError(
            "a stream has no end: remove endingOffsets, endingTimestamp and endingOffsetsByTimestamp, or read a batch"
        )
    return options


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    """Read the options of the ordered sink.

    Raises:
        OptionError: As in `parse_source`.
    """
    read = _Reader(given, SINK_OPTIONS, "sink")
    app_id = read.text("appId")
    if not app_id:
        raise OptionError(
            "appId is missing: a stable name of this job, by which rows that are sent again after a "
            "crash are recognised"
        )
    mode = read.text("cloudEvents") and read.word("cloudEvents", "", "binary", "structured")
    return SinkOptions(
        connect=read.connect(),
        topic=read.text("topic") or read.text("path"),
        order_by=read.list("orderBy"),
        app_id=app_id,
        run_id=read.text("runId"),
        check_order=read.flag("checkOrder", default=True),
        batch_bytes=read.number("batchBytes", most=BATCH_BYTES_MAX) or 1 << 20,
        cloud_events=cast("ContentMode | None", mode or None),
    )


def as_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options in the text form that Spark takes; booleans become true or false."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def _value_format(read: _Reader) -> ValueFormat | None:
    schema, message = read.text("valueSchema"), read.text("valueMessage")
    if not read.text("valueFormat"):
        if schema or message:
            raise OptionError(
                "valueSchema and valueMessage need valueFormat=json, avro, protobuf or cloudevents"
            )
        return None
    name = read.word("valueFormat", "", "json", "avro", "protobuf", "cloudevents")
    if not (schema or name == "cloudevents") or (name == "protobuf") != bool(message):
        raise OptionError(
            "valueFormat needs valueSchema, and protobuf needs valueMessage as well; "
            + "; ".join(SOURCE_OPTIONS[each] for each in ("valueSchema", "valueMessage"))
        )
    if read.flag("rangesOnly", default=False):
        raise OptionError(
            "this pipeline keeps bodies as they are stored, without valueFormat; "
            "use it with read_batch or read_stream"
        )
    return ValueFormat(cast("FormatName", name), schema, message)


def _bound(
    read: _Reader, side: str, default: str, words: tuple[str, ...], strategy: Strategy
) -> Bound:
    by_queue = f"{side}OffsetsByTimestamp"
    offsets, timestamp = read.text(f"{side}Offsets"), read.text(f"{side}Timestamp")
    chosen = read.word(f"{side}TimestampStrategy", strategy, "error", "latest")
    if sum(map(bool, (offsets, timestamp, read.text(by_queue)))) > 1:
        raise OptionError(f"give one of {side}Offsets, {side}Timestamp and {by_queue}, not both")
    if read.text(by_queue):
        times = from_json(read.json(by_queue), by_queue)
        for queue, each in times.items():
            if each < 0:
                raise OptionError(
                    f"{by_queue}: {each} of {queue.topic} {queue.broker_name}:{queue.queue_id} is not a time; "
                    "give milliseconds since 1970, or leave the queue out to read it whole"
                )
        return Bound(word="timestamps", offsets=times, strategy=cast("Strategy", chosen))
    if timestamp:
        moment = parse_timestamp_ms(timestamp, f"{side}Timestamp")
        return Bound(word="timestamp", timestamp_ms=moment, strategy=cast("Strategy", chosen))
    if offsets.startswith("{"):
        name = f"{side}Offsets"
        return Bound(word="offsets", offsets=from_json(read.json(name), name))
    return Bound(word=cast("Word", read.word(f"{side}Offsets", default, *words)))
