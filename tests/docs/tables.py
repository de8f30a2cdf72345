"""The text of docs/reference/tables.md: every column that a pipeline writes, with its type from the code."""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from orderlymq.oracle.verdict import Defect
from orderlymq_spark.columns import COLUMNS, OF_VALUE, RANGE_COLUMNS
from orderlymq_spark.jobs.audit.job import finding_facts
from orderlymq_spark.jobs.audit.order import Break
from orderlymq_spark.jobs.cdc.events import Change, Version
from orderlymq_spark.jobs.cdc.job import current_rows, read_batch, version_rows
from orderlymq_spark.options import ValueFormat, parse_source
from orderlymq_spark.source.queuereader import message_schema
from orderlymq_spark.specs import CdcSpec, Source
from orderlymq_spark.values.decoder import value_type

HEAD: Final = """\
# Tables of the pipelines

This page lists the columns of a topic that is read as a DataFrame, and the columns that each pipeline writes.
[Pipelines on Spark](../howto/pipelines.md) says what the pipelines do. Some pipelines write no table of their own:

* `replay`, `redrive` and `mirror` write messages;
* `skew-report`, `lag` and `dead-letters` write a report;
* `compact` does not change the columns.

`python -m tests.docs.test_tables_page` generates this page.
"""
MEANINGS: Final = {
    "topic": "name of the topic",
    "broker": "name of the broker group",
    "queue_id": "number of the queue in its broker group",
    "queue_offset": "offset in the queue; topic, broker, queue_id and queue_offset together identify the message",
    "message_id": "unique id from the producer; without one, the offset message id, which names the place where it is stored",
    "sharding_key": "key whose messages are in order; null if the message has none",
    "keys": "keys by which the message can be found in the index",
    "tags": "tag",
    "seq": "property that `sequenceProperty` names; null if it is not a whole number",
    "epoch": "property that `epochProperty` names; null if it is not a whole number",
    "born_ts": "time at which the producer created the message, by its clock",
    "store_ts": "time at which the broker stored the message; never decreases within a queue",
    "reconsume_times": "number of earlier tries to consume the message",
    "flag": "number that the producer set",
    "properties": "all properties of the message",
    "body": "body, decompressed",
    "body_error": "reason why the body could not be decompressed; else null",
    "value": "body decoded by `valueSchema`, only with `valueFormat`; null if it could not be decoded",
    "value_error": "reason why the body could not be decoded: the position in it, never its content",
    "start_offset": "first offset of the range",
    "end_offset": "offset after the last message of the range",
    "_key": "values of `keys` as a JSON array; identifies the row",
    "_position": "queue offset of the last change",
    "_deleted": "whether that change deleted the row",
    "_valid_from": "queue offset of the change that made this version",
    "_valid_to": "queue offset of the key's next change; null for the last one",
    "_is_current": "whether it is the last version",
    "id": "a key of the source table; here it is `id`",
    "city": "any other column of the source table; a value that is not text is written as JSON",
    "reason": "why the event cannot be read",
    "body_base64": "the event",
    "queue": "topic, broker group and queue",
    "offset": "queue offset at which it was found",
    "defect": "lost, skipped, duplicated or reordered",
    "key": "sharding key; empty for lost offsets",
    "expected": "expected sequence number; for lost, the expected offset",
    "got": "sequence number that was found; for lost, the offset that was found",
}


EVENTS: Final = "value of cloudevents"
OF_EVENTS: Final = {
    "specversion": "1.0",
    "id": "id of the event, unique within its source",
    "source": "source of the event",
    "type": "type of the event",
    "datacontenttype": "media type of the data",
    "dataschema": "schema of the data",
    "subject": "subject of the event in the context of its source",
    "time": "time of the event",
    "extensions": "all other attributes, as text",
    "data": "data as bytes; with `valueSchema`, its columns",
}


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for title, about, columns in tables():
        meanings = OF_EVENTS if title == EVENTS else MEANINGS
        rows = [f"| `{name}` | `{kind}` | {meanings[name]} |" for name, kind in columns.items()]
        parts.append(
            "\n".join(
                [
                    f"## {title}\n\n{about}\n\n| column | type | meaning |\n| --- | --- | --- |",
                    *rows,
                ]
            )
        )
    return "\n\n".join(parts).replace("\n\n\n", "\n\n") + "\n"


def tables() -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield title, text and columns of each table."""
    yield (
        "A topic",
        "The columns of the DataFrame that `read_batch`, `read_stream` and the format `orderlymq` return, with Spark's types.",
        {**COLUMNS, **dict(zip(OF_VALUE, ("by the schema", "string"), strict=True))},
    )
    event = value_type(ValueFormat("cloudevents", "")).removeprefix("struct<").removesuffix(">")
    yield (
        EVENTS,
        "The fields of the column `value` with `valueFormat=cloudevents`. The sink accepts the same with `cloudEvents`.",
        dict(each.split(": ", 1) for each in event.split(", ")),
    )
    yield (
        "Ranges",
        "The columns with `rangesOnly`: each row names a range of messages of a queue.",
        RANGE_COLUMNS,
    )
    yield (
        "archive",
        "The columns of the files of an archive, also of its Delta or Iceberg table, with Arrow's types. The options of the source select the columns.",
        arrow(message_schema(parse_source({"topic": "orders"}))),
    )
    spec = CdcSpec(
        type="cdc-apply",
        source=Source(topic="binlog"),
        checkpoint="checkpoint",
        path="table",
        format="debezium",
        keys=["id"],
    )
    change = Change((1,), {"id": 1, "city": "Riga"}, 0)
    version = Version((1,), 0, None, change)
    yield (
        "cdc-apply, scd: 1",
        "The Delta table has a row for each key. A column of the source table is added when it first appears.",
        arrow(current_rows(spec, [change]).schema),
    )
    yield (
        "cdc-apply, scd: 2",
        "The Delta table has a row for each version of a key.",
        arrow(version_rows(spec, [version]).schema),
    )
    place = dict(
        zip(("topic", "broker", "queue_id", "queue_offset"), ("t", "b", 0, 0), strict=True)
    )
    _, (bad,), _ = read_batch(pa.Table.from_pylist([{**place, "body": b"{"}]), spec)
    yield (
        "cdc-apply, errors",
        "Files with one JSON object per line, one for each event that cannot be read.",
        jsons(bad),
    )
    finding = Break("orders demo-0:0", 1, Defect.LOST, "", 1, 2)
    yield (
        "order-audit, findings",
        "Files with one JSON object per line, one for each finding.",
        jsons(finding_facts(finding)),
    )


def arrow(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def jsons(facts: Mapping[str, object]) -> dict[str, str]:
    return {name: "number" if isinstance(each, int) else "text" for name, each in facts.items()}
