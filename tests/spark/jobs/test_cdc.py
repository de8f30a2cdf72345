"""Change events in a table: the table equals the source table, whatever is repeated, late or unreadable."""

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from orderlymq.message import Message
from orderlymq_spark.errors import CheckpointInUse, SinkConflict
from orderlymq_spark.jobs.cdc import job as cdc
from orderlymq_spark.jobs.cdc.events import Change, EventError, Format, last_by_key, read_changes
from orderlymq_spark.jobs.cdc.job import merge_history
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.options import parse_source
from orderlymq_spark.run.checkpoint import hold_checkpoint
from orderlymq_spark.specs import CdcSpec, Source
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def event(form: Format, before: Row | None, after: Row | None) -> bytes:
    """Return a change in the format of one of the three binlog readers."""
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
    """Return the events of a table's random history, with changes of primary keys, and the final table."""
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


def spec_of(
    folder: Path,
    form: Format,
    topics: Topics | None = None,
    topic: str = "t",
    scd: Literal[1, 2] = 1,
) -> CdcSpec:
    return CdcSpec(
        scd=scd,
        type="cdc-apply",
        source=Source(topic=topic, **({} if topics is None else {"bootstrap": topics.bootstrap})),
        checkpoint=folder / "checkpoint",
        path=folder / "table",
        format=form,
        keys=["id"],
        errors=folder / "errors",
    )


def rows_of(spec: CdcSpec) -> dict[int, Row]:
    found = cdc.live_rows(spec).to_table(columns=["id", "name"]).to_pylist()
    return {int(row["id"]): {"id": int(row["id"]), "name": row["name"]} for row in found}


@pytest.mark.parametrize("form", ["debezium", "canal", "maxwell"])
def test_the_table_is_the_source_table_whatever_the_cut_and_the_repeats(
    form: Format, tmp_path: Path
) -> None:
    """Batches have any size; each is applied twice, and an old one again under a new number."""
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


@pytest.mark.parametrize("scd", [1, 2])
def test_a_checkpoint_that_began_again_leaves_no_change_out(
    scd: Literal[1, 2], tmp_path: Path
) -> None:
    """A new checkpoint's batches have numbers that the table knows, but contain other changes."""
    spec = spec_of(tmp_path, "maxwell", scd=scd)
    apply = cdc.merge if scd == 1 else merge_history
    changes = [Change((n,), {"id": n, "name": f"name {n}"}, n) for n in range(4)]
    apply(spec, "app", 0, changes[:1])
    apply(spec, "app", 1, changes[1:2])

    apply(spec, "app", 0, changes[:3])
    apply(spec, "app", 1, changes[3:])

    assert rows_of(spec) == {n: {"id": n, "name": f"name {n}"} for n in range(4)}


@pytest.mark.parametrize("scd", [1, 2])
def test_the_rows_of_a_table_are_counted_in_little_memory(
    scd: Literal[1, 2], tmp_path: Path
) -> None:
    """A run counts the rows at its end; once, each run failed at that for a table that is larger than the driver."""
    spec = spec_of(tmp_path, "maxwell", scd=scd)
    apply = cdc.merge if scd == 1 else merge_history
    for number in range(4):
        keys, name = range(4096 * number, 4096 * (number + 1)), f"{number}" * 4096
        apply(spec, "app", number, [Change((n,), {"id": n, "name": name}, n) for n in keys])
    ordinary, pool = pa.default_memory_pool(), pa.system_memory_pool()
    assert pool.backend_name != ordinary.backend_name, "a pool that nobody else has used"
    pa.set_memory_pool(pool)
    try:
        count = cdc.live_rows(spec).count_rows()
    finally:
        pa.set_memory_pool(ordinary)

    assert count == 4 * 4096
    assert pool.max_memory() < 16 << 20  # 64 MiB of names


def test_a_batch_of_events_has_a_limit(tmp_path: Path) -> None:
    """A batch is held in the driver's memory, and Spark repeats a planned one unchanged: without a limit it would never end."""

    def limits(**options: Any) -> tuple[int | None, int | None]:
        source = Source(topic="binlog", options=options)
        spec = spec_of(tmp_path, "debezium").model_copy(update={"source": source})
        found = parse_source(spec.read_options())
        return found.offsets_max, found.bytes_max

    assert limits() == (None, 32 << 20)
    assert limits(maxoffsetspertrigger=7) == (7, None)
    assert limits(maxBytesPerTrigger=9) == (None, 9)


def test_events_that_cannot_be_read_are_kept_once_and_never_written_over(tmp_path: Path) -> None:
    """A repeated batch may have them in another order; another checkpoint may have other ones under the same number."""
    place = {"topic": "changes", "broker": "east", "queue_id": 0}
    bad = [
        {**place, "queue_offset": n, "reason": "no JSON", "body_base64": "eA=="} for n in range(3)
    ]

    cdc.keep_errors(location(tmp_path), 0, bad[:2])
    cdc.keep_errors(location(tmp_path), 0, bad[1::-1])
    cdc.keep_errors(location(tmp_path), 0, bad[2:])

    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["queue_offset"] for line in lines) == [0, 1, 2]


def versions_of(spec: CdcSpec) -> list[Row]:
    names = ["_key", "_valid_from", "_valid_to", "_is_current", "_deleted", "id", "name"]
    found: list[Row] = DeltaTable(str(spec.path)).to_pyarrow_table().select(names).to_pylist()
    return sorted(found, key=lambda row: (row["_valid_from"], row["_key"]))


def table_at(versions: list[Row], position: int) -> dict[int, Row]:
    """Return the source table after the event at *position*, read from the history as its docs describe."""
    return {
        int(row["id"]): {"id": int(row["id"]), "name": row["name"]}
        for row in versions
        if row["_valid_from"] <= position
        and (row["_valid_to"] is None or position < row["_valid_to"])
        and not row["_deleted"]
    }


@pytest.mark.parametrize("form", ["debezium", "canal", "maxwell"])
def test_a_history_yields_the_source_table_at_every_position(form: Format, tmp_path: Path) -> None:
    """The table after each event can be read back, and the versions of a key have no gap between them."""
    events, expected = history(form, 60, seed=5)
    spec = spec_of(tmp_path, form, scd=2)
    changes = [
        change
        for position, body in enumerate(events)
        for change in read_changes(body, form, ["id"], None, position)
    ]
    for batch, start in enumerate(range(0, len(changes), 7)):
        merge_history(spec, "app", batch, changes[start : start + 7])

    versions = versions_of(spec)
    truth: dict[int, Row] = {}
    for position in range(len(events)):
        for change in (each for each in changes if each.position == position):
            truth.pop(change.key[0], None)
            if change.row is not None:
                truth[change.key[0]] = dict(change.row)
        assert table_at(versions, position) == truth, position
    assert rows_of(spec) == truth == expected
    assert {row["_is_current"] == (row["_valid_to"] is None) for row in versions} == {True}


@pytest.mark.parametrize("seed", range(6))
def test_a_history_is_a_function_of_the_set_of_changes(seed: int, tmp_path: Path) -> None:
    """The same changes give the same table in any batches, repetitions and order."""
    events, _ = history("maxwell", 40, seed)
    changes = [
        change
        for position, body in enumerate(events)
        for change in read_changes(body, "maxwell", ["id"], None, position)
    ]
    whole = spec_of(tmp_path / "whole", "maxwell", scd=2)
    merge_history(whole, "app", 0, changes)
    chance = random.Random(seed)
    parts: list[list[Change]] = []
    left = list(changes)
    while left:
        size = chance.randrange(1, 12)
        parts, left = [*parts, left[:size]], left[size:]
    if seed % 2:
        chance.shuffle(parts)
    torn = spec_of(tmp_path / "torn", "maxwell", scd=2)
    for batch, part in enumerate([*parts, parts[0], parts[-1]]):
        merge_history(torn, "app", batch, part)
        merge_history(torn, "app", batch, part)

    assert versions_of(torn) == versions_of(whole)


def test_a_batch_that_brings_nothing_new_makes_no_commit(tmp_path: Path) -> None:
    """A replay of old events under new batch numbers leaves the table's version unchanged."""
    spec = spec_of(tmp_path, "maxwell", scd=2)
    changes = [Change((1,), {"id": 1, "name": "a"}, 0), Change((1,), None, 1)]
    merge_history(spec, "app", 0, changes)
    before = DeltaTable(str(spec.path)).version()

    merge_history(spec, "app", 1, changes)

    assert DeltaTable(str(spec.path)).version() == before


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"op": "x"}', b'{"op": "c", "after": {"name": "no key"}}']
)
def test_what_is_no_event_is_reported_with_the_reason(body: bytes) -> None:
    with pytest.raises(EventError):
        read_changes(body, "debezium", ["id"], None, 0)


_SHAPES: list[Any] = [None, 0, 7, True, 1.5, "", "text", [], [1], [[]], [{}], [{"id": 1}], {}]
_SHAPES += [{"id": 1}, {"id": [1]}, {"id": {"scale": 0, "value": "AQ=="}}, [{"id": {}}]]


@pytest.mark.parametrize("form", ["debezium", "canal", "maxwell"])
@pytest.mark.parametrize("table", [None, "t"])
def test_no_event_of_any_shape_stops_the_pipeline(form: Format, table: str | None) -> None:
    """Any member may have any type; the batch is read, and invalid events are reported."""
    kinds = ["c", "u", "d", "INSERT", "UPDATE", "DELETE", "insert", "update", "delete", [], {}]
    names = ["op", "type", "table", "before", "after", "data", "old", "source", "payload", "isDdl"]
    row = [{"id": 1}] if form == "canal" else {"id": 1}
    for kind in kinds:
        whole = {"op": kind, "type": kind, "table": "t", "after": {"id": 1}, "data": row}
        for name in names:
            for shape in _SHAPES:
                try:
                    found = read_changes(
                        json.dumps({**whole, name: shape}).encode(), form, ["id"], table, 0
                    )
                except EventError:
                    continue
                last_by_key(found)
    with pytest.raises(EventError):
        read_changes(b"[" * 100_000, form, ["id"], table, 0)


ODD_TEXTS: list[Row] = [
    {"id": 1, "name": "half \ud800 a character"},
    {"id": "\udfff"},
    {"id": 1, "\ud800": "x"},
    *({"id": 1, name: "x"} for name in ("_key", "_Position", "_deleted", "_valid_from", "ID")),
    *({"id": 1, name: "x"} for name in ("a`b", "a\0b")),
]


@pytest.mark.parametrize("row", ODD_TEXTS)
def test_a_row_that_no_table_can_hold_is_an_event_that_cannot_be_read(row: Row) -> None:
    """Such rows have lone surrogates, reserved column names, or names that differ only in case; the reason is stored."""
    bodies = pa.table(
        {
            **{name: ["t"] for name in ("topic", "broker")},
            **{name: [0] for name in ("queue_id", "queue_offset")},
            "body": [event("maxwell", None, row)],
        }
    )

    changes, bad, _ = cdc.read_batch(bodies, spec_of(Path("x"), "maxwell"))

    assert (changes, len(bad)) == ([], 1)
    assert bad[0]["reason"].encode()


def test_an_event_that_heals_a_row_with_half_a_character_counts() -> None:
    """The job reads only the key of the former row."""
    body = event("maxwell", {"id": 1, "name": "\ud800"}, {"id": 1, "name": "whole"})

    assert read_changes(body, "maxwell", ["id"], None, 7) == [
        Change((1,), {"id": 1, "name": "whole"}, 7)
    ]


def test_a_value_of_any_depth_is_a_text_or_reported() -> None:
    """A value that is read without an error can also be written without one, even in a deep stack."""
    for depth in range(900, 1000, 2):
        body = b'{"op": "c", "after": {"id": 1, "name": %s}}' % (b"[" * depth + b"]" * depth)
        try:
            (change,) = read_changes(body, "debezium", ["id"], None, 0)
        except EventError:
            continue
        assert change.row is not None
        assert isinstance(change.row["name"], str)


@pytest.mark.parametrize("scd", [1, 2])
def test_numbers_keep_their_digits(scd: Literal[1, 2], tmp_path: Path) -> None:
    """Maxwell writes DECIMALs as numbers: two of them never become one row, and none changes its value."""
    numbers = ["1234567890123456.7891", "1234567890123456.7892", "100000000000000000000.01", "1.10"]
    spec = spec_of(tmp_path, "maxwell", scd=scd)
    bodies = [
        f'{{"type": "insert", "table": "t", "data": {{"id": {each}, "name": {{"x": [{each}, "é"]}}}}}}'.encode()
        for each in numbers
    ]
    changes = [
        change
        for position, body in enumerate([*bodies, bodies[0]])
        for change in read_changes(body, "maxwell", ["id"], "t", position)
    ]
    for number, change in enumerate(changes):
        if scd == 2:
            merge_history(spec, "app", number, [change])
        else:
            cdc.merge(spec, "app", number, [change])

    rows = cdc.live_rows(spec).to_table(columns=["id", "name", "_key"]).to_pylist()
    rows.sort(key=lambda row: row.pop("_key"))
    assert rows == [
        {"id": each, "name": f'{{"x": [{each}, "\\u00e9"]}}'}
        for each in sorted(numbers, key="[{}]".format)
    ]
    assert read_changes(bodies[3], "maxwell", ["id"], "t", 0)[0].key == (1.1,)


KEYS_ALIKE = ["1", "1.0", "1.00", "10E-1", "true", '"1"', "1.10", "1.1", "12345678901234567890.5"]
KEYS_ALIKE += [
    "12345678901234567890.50",
    "100000000000000000000",
    "1e20",
    "-0.0",
    "0",
    "1e9999999",
    "NaN",
    "Infinity",
]


@pytest.mark.parametrize("scd", [1, 2])
def test_which_keys_are_one_does_not_depend_on_the_cut(scd: Literal[1, 2], tmp_path: Path) -> None:
    """A number is the same key in any notation; true and the text 1 are other keys than the number 1."""
    bodies = [b'{"op": "c", "after": {"id": %s}}' % each.encode() for each in KEYS_ALIKE]
    changes = [
        change
        for position, body in enumerate([*bodies, *bodies])
        for change in read_changes(body, "debezium", ["id"], None, position)
    ]

    found: list[list[Row]] = []
    for size in (len(changes), 1):
        spec = spec_of(tmp_path / str(size), "debezium", scd=scd)
        for batch, start in enumerate(range(0, len(changes), size)):
            part = changes[start : start + size]
            if scd == 2:
                merge_history(spec, "app", batch, part)
            else:
                cdc.merge(spec, "app", batch, list(last_by_key(part).values()))
        rows = DeltaTable(str(spec.path)).to_pyarrow_table().to_pylist()
        found.append(sorted(rows, key=repr))

    assert found[0] == found[1]
    names = ["1", "true", '"1"', "1.1", "12345678901234567890.5", "100000000000000000000", "0"]
    keys = {row["_key"] for row in found[0]}
    assert keys == {*map("[{}]".format, names), "[1E+9999999]", "[NaN]", "[Infinity]"}


@pytest.mark.parametrize("scd", [1, 2])
def test_a_column_whose_case_changes_stays_the_column(scd: Literal[1, 2], tmp_path: Path) -> None:
    """A column keeps its first spelling within a batch and between batches, because a table cannot have both columns."""
    spec = spec_of(tmp_path, "maxwell", scd=scd)
    apply = cdc.merge if scd == 1 else merge_history
    rows: list[Row] = [{"name": "a"}, {"Name": "b"}, {"NAME": "c"}, {"nAme": "d", "more": "x"}]
    changes = [Change((n,), {"id": n, **row}, n) for n, row in enumerate(rows)]

    apply(spec, "app", 0, changes[:2])
    apply(spec, "app", 1, changes[2:])

    assert rows_of(spec) == {n: {"id": n, "name": "abcd"[n]} for n in range(4)}


def test_a_key_that_is_an_object_is_reported_with_what_to_do() -> None:
    """Debezium writes such a key for a NUMBER of Oracle without a precision."""
    body = b'{"op": "c", "after": {"id": {"scale": 0, "value": "AQ=="}}}'

    with pytest.raises(EventError, match=r"decimal\.handling\.mode=string"):
        read_changes(body, "debezium", ["id"], None, 0)


@pytest.mark.parametrize("body", [b"", b"null", b'{"payload": null}', b'{"ddl": "alter table"}'])
def test_tombstones_and_schema_changes_change_no_row(body: bytes) -> None:
    assert read_changes(body, "debezium", ["id"], None, 0) == []


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("debezium", b'{"op": "t", "before": null, "after": null}'),
        ("debezium", b'{"op": "d", "before": null, "after": null}'),
        ("debezium", b'{"op": "u", "before": null, "after": null}'),
        ("canal", b'{"type": "TRUNCATE", "isDdl": true, "table": "t", "data": null}'),
        ("canal", b'{"type": "DELETE", "table": "t", "data": null}'),
        ("canal", b'{"type": "INSERT", "table": "t", "data": [null]}'),
        ("maxwell", b'{"type": "delete", "table": "t", "data": null}'),
    ],
)
def test_a_change_of_rows_that_it_does_not_name_is_an_event_that_cannot_be_read(
    form: Format, body: bytes
) -> None:
    """Truncates, and deletes without a row, do not say which rows they remove, so the table would differ from the source."""
    with pytest.raises(EventError):
        read_changes(body, form, ["id"], "t", 0)


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("debezium", b'{"op": "t", "source": {"table": "u"}}'),
        ("canal", b'{"type": "TRUNCATE", "isDdl": true, "table": "u"}'),
        ("maxwell", b'{"type": "delete", "table": "u", "data": null}'),
    ],
)
def test_what_becomes_of_another_table_changes_no_row(form: Format, body: bytes) -> None:
    assert read_changes(body, form, ["id"], "t", 0) == []


PLACE = {"db": "shop", "database": "shop", "schema": "public"}


@pytest.mark.parametrize("form", ["debezium", "canal", "maxwell"])
def test_a_table_may_be_named_with_its_database(form: Format) -> None:
    """A name without a database means this table in any database."""
    whole = json.loads(event(form, None, {"id": 1}))
    whole = {**whole.get("payload", whole), **PLACE, "table": "t"}
    body = json.dumps({**whole, "source": {**PLACE, "table": "t"}}).encode()
    deep = form == "debezium"
    names = {"t": True, "shop.t": not deep, "public.t": deep, "shop.public.t": deep}
    names |= {"other.t": False, "shop": False, "shop.": False, "": False, "op.t": False}

    for name, is_meant in names.items():
        assert bool(read_changes(body, form, ["id"], name, 0)) == is_meant, name


@pytest.mark.parametrize(
    "value",
    [
        "__debezium_unavailable_value",
        "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
        ["__debezium_unavailable_value"],
        {"__debezium_unavailable_value": "__debezium_unavailable_value"},
        list(b"__debezium_unavailable_value"),
    ],
    ids=["text", "bytes", "texts", "map", "numbers"],
)
def test_a_value_that_postgres_did_not_log_is_no_value(value: Any) -> None:
    """An update without an unchanged large value (TOAST) keeps the table's value, and the reason names the setting."""
    row = {"id": 1, "name": "a", "photo": value}

    with pytest.raises(EventError, match=r"does not contain photo.*REPLICA IDENTITY FULL"):
        read_changes(event("debezium", None, row), "debezium", ["id"], None, 0)
    assert read_changes(event("debezium", row, None), "debezium", ["id"], None, 0)


@pytest.mark.parametrize("scd", [1, 2])
@pytest.mark.parametrize("cut", [(3,), (1, 2), (2, 1), (1, 1, 1)])
def test_a_column_that_an_event_lacks_is_empty_whatever_the_cut(
    scd: Literal[1, 2], cut: tuple[int, ...], tmp_path: Path
) -> None:
    """The column is null for such an event, as in a source table that has lost the column."""
    spec = spec_of(tmp_path, "maxwell", scd=scd)
    apply = cdc.merge if scd == 1 else merge_history
    rows = [{"id": 1, "city": "Riga"}, {"id": 1, "name": "Eve"}, {"id": 2, "city": "Kyiv"}]
    changes = [Change((row["id"],), row, n) for n, row in enumerate(rows)]

    for batch, size in enumerate(cut):
        part, changes = changes[:size], changes[size:]
        apply(spec, "app", batch, list(last_by_key(part).values()) if scd == 1 else part)

    found = [
        tuple(row[name] for name in ("id", "name", "city"))
        for row in cdc.live_rows(spec).to_table().to_pylist()
    ]
    assert sorted(found) == [("1", "Eve", None), ("2", None, "Kyiv")]


@pytest.mark.parametrize("scd", [1, 2])
def test_a_topic_that_was_created_again_needs_another_table(
    scd: Literal[1, 2], tmp_path: Path
) -> None:
    """The new topic's positions begin again, so its changes would look older than the table's; other topics continue."""
    spec = spec_of(tmp_path, "maxwell", scd=scd)
    apply = cdc.merge if scd == 1 else merge_history
    ids = {("changes", "g"): 7, ("others", "g"): 3}
    for batch, given in enumerate((ids, {("others", "g"): 3})):
        known = cdc.check_topics(spec.path, given)
        apply(spec, "app", batch, [Change((1,), {"id": 1, "name": "a"}, 40 + batch)], known)

    assert cdc.check_topics(spec.path, {("more", "g"): 9}) == {**ids, ("more", "g"): 9}
    with pytest.raises(SinkConflict, match=r"topic changes was created again.*new path"):
        cdc.check_topics(spec.path, {**ids, ("changes", "g"): 8})


@pytest.mark.cluster
def test_a_driver_that_is_refused_leaves_the_counts_of_the_other_one(
    topics: Topics, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, "maxwell", topics, topics.make(queues=1))
    tally = cdc.Tally(spec.checkpoint / "orderlymq-tally.json")

    with hold_checkpoint(spec.checkpoint):
        tally.add(0, 7, 1, 0)
        with pytest.raises(CheckpointInUse):
            cdc.run("customers", spec, lambda: cast("SparkSession", None))

    assert tally.read() == [0, 7, 1, 0]


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scd", [1, 2])
def test_a_topic_becomes_a_table_and_bad_events_are_kept(
    spark: "SparkSession", topics: Topics, tmp_path: Path, scd: Literal[1, 2]
) -> None:
    """The events pass from the topic through Spark; one that is not JSON is kept whole, with its place."""
    topic = topics.make(queues=1)
    events, expected = history("debezium", 40, seed=9)
    bodies = [*events[:10], b"not json", *events[10:], b"null", b"null"]
    topics.fill(topic, [Message(topic=topic, body=body, key="t") for body in bodies])
    spec = spec_of(tmp_path, "debezium", topics, topic, scd)

    outcome = cdc.run("customers", spec, lambda: spark)

    counted = {"events": len(bodies), "rows": len(expected), "ofNoRow": 2, "unreadable": 1}
    assert outcome.data == counted
    assert rows_of(spec) == expected
    kept = [
        json.loads(line)
        for path in (tmp_path / "errors").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert [
        (each["topic"], each["queue_id"], each["queue_offset"], each["body_base64"])
        for each in kept
    ] == [(topic, 0, 10, "bm90IGpzb24=")]
