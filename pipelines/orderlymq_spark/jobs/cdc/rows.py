"""
Changes as rows of a Delta table: the columns of the source as text, and ours, which begin with an underscore.

Rule: a value stays what the event said: text as it is, everything else as JSON, because binlog readers differ in
types and texts of JSON do not.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from orderlymq_spark.jobs.cdc.events import Change
from orderlymq_spark.specs import CdcSpec

KEY: Final = "_key"
POSITION: Final = "_position"
DELETED: Final = "_deleted"


def current_rows(spec: CdcSpec, changes: Sequence[Change]) -> pa.Table:
    """Return a row per change, for a table that holds the last one of each key."""
    return pa.table(
        {
            KEY: key_column([change.key for change in changes]),
            POSITION: pa.array([change.position for change in changes], pa.int64()),
            DELETED: pa.array([change.row is None for change in changes], pa.bool_()),
            **source_columns(spec, changes),
        }
    )


def key_column(keys: Sequence[tuple[Any, ...]]) -> pa.Array:
    """Return keys as the JSON by which rows are found."""
    return pa.array([json.dumps(key) for key in keys], pa.string())


def source_columns(spec: CdcSpec, changes: Sequence[Change | None]) -> dict[str, pa.Array]:
    """Return the columns of the source table; without a change there is nothing in any of them."""
    names = dict.fromkeys(
        [*spec.keys, *(name for change in changes if change for name in (change.row or {}))]
    )
    return {
        name: pa.array([change and _text(spec, change, name) for change in changes], pa.string())
        for name in names
    }


def _text(spec: CdcSpec, change: Change, name: str) -> str | None:
    row = change.row
    if row is None:
        row = dict(zip(spec.keys, change.key, strict=True))
    value = row.get(name)
    return value if value is None or isinstance(value, str) else json.dumps(value)
