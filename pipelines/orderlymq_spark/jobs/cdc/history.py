"""
The history of a source table (SCD2): a row for every change, from its position to that of the key's next one.

Rules: the table is a function of the set of changes, so no cut, repeat or delay of batches shows in it; one batch is
one merge. A row that was deleted is a version of its own, marked, because it must be known where it ends when the key
comes back.
"""

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from orderlymq_spark.jobs.cdc.events import Change, Version, new_versions
from orderlymq_spark.jobs.cdc.rows import DELETED, KEY, key_column, source_columns
from orderlymq_spark.specs import CdcSpec
from orderlymq_spark.tables.delta import begin_merge, open_table

FROM: Final = "_valid_from"
TO: Final = "_valid_to"
CURRENT: Final = "_is_current"


def merge_history(spec: CdcSpec, app_id: str, batch: int, changes: Sequence[Change]) -> None:
    """Merge the changes of a batch into the history."""
    if not changes:
        return
    table = open_table(spec.path, lambda: _rows(spec, new_versions({}, changes)))
    versions = new_versions(_known(table, changes), changes)
    if not versions:
        return
    same = f"t.{KEY} = s.{KEY} AND t.{FROM} = s.{FROM}"
    (
        begin_merge(table, _rows(spec, versions), same, app_id, batch)
        # What a version says never changes: only its end does.
        .when_matched_update(updates={TO: f"s.{TO}", CURRENT: f"s.{CURRENT}"})
        .when_not_matched_insert_all()
        .execute()
    )


def _known(table: DeltaTable, changes: Sequence[Change]) -> dict[tuple[object, ...], list[int]]:
    """Return where the versions of the changed keys begin; columns of the source are not read."""
    keys = key_column(list(dict.fromkeys(change.key for change in changes)))
    found: dict[tuple[object, ...], list[int]] = {}
    # Batch by batch: a history may be larger than the memory. Arrow cannot compare its views of texts with texts.
    for batch in table.to_pyarrow_dataset().to_batches(columns=[KEY, FROM]):
        names = batch.column(KEY).cast(pa.string())
        chosen = pc.is_in(names, value_set=keys)
        starts = batch.column(FROM).filter(chosen).to_pylist()
        for key, start in zip(names.filter(chosen).to_pylist(), starts, strict=True):
            found.setdefault(tuple(json.loads(key)), []).append(start)
    return found


def _rows(spec: CdcSpec, versions: Sequence[Version]) -> pa.Table:
    changes = [version.change for version in versions]
    ends = [version.valid_to for version in versions]
    return pa.table(
        {
            KEY: key_column([version.key for version in versions]),
            FROM: pa.array([version.valid_from for version in versions], pa.int64()),
            TO: pa.array(ends, pa.int64()),
            CURRENT: pa.array([end is None for end in ends], pa.bool_()),
            DELETED: pa.array([change and change.row is None for change in changes], pa.bool_()),
            **source_columns(spec, changes),
        }
    )
