"""Bodies that follow a schema: good ones are decoded, bad ones are reported and stop nothing."""

import json
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from orderlymq.bodies import Avro
from orderlymq.message import Message
from orderlymq_spark.errors import OptionError
from orderlymq_spark.frames import read_batch
from orderlymq_spark.options import ValueFormat, parse_source
from orderlymq_spark.values.conversion import ValueMisfit, fitted
from orderlymq_spark.values.decoder import ValueDecoder, value_type
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = pa.struct(
    [
        ("id", pa.string()),
        ("count", pa.int32()),
        ("price", pa.decimal128(8, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("parts", pa.list_(pa.struct([("name", pa.string()), ("weight", pa.float64())]))),
        ("notes", pa.map_(pa.string(), pa.bool_())),
        ("photo", pa.binary()),
        ("ratio", pa.float32()),
    ]
)
GOOD = {
    "id": "o-1",
    "count": 3,
    "price": "12.50",
    "at": "2026-01-31T12:00:00Z",
    "day": "2026-01-31",
    "parts": [{"name": "lid", "weight": 2}, {"name": None}],
    "notes": {"urgent": True},
    "photo": "AAE=",
    "ratio": 0.5,
    "unknown": "is left out",
}
JSON = ValueFormat("json", "id string")  # the decoder gets its type from Spark


def decoded(form: ValueFormat, kind: pa.DataType, *bodies: bytes) -> list[tuple[Any, str | None]]:
    values, errors = ValueDecoder(form, kind).decode(pa.array(bodies, pa.binary()))
    assert values.type == kind
    return list(zip(values.to_pylist(), errors.to_pylist(), strict=True))


def test_json_fits_the_types_of_the_column() -> None:
    """Times, dates, decimals and bytes are read from texts; absent fields are null; unknown ones are ignored."""
    found = decoded(JSON, ORDER, json.dumps(GOOD).encode(), b"{}", b"null")

    assert found[0] == (
        {
            "id": "o-1",
            "count": 3,
            "price": Decimal("12.50"),
            "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
            "day": date(2026, 1, 31),
            "parts": [{"name": "lid", "weight": 2.0}, {"name": None, "weight": None}],
            "notes": [("urgent", True)],
            "photo": b"\x00\x01",
            "ratio": 0.5,
        },
        None,
    )
    assert found[1] == (dict.fromkeys(field.name for field in ORDER), None)
    assert found[2] == (None, None)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[1]", "value is a list, which is not a record"),
        (b'{"id": 7}', "value.id is a int, which is not a string"),
        (b'{"count": "7"}', "value.count is a str, which is not a int32"),
        (b'{"count": true}', "value.count is a bool, which is not a int32"),
        (b'{"count": 1.5}', "value.count is a Decimal, which is not a int32"),
        (b'{"count": 4294967296}', "value.count is a int, which is not a int32"),
        (b'{"price": "x"}', "value.price is a str, which is not a decimal128(8, 2)"),
        (b'{"price": "1234567.89"}', "value.price is a str, which is not a decimal128(8, 2)"),
        (
            b'{"parts": [{}, {"weight": 1}], "notes": {"a": true}, "count": -2147483649}',
            "value.count",
        ),
        (b'{"at": "yesterday"}', "value.at is a str"),
        (b'{"at": "9999-12-31T23:59:59-14:00"}', "value.at is a str"),
        (b'{"at": "0001-01-01T00:00:00+14:00"}', "value.at is a str"),
        (b'{"ratio": 1e39}', "value.ratio is a Decimal, which is not a float"),
        (b'{"parts": [{}, {"weight": "x"}]}', "value.parts[1].weight is a str"),
        (b'{"notes": {"a": 1}}', "value.notes.a is a int, which is not a bool"),
        (b'{"photo": "?"}', "value.photo is a str, which is not a binary"),
    ],
)
def test_a_bad_body_is_null_with_its_reason_among_good_ones(body: bytes, told: str) -> None:
    """The reason names the place but not the content; other rows are not affected."""
    first, bad, last = decoded(JSON, ORDER, b'{"id": "a"}', body, b'{"id": "b"}')

    assert (first[0]["id"], first[1]) == ("a", None)
    assert (last[0]["id"], last[1]) == ("b", None)
    assert bad[0] is None
    assert bad[1] is not None
    assert told in bad[1]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        ("1234567890123456.78", pa.decimal128(20, 2)),
        ("123456789012345678901234567890", pa.decimal128(38, 0)),
        ("0.1", pa.decimal128(38, 30)),
        ("1e3", pa.decimal128(8, 2)),
    ],
)
def test_a_decimal_is_what_its_digits_say(number: str, kind: pa.DataType) -> None:
    """A decimal never passes through a float; float fields in the same body are read as usual."""
    wanted = pa.struct([("amount", kind), ("weight", pa.float64()), ("n", pa.int64())])
    body = b'{"amount": %s, "weight": 0.1, "n": 7}' % number.encode()

    assert decoded(JSON, wanted, body) == [
        ({"amount": Decimal(number), "weight": 0.1, "n": 7}, None)
    ]


@pytest.mark.parametrize(
    "number", [f"{digits}E-{far}" for digits in ("1", "0", "123456") for far in (999, 999999999)]
)
@pytest.mark.parametrize("form", ["%s", '"%s"', '"-%s"'])
def test_a_decimal_with_a_far_exponent_never_reaches_arrow(number: str, form: str) -> None:
    """Arrow reads its power of ten beyond a table, which gives wrong values or a crash. Zero stays zero."""
    wanted = pa.struct([("amount", pa.decimal128(10, 2))])
    with pytest.raises(ValueMisfit) if number[0] != "0" else nullcontext():
        assert fitted({"amount": Decimal(number)}, wanted) == {"amount": 0}

    found, good = decoded(JSON, wanted, b'{"amount": %s}' % (form % number).encode(), b"{}")

    assert good[1] is None
    if number[0] == "0":
        assert found == ({"amount": 0}, None)
    else:
        assert (found[0], "value.amount" in (found[1] or "")) == (None, True)


@given(st.integers(-(10**12), 10**12), st.integers(-60, 60))
def test_a_decimal_is_exact_or_refused(digits: int, exponent: int) -> None:
    """No value is rounded, and no value that fits is refused."""
    kind, number = pa.decimal128(10, 2), Decimal(digits).scaleb(exponent)
    fits = abs(number) < 10**8 and number == round(number, 2)

    ((value, error),) = decoded(
        JSON, pa.struct([("amount", kind)]), b'{"amount": "%s"}' % str(number).encode()
    )

    assert (value and value["amount"]) == (number if fits else None)
    assert (error is None) == fits


@pytest.mark.parametrize("number", ["1e-9999999999999999999", "0e-9999999999999999999"])
def test_a_number_that_no_decimal_can_hold_stops_nothing(number: str) -> None:
    """Any field may hold such a number, even one that is not in the schema."""
    wanted = pa.struct([("amount", pa.decimal128(8, 2)), ("w", pa.float64())])
    for name in ("amount", "w", "unknown"):
        bad, good = decoded(JSON, wanted, b'{"%s": %s}' % (name.encode(), number.encode()), b"{}")
        assert (bad[0], good[1]) == (None, None)
        assert bad[1]


@pytest.mark.parametrize(
    "body",
    [
        b'{"n": NaN}',
        b'{"w": 1e400}',
        b'{"n": 1.5}',
        b"[" * 200_000,
        b'{"s": "\\ud800"}',
        b"\xff",
        b"{",
    ],
)
def test_beside_a_decimal_json_is_as_strict_as_elsewhere(body: bytes) -> None:
    """Neither invalid JSON nor a value of a wrong type stops other rows."""
    fields = [("n", pa.int64()), ("w", pa.float64()), ("s", pa.string())]
    for kind in (pa.struct(fields), pa.struct([*fields, ("amount", pa.decimal128(8, 2))])):
        bad, good = decoded(JSON, kind, body, b"{}")
        assert (bad[0], good[1]) == (None, None)
        assert bad[1]


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "count", "type": ["null", "long"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
            {"name": "again", "type": "Kind"},
            {"name": "notes", "type": {"type": "map", "values": "double"}},
            {"name": "parts", "type": {"type": "array", "items": "bytes"}},
        ],
    }
)


def test_avro_is_read_plain_and_with_its_head() -> None:
    """The column's type follows from the schema; a body that is cut or followed by more bytes is reported."""
    form = ValueFormat("avro", AVRO)
    kind = pa.struct(
        [
            ("id", pa.string()),
            ("count", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("kind", pa.string()),
            ("again", pa.string()),
            ("notes", pa.map_(pa.string(), pa.float64())),
            ("parts", pa.list_(pa.binary())),
        ]
    )
    value = {
        "id": "o-1",
        "count": None,
        "at": datetime(2026, 1, 31, tzinfo=UTC),
        "kind": "NEW",
        "again": "OLD",
        "notes": {"a": 1.5},
        "parts": [b"x"],
    }
    into = BytesIO()
    schemaless_writer(into, parse_schema(json.loads(AVRO)), value)
    body = into.getvalue()

    assert value_type(form) == (
        "struct<`id`:string,`count`:bigint,`at`:timestamp,`kind`:string,`again`:string,"
        "`notes`:map<string,double>,`parts`:array<binary>>"
    )
    headed = Avro(dict[str, Any], AVRO).encode(value)
    found = decoded(form, kind, body, headed, body[:-4], body + b"x", headed[:5])
    expected = {**value, "notes": [("a", 1.5)]}
    assert found[:2] == [(expected, None), (expected, None)]
    assert [row[0] for row in found[2:]] == [None] * 3
    assert all(row[1] for row in found[2:])


def test_an_avro_decimal_with_more_digits_than_it_may_have_is_reported() -> None:
    """Law: the time for a body is bounded by its size.

    Once, a body of 1 MB stopped a stream for hours, after each start.
    """
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "price", "type": price}]}
    )
    kind, into = pa.struct([("price", pa.decimal128(9, 2))]), BytesIO()
    schemaless_writer(into, "bytes", bytes(2**20))

    good, bad = decoded(ValueFormat("avro", schema), kind, b"\x02\x64", into.getvalue())

    assert good == ({"price": Decimal("1.00")}, None)
    assert bad == (None, "it cannot be read by the schema (ValueError)")


def test_avro_has_texts_for_uuids_and_types_by_their_full_names() -> None:
    """The reader would make UUID objects; inner names inherit the namespace."""
    inner = {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}
    fields = [
        {"name": "id", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
        {"name": "kind", "type": inner},
        {"name": "again", "type": "shop.Kind"},
    ]
    schema = json.dumps({"type": "record", "name": "shop.Order", "fields": fields})
    value = {"id": "00000000-0000-4000-8000-00000000002a", "kind": "NEW", "again": "OLD"}
    into = BytesIO()
    schemaless_writer(into, parse_schema(json.loads(schema)), value)
    form = ValueFormat("avro", schema)

    assert value_type(form) == "struct<`id`:string,`kind`:string,`again`:string>"
    kind = pa.struct([(name, pa.string()) for name in value])
    assert decoded(form, kind, into.getvalue()) == [(value, None)]


def test_an_avro_body_of_another_schema_is_reported() -> None:
    """The body's head names the writer's schema; read by another schema, it would give other values."""
    former, present = (
        json.dumps(
            {
                "type": "record",
                "name": "Order",
                "fields": [{"name": each, "type": "long"} for each in names],
            }
        )
        for names in (["net", "tax"], ["tax", "net"])
    )
    kind = pa.struct([("tax", pa.int64()), ("net", pa.int64())])
    bodies = [
        Avro(dict[str, int], each).encode({"net": 100, "tax": 7}) for each in (former, present)
    ]

    bad, good = decoded(ValueFormat("avro", present), kind, *bodies)

    assert good == ({"net": 100, "tax": 7}, None)
    assert bad == (None, f"it was written with the schema {bodies[0][2:10].hex()}, not by this one")


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        '{"type": "record"}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}',
    ],
)
def test_an_avro_schema_that_no_column_can_hold_is_refused(schema: str) -> None:
    """Refused are an invalid schema, a union of two types, and a record that contains itself."""
    with pytest.raises(OptionError, match="valueSchema"):
        value_type(ValueFormat("avro", schema))


def descriptors(path: Path) -> ValueFormat:
    """Return protoc's result for `message Order { string id = 1; optional int32 count = 2; repeated Part parts = 3; ... }`."""
    files = FileDescriptorSet()
    file = files.file.add(name="orders.proto", package="shop", syntax="proto3")
    part = file.message_type.add(name="Part")
    part.field.add(name="weight", number=1, type=FieldDescriptorProto.TYPE_DOUBLE, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
    order.oneof_decl.add(name="_count")
    order.field.add(
        name="count",
        number=2,
        type=FieldDescriptorProto.TYPE_INT32,
        label=1,
        oneof_index=0,
        proto3_optional=True,
    )
    order.field.add(
        name="parts",
        number=3,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".shop.Part",
        label=3,
    )
    order.field.add(name="big", number=4, type=FieldDescriptorProto.TYPE_UINT64, label=1)
    order.field.add(name="photo", number=5, type=FieldDescriptorProto.TYPE_BYTES, label=1)
    path.write_bytes(files.SerializeToString())
    return ValueFormat("protobuf", str(path), "shop.Order")


@pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801, 2**63 - 1])
def test_an_impossible_time_is_reported(tmp_path: Path, seconds: int) -> None:
    """Protobuf's Timestamp permits any number of seconds; one outside the years 1 to 9999 stops nothing."""
    files = FileDescriptorSet()
    files.file.add().CopyFrom(
        FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    )
    path = tmp_path / "times.desc"
    path.write_bytes(files.SerializeToString())
    form = ValueFormat("protobuf", str(path), "google.protobuf.Timestamp")
    body = timestamp_pb2.Timestamp(seconds=seconds).SerializeToString()

    good, bad = decoded(form, pa.timestamp("us", tz="UTC"), b"", body)

    assert good == (datetime(1970, 1, 1, tzinfo=UTC), None)
    assert bad[0] is None
    assert bad[1]


def test_protobuf_is_read_by_its_descriptors(tmp_path: Path) -> None:
    """An absent optional field is null, other absent fields have their default; an invalid message is reported."""
    form = descriptors(tmp_path / "orders.desc")
    kind = pa.struct(
        [
            ("id", pa.string()),
            ("count", pa.int32()),
            ("parts", pa.list_(pa.struct([("weight", pa.float64())]))),
            ("big", pa.decimal128(20, 0)),
            ("photo", pa.binary()),
        ]
    )
    # id = "o", count = 7, one part of weight 0, big = 2**64 - 1
    body = b"\x0a\x01o\x10\x07\x1a\x00\x20" + b"\xff" * 9 + b"\x01"

    assert value_type(form) == (
        "struct<`id`:string,`count`:int,`parts`:array<struct<`weight`:double>>,"
        "`big`:decimal(20,0),`photo`:binary>"
    )
    whole, empty, bad = decoded(form, kind, body, b"", b"\x0a\x09o")
    assert whole[0] == {
        "id": "o",
        "count": 7,
        "parts": [{"weight": 0.0}],
        "big": Decimal(2**64 - 1),
        "photo": b"",
    }
    assert empty[0] == {"id": "", "count": None, "parts": [], "big": Decimal(0), "photo": b""}
    assert bad == (None, "it is not a valid shop.Order")


@pytest.mark.parametrize(
    "given",
    [
        {"valueFormat": "xml", "valueSchema": "x"},
        {"valueFormat": "json"},
        {"valueSchema": "id string"},
        {"valueFormat": "protobuf", "valueSchema": "x.desc"},
        {"valueFormat": "json", "valueSchema": "id string", "valueMessage": "M"},
        {"valueFormat": "json", "valueSchema": "id string", "rangesOnly": "true"},
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(given: dict[str, str]) -> None:
    """The error says what is missing."""
    with pytest.raises(OptionError, match="value"):
        parse_source({"topic": "orders", **given})


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_sees_the_body_as_columns(spark: "SparkSession", topics: Topics) -> None:
    """Queries can use fields of the value; rows of bad bodies are kept, with body and reason."""
    topic = topics.make(queues=1)
    bodies = [b'{"city": "Riga", "at": "2026-01-31T12:00:00Z", "n": 1}', b"no JSON", b'{"n": "x"}']
    topics.fill(topic, [Message(topic=topic, body=body, key="k") for body in bodies])

    frame = read_batch(
        spark,
        bootstrap=topics.bootstrap,
        topic=topic,
        valueFormat="json",
        valueSchema="city string, at timestamp, n int",
    )
    rows = (
        frame.select(
            "body", "value.city", F.unix_millis("value.at").alias("at"), "value.n", "value_error"
        )
        .orderBy("queue_offset")
        .collect()
    )

    assert [bytes(row.body) for row in rows] == bodies
    assert (rows[0].city, rows[0].at, rows[0].n) == ("Riga", 1769860800000, 1)
    assert rows[0].value_error is None
    assert [row.n for row in rows[1:]] == [None, None]
    assert all(row.value_error for row in rows[1:])
