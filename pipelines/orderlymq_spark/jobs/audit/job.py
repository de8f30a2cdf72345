"""
Pipeline order-audit: finds every place where a topic or an archive has a gap or is out of order per key.

Rules: one task checks one queue in offset order (`order`), so Spark shuffles nothing and keeps no state per key. A
stream keeps one state file per queue and batch next to its checkpoint. A repeated batch continues from the previous
file. If there are findings, the command exits with 1.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from orderlymq.oracle.verdict import Defect
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import OptionError
from orderlymq_spark.frames import read_batch, read_stream
from orderlymq_spark.jobs.audit.order import Break, OrderCheck
from orderlymq_spark.jobs.audit.states import keep, name_of, newest, restore
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import parse_source
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.run.stream import run_stream
from orderlymq_spark.source.batches import as_numbers
from orderlymq_spark.source.queuereader import message_schema, ranges_in_rows, read_range
from orderlymq_spark.specs import OrderAuditSpec, Source, StreamSpec
from orderlymq_spark.tables.manifests import settled
from orderlymq_spark.tables.parquet import published, rows_of

_COLUMNS: Final = ("topic", "broker", "queue_id", "queue_offset", "sharding_key", "seq", "epoch")
_RESULT: Final = "result binary"
_RESULT_ARROW: Final = pa.schema([pa.field("result", pa.binary())])
_SHOWN: Final = 20


def run(name: str, spec: OrderAuditSpec, spark: SparkStarter) -> Outcome:
    """Audit the topic or archive and report the findings.

    Raises:
        OptionError: Not exactly one of source and archive is given, or a stream has no checkpoint.
    """
    if (spec.source is None) == (spec.archive is None):
        raise OptionError("order-audit needs spec.source (a topic) or spec.archive (a folder)")
    if spec.archive is not None:
        return report(spec, *audit_archive(spark(), spec))
    if spec.stream:
        return report(spec, *audit_stream(name, spec, spark()))
    ranges = read_batch(spark(), **_options(spec), rangesOnly=True)
    return report(spec, *_collect(ranges.mapInArrow(_folding(spec, None, 0), _RESULT)))


# -- two more ways to the same check


def audit_archive(
    spark: SparkSession, spec: OrderAuditSpec
) -> tuple[list[Break], list[dict[str, Any]]]:
    """Check the files of an archive, one task per queue; return the findings and a summary per queue."""
    assert spec.archive is not None
    root = spec.archive
    files = files_of(root, spec.topics)

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in chain.from_iterable(rows.column("id").to_pylist() for rows in batches):
            results = list(check_files(spec, root, files[number]))
            yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], schema=_RESULT_ARROW)

    # Each partition has one number, so that a task checks one queue.
    numbers = spark.range(0, len(files), 1, len(files))
    return _collect(numbers.mapInArrow(check, _RESULT))


def files_of(root: Location, topics: Sequence[str] | None) -> list[list[QueueRange]]:
    """Return the files of an archive by queue.

    Raises:
        OptionError: A topic has no files, so an audit would confirm the order of nothing.
    """
    # Look while no commit is in progress, because ranges are missing between the steps of a compaction.
    found = settled(root, lambda: published(root, topics))
    absent = sorted({*(topics or ())} - {each.queue.topic for each in found})
    if absent or not found:
        there = ", ".join(sorted({each.queue.topic for each in published(root)})) or "none"
        lacking = absent[0] if absent else "any topic"
        raise OptionError(f"there are no files of {lacking} in {root}; it has files of: {there}")
    return [list(parts) for _, parts in groupby(found, lambda each: each.queue)]


def audit_stream(
    name: str, spec: OrderAuditSpec, spark: SparkSession
) -> tuple[list[Break], list[dict[str, Any]]]:
    """Check a topic as it grows, until the trigger ends the stream; return all findings since the stream began.

    Raises:
        OptionError: There is no checkpoint.
    """
    if spec.checkpoint is None:
        raise OptionError("a streaming order-audit needs spec.checkpoint")
    checkpoint = spec.checkpoint
    states, findings = checkpoint / "order", checkpoint / "findings"
    stream = StreamSpec(
        type=spec.type,
        source=_source(spec),
        checkpoint=checkpoint,
        trigger=spec.trigger,
    )

    def check(frame: DataFrame, batch: int) -> None:
        found, _ = _collect(frame.mapInArrow(_folding(spec, states, batch), _RESULT))
        lines = [json.dumps(finding_facts(each)) for each in found[: spec.findings_max]]
        (findings / f"{batch:020}.jsonl").write("\n".join(lines))

    run_stream(
        name,
        stream,
        lambda: read_stream(
            spark, checkpoint, **_options(spec), rangesOnly=True
        ).writeStream.foreachBatch(check),
        counts_offsets=True,
    )
    broken = [
        _break(json.loads(line))
        for name in findings.names()
        if name.endswith(".jsonl")
        for line in (findings / name).read_text().splitlines()
    ]
    return sorted(broken), [_summary(check) for check in newest(states)]


def _source(spec: OrderAuditSpec) -> Source:
    assert spec.source is not None
    return spec.source


def _options(spec: OrderAuditSpec) -> dict[str, str]:
    return _source(spec).all_options(
        columns=",".join(_COLUMNS),
        sequenceProperty=spec.sequence_property,
        epochProperty=spec.epoch_property,
    )


# -- in tasks


def _folding(
    spec: OrderAuditSpec, states: Location | None, batch: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function with which a task checks its ranges; it yields a few results per queue."""
    first, limit = spec.first_sequence, spec.findings_max
    with_epochs = bool(spec.epoch_property)
    given = _options(spec)

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        checks: dict[MessageQueue, OrderCheck] = {}
        found: list[Break] = []
        options = parse_source(given)
        schema = message_schema(options)
        for part in chain.from_iterable(map(ranges_in_rows, batches)):
            check = checks.get(part.queue)
            if check is None:
                check = checks[part.queue] = restore(states, batch, part.queue, first)
            for rows in read_range(options, schema, part):
                found += _feed(check, rows, with_epochs)[: max(0, limit - len(found))]
        results = [orjson.dumps({"break": finding_facts(each)}) for each in found]
        for queue, check in checks.items():
            results.append(orjson.dumps({"summary": _summary(check)}))
            if states is not None:
                keep(states, batch, queue, check)
        yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], schema=_RESULT_ARROW)

    return fold


def _feed(check: OrderCheck, rows: pa.RecordBatch | pa.Table, with_epochs: bool) -> list[Break]:
    return check.feed(
        rows.column("queue_offset").to_pylist(),
        rows.column("sharding_key").to_pylist(),
        rows.column("seq").to_pylist(),
        rows.column("epoch").to_pylist() if with_epochs else None,
    )


def check_files(
    spec: OrderAuditSpec, root: Location, files: Sequence[QueueRange]
) -> Iterator[bytes]:
    """Yield the findings and the summary of a queue's files, as JSON."""
    # The file names show where rows begin and end, even if rows are missing.
    check = OrderCheck(name_of(files[0].queue), spec.first_sequence, files[0].start)
    properties = [name for name in (spec.sequence_property, spec.epoch_property) if name]
    wanted = [
        "queue_offset",
        "sharding_key",
        "seq",
        "epoch",
        *(["properties"] if properties else []),
    ]

    def breaks() -> Iterator[Break]:
        end = 0
        for each in files:
            if each.start < end:
                yield check.note(Defect.DUPLICATED, each.start, end)
            end = max(end, each.end)
        for rows in rows_of(root, files, wanted):
            yield from check.feed(*_numbered(rows, spec))
        if check.next_offset is not None and check.next_offset < end:
            yield check.note(Defect.LOST, end, check.next_offset)

    for number, each in enumerate(breaks()):
        if number < spec.findings_max:
            yield orjson.dumps({"break": finding_facts(each)})
    yield orjson.dumps({"summary": _summary(check)})


def _numbered(rows: pa.RecordBatch, spec: OrderAuditSpec) -> list[Any]:
    """Return offsets, keys, sequence numbers and epochs; read the numbers from the properties if the spec names them."""
    columns = [rows.column("queue_offset").to_pylist(), rows.column("sharding_key").to_pylist()]
    for name, column in ((spec.sequence_property, "seq"), (spec.epoch_property, "epoch")):
        if name:
            texts = pc.map_lookup(rows.column("properties"), pa.scalar(name), "last")
            columns.append(as_numbers(texts).to_pylist())
        elif column == "seq":
            columns.append(rows.column("seq").to_pylist())
    return columns


# -- results


def _collect(frame: DataFrame) -> tuple[list[Break], list[dict[str, Any]]]:
    found: list[Break] = []
    summaries: list[dict[str, Any]] = []
    for row in frame.collect():
        value = orjson.loads(row.result)
        if "break" in value:
            found.append(_break(value["break"]))
        else:
            summaries.append(value["summary"])
    return sorted(found), sorted(summaries, key=lambda each: str(each["queue"]))


def finding_facts(each: Break) -> dict[str, Any]:
    """Return a finding as a JSON object for one line of the findings file."""
    return {
        "queue": each.queue,
        "offset": each.offset,
        "defect": each.defect.value,
        "key": each.key,
        "expected": each.expected,
        "got": each.got,
    }


def _break(facts: dict[str, Any]) -> Break:
    return Break(**{**facts, "defect": Defect(facts["defect"])})


def _summary(check: OrderCheck) -> dict[str, Any]:
    return {
        "queue": check.queue,
        "keys": len(check.expected),
        "missing": check.missing,
        **check.counts,
    }


def report(
    spec: OrderAuditSpec, found: Sequence[Break], summaries: Sequence[dict[str, Any]]
) -> Outcome:
    """Create the outcome for people and programs."""
    if spec.findings is not None:
        text = "\n".join(json.dumps(finding_facts(each)) for each in found)
        spec.findings.write(text + "\n" * bool(text))
    rows = sum(each.get("rows", 0) for each in summaries)
    keys = sum(each["keys"] for each in summaries)
    total = {
        defect.value: number
        for defect in Defect
        if (number := sum(each.get(defect.value, 0) for each in summaries))
    }
    lines = [f"{rows} messages, {len(summaries)} queues, {keys} keys with numbers"]
    unnumbered = sum(each.get("unnumbered", 0) for each in summaries)
    if unnumbered:
        lines.append(f"not judged: {unnumbered} messages without a key or a number (only offsets)")
    undecided = sum(each.get("undecided", 0) for each in summaries)
    if undecided:
        lines.append(
            f"undecided: {undecided} of the late numbers may have been seen before, because more jumps are open than the audit remembers"
        )
    lines += [str(each) for each in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"... and {len(found) - _SHOWN} more")
    broken = ", ".join(f"{number} {name}" for name, number in total.items())
    lines.append(f"The order is broken: {broken}" if total else "The order was kept.")
    data = {
        "messages": rows,
        "keys": keys,
        "defects": total,
        "missing": sum(each["missing"] for each in summaries),
        "undecided": undecided,
        "queues": list(summaries),
        "findings": [finding_facts(each) for each in found],
    }
    return Outcome("\n".join(lines), data, passed=not total)
