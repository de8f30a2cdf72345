"""
Explains a pipeline: plan, cost and guarantees. The steps of each type are here, and what would void its guarantees.

Rule: facts about the cluster are read now; times come from measured rates (`rates`).
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from orderlymq.errors import TopicNotFound
from orderlymq_protocol.names import dlq_topic
from orderlymq_protocol.plurals import counted
from orderlymq_spark.explain.backlog import Backlog, of_archive, of_mirror, of_topic
from orderlymq_spark.explain.rates import START_S, rate_of
from orderlymq_spark.jobs.catalogue import CATALOGUE
from orderlymq_spark.offsets import describe_missing
from orderlymq_spark.options import SourceOptions, parse_source
from orderlymq_spark.specs import (
    ArchiveSpec,
    CdcSpec,
    CompactSpec,
    DeadLetterSpec,
    LagSpec,
    MirrorSpec,
    OrderAuditSpec,
    Pipeline,
    PipelineSpec,
    RedriveSpec,
    ReplaySpec,
    StreamSpec,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run.

    Attributes:
        messages: waiting messages; None for files.
        size_bytes: their total size.
        tasks: tasks that can run at the same time.
        batches: batches of a stream; None if it is not a stream, or if its limit is not known beforehand.
        seconds: the run time including Spark's start; None if no rate was measured.
        start_s: the part of it until Spark has started; 0 without Spark.
        measured: the conditions of the measurement.
    """

    messages: int | None
    size_bytes: int
    tasks: int
    batches: int | None
    seconds: float | None
    start_s: int
    measured: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a pipeline; `warnings` name reasons that void a guarantee or make a run fail."""

    name: str
    type: str
    reads: str
    plan: tuple[str, ...]
    cost: Cost
    guarantees: tuple[str, ...]
    warnings: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """Return the explanation as JSON types."""
        return asdict(self)

    def text(self) -> str:
        """Return the explanation as readable text."""
        cost = self.cost
        lines = [f"{self.name} ({self.type})", "", f"reads       {self.reads}"]
        if cost.size_bytes:
            lines[-1] += f"; {cost.size_bytes / 1e6:,.1f} MB"
        lines += [
            f"{'plan' if not at else '':12}{at + 1}. {each}" for at, each in enumerate(self.plan)
        ]
        lines.append(f"cost        {_time(cost)}")
        for head, texts in (("guarantees", self.guarantees), ("warnings", self.warnings)):
            lines += [f"{'' if at else head:12}{each}" for at, each in enumerate(texts)]
        return "\n".join(lines)


def explain(pipeline: Pipeline) -> Explanation:
    """Return what a pipeline would do if it ran now.

    Raises:
        OrderlyMQError: The cluster lacks what the pipeline reads, or is unavailable.
    """
    spec = pipeline.spec
    options = _options(spec)
    backlog = _backlog(spec, options)
    return Explanation(
        pipeline.name,
        spec.type,
        backlog.what,
        tuple(_plan(spec)),
        _cost(spec, options, backlog),
        tuple(_guarantees(spec)),
        tuple(_warnings(options, backlog)),
    )


def _options(spec: PipelineSpec) -> SourceOptions | None:
    """Return the options for reading the topics; None if the pipeline reads files."""
    match spec:
        case LagSpec(topic=topic):
            return parse_source({**spec.connect.to_options(), "topic": topic})
        case DeadLetterSpec(group=group) | RedriveSpec(group=group):
            return parse_source({**spec.connect.to_options(), "topic": dlq_topic(group)})
        case ReplaySpec() | CdcSpec():
            return parse_source(spec.read_options())
    source = getattr(spec, "source", None)
    return None if source is None else parse_source(source.all_options())


def _backlog(spec: PipelineSpec, options: SourceOptions | None) -> Backlog:
    if isinstance(spec, MirrorSpec):
        return of_mirror(spec)
    if options is not None:
        stream = isinstance(spec, StreamSpec) or getattr(spec, "stream", False)
        try:
            return of_topic(options, getattr(spec, "checkpoint", None) if stream else None)
        except TopicNotFound:
            if not isinstance(spec, DeadLetterSpec | RedriveSpec):
                raise
            return Backlog(f"no dead letters: {spec.group} has had none", 0, 0, 0)
    path = spec.path if isinstance(spec, CompactSpec) else getattr(spec, "archive", None)
    assert path is not None, "what reads no topic reads an archive"
    return of_archive(path)


def _plan(spec: PipelineSpec) -> Iterator[str]:
    match spec:
        case ArchiveSpec():
            yield "Spark plans one range of offsets for each queue and batch"
            yield "each task reads its range from the brokers and writes it to one file, in offset order"
            if spec.format == "delta":
                yield f"the driver adds the files of a batch to the Delta table {spec.path} in one commit"
            elif spec.format == "iceberg":
                yield f"the driver adds the files of a batch to {spec.place} in one commit"
            else:
                yield f"the driver creates the next manifest below {spec.path}/_manifests; then it renames the files to their final names"
        case CompactSpec():
            yield f"adjacent files of a queue in {spec.path} are merged up to {spec.target_bytes} bytes, in offset order"
            yield "rows are counted and their order is checked; a manifest commits each merge; then the old files are deleted"
        case OrderAuditSpec():
            yield "one task checks one queue: its offsets, and the number of each message against the highest one of its key before it"
            yield f"findings go to {spec.findings or 'the output'}; the exit code is 1 if there are any"
        case ReplaySpec():
            yield "Spark reads one range of offsets for each queue and batch" + (
                f", which waits until it is due at {spec.speed:g} times the speed at which it was stored"
                if spec.speed
                else ""
            )
            yield "all rows of a key go to one task, sorted by store time and offset"
            yield f"the ordered sink asks {spec.target} for each message and sends the missing ones"
        case MirrorSpec():
            yield f"the end of each queue at {spec.target_bootstrap} shows which message comes next; the last message there is compared with the source"
            yield "pulled messages are appended unchanged, with up to 4 requests per queue and 8 queues at a time"
            if spec.groups:
                yield f"the offsets of {', '.join(spec.groups)} are written there while a group has no members there, and only move forward"
        case CdcSpec():
            bad = "ends the run" if spec.errors is None else f"goes to {spec.errors}"
            yield f"the bodies are read as events of {spec.format}; one that cannot be read {bad}"
            yield f"the changes of a batch are merged into the Delta table {spec.path} in one commit, by {', '.join(spec.keys)}"
        case RedriveSpec():
            yield f"the plan {spec.plan} is made, or read if it exists: which letters are sent, held or skipped"
            yield (
                "the letters of the plan are sent, per key in the order of their origin"
                if spec.send
                else "nothing is sent; set send: true to send"
            )
        case _:
            yield f"one pass over the messages that exist now: {CATALOGUE[spec.type].about}"
    if isinstance(spec, StreamSpec):
        end = (
            "ends when it has read what exists now"
            if spec.ends
            else f"continues, with a batch every {spec.trigger}"
        )
        kept = "its status is" if isinstance(spec, MirrorSpec) else "the offsets are"
        yield f"the run {end}; {kept} kept in {spec.checkpoint}"


def _cost(spec: PipelineSpec, options: SourceOptions | None, backlog: Backlog) -> Cost:
    kind = spec.type
    if kind == "order-audit" and options is None:
        kind = "order-audit of an archive"
    paced = isinstance(spec, ReplaySpec) and spec.speed is not None
    rate = None if paced else rate_of(kind)
    work = backlog.size_bytes if kind == "compact" else backlog.messages
    start_s = 0 if isinstance(spec, MirrorSpec) else START_S
    seconds = None
    if rate is not None and work is not None:
        seconds = round(start_s + work / rate.per_second, 1)
    batches = None
    if isinstance(spec, StreamSpec) and options is not None and backlog.messages is not None:
        limit = options.offsets_max or (None if options.bytes_max else backlog.messages)
        batches = None if limit is None else math.ceil(backlog.messages / max(1, limit))
    measured = "" if rate is None else rate.conditions
    return Cost(
        backlog.messages, backlog.size_bytes, backlog.parts, batches, seconds, start_s, measured
    )


def _guarantees(spec: PipelineSpec) -> Iterator[str]:
    yield CATALOGUE[spec.type].invariant
    match spec:
        case ArchiveSpec(format="parquet"):
            yield "a published file never changes; a checkpoint that contradicts the files is refused"
        case ArchiveSpec() | CdcSpec():
            yield "a batch is one commit under (pipeline, batch); a repeated batch changes nothing"
        case ReplaySpec(target=target):
            yield f"a repeated message is recognised as long as {target} keeps its messages, on ordered topics"
        case MirrorSpec():
            yield "the brokers of the target append a copy at the offset of its message or refuse it, so two mirrors cause no duplicates"
            yield "at the target, a group begins at its offset of the source, or earlier"
        case RedriveSpec():
            yield "onOvertaken decides about a letter whose key was overtaken"
            yield "onDoubtful decides about a letter whose content no message of its topic has"


def _warnings(options: SourceOptions | None, backlog: Backlog) -> Iterator[str]:
    if backlog.missing or backlog.removed:
        effect = (
            "the run ends with an error"
            if options is None or options.fail_on_data_loss
            else "their ranges are written down"
        )
        yield f"{describe_missing(backlog.missing, backlog.removed)}: {effect}"
    if options is None:
        return
    if options.partitions_min or options.records_max:
        yield "minPartitions and maxRecordsPerPartition give up the order within a queue; pipelines that need it are refused"
    if options.tags != "*":
        yield "tags leave holes in the offsets, which cannot be distinguished from lost messages"
    if not options.fail_on_data_loss:
        yield "failOnDataLoss=false: lost messages do not end the run"


def _time(cost: Cost) -> str:
    parts = [f"{cost.tasks} tasks"]
    if cost.batches is not None:
        parts.append(counted(cost.batches, "batch", "batches"))
    if cost.seconds is None:
        return ", ".join(parts) + "; no time is given, because its speed was not measured"
    start = f", {cost.start_s} of them Spark's start" if cost.start_s else ""
    return f"about {cost.seconds:,.0f} s{start}; {', '.join(parts)} (measured: {cost.measured})"
