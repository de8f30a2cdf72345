"""Change events into a table: it is the source table, whatever is repeated, late or unreadable."""

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orderlymq.message import Message
from orderlymq_spark import cdc
from orderlymq_spark.changes import Change, EventError, Format, last_by_key, read_changes
from orderlymq_spark.specs import CdcSpec, Source
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def event(form: Format, before: Row | None, after: Row | None) -> bytes:
    """Write a change as one of the three binlog readers does."""
    row = after or before or {}
    old = {name: v for name, v in (before or {}).items() if after and after.get(name) != v}
    kind = "delete" if after is None else "insert" if before is None else "update"
    value: Row
    match form:
        case "debezium":
            value = {"payload": {"op": {"delete": "d", "insert": "c", "update": "u"}[kind]}}
            value["payload"] |= {"before": before, "after": after}
        case "canal":
            value = {
                "type": kind.upper(),
                "table": "t",
                "data": [row],
                "old": [old] if old else None,
            }
        case "maxwell":
            value = {"type": kind, "table": "t", "data": row, "old": old}
    return json.dumps(value).encode()


def history(form: Format, count: int, seed: int) -> tuple[list[bytes], dict[int, Row]]:
    """Return events of a random life of a table, changes of primary keys included, and how it ends."""
    chance = random.Random(seed)
    table: dict[int, Row] = {}
    events: list[bytes] = []
    for number in range(count):
        key = chance.randrange(6)
        before = table.pop(key, None)
        kind = chance.choice(["put", "put", "delete", "move"])
        if kind == "delete" and before is None:
            continue
        after: Row | None = {"id": key, "name": f"n{number}"}
        if kind == "delete":
            after = None
        elif kind == "move" and before is not None:
            after = {"id": 100 + number, "name": f"n{number}"}
        if after is not None:
            table[after["id"]] = after
        events.append(event(form, before, after))
    return events, table


def spec_of(folder: Path, form: Format, topics: Topics | None = None, topic: str = "t") -> CdcSpec:
    return CdcSpec(
        type="cdc-apply",
        source=Source(topic=topic, **({} if topics is None else {"bootstrap": topics.bootstrap})),
        checkpoint=folder / "checkpoint",
        path=folder / "table",
        format=form,
        keys=["id"],
        errors=folder / "errors",
    )


def rows_of(spec: CdcSpec) -> dict[int, Row]:
    found = cdc.live_rows(spec).select(["id", "name"]).to_pylist()
    return {int(row["id"]): {"id": int(row["id"]), "name": row["name"]} for row in found}


@pytest.mark.parametrize("form", ["debezium", "canal", "maxwell"])
def test_the_table_is_the_source_table_whatever_the_cut_and_the_repeats(
    form: Format, tmp_path: Path
) -> None:
    """Batches of any size, each applied twice, then an old one once more under a new number."""
    events, expected = history(form, 60, seed=3)
    spec = spec_of(tmp_path, form)
    chance = random.Random(4)
    at = batch = 0
    early: list[Change] = []
    while at < len(events):
        size = chance.randrange(1, 20)
        changes = [
            change
            for position, body in enumerate(events[at : at + size], at)
            for change in read_changes(body, form, ["id"], None, position)
        ]
        last = list(last_by_key(changes).values())
        early = early or last
        for _ in range(2):
            cdc.merge(spec, "app", batch, last)
        at, batch = at + size, batch + 1
    cdc.merge(spec, "app", batch, early)

    assert rows_of(spec) == expected


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"op": "x"}', b'{"op": "c", "after": {"name": "no key"}}']
)
def test_what_is_no_event_is_told_with_the_reason(body: bytes) -> None:
    with pytest.raises(EventError):
        read_changes(body, "debezium", ["id"], None, 0)


@pytest.mark.parametrize("body", [b"", b"null", b'{"payload": null}', b'{"ddl": "alter table"}'])
def test_tombstones_and_schema_changes_change_no_row(body: bytes) -> None:
    assert read_changes(body, "debezium", ["id"], None, 0) == []


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_topic_becomes_a_table_and_bad_events_are_kept(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """From the topic through Spark; an event that is no JSON is kept whole, with its place."""
    topic = topics.make(queues=1)
    events, expected = history("debezium", 40, seed=9)
    bodies = [*events[:10], b"not json", *events[10:]]
    topics.fill(topic, [Message(topic=topic, body=body, key="t") for body in bodies])
    spec = spec_of(tmp_path, "debezium", topics, topic)

    cdc.run("customers", spec, lambda: spark)

    assert rows_of(spec) == expected
    kept = [
        json.loads(line)
        for path in (tmp_path / "errors").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert [(each["offset"], each["body_base64"]) for each in kept] == [(10, "bm90IGpzb24=")]
