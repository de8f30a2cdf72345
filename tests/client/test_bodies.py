"""Typed bodies: values come back unchanged, and a wrong body is named without its content."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from io import BytesIO
from typing import Any, Literal

import msgspec
import pytest
from fastavro import schemaless_writer
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from orderlymq import (
    Avro,
    BodyInvalid,
    Consumer,
    ConsumerSettings,
    Json,
    Msgpack,
    Producer,
    SettingError,
)
from orderlymq.message import ReceivedMessage
from tests.client.fakecluster import running
from tests.client.messages import message
from tests.waiting import until


class Order(BaseModel):
    id: str
    amount: int


class Point(msgspec.Struct):
    x: int


class Aliased(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    order_id: int
    paid_in: str = Field(alias="currency")


class One(BaseModel):
    kind: Literal["one"]


class Two(BaseModel):
    kind: Literal["two"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    checked: str = ""
    shape: One | Two = Field(One(kind="one"), discriminator="kind")

    @field_validator("checked")
    @classmethod
    def check(cls, value: str) -> str:
        raise ValueError(f"{value} is wrong")


class Kind(Enum):
    A = "a"


class Small(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""

    def __post_init__(self) -> None:
        if self.name:
            raise ValueError(f"{self.name} - at `$.{self.name}`")


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Json(Order), Order(id="o", amount=3)),
        (Json(list[int]), [1, 2]),
        (Json(Aliased), Aliased(orderId=1, currency="EUR")),
        (Json(list[Aliased]), [Aliased(orderId=1, currency="EUR")]),
        (Msgpack(Point), Point(7)),
        (Msgpack(Kind), Kind.A),
    ],
)
def test_values_come_back_as_they_were(serializer: Json[Any] | Msgpack[Any], value: object) -> None:
    """Law: models, also with aliases, and plain types come back unchanged."""
    assert serializer.decode(replace(message(0), body=serializer.encode(value))) == value


class Hidden(BaseModel):
    number: int = Field(exclude=True)


@pytest.mark.parametrize(
    ("serializer", "value", "fault"),
    [
        (Json(Order), {"id": "secret"}, "it is a dict"),
        (Json(Order), Order.model_construct(id=1, amount=1), "other types"),  # type: ignore[arg-type]  # as users err
        (Json(Order), object(), "it is a object"),
        (Json(Hidden), Hidden(number=1), "number: missing"),
        (Json(dict[str, float]), {"secret": float("nan")}, r"\*: float_type"),
        (Msgpack(Point), {"secret": 1}, "missing required field `x`"),
        (Msgpack(Point), Point("secret"), r"got `str` - at `\$\.x`"),  # type: ignore[arg-type]  # as users err
        (Msgpack(int), object(), "it is a object"),
        (Msgpack(int), 2**70, "cannot encode"),
    ],
)
def test_a_value_whose_body_would_be_refused_is_not_written(
    serializer: Json[Any] | Msgpack[Any], value: object, fault: str
) -> None:
    """Law: a value whose body could not be read is refused before it is sent, without its content in the error."""
    with pytest.raises(BodyInvalid, match=f"the value is not a valid .*{fault}") as caught:
        serializer.encode(value)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("serializer", "body", "fault"),
    [
        (Json(Order), b'{"id": "secret", "amount": "secret"}', "amount: int_parsing"),
        (Json(Order), b"secret", "body: json_invalid"),
        (Json(dict[str, int]), b'{"secret": "x"}', r"\*: int_parsing"),
        (Json(dict[str, list[Order]]), b'{"secret": [{"id": ""}]}', r"\*\.0\.amount: missing"),
        (Json(Strict), b'{"secret": 1}', r"\*: extra_forbidden"),
        (Json(Strict), b'{"checked": "secret"}', "checked: value_error"),
        (Json(Strict), b'{"shape": {"kind": "secret"}}', "shape: union_tag_invalid"),
        (Msgpack(Point), msgspec.msgpack.encode({"x": "secret"}), r"\$.x"),
        (Msgpack(Kind), msgspec.msgpack.encode("secret"), "Invalid enum value"),
        (Msgpack(Small), msgspec.msgpack.encode({"secret": 1}), "does not fit"),
        (Msgpack(Small), msgspec.msgpack.encode({"name": "secret"}), "does not fit"),
        (Msgpack(str), b"\xa7secret\xff", "does not fit"),
        (Msgpack(list), b"\x91" * 100_000, "does not fit"),
    ],
)
def test_another_body_is_named_without_its_content(
    serializer: Json[Any] | Msgpack[Any], body: bytes, fault: str
) -> None:
    """Law: the error for a wrong body names message and field, not the content."""
    with pytest.raises(BodyInvalid, match=fault) as caught:
        serializer.decode(replace(message(5), body=body))

    assert "orders broker-a:0@5" in str(caught.value)
    assert "secret" not in str(caught.value)


class Bill(msgspec.Struct):
    id: str
    amount: int
    paid_at: datetime | None = None
    price: Decimal = Decimal(0)


def avro_record(*fields: dict[str, Any], name: str = "Bill") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


ID: dict[str, Any] = {"name": "id", "type": "string"}
AMOUNT: dict[str, Any] = {"name": "amount", "type": "long"}
PAID: dict[str, Any] = {
    "name": "paid_at",
    "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
    "default": None,
}
PRICE: dict[str, Any] = {
    "name": "price",
    "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "default": "",
}


def test_avro_values_come_back_with_their_logical_types() -> None:
    """Law: Avro values come back with logical types; the head is the specification's."""
    bills = Avro(Bill, json.dumps(avro_record(ID, AMOUNT, PAID, PRICE)))
    bill = Bill("o", 3, datetime(2026, 1, 31, 12, tzinfo=UTC), Decimal("9.50"))
    numbers: Avro[int] = Avro(int, '"int"')

    assert bills.decode(replace(message(0), body=bills.encode(bill))) == bill
    # Fingerprint and marker of the schema "int", and 5 in zigzag.
    assert numbers.encode(5) == bytes.fromhex("c301 8f5c393f1ad57572 0a")


def test_avro_readers_and_writers_change_their_schemas_at_different_times() -> None:
    """Law: an Avro reader that knows the writer's schema adds defaults and drops removed fields."""
    old, new = avro_record(ID, AMOUNT), avro_record(ID, AMOUNT, PAID)
    written = Avro(dict[str, Any], old).encode({"id": "o", "amount": 3})
    renamed = avro_record(ID, {**AMOUNT, "type": "string"})

    assert Avro(Bill, new, old).decode(replace(message(0), body=written)) == Bill("o", 3)
    with pytest.raises(BodyInvalid, match=r"its schema [0-9a-f]{16} is unknown"):
        Avro(Bill, new).decode(replace(message(0), body=written))
    with pytest.raises(
        BodyInvalid, match=r"cannot be read by its schema \(SchemaResolutionError\)"
    ):
        Avro(Bill, renamed, old).decode(replace(message(0), body=written))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda _: b"secret", "no head"),
        (lambda body: body[:9], "no head"),
        (lambda body: body[:-1], "cannot be read by its schema"),
        (lambda body: body + b"s", "bytes follow"),
        (lambda body: body[:10] + b"\x0c\xff\xffcret\x02", r"\(UnicodeDecodeError\)"),
    ],
)
def test_another_body_is_no_avro_of_the_schema(
    change: Callable[[bytes], bytes], fault: str
) -> None:
    """Law: a body of another schema raises one error without content."""
    bills = Avro(dict[str, Any], avro_record(ID, AMOUNT))
    body = change(bills.encode({"id": "secret", "amount": 3}))

    with pytest.raises(BodyInvalid, match=fault) as caught:
        bills.decode(replace(message(5), body=body))

    assert "orders broker-a:0@5" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "cret" not in str(caught.value).replace("secret", "")


@given(tail=st.binary(max_size=64))
def test_no_bytes_break_a_reader(tail: bytes) -> None:
    """Law: any bytes behind the right head are read or raise that error."""
    bills = Avro(dict[str, Any], avro_record(ID, AMOUNT, PAID))
    head = bills.encode({"id": "", "amount": 0})[:10]
    try:
        bill = bills.decode(replace(message(0), body=head + tail))
    except BodyInvalid:
        return
    assert set(bill) == {"id", "amount", "paid_at"}


def test_a_value_or_schema_that_does_not_fit_is_refused_where_it_is_made() -> None:
    """Law: a wrong value or schema is refused where it is made."""
    loose = Avro(dict[str, Any], avro_record(ID, {**AMOUNT, "type": "string"}))
    strict = Avro(Bill, avro_record(ID, {**AMOUNT, "type": "string"}))

    with pytest.raises(ValueError, match="amount"):
        loose.encode({"id": "o"})
    with pytest.raises(ValueError, match="more fields than the schema"):
        Avro(Bill, avro_record(ID, AMOUNT)).encode(Bill("o", 1))
    with pytest.raises(BodyInvalid, match=r"Expected `int`, got `str` - at `\$.amount`"):
        strict.decode(replace(message(0), body=loose.encode({"id": "o", "amount": "x"})))
    for wrong in ('{"type": "nothing"}', "{", {"type": "record"}):
        with pytest.raises(SettingError, match="this is not an Avro schema"):
            Avro(Bill, wrong)


@pytest.mark.parametrize(
    ("items", "refused"),
    [
        ("null", True),
        ({"type": "null"}, True),
        ({"type": "record", "name": "Empty", "fields": []}, True),
        ({"type": "record", "name": "Nulls", "fields": [{"name": "n", "type": "null"}]}, True),
        ({"type": "fixed", "name": "None", "size": 0}, True),
        ({"type": "array", "items": "null"}, True),
        (["null", "int"], False),
        ("int", False),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, False),
        ({"type": "record", "name": "R", "fields": [ID]}, False),
        ({"type": "map", "values": "null"}, False),
    ],
)
def test_a_short_body_cannot_hold_any_number_of_items(items: Any, refused: bool) -> None:
    """Law: an array whose items take no bytes is refused in a schema, because a short body could hold any number."""
    field = {"name": "many", "type": ["null", {"type": "array", "items": items}]}
    if refused:
        with pytest.raises(SettingError, match="take no bytes"):
            Avro(dict[str, Any], avro_record(ID, field))
        with pytest.raises(SettingError, match="take no bytes"):
            Avro(dict[str, Any], avro_record(ID), avro_record(field))
    else:
        Avro(dict[str, Any], avro_record(ID, field))


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@pytest.mark.parametrize(
    "inner", [NODE, {"type": "array", "items": NODE}, {**NODE, "namespace": "shop"}]
)
def test_a_body_cannot_nest_without_an_end(inner: Any) -> None:
    """Law: a schema that contains itself is refused; a nested body could end a process."""
    field = {"name": "chain", "type": ["null", inner]}
    with pytest.raises(SettingError, match="Node is recursive"):
        Avro(dict[str, Any], avro_record(ID, field))
    with pytest.raises(SettingError, match="Node is recursive"):
        Avro(dict[str, Any], avro_record(ID), avro_record(field))


NET = {"name": "net", "type": {"type": "record", "name": "Price", "fields": [PRICE]}}
BILLED = avro_record(NET, {"name": "gross", "type": "Price"})


def test_a_type_may_be_named_again_beside_itself() -> None:
    """Law: a type may be used twice side by side."""
    bills: Avro[dict[str, Any]] = Avro(dict[str, Any], BILLED)
    value = {each: {"price": Decimal("9.50")} for each in ("net", "gross")}

    assert bills.decode(replace(message(0), body=bills.encode(value))) == value


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("count", "is_read"), [(9 + 16, True), (9 + 17, False), (2**20, False)])
def test_a_decimal_has_no_more_digits_than_its_schema_says(
    place: int, count: int, is_read: bool
) -> None:
    """Law: a decimal has no more digits than its schema says; reading 100 KB of one number took ten seconds."""
    bills: Avro[dict[str, Any]] = Avro(dict[str, Any], BILLED)
    value = {each: {"price": Decimal("0.00")} for each in ("net", "gross")}
    body = BytesIO()
    body.write(bills.encode(value)[:10])
    for at in range(2):
        schemaless_writer(body, "bytes", bytes(count if at == place else 1))
    received = replace(message(0), body=body.getvalue())

    if is_read:
        assert bills.decode(received) == value
    else:
        with pytest.raises(BodyInvalid, match=r"cannot be read by its schema \(ValueError\)"):
            bills.decode(received)


async def test_a_body_that_does_not_decode_goes_the_way_of_any_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a body that cannot be decoded is tried again and becomes a dead letter; the next one is consumed."""
    orders, seen = Json(Order), list[Order]()

    async def listener(messages: Sequence[ReceivedMessage], _context: object) -> None:
        seen.extend(orders.decode(each) for each in messages)

    settings = ConsumerSettings(max_reconsume_times=1, suspend_current_queue_time=0.01)
    async with (
        running(topics={"T": 1}, ordered=True) as cluster,
        Producer("P", cluster.address) as producer,
        Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            listener=listener,
            settings=settings,
        ),
    ):
        await producer.send("T", b"{}", key="k")
        await producer.send("T", orders.encode(Order(id="o", amount=3)), key="k")
        await until(lambda: len(seen) == 1)
        assert len(cluster.bodies("%DLQ%G", 0)) == 1

    assert "BodyInvalid: the body of ReceivedMessage(T " in caplog.text
