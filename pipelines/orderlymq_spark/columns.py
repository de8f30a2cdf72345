"""
The columns of a topic: names, types, and their order. Pure.

Rule: the order here is the order everywhere; Spark compares it with every batch. `source.batches` fills them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from orderlymq_spark.errors import OptionError, hint

COLUMNS: Final = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "message_id": "string",
    "sharding_key": "string",
    "keys": "array<string>",
    "tags": "string",
    "seq": "bigint",
    "epoch": "bigint",
    "born_ts": "timestamp",
    "store_ts": "timestamp",
    "reconsume_times": "int",
    "flag": "int",
    "properties": "map<string,string>",
    "body": "binary",
    "body_error": "string",
}
RANGE_COLUMNS: Final = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "start_offset": "bigint",
    "end_offset": "bigint",
}
"""With rangesOnly: a row names the messages [start_offset, end_offset) of a queue."""
OF_BODY: Final = ("body", "body_error")
OF_VALUE: Final = ("value", "value_error")
"""With valueFormat, behind all others: the body by a schema, and why it is none."""


def check_columns(
    wanted: Sequence[str] = (), *, body: bool = True, properties: bool = True
) -> tuple[str, ...]:
    """Return the columns in their order; all of them when none is wanted by name.

    Raises:
        OptionError: There is no such column.
    """
    for name in wanted:
        if name not in COLUMNS:
            raise OptionError(f"there is no column {name!r}; {hint(name, COLUMNS)}")
    chosen = wanted or [
        name
        for name in COLUMNS
        if (body or name not in OF_BODY) and (properties or name != "properties")
    ]
    return tuple(name for name in COLUMNS if name in chosen)


def ddl(columns: Sequence[str], kinds: Mapping[str, str] = COLUMNS) -> str:
    """Return the schema as Spark's DDL."""
    return ", ".join(f"{name} {kinds[name]}" for name in columns)
