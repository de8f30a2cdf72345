"""
Commits to Delta tables under (appId, batch): each once, whatever is repeated; files are added, rows are merged.

Rule: the transaction's version is looked at first and written in the same commit; two writers with one appId
cannot both pass, because Delta refuses the second. Files that no commit names are for `vacuum`.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.table import TableMerger
from deltalake.transaction import AddAction, create_table_with_add_actions

from orderlymq_spark.archivefiles import Part


def is_committed(table: DeltaTable, app_id: str, batch: int) -> bool:
    """Tell whether a batch of this application is in the table."""
    version = table.transaction_version(app_id)
    return version is not None and version >= batch


def properties_of(app_id: str, batch: int) -> CommitProperties:
    """Return what names a commit's batch."""
    return CommitProperties(app_transactions=[Transaction(app_id, batch)])


def open_table(root: Path, first_rows: Callable[[], pa.Table]) -> DeltaTable:
    """Return the table; a new one is made empty, with the columns of its first rows: one way only fills it."""
    if not DeltaTable.is_deltatable(str(root)):
        write_deltalake(str(root), first_rows().slice(0, 0))
    return DeltaTable(str(root))


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


def append_files(root: Path, app_id: str, batch: int, parts: Sequence[Part]) -> None:
    """Add written files to the table in one commit, unless the batch is in it already."""
    if not parts:
        return
    actions = [_action(root, part) for part in sorted(parts, key=lambda each: each.part)]
    properties = properties_of(app_id, batch)
    if not DeltaTable.is_deltatable(str(root)):
        schema = Schema.from_arrow(pq.read_schema(parts[0].path))
        create_table_with_add_actions(
            str(root), schema, actions, mode="error", commit_properties=properties
        )
        return
    table = DeltaTable(str(root))
    if is_committed(table, app_id, batch):
        return
    table.create_write_transaction(
        [*actions], mode="append", schema=table.schema(), commit_properties=properties
    )


def _action(root: Path, part: Part) -> AddAction:
    path = Path(part.path)
    facts: dict[str, Any] = {
        "numRecords": part.rows,
        "minValues": {
            "queue_offset": part.part.start,
            "queue_id": part.part.queue.queue_id,
            "topic": part.part.queue.topic,
        },
        "maxValues": {
            "queue_offset": part.part.end - 1,
            "queue_id": part.part.queue.queue_id,
            "topic": part.part.queue.topic,
        },
        "nullCount": {},
    }
    return AddAction(
        path=str(path.relative_to(root)),
        size=part.size_bytes,
        partition_values={},
        modification_time=int(path.stat().st_mtime * 1000),
        data_change=True,
        stats=json.dumps(facts),
    )
