"""CloudEvents in messages: good ones in both modes, refused ones, and the agreement of writing and reading."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq.message import Message
from orderlymq_spark.errors import OptionError
from orderlymq_spark.frames import ordered, read_batch
from orderlymq_spark.options import ContentMode, ValueFormat, parse_sink, parse_source
from orderlymq_spark.sink.messages import check_columns, with_event
from orderlymq_spark.values.cloudevents import event_of, message_of
from orderlymq_spark.values.conversion import ValueMisfit
from orderlymq_spark.values.decoder import ValueDecoder, value_type
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("specversion", "id", "source", "type", "datacontenttype", "dataschema", "subject")
KIND = pa.struct(
    [
        *((name, pa.string()) for name in NAMES),
        ("time", pa.timestamp("us", tz="UTC")),
        ("extensions", pa.map_(pa.string(), pa.string())),
        ("data", pa.binary()),
    ]
)
ORDER = pa.struct(
    [
        *(each for each in KIND if each.name != "data"),
        pa.field("data", pa.struct([("id", pa.string()), ("amount", pa.decimal128(10, 2))])),
    ]
)
MAPS = pa.map_(pa.string(), pa.string())
EVENT = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "shop.order.paid"}
#: A message of RocketMQ as CloudEvents' Java SDK writes it.
BINARY = {
    "CE_specversion": "1.0",
    "CE_id": "e-1",
    "CE_source": "/shop",
    "CE_type": "shop.order.paid",
    "CE_time": "2026-01-31T12:00:00.5+02:00",
    "CE_subject": "4711",
    "CE_contenttype": "application/json",
    "CE_traceparent": "00-1-2-3",
    "KEYS": "4711",
}
BODY = b'{"id": "4711", "amount": 12.50}'
STRUCTURED = {"CE_contenttype": "application/cloudevents+json; charset=UTF-8"}


def read(
    body: bytes, properties: dict[str, str], schema: str = "", kind: pa.DataType = KIND
) -> tuple[Any, str | None]:
    """Return value and error of one message."""
    decoder = ValueDecoder(ValueFormat("cloudevents", schema), kind)
    maps = pa.array([list(properties.items())], MAPS)
    values, errors = decoder.decode(pa.array([body], pa.binary()), None, maps)
    assert values.type == kind
    return values[0].as_py(), errors[0].as_py()


def test_binary_mode_has_its_attributes_in_properties() -> None:
    """Known attributes are typed columns and others are extensions; RocketMQ's own properties are not included."""
    value, error = read(BODY, BINARY)

    assert error is None
    assert value == {
        **EVENT,
        "datacontenttype": "application/json",
        "dataschema": None,
        "subject": "4711",
        "time": datetime(2026, 1, 31, 10, 0, 0, 500_000, UTC),
        "extensions": [("traceparent", "00-1-2-3")],
        "data": BODY,
    }


def test_data_by_a_schema_is_columns() -> None:
    """Data has columns in both modes, with amounts exactly as written."""
    wanted = {"id": "4711", "amount": Decimal("12.50")}
    text = json.dumps({**EVENT, "data": "?"}).replace('"?"', BODY.decode()).encode()

    for body, properties in ((BODY, BINARY), (text, STRUCTURED)):
        value, error = read(body, properties, "id string, amount decimal(10,2)", ORDER)
        assert (value and value["data"], error) == (wanted, None)


@pytest.mark.parametrize(
    ("members", "data"),
    [
        ({"data": {"a": 1}}, b'{"a": 1}'),
        ({"data": "paid"}, b'"paid"'),
        ({"data": "paid", "datacontenttype": "text/plain"}, b"paid"),
        ({"data_base64": "AAE=", "datacontenttype": "image/png"}, b"\x00\x01"),
        ({"data": [1], "datacontenttype": "application/vnd.shop+json"}, b"[1]"),
        ({"data": None}, None),
        ({}, None),
    ],
)
def test_structured_mode_is_json(members: dict[str, Any], data: bytes | None) -> None:
    """The content type marks the mode; the property may be missing if the body says what it is."""
    body = json.dumps({**EVENT, "flagged": True, "rank": 7, "subject": None, **members}).encode()

    for properties in (STRUCTURED, {"KEYS": "4711"}):
        value, error = read(body, properties)
        assert error is None
        assert value["data"] == data
        assert (value["id"], value["subject"]) == ("e-1", None)
        assert value["extensions"] == [("flagged", "true"), ("rank", "7")]


def test_data_of_structured_mode_keeps_its_numbers() -> None:
    """The data bytes are those of the event; of a repeated member, the last one counts."""
    data = b'{"n": 12345678901234567890123, "amount": 1234567890123456.7891, "price": 1.10, "of": "\xc3\xa9"}'
    event = json.dumps(EVENT).encode()
    body = event[:-1] + b', "data": 1, "d\\u0061ta" : ' + data + b" }"

    value, error = read(body, STRUCTURED)

    assert error is None
    assert value["data"] == data


def without(name: str, **others: str) -> dict[str, str]:
    """Return the event of binary mode with properties removed or replaced."""
    return {each: value for each, value in BINARY.items() if each != name} | others


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        (without("CE_id"), "the attribute id is missing or empty"),
        (without("CE_source"), "the attribute source is missing or empty"),
        (without("CE_type"), "the attribute type is missing or empty"),
        (without("", CE_specversion="0.3"), "specversion is not 1.0"),
        (without("", CE_time="yesterday"), "time is not an RFC 3339 timestamp"),
        (without("", CE_time="2026-01-31T12:00:00"), "time is not an RFC 3339 timestamp"),
        (without("", CE_time="2026-13-31T12:00:00Z"), "time is not an RFC 3339 timestamp"),
        (without("", CE_time="9999-12-31T23:59:59-14:00"), "time is not an RFC 3339 timestamp"),
        (without("", CE_time="0001-01-01T00:00:00+14:00"), "time is not an RFC 3339 timestamp"),
        (without("", CE_contenttype="json"), "datacontenttype is not a media type"),
        (without("", CE_Trace="x"), "'Trace' has a name with"),
        (without("", CE_subject="a\nb"), "subject has a control character"),
        (without("CE_specversion"), "it is not a CloudEvent"),
        ({"CE_contenttype": "application/cloudevents-batch+json"}, "application/cloudevents+json"),
        ({"CE_contenttype": "application/cloudevents+avro"}, "application/cloudevents+json"),
    ],
)
def test_a_bad_event_is_null_with_its_reason(properties: dict[str, str], told: str) -> None:
    """The reason names the attribute but not its content."""
    value, error = read(b"body", properties)

    assert value is None
    assert told in str(error)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"id": None}, "id is missing"),
        ({"id": 1.5}, "'id' is neither text, boolean nor integer"),
        ({"rank": 1 << 31}, "'rank' is neither text, boolean nor integer"),
        ({"rank": {"a": 1}}, "'rank' is neither text"),
        ({"data": 1, "data_base64": "AAE="}, "both data and data_base64"),
        ({"data_base64": "?"}, "data_base64 is not base64"),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, "data is not text"),
        ({"my-name": "x"}, "'my-name' has a name with"),
    ],
)
def test_bad_json_of_an_event_is_reported(members: dict[str, Any], told: str) -> None:
    """The rules are those of the specification and its JSON format."""
    value, error = read(json.dumps({**EVENT, **members}).encode(), STRUCTURED)

    assert value is None
    assert told in str(error)


def test_data_that_is_none_of_the_schema_is_reported() -> None:
    """The reason gives the place, or says that the data is not JSON."""
    schema = "id string, amount decimal(10,2)"

    assert "value.data.id is a int" in str(read(b'{"id": 7}', BINARY, schema, ORDER)[1])
    assert "it is not JSON" in str(read(b"{", BINARY, schema, ORDER)[1])
    text = without("", CE_contenttype="text/plain")
    assert "which valueSchema requires" in str(read(b"{}", text, schema, ORDER)[1])


_TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=9)


@given(
    event=st.fixed_dictionaries(
        {"id": _TEXTS, "source": _TEXTS, "type": _TEXTS},
        optional={
            "subject": _TEXTS,
            "dataschema": _TEXTS,
            "datacontenttype": st.sampled_from(["application/octet-stream", "image/png"]),
            "time": st.datetimes(timezones=st.just(UTC)),
            "extensions": st.dictionaries(st.sampled_from(["a", "b1", "traceparent"]), _TEXTS),
            "data": st.binary(min_size=2),
        },
    ),
    mode=st.sampled_from(["binary", "structured"]),
)
def test_what_is_written_is_read(event: dict[str, Any], mode: ContentMode) -> None:
    """Each attribute and all data are kept, in both modes."""
    body, properties = message_of(event, mode)

    found = event_of(body, properties, None)

    assert body
    assert {name: each for name, each in found.items() if each not in (None, {})} == {
        "specversion": "1.0",
        **{name: each for name, each in event.items() if each != {}},
    }


def test_modes_write_what_the_java_sdk_reads() -> None:
    """The SDK's names of properties, its content type, and its body of an event without data are used."""
    event = {
        **EVENT,
        "data": {"id": "4711", "amount": Decimal("12.50")},
        "extensions": {"rank": "7"},
    }

    assert message_of(event, "binary") == (
        b'{"id":"4711","amount":"12.50"}',
        {
            "CE_specversion": "1.0",
            "CE_id": "e-1",
            "CE_source": "/shop",
            "CE_type": "shop.order.paid",
            "CE_rank": "7",
            "CE_contenttype": "application/json",
        },
    )
    body, properties = message_of(event, "structured")
    assert properties == {"CE_contenttype": "application/cloudevents+json"}
    assert json.loads(body) == {
        **EVENT,
        "datacontenttype": "application/json",
        "rank": "7",
        "data": {"id": "4711", "amount": "12.50"},
    }
    assert message_of(EVENT, "binary")[0] == b"\x00"


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({**EVENT, "id": None}, "id is missing"),
        ({**EVENT, "extensions": {"id": "x"}}, "extensions has id"),
        ({**EVENT, "extensions": {"my_name": "x"}}, "'my_name' has a name with"),
        ({**EVENT, "subject": ""}, "subject is missing or empty"),
        ({**EVENT, "data": "{", "datacontenttype": "text/json"}, "data is not JSON"),
    ],
)
def test_no_bad_event_is_written(event: dict[str, Any], told: str) -> None:
    """A bad event is refused before the task sends anything."""
    with pytest.raises(ValueMisfit, match=told):
        message_of(event, "structured")


def test_rows_become_events() -> None:
    """Other properties and columns stay; a row without an event is refused with the reason."""
    row = {
        "sharding_key": "4711",
        "properties": [("colour", "red"), ("CE_id", "of before")],
        "value": {**EVENT, "extensions": [("rank", "7")], "data": b"x"},
    }

    found = with_event(row, "binary")

    assert found["body"] == b"x"
    assert found["sharding_key"] == "4711"
    assert (found["properties"]["colour"], found["properties"]["CE_id"]) == ("red", "e-1")
    with pytest.raises(OptionError, match="no event: it is not a CloudEvent"):
        with_event({"value": None, "value_error": "it is not a CloudEvent"}, "binary")
    with pytest.raises(OptionError, match="the attribute id is missing"):
        with_event({"value": {**EVENT, "id": ""}}, "binary")


def test_options_name_what_is_allowed() -> None:
    """A schema of the data is optional; the sink has two modes and needs the column value."""
    options = parse_source({"topic": "orders", "valueFormat": "cloudevents"})
    assert options.value == ValueFormat("cloudevents", "")
    assert "data: binary" in value_type(options.value)
    assert "data: struct<id string>" in value_type(ValueFormat("cloudevents", "id string"))
    sink = {"topic": "orders", "appId": "load"}
    assert parse_sink({**sink, "cloudEvents": "binary"}).cloud_events == "binary"
    assert parse_sink(sink).cloud_events is None
    with pytest.raises(OptionError, match="binary or structured"):
        parse_sink({**sink, "cloudEvents": "batch"})
    with pytest.raises(OptionError, match="no column value"):
        check_columns({"body": "string"}, "orders", [], "value")


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_events_go_through_spark(spark: "SparkSession", topics: Topics) -> None:
    """A job reads the events that another job wrote; a message that is no event keeps its row."""
    topic = topics.make(queues=1)
    value = "named_struct('id', id, 'source', '/shop', 'type', 'paid', 'data', cast('x' as binary))"
    rows = spark.createDataFrame([("e-1",), ("e-2",)], ["id"]).selectExpr(
        f"{value} as value", "'key' as sharding_key", "id"
    )
    ordered(rows).write.format("orderlymq").options(
        bootstrap=topics.bootstrap,
        topic=topic,
        appId=topic,
        orderBy="id",
        cloudEvents="structured",
    ).mode("append").save()
    topics.fill(topic, [Message(topic=topic, body=b"none", key="key")])

    frame = read_batch(
        spark, bootstrap=topics.bootstrap, topic=topic, valueFormat="cloudevents"
    ).orderBy("queue_offset")
    found = frame.select("value.id", "value.source", "value.data", "value_error").collect()

    assert [(row.id, row.source, row.data) for row in found] == [
        ("e-1", "/shop", b"x"),
        ("e-2", "/shop", b"x"),
        (None, None, None),
    ]
    assert "it is not a CloudEvent" in found[2].value_error
