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

What a topic is as a frame, and what each pipeline writes. This page is generated: `python -m tests.docs.test_tables_page`.
[Pipelines on Spark](../howto/pipelines.md) says what the pipelines do. `replay`, `redrive` and `mirror` write messages, `skew-report`, `lag` and
`dead-letters` write a report, and `compact` leaves the columns as they are.
"""
MEANINGS: Final = {
    "topic": "name of the topic",
    "broker": "name of the broker group",
    "queue_id": "number of the queue in its broker group",
    "queue_offset": "offset in the queue; with topic, broker and queue_id it names the message",
    "message_id": "unique id that the producer gave, or the id of the place where it is stored",
    "sharding_key": "key whose messages are in order; null without one",
    "keys": "keys of the index",
    "tags": "tag",
    "seq": "property that `sequenceProperty` names; null where it is no whole number",
    "epoch": "property that `epochProperty` names; null where it is no whole number",
    "born_ts": "time of the producer",
    "store_ts": "time of the broker; never falls within a queue",
    "reconsume_times": "tries before this one",
    "flag": "number that the producer gave",
    "properties": "all properties",
    "body": "body, inflated",
    "body_error": "why the body is not inflated",
    "value": "body by `valueSchema`, only with `valueFormat`; null where it is none",
    "value_error": "why the body is none; the place in it, never its content",
    "start_offset": "first offset of the range",
    "end_offset": "offset behind the last one",
    "_key": "values of `keys` as a JSON array; names the row",
    "_position": "queue offset of the last change",
    "_deleted": "whether that change deleted the row",
    "_valid_from": "queue offset of the change that made this version",
    "_valid_to": "queue offset of the key's next change; null for the last one",
    "_is_current": "whether it is the last version",
    "id": "a key of the source table; here it is `id`",
    "city": "any other column of the source table; what is no text is JSON",
    "reason": "why the event cannot be read",
    "body_base64": "the event",
    "queue": "topic, broker group and queue",
    "offset": "where it was found",
    "defect": "lost, skipped, duplicated or reordered",
    "key": "sharding key; empty for lost offsets",
    "expected": "number that should be there; an offset for lost",
    "got": "number that is there",
}


EVENTS: Final = "value of cloudevents"
OF_EVENTS: Final = {
    "specversion": "1.0",
    "id": "id of the event, unique at its source",
    "source": "where the event is from",
    "type": "what kind of event it is",
    "datacontenttype": "media type of the data",
    "dataschema": "schema of the data",
    "subject": "what the event is about, at its source",
    "time": "when it happened",
    "extensions": "all other attributes, as texts",
    "data": "data as bytes, or with `valueSchema` its columns",
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
        "The frame of `read_batch`, `read_stream` and of the format `orderlymq`, in Spark's types.",
        {**COLUMNS, **dict(zip(OF_VALUE, ("by the schema", "string"), strict=True))},
    )
    event = value_type(ValueFormat("cloudevents", "")).removeprefix("struct<").removesuffix(">")
    yield (
        EVENTS,
        "The column `value` with `valueFormat=cloudevents`, and what the sink takes with `cloudEvents`.",
        dict(each.split(": ", 1) for each in event.split(", ")),
    )
    yield "Ranges", "With `rangesOnly`: a row names messages of a queue.", RANGE_COLUMNS
    yield (
        "archive",
        "The files of an archive, also those of its Delta or Iceberg table, in Arrow's types. The options of the source choose among them.",
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
        "The Delta table: a row for each key. The columns of the source table are added as they appear.",
        arrow(current_rows(spec, [change]).schema),
    )
    yield (
        "cdc-apply, scd: 2",
        "The Delta table: a row for each version of a key.",
        arrow(version_rows(spec, [version]).schema),
    )
    place = dict(
        zip(("topic", "broker", "queue_id", "queue_offset"), ("t", "b", 0, 0), strict=True)
    )
    _, (bad,), _ = read_batch(pa.Table.from_pylist([{**place, "body": b"{"}]), spec)
    yield "cdc-apply, errors", "Lines of JSON, one for each event that cannot be read.", jsons(bad)
    finding = Break("orders demo-0:0", 1, Defect.LOST, "", 1, 2)
    yield (
        "order-audit, findings",
        "Lines of JSON, one for each finding.",
        jsons(finding_facts(finding)),
    )


def arrow(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def jsons(facts: Mapping[str, object]) -> dict[str, str]:
    return {name: "number" if isinstance(each, int) else "text" for name, each in facts.items()}
