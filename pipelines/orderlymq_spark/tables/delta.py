"""
Commits to Delta tables under (appId, batch), each once even if repeated; files are added, rows are merged.

Rule: the transaction version is checked first and written in the same commit. Two writers with one appId cannot both
pass, because Delta refuses the second. Each commit of an archive stores the application's progress in each queue, so
that another checkpoint with the same name is detected. If the log has been cleaned up since, the rows show the
progress. Files that no commit names are left for `vacuum`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableMerger
from deltalake.transaction import AddAction, create_table_with_add_actions

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_runtime.wallclock import machine_ms
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.local import LocalLocation
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange, TopicIds
from orderlymq_spark.tables.commits import (
    check_ends,
    check_others,
    check_repeated,
    ends_of,
    ends_property,
    farthest,
    ids_property,
    of_queue,
    others_ends,
    parse_ends,
    parse_seen,
    seen_property,
)
from orderlymq_spark.tables.parquet import Part, below

T = TypeVar("T")
P = ParamSpec("P")

_QUERY: Final = "orderlymq.query"

_COMMITS: Final = (
    50  # the commits to read first; more follow if other writers' commits are in between
)


def is_committed(table: DeltaTable, app_id: str, batch: int) -> bool:
    """Return whether the table has a batch of this application."""
    version = table.transaction_version(app_id)
    return version is not None and version >= batch


def properties_of(app_id: str, batch: int, ids: TopicIds) -> CommitProperties:
    """Return the properties that name a commit's batch and store the topic ids of its rows."""
    return _named(app_id, batch, ids_property(ids))


def _named(app_id: str, batch: int, said: dict[str, str]) -> CommitProperties:
    return CommitProperties(custom_metadata=said, app_transactions=[Transaction(app_id, batch)])


def committed_ends(table: DeltaTable, app_id: str) -> dict[MessageQueue, int] | None:
    """Return the progress of an application in each queue; None if no remaining commit stores it."""
    if table.transaction_version(app_id) is None:
        return {}
    return last_said(table, lambda commit: parse_ends(commit, app_id))


def last_said(table: DeltaTable, read: Callable[[dict[str, Any]], T | None]) -> T | None:
    """Return the newest value that *read* finds in a commit; None if no remaining commit has one."""
    said = (found for commit in _commits(table) if (found := read(commit)) is not None)
    return next(said, None)


def _commits(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the remaining commits, newest first."""
    at, limit = 0, _COMMITS
    while True:
        history = table.history(limit)
        yield from history[at:]
        if len(history) < limit:
            return
        at, limit = limit, limit * 8


def _has_all_commits(table: DeltaTable) -> bool:
    """Return whether the log was never cleaned up."""
    return any(commit.get("version") == 0 for commit in _commits(table))


def _others_ends(table: DeltaTable, app_id: str) -> dict[MessageQueue, int]:
    """Return the progress of other applications by the remaining commits.

    Each commit of the application sums up the commits before it.
    """
    found: dict[MessageQueue, int] = {}
    for commit in _commits(table):
        found = farthest(found, others_ends(commit, app_id), parse_seen(commit, app_id))
        if parse_ends(commit, app_id) is not None:
            break
    return found


def open_table(root: Location, first_rows: Callable[[], pa.Table]) -> DeltaTable:
    """Return the table; create an empty one with the columns of its first rows, so that only one path fills tables."""
    if not is_table(root):
        write_deltalake(str(root), first_rows().slice(0, 0), storage_options=_options(root))
    return read_table(root)


def is_table(root: Location) -> bool:
    """Return whether the table exists."""
    return DeltaTable.is_deltatable(str(root), _options(root))


def read_table(root: Location) -> DeltaTable:
    """Return the current table."""
    return DeltaTable(str(root), storage_options=_options(root))


def _options(root: Location) -> dict[str, str] | None:
    """Return the object store options that environment variables do not set."""
    if isinstance(root, LocalLocation):
        return None
    from orderlymq_spark.locations.objects import is_plain_http  # noqa: PLC0415 - only where it is needed

    return {"allow_http": str(is_plain_http()).lower()}


def begin_merge(
    table: DeltaTable, rows: pa.Table, predicate: str, properties: CommitProperties
) -> TableMerger:
    """Return a merge of rows (s) into the table (t), committed with these properties; new columns are added."""
    return table.merge(
        rows,
        predicate=predicate,
        source_alias="s",
        target_alias="t",
        merge_schema=True,
        commit_properties=properties,
    )


def _looking_again(append: Callable[P, None]) -> Callable[P, None]:
    """Repeat an append once if its commit has lost: to itself, after a lost answer, or to another writer."""

    @wraps(append)
    def twice(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            append(*args, **kwargs)
        except CommitFailedError:
            append(*args, **kwargs)

    return twice


@_looking_again
def append_rows(
    root: Location, app_id: str, batch: int, rows: pa.Table, query: str | None = None
) -> None:
    """Add any rows to the table in one commit, unless it already has the batch; new columns are added.

    Args:
        root: of the table.
        app_id: names the application.
        batch: the number of the batch.
        rows: of the batch.
        query: the query id in Spark's checkpoint; None if it is unknown.

    Raises:
        SinkConflict: The table has later batches of this application, this batch from another query, or a column that
            cannot take the values; nothing was changed.
    """
    if not rows.num_rows:
        return
    table = open_table(root, lambda: rows)
    last, said = table.transaction_version(app_id), f"{_QUERY}.{app_id}"
    known = last_said(table, lambda commit: commit.get(said)) if query and batch == last else None
    if last is not None and (batch < last or known not in (None, query)):
        raise SinkConflict(
            f"batch {batch} of {app_id} comes after batch {last}, which the table in {root} has: Spark repeats only the last "
            "batch, so this is another checkpoint, or an older state of it; give each checkpoint an appId of its own"
        )
    if batch == last:
        return
    _check_types(table, root, rows)
    named = _named(app_id, batch, {said: query} if query else {})
    write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=named)


def _check_types(table: DeltaTable, root: Location, rows: pa.Table) -> None:
    """Refuse values that Delta would cast to the table's types with a loss, such as 1.7 to 1."""
    known = pa.schema(table.schema().to_arrow())
    for field in rows.schema:
        if field.name not in known.names:
            continue
        there = known.field(field.name).type
        try:
            for chunk in rows[field.name].chunks:
                _check_cast(chunk, there)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SinkConflict(
                f"column {field.name} is {there} in the table in {root}, and values of type {field.type} are not: {error}; "
                "cast it in the stream, or write to another table"
            ) from error


def _check_cast(values: pa.Array, there: pa.DataType) -> None:
    """Raise Arrow's error if a cast would change a value at any depth; Arrow itself checks only some casts."""
    here, kinds = values.type, pa.types
    if here == there or kinds.is_null(here):
        return
    if kinds.is_string(here) or kinds.is_large_string(here):
        values.cast(there)  # no comparison, because one value has several spellings
    elif kinds.is_struct(here) and kinds.is_struct(there):
        for field, inner in zip(here, values.flatten(), strict=True):
            at = there.get_field_index(field.name)
            if at >= 0:  # a field that the table lacks is added
                _check_cast(inner, there.field(at).type)
    elif kinds.is_map(here) and kinds.is_map(there):
        _check_cast(values.cast(_entries(here)), _entries(there))
    elif _is_list(here) and _is_list(there):
        _check_cast(values.flatten(), there.value_type)
    else:
        changed = pc.not_equal(values.cast(there).cast(here), values)
        if kinds.is_floating(here):
            changed = pc.and_not(changed, pc.is_nan(values))
        if pc.any(changed).as_py():
            raise pa.ArrowInvalid(f"a value of type {here} would change if stored as {there}")


def _entries(kind: pa.MapType) -> pa.ListType:
    return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


@_looking_again
def append_files(root: Location, app_id: str, batch: int, parts: Sequence[Part]) -> None:
    """Add written files to the table in one commit, unless it already has the batch.

    Raises:
        SinkConflict: The table was written from another checkpoint; nothing was changed.
    """
    if not parts:
        return
    ordered = sorted(parts, key=lambda each: each.part)
    here = ends_of(parts)
    if not is_table(root):
        properties = _named(app_id, batch, ends_property(app_id, here))
        schema = Schema.from_arrow(pq.read_schema(location(parts[0].path).open()))
        create_table_with_add_actions(
            str(root),
            schema,
            [_action(root, part) for part in ordered],
            mode="error",
            commit_properties=properties,
            storage_options=_options(root),
        )
        return
    table = read_table(root)
    actions = [_action(root, part, table.metadata().partition_columns) for part in ordered]
    ends = committed_ends(table, app_id)
    if ends is None:
        # The log was cleaned up after the application's last commit, but all rows are still there.
        ends = _ends_in_rows(table, [each.part for each in parts])
    repeated = is_committed(table, app_id, batch)
    where = f"the table in {root}"
    check_ends(where, app_id, batch, parts, ends, repeated=repeated)
    if repeated:
        check_repeated(where, table.to_pyarrow_dataset(), parts)
        return
    others = _others_ends(table, app_id)
    known = ends.keys() | others.keys()
    unknown = [each.part for each in parts if each.part.queue not in known]
    if unknown and not _has_all_commits(table):
        # The commits of these rows may be gone, so their application is unknown.
        others = farthest(others, _ends_in_rows(table, unknown))
    check_others(where, app_id, parts, others)
    _add_columns(table, parts[0])
    said = {**ends_property(app_id, {**ends, **here}), **seen_property(app_id, others)}
    properties = _named(app_id, batch, said)
    table.create_write_transaction(
        [*actions], mode="append", schema=table.schema(), commit_properties=properties
    )


def _add_columns(table: DeltaTable, part: Part) -> None:
    """Add the columns that a batch's files have and the table lacks; otherwise no reader would see them.

    Raises:
        SinkConflict: The table has such a column with another type.
    """
    known = {field.name: field.type for field in table.schema().fields}
    fields = Schema.from_arrow(pq.read_schema(location(part.path).open())).fields
    for field in fields:
        if known.get(field.name, field.type) != field.type:
            raise SinkConflict(
                f"the table's column {field.name} is {known[field.name]}, and this pipeline brings {field.type}; give it a "
                "table of its own"
            )
    added = [field for field in fields if field.name not in known]
    if added:
        table.alter.add_columns(added)


def _ends_in_rows(table: DeltaTable, parts: Sequence[QueueRange]) -> dict[MessageQueue, int]:
    """Return the end of the rows of each range's queue, or the range's start if that is later, to skip older files."""
    rows = table.to_pyarrow_dataset()
    ends: dict[MessageQueue, int] = {}
    for part in parts:
        behind = (pc.field("queue_offset") >= part.start) & of_queue(rows, part.queue)
        batches = rows.to_batches(columns=["queue_offset"], filter=behind)
        found = (pc.max(each.column("queue_offset")).as_py() for each in batches if each.num_rows)
        ends[part.queue] = 1 + max(found, default=part.start - 1)
    return ends


def _action(root: Location, part: Part, partitioned_by: Sequence[str] = ()) -> AddAction:
    """Return the action that adds a file with the rows of one queue to a table with these partition columns.

    Raises:
        SinkConflict: A partition column varies within a queue; readers take its value from the action, not from the
            rows.
    """
    place = part.part.queue
    values = {"topic": place.topic, "broker": place.broker_name, "queue_id": str(place.queue_id)}
    others = [name for name in partitioned_by if name not in values]
    if others:
        raise SinkConflict(
            f"the table in {root} is partitioned by {others[0]}, and a file of an archive has one value of {', '.join(values)} alone; "
            "give this pipeline a table of its own"
        )
    queue = {"queue_id": place.queue_id, "topic": place.topic}
    facts: dict[str, Any] = {
        "numRecords": part.rows,
        "minValues": {"queue_offset": part.part.start, **queue},
        "maxValues": {"queue_offset": part.part.end - 1, **queue},
        "nullCount": {},
    }
    return AddAction(
        path=below(root, part.path),
        size=part.size_bytes,
        partition_values={name: values[name] for name in partitioned_by},
        modification_time=machine_ms(),
        data_change=True,
        stats=json.dumps(facts),
    )
