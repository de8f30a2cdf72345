"""
The columns of a topic: names, types, and their order. Pure.

Rule: all code uses the order given here, because Spark compares it with every batch. `source.batches` fills the columns.
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
"""With valueFormat, after all other columns: the body decoded by a schema, and why it could not be decoded."""


def check_columns(
    wanted: Sequence[str] = (), *, body: bool = True, properties: bool = True
) -> tuple[str, ...]:
    """Return the wanted columns in the order of `COLUMNS`; if none is named, all that *body* and *properties* allow.

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
    """Return the schema as Spark DDL."""
    return ", ".join(f"{name} {kinds[name]}" for name in columns)
