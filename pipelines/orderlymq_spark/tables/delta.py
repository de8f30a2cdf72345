"""
Commits to Delta tables under (appId, batch): each once, whatever is repeated; files are added, rows are merged.

Rule: the transaction's version is looked at first and written in the same commit; two writers with one appId
cannot both pass, because Delta refuses the second. Each commit of an archive says how far its application has come in
each queue, so that another checkpoint under the same name is noticed; where the log was cleaned up since, the rows say
it. Files that no commit names are for `vacuum`.
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
    ends_said,
    farthest,
    of_queue,
    others_ends,
    said_ends,
    said_ids,
    said_seen,
    seen_said,
)
from orderlymq_spark.tables.parquet import Part, below

T = TypeVar("T")
P = ParamSpec("P")

_QUERY: Final = "orderlymq.query"

_COMMITS: Final = (
    50  # that are looked through first; then ever more, for those of others may stand between
)


def is_committed(table: DeltaTable, app_id: str, batch: int) -> bool:
    """Return whether a batch of this application is in the table."""
    version = table.transaction_version(app_id)
    return version is not None and version >= batch


def properties_of(app_id: str, batch: int, ids: TopicIds) -> CommitProperties:
    """Return what names a commit's batch, and says of which topics its rows are."""
    return _named(app_id, batch, said_ids(ids))


def _named(app_id: str, batch: int, said: dict[str, str]) -> CommitProperties:
    return CommitProperties(custom_metadata=said, app_transactions=[Transaction(app_id, batch)])


def committed_ends(table: DeltaTable, app_id: str) -> dict[MessageQueue, int] | None:
    """Return how far an application has come in each queue; None when no commit that is left says it."""
    if table.transaction_version(app_id) is None:
        return {}
    return last_said(table, lambda commit: ends_said(commit, app_id))


def last_said(table: DeltaTable, read: Callable[[dict[str, Any]], T | None]) -> T | None:
    """Return what the last commit that says it says; None when no commit that is left does."""
    said = (found for commit in _commits(table) if (found := read(commit)) is not None)
    return next(said, None)


def _commits(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the commits that are left, the newest first."""
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
    """Return how far other applications have come, by the commits that are left; each commit of an application sums up those before."""
    found: dict[MessageQueue, int] = {}
    for commit in _commits(table):
        found = farthest(found, others_ends(commit, app_id), seen_said(commit, app_id))
        if ends_said(commit, app_id) is not None:
            break
    return found


def open_table(root: Location, first_rows: Callable[[], pa.Table]) -> DeltaTable:
    """Return the table; a new one is made empty, with the columns of its first rows: one way only fills it."""
    if not is_table(root):
        write_deltalake(str(root), first_rows().slice(0, 0), storage_options=_options(root))
    return read_table(root)


def is_table(root: Location) -> bool:
    """Return whether there is a table."""
    return DeltaTable.is_deltatable(str(root), _options(root))


def read_table(root: Location) -> DeltaTable:
    """Return the table as it is now."""
    return DeltaTable(str(root), storage_options=_options(root))


def _options(root: Location) -> dict[str, str] | None:
    """Return what the environment does not say of an object store."""
    if isinstance(root, LocalLocation):
        return None
    from orderlymq_spark.locations.objects import is_plain_http  # noqa: PLC0415 - only where it is needed

    return {"allow_http": str(is_plain_http()).lower()}


def begin_merge(
    table: DeltaTable, rows: pa.Table, predicate: str, properties: CommitProperties
) -> TableMerger:
    """Return a merge of rows (s) into the table (t) that is committed with these properties; new columns are added."""
    return table.merge(
        rows,
        predicate=predicate,
        source_alias="s",
        target_alias="t",
        merge_schema=True,
        commit_properties=properties,
    )


def _looking_again(append: Callable[P, None]) -> Callable[P, None]:
    """Append once more when the commit has lost: against itself, where a store lost its answer, or against somebody else."""

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
    """Add any rows to the table in one commit, unless the batch is in it already; columns that are new are added.

    Args:
        root: of the table.
        app_id: names the application.
        batch: its number.
        rows: of it.
        query: the id that Spark keeps in the checkpoint; None where it is not known.

    Raises:
        SinkConflict: The table has later batches of this application, this one of another query, or a column that cannot
            take the values; nothing was changed.
    """
    if not rows.num_rows:
        return
    table = open_table(root, lambda: rows)
    last, said = table.transaction_version(app_id), f"{_QUERY}.{app_id}"
    known = last_said(table, lambda commit: commit.get(said)) if query and batch == last else None
    if last is not None and (batch < last or known not in (None, query)):
        raise SinkConflict(
            f"batch {batch} of {app_id} comes after batch {last}, which the table in {root} has: Spark repeats the last batch alone, "
            "so this is another checkpoint, or an older state of it; give each checkpoint an appId of its own"
        )
    if batch == last:
        return
    _check_types(table, root, rows)
    named = _named(app_id, batch, {said: query} if query else {})
    write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=named)


def _check_types(table: DeltaTable, root: Location, rows: pa.Table) -> None:
    """Refuse values that Delta would cast to the table's types with a loss: 1.7 would become 1."""
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
    """Raise as Arrow does where a cast would change a value, however deep it is; Arrow's own check knows some casts alone."""
    here, kinds = values.type, pa.types
    if here == there or kinds.is_null(here):
        return
    if kinds.is_string(here) or kinds.is_large_string(here):
        values.cast(there)  # one value has several spellings
    elif kinds.is_struct(here) and kinds.is_struct(there):
        for field, inner in zip(here, values.flatten(), strict=True):
            at = there.get_field_index(field.name)
            if at >= 0:  # another one is added to the table's
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
            raise pa.ArrowInvalid(f"a {here} would become another value as {there}")


def _entries(kind: pa.MapType) -> pa.ListType:
    return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


@_looking_again
def append_files(root: Location, app_id: str, batch: int, parts: Sequence[Part]) -> None:
    """Add written files to the table in one commit, unless the batch is in it already.

    Raises:
        SinkConflict: The table was written from another checkpoint; nothing was changed.
    """
    if not parts:
        return
    ordered = sorted(parts, key=lambda each: each.part)
    here = ends_of(parts)
    if not is_table(root):
        properties = _named(app_id, batch, said_ends(app_id, here))
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
        # The log was cleaned up since its last commit; the rows are all there.
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
        # The commits that brought its rows may be gone; whose they were nobody knows.
        others = farthest(others, _ends_in_rows(table, unknown))
    check_others(where, app_id, parts, others)
    _add_columns(table, parts[0])
    said = {**said_ends(app_id, {**ends, **here}), **said_seen(app_id, others)}
    properties = _named(app_id, batch, said)
    table.create_write_transaction(
        [*actions], mode="append", schema=table.schema(), commit_properties=properties
    )


def _add_columns(table: DeltaTable, part: Part) -> None:
    """Add the columns to the table that the files of a batch have and it lacks: no reader would see them.

    Raises:
        SinkConflict: The table has one of them with another type.
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
    """Return where the rows of each range's queue end; not before the range begins, which needs no look at older files."""
    rows = table.to_pyarrow_dataset()
    ends: dict[MessageQueue, int] = {}
    for part in parts:
        behind = (pc.field("queue_offset") >= part.start) & of_queue(rows, part.queue)
        batches = rows.to_batches(columns=["queue_offset"], filter=behind)
        found = (pc.max(each.column("queue_offset")).as_py() for each in batches if each.num_rows)
        ends[part.queue] = 1 + max(found, default=part.start - 1)
    return ends


def _action(root: Location, part: Part, partitioned_by: Sequence[str] = ()) -> AddAction:
    """Return what adds a file, which has the rows of one queue, to a table with these partition columns.

    Raises:
        SinkConflict: One differs within a queue: readers take its value from here alone, and not from the rows.
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
