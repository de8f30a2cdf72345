"""
Commits to Delta tables under (appId, batch): each once, whatever is repeated; files are added, rows are merged.

Rule: the transaction's version is looked at first and written in the same commit; two writers with one appId
cannot both pass, because Delta refuses the second. Each commit of an archive says how far its application has come in
each queue, so that another checkpoint under the same name is noticed; where the log was cleaned up since, the rows say
it. Files that no commit names are for `vacuum`.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.table import TableMerger
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyarrow.dataset import Dataset

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.locations.local import LocalLocation
from orderlymq_spark.locations.location import Location, location
from orderlymq_spark.offsets import Offsets, QueueRange, from_json, to_json
from orderlymq_spark.tables.parquet import Part, below, compare_ends

_ENDS: Final = "orderlymq.ends"
_COMMITS: Final = (
    50  # that are looked through first; then ever more, for those of others may stand between
)


def is_committed(table: DeltaTable, app_id: str, batch: int) -> bool:
    """Tell whether a batch of this application is in the table."""
    version = table.transaction_version(app_id)
    return version is not None and version >= batch


def properties_of(app_id: str, batch: int, ends: Offsets | None = None) -> CommitProperties:
    """Return what names a commit's batch, and says how far its application has come."""
    said = None if ends is None else {f"{_ENDS}.{app_id}": json.dumps(to_json(ends))}
    return CommitProperties(custom_metadata=said, app_transactions=[Transaction(app_id, batch)])


def committed_ends(table: DeltaTable, app_id: str) -> dict[MessageQueue, int] | None:
    """Return how far an application has come in each queue; None when no commit that is left says it."""
    if table.transaction_version(app_id) is None:
        return {}
    limit = _COMMITS
    while True:
        history = table.history(limit)
        for commit in history:
            said = commit.get(f"{_ENDS}.{app_id}")
            if said is not None:
                return from_json(json.loads(said))
        if len(history) < limit:
            return None
        limit *= 8


def open_table(root: Location, first_rows: Callable[[], pa.Table]) -> DeltaTable:
    """Return the table; a new one is made empty, with the columns of its first rows: one way only fills it."""
    if not is_table(root):
        write_deltalake(str(root), first_rows().slice(0, 0), storage_options=_options(root))
    return read_table(root)


def is_table(root: Location) -> bool:
    """Tell whether there is a table."""
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
    table: DeltaTable, rows: pa.Table, predicate: str, app_id: str, batch: int
) -> TableMerger:
    """Return a merge of rows (s) into the table (t) that is committed as this batch; new columns are added."""
    return table.merge(
        rows,
        predicate=predicate,
        source_alias="s",
        target_alias="t",
        merge_schema=True,
        commit_properties=properties_of(app_id, batch),
    )


def append_files(root: Location, app_id: str, batch: int, parts: Sequence[Part]) -> None:
    """Add written files to the table in one commit, unless the batch is in it already.

    Raises:
        SinkConflict: The table was written from another checkpoint; nothing was changed.
    """
    if not parts:
        return
    actions = [_action(root, part) for part in sorted(parts, key=lambda each: each.part)]
    here = {part.part.queue: part.part.end for part in parts}
    if not is_table(root):
        properties = properties_of(app_id, batch, here)
        schema = Schema.from_arrow(pq.read_schema(location(parts[0].path).open()))
        create_table_with_add_actions(
            str(root),
            schema,
            actions,
            mode="error",
            commit_properties=properties,
            storage_options=_options(root),
        )
        return
    table = read_table(root)
    ends = committed_ends(table, app_id)
    if ends is None:
        # The log was cleaned up since its last commit; the rows are all there.
        ends = _ends_in_rows(table, [each.part for each in parts])
    repeated = is_committed(table, app_id, batch)
    for part in (each.part for each in parts):
        # A batch that is repeated is told of with all of its queues.
        end = ends.get(part.queue, 0 if repeated else part.start)
        if part.end > end if repeated else part.start < end:
            raise SinkConflict(
                f"batch {batch} of {app_id} brings {part}, and the table in {root} has the queue up to {end} "
                f"{'and that batch ' if repeated else ''}already: it was written from another checkpoint, or the "
                "topic was created again; give this pipeline a path of its own"
            )
    if repeated:
        _check_repeated(root, table, parts)
        return
    properties = properties_of(app_id, batch, {**ends, **here})
    table.create_write_transaction(
        [*actions], mode="append", schema=table.schema(), commit_properties=properties
    )


def _check_repeated(root: Location, table: DeltaTable, parts: Sequence[Part]) -> None:
    """Refuse a batch that is committed with other messages; rows that were deleted from the table since are nobody's.

    Raises:
        SinkConflict: It is.
    """
    rows = table.to_pyarrow_dataset()
    for part in parts:
        here = pc.field("queue_offset").isin(sorted(part.ends_by_place()))
        here &= _of_queue(rows, part.part.queue)
        names = [name for name in part.ends[0] if name in rows.schema.names]
        batches = rows.to_batches(columns=[*{"queue_offset", *names}], filter=here)
        if not all(compare_ends(part, names, batches).values()):
            raise SinkConflict(
                f"{part.part} is in the table in {root} with other messages: the topic was deleted and created again, or "
                "its cluster restored from a backup; give this pipeline a path and a checkpoint of its own"
            )


def _ends_in_rows(table: DeltaTable, parts: Sequence[QueueRange]) -> dict[MessageQueue, int]:
    """Return where the rows of each range's queue end; not before the range begins, which needs no look at older files."""
    rows = table.to_pyarrow_dataset()
    ends: dict[MessageQueue, int] = {}
    for part in parts:
        behind = (pc.field("queue_offset") >= part.start) & _of_queue(rows, part.queue)
        batches = rows.to_batches(columns=["queue_offset"], filter=behind)
        found = (pc.max(each.column("queue_offset")).as_py() for each in batches if each.num_rows)
        ends[part.queue] = 1 + max(found, default=part.start - 1)
    return ends


def _of_queue(rows: Dataset, queue: MessageQueue) -> pc.Expression:
    """Return what chooses the rows of a queue."""
    here = pc.scalar(True)
    named = {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
    for name, value in named.items():
        if name in rows.schema.names:
            # Arrow cannot compare its views of texts with texts.
            here &= pc.field(name).cast(pa.scalar(value).type) == value
    return here


def _action(root: Location, part: Part) -> AddAction:
    queue = {"queue_id": part.part.queue.queue_id, "topic": part.part.queue.topic}
    facts: dict[str, Any] = {
        "numRecords": part.rows,
        "minValues": {"queue_offset": part.part.start, **queue},
        "maxValues": {"queue_offset": part.part.end - 1, **queue},
        "nullCount": {},
    }
    return AddAction(
        path=below(root, part.path),
        size=part.size_bytes,
        partition_values={},
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=json.dumps(facts),
    )
