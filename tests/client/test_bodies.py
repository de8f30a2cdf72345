"""Typed bodies: they come back as they were, and what is something else is named without its content."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from pydantic import BaseModel

from orderlymq import BodyInvalid, Consumer, ConsumerSettings, Json, Msgpack, Producer
from orderlymq.message import ReceivedMessage
from tests.client.fakecluster import running, until
from tests.client.messages import message


class Order(BaseModel):
    id: str
    amount: int


class Point(msgspec.Struct):
    x: int


def test_values_come_back_as_they_were() -> None:
    """Models, and plain types."""
    orders, numbers, points = Json(Order), Json(list[int]), Msgpack(Point)

    assert orders.decode(replace(message(0), body=orders.encode(Order(id="o", amount=3)))) == Order(
        id="o", amount=3
    )
    assert numbers.decode(replace(message(0), body=numbers.encode([1, 2]))) == [1, 2]
    assert points.decode(replace(message(0), body=points.encode(Point(7)))) == Point(7)


@pytest.mark.parametrize(
    ("serializer", "body", "fault"),
    [
        (Json(Order), b'{"id": "secret", "amount": "secret"}', "amount: "),
        (Json(Order), b"secret", "body: Invalid JSON"),
        (Msgpack(Point), msgspec.msgpack.encode({"x": "secret"}), r"\$.x"),
    ],
)
def test_another_body_is_named_without_its_content(
    serializer: Json[Order] | Msgpack[Point], body: bytes, fault: str
) -> None:
    """The error says which message and which field."""
    with pytest.raises(BodyInvalid, match=fault) as caught:
        serializer.decode(replace(message(5), body=body))

    assert "orders broker-a:0@5" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_a_body_that_does_not_decode_goes_the_way_of_any_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried again, ends as a dead letter, and the next one is consumed."""
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
