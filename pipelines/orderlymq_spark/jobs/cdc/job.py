"""
Pipeline cdc-apply: applies change events of a database to a Delta table: a copy of the source table or its history.

Rules: a batch is one merge. A change whose position is not higher than the table's changes nothing, so a repeated
batch changes nothing. A deleted key keeps its position in the table; otherwise late events would restore it.

A history (SCD2, `scd: 2`) has a row for every change, valid from its position to the position of the key's next
change. It depends only on the set of changes, so division, repeats and delays of batches do not show in it. A deleted
row is a separate, marked version, because its end must be known if the key comes back.

Columns of the source are text. A value stays as in the event: text unchanged, everything else as JSON, because binlog
readers differ in types but JSON texts do not. Our own columns begin with an underscore. Unreadable events go
complete to `errors`, with the reason; without `errors` they end the pipeline. `events` interprets the events.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.dataset import Dataset
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from orderlymq_protocol.plurals import counted
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import OptionError, SinkConflict
from orderlymq_spark.frames import read_stream
from orderlymq_spark.jobs.cdc.events import (
    CURRENT,
    DELETED,
    FROM,
    KEY,
    OWN,
    POSITION,
    TO,
    Change,
    EventError,
    Version,
    last_by_key,
    new_versions,
    read_changes,
    to_json,
)
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import NO_IDS, TopicIds
from orderlymq_spark.options import START_FILE, parse_source
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.run.stream import run_stream
from orderlymq_spark.source.bounds import check_one_list
from orderlymq_spark.specs import CdcSpec
from orderlymq_spark.tables.commits import parse_ids
from orderlymq_spark.tables.delta import (
    begin_merge,
    is_table,
    last_said,
    open_table,
    properties_of,
    read_table,
)

#: The columns that identify an event; an offset alone exists in every queue.
PLACE: Final = ("topic", "broker", "queue_id", "queue_offset")


def run(name: str, spec: CdcSpec, spark: SparkStarter) -> Outcome:
    """Apply changes until the trigger ends the stream.

    Raises:
        QueueListChanged: The topic's queue list has grown within the range that is read.
        SinkConflict: The table has changes of an earlier topic with the same name.
        PipelineFailed: An event cannot be read, and there is no folder for errors.
    """
    options = parse_source(spec.source.all_options(startPath=str(spec.checkpoint / START_FILE)))
    tally = Tally(spec.checkpoint / "orderlymq-tally.json")

    def begin() -> None:
        check_one_list(access_to(options.connect), options)
        tally.file.delete()

    def apply(frame: DataFrame, batch: int) -> None:
        # A Spark Connect server calls this in a separate process, so it may capture only plain values.
        source = access_to(options.connect)
        # The list may have grown since the pipeline began.
        check_one_list(source, options)
        topics = source.topics(options.topics, options.pattern)
        ids = check_topics(spec.path, source.topic_ids(topics))
        table = frame.select(*PLACE, "body").toArrow()
        changes, bad, quiet = read_batch(table, spec)
        if bad and spec.errors is None:
            raise OptionError(
                f"{len(bad)} events are not valid {spec.format} events, the first in {bad[0]['topic']}, queue "
                f"{bad[0]['queue_id']} of {bad[0]['broker']}, at offset {bad[0]['queue_offset']}: "
                f"{bad[0]['reason']}; set spec.errors to a folder to keep them there"
            )
        if bad and spec.errors is not None:
            keep_errors(spec.errors, batch, bad)
        if spec.scd == 2:
            merge_history(spec, name, batch, changes, ids)
        else:
            merge(spec, name, batch, list(last_by_key(changes).values()), ids)
        tally.add(batch, table.num_rows, quiet, len(bad))

    def make() -> DataStreamWriter:
        frame = read_stream(spark(), spec.checkpoint, **spec.read_options())
        return frame.writeStream.foreachBatch(apply)

    status = run_stream(name, spec, make, begin=begin)
    rows = live_rows(spec).count_rows() if is_table(spec.path) else 0
    _, events, quiet, bad = tally.read()
    return Outcome(
        f"{counted(events, 'event')} in {counted(status.batches, 'batch', 'batches')}, {quiet} of them without a row, {bad} unreadable; "
        f"{spec.path} has {rows} rows",
        {
            "events": events,
            "rows": rows,
            "ofNoRow": quiet,
            "unreadable": bad,
        },
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of a run: all events, events of no row, unreadable events.

    They are in a *file*, because batches may run in another process. Batches arrive in the order of their numbers, and
    a repeated batch has the same events.
    """

    file: Location

    def add(self, batch: int, *counts: int) -> None:
        """Add the counts of a batch, unless it was already added."""
        last, *before = self.read()
        if batch > last:
            sums = map(sum, zip(before, counts, strict=True))
            self.file.write(json.dumps([batch, *sums]))

    def read(self) -> list[int]:
        """Return the number of the last batch, and the sums of all batches."""
        try:
            found: list[int] = json.loads(self.file.read_text())
        except FileNotFoundError:
            found = [-1, 0, 0, 0]
        return found


def read_batch(table: pa.Table, spec: CdcSpec) -> tuple[list[Change], list[dict[str, Any]], int]:
    """Return the changes of a batch, the unreadable events, and the number of events that change no row of the table."""
    changes: list[Change] = []
    quiet = 0
    bad: list[dict[str, Any]] = []
    for event in table.to_pylist():
        body = event.pop("body")
        try:
            found = read_changes(body, spec.format, spec.keys, spec.table, event["queue_offset"])
            changes += found
            quiet += not found
        except EventError as error:
            raw = b64encode(body).decode()
            # The reason may quote a lone surrogate from the event.
            reason = str(error).encode(errors="backslashreplace").decode()
            bad.append({**event, "reason": reason, "body_base64": raw})
    return changes, bad, quiet


def keep_errors(folder: Location, batch: int, bad: Sequence[dict[str, Any]]) -> None:
    """Store the unreadable events of a batch; a repeated batch writes the same file.

    The file name contains a hash of the content, because after a restart with a new checkpoint a batch of this number
    has other events.
    """
    ordered = sorted(bad, key=lambda each: [each[name] for name in (*PLACE, "body_base64")])
    lines = "\n".join(json.dumps(each) for each in ordered)
    mark = blake2b(lines.encode(), digest_size=4).hexdigest()
    (folder / f"{batch:020}-{mark}.jsonl").write(lines)


def check_topics(path: Location, ids: TopicIds) -> TopicIds:
    """Return the ids of the topics whose changes the table will have after this batch.

    Raises:
        SinkConflict: A topic was recreated: its positions begin again, so the table's positions would count as later.
    """
    said = (last_said(read_table(path), parse_ids) if is_table(path) else None) or {}
    again = [place[0] for place, number in ids.items() if said.get(place, number) != number]
    if again:
        raise SinkConflict(
            f"the topic {again[0]} was created again since {path} got its changes, so positions begin again, and its "
            "changes would seem older than those of the table; give this pipeline a new path and a new checkpoint"
        )
    return {**said, **ids}


def merge(
    spec: CdcSpec, app_id: str, batch: int, changes: list[Change], ids: TopicIds = NO_IDS
) -> None:
    """Merge the last change of each key; values keep their JSON form."""
    if not changes:
        return
    table = open_table(spec.path, lambda: current_rows(spec, changes))
    # There is no check whether the batch is already committed: repeating it changes nothing, and a new checkpoint
    # may give its number to other changes.
    (
        begin_merge(
            table,
            current_rows(spec, changes, _names(table)),
            f"t.{KEY} = s.{KEY}",
            properties_of(app_id, batch, ids),
        )
        .when_matched_update_all(predicate=f"s.{POSITION} > t.{POSITION}")
        .when_not_matched_insert_all()
        .execute()
    )


def live_rows(spec: CdcSpec) -> Dataset:
    """Return the rows that are not deleted, with the filter that readers of the table should use; nothing is read yet."""
    live = ~pc.field(DELETED)
    if spec.scd == 2:
        live &= pc.field(CURRENT)
    rows: Dataset = read_table(spec.path).to_pyarrow_dataset().filter(live)
    return rows


# -- the history


def merge_history(
    spec: CdcSpec, app_id: str, batch: int, changes: Sequence[Change], ids: TopicIds = NO_IDS
) -> None:
    """Merge the changes of a batch into the history."""
    if not changes:
        return
    table = open_table(spec.path, lambda: version_rows(spec, new_versions({}, changes)))
    versions = new_versions(_known_starts(table, changes), changes)
    if not versions:
        return
    same = f"t.{KEY} = s.{KEY} AND t.{FROM} = s.{FROM}"
    (
        begin_merge(
            table,
            version_rows(spec, versions, _names(table)),
            same,
            properties_of(app_id, batch, ids),
        )
        # A version's content never changes; only its end does.
        .when_matched_update(updates={TO: f"s.{TO}", CURRENT: f"s.{CURRENT}"})
        .when_not_matched_insert_all()
        .execute()
    )


def _known_starts(table: DeltaTable, changes: Sequence[Change]) -> dict[str, list[int]]:
    """Return the start positions of the changed keys' versions; columns of the source are not read."""
    keys = pa.array({change.name for change in changes}, pa.string())
    found: dict[str, list[int]] = {}
    # Read in batches, because a history may exceed the memory. Cast, because
    # Arrow cannot compare string views with strings.
    for batch in table.to_pyarrow_dataset().to_batches(columns=[KEY, FROM]):
        names = batch.column(KEY).cast(pa.string())
        chosen = pc.is_in(names, value_set=keys)
        starts = batch.column(FROM).filter(chosen).to_pylist()
        for key, start in zip(names.filter(chosen).to_pylist(), starts, strict=True):
            found.setdefault(key, []).append(start)
    return found


def version_rows(
    spec: CdcSpec, versions: Sequence[Version], columns: Sequence[str] = ()
) -> pa.Table:
    """Return one row per version, for a history table with these columns."""
    changes = [version.change for version in versions]
    ends = [version.valid_to for version in versions]
    return pa.table(
        {
            KEY: key_column([version.key for version in versions]),
            FROM: pa.array([version.valid_from for version in versions], pa.int64()),
            TO: pa.array(ends, pa.int64()),
            CURRENT: pa.array([end is None for end in ends], pa.bool_()),
            DELETED: pa.array([change and change.row is None for change in changes], pa.bool_()),
            **source_columns(spec, changes, columns),
        }
    )


# -- changes as rows


def current_rows(spec: CdcSpec, changes: Sequence[Change], columns: Sequence[str] = ()) -> pa.Table:
    """Return one row per change, for a table with the last change of each key and these columns."""
    return pa.table(
        {
            KEY: key_column([change.key for change in changes]),
            POSITION: pa.array([change.position for change in changes], pa.int64()),
            DELETED: pa.array([change.row is None for change in changes], pa.bool_()),
            **source_columns(spec, changes, columns),
        }
    )


def key_column(keys: Sequence[tuple[Any, ...]]) -> pa.Array:
    """Return keys as the JSON texts by which rows are found."""
    return pa.array([to_json(key) for key in keys], pa.string())


def source_columns(
    spec: CdcSpec, changes: Sequence[Change | None], columns: Sequence[str] = ()
) -> dict[str, pa.Array]:
    """Return the columns of the source table; a value is null if the row lacks it or there is no change.

    A name that differs only in case from one of *columns*, or from an earlier name, is that column, because a table
    cannot have both.
    """
    known = {name.lower(): name for name in columns}
    spelt: dict[str, dict[str, None]] = {}
    named = [name for name in columns if name not in OWN]
    named += (name for each in changes if each for name in each.row or ())
    for name in (*spec.keys, *named):
        spelt.setdefault(known.setdefault(name.lower(), name), {})[name] = None
    return {
        column: pa.array([change and _text(spec, change, names) for change in changes], pa.string())
        for column, names in spelt.items()
    }


def _names(table: DeltaTable) -> list[str]:
    return [field.name for field in table.schema().fields]


def _text(spec: CdcSpec, change: Change, names: Iterable[str]) -> str | None:
    row = change.row
    if row is None:
        row = dict(zip(spec.keys, change.key, strict=True))
    value = next((row[name] for name in names if name in row), None)
    return value if value is None or isinstance(value, str) else to_json(value)
