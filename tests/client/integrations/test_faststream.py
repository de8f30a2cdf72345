"""FastStream with its own test kit, without and with a cluster: order, acknowledgement, answers by key."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest
from faststream import AckPolicy, FastStream
from faststream.exceptions import (
    FeatureNotSupportedException,
    NackMessage,
    RejectMessage,
    SetupError,
    StopConsume,
)
from faststream.specification.asyncapi import AsyncAPI
from pydantic import BaseModel, ValidationError

from orderlymq import ClientSettings, ConsumerSettings, ProducerSettings, SettingError
from orderlymq.blocking import AdminClient
from orderlymq.consumer.listeners.context import NotBegun
from orderlymq.integrations.faststream import (
    OrderlyMQBroker,
    OrderlyMQMessage,
    OrderlyMQResponse,
    TestOrderlyMQBroker,
)
from orderlymq.oracle.events import Kind
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE
from orderlymq_protocol.codes import RequestCode
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster
from tests.client.fakecluster import running, silence
from tests.client.messages import messages
from tests.waiting import until

__all__ = ["orderlymq_cluster"]

SOON = ClientSettings(persist_consumer_offset_interval=0.05)
QUICK = ConsumerSettings(suspend_current_queue_time=0.01)


class Order(BaseModel):
    id: str
    amount: int


def make(**options: Any) -> OrderlyMQBroker:
    return OrderlyMQBroker(client_settings=SOON, logger=None, **options)


@asynccontextmanager
async def started(broker: OrderlyMQBroker) -> AsyncIterator[OrderlyMQBroker]:
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


# -- without a cluster


async def test_the_test_broker_calls_handlers_and_publishers_in_process() -> None:
    """Law: the test broker calls handlers and publishers in this process; mocks record, types are validated,
    errors reach the caller.
    """
    broker = make()
    answers = broker.publisher("bills")

    @answers
    @broker.subscriber("orders", group="billing")
    async def bill(order: Order, message: OrderlyMQMessage) -> Order:
        assert (message.key, message.headers) == ("k", {"region": "eu"})
        return Order(id=order.id, amount=order.amount * 2)

    @broker.subscriber("bills", group="archive")
    async def keep(bill: Order, message: OrderlyMQMessage) -> None:
        assert message.key == "k"

    async with TestOrderlyMQBroker(broker) as test:
        sent = await test.publish(
            Order(id="o", amount=3), "orders", key="k", headers={"region": "eu"}
        )
        with pytest.raises(ValidationError):
            await test.publish({"id": "o"}, "orders", key="k")

        assert sent.queue.topic == "orders"
        assert bill.mock.call_count == 2
        keep.mock.assert_called_once_with({"id": "o", "amount": 6})
        answers.mock.assert_called_once_with({"id": "o", "amount": 6})


async def test_a_publisher_without_a_subscriber_is_seen_by_its_mock() -> None:
    """Law: a publisher's mock sees a message without a subscriber; None is sent as JSON null,
    because a body is never empty.
    """
    broker = make()
    answers = broker.publisher("bills", headers={"from": "billing"})

    @answers
    @broker.subscriber("orders", group="billing")
    async def bill(order: str) -> None:
        pass

    async with TestOrderlyMQBroker(broker) as test:
        await test.publish("text", "orders", key="k")
        bill.mock.assert_called_once_with("text")
        answers.mock.assert_called_once_with(None)


async def test_the_test_broker_gives_handlers_what_their_tags_select() -> None:
    """Law: the test broker gives a handler only the messages that its tags select, as the service does."""
    broker = make()
    answers = broker.publisher("orders")
    got: list[str] = []

    @broker.subscriber("orders", group="billing", tags="paid || shipped")
    async def bill(text: str) -> None:
        got.append(f"bill {text}")

    @broker.subscriber("orders", group="archive")
    async def keep(text: str) -> None:
        got.append(f"keep {text}")

    async with TestOrderlyMQBroker(broker) as test:
        await test.publish("one", "orders", tags="paid")
        await test.publish("two", "orders", tags="created")
        await answers.publish("three")

    assert sorted(got) == ["bill one", "keep one", "keep three", "keep two"]


async def test_the_mock_of_a_publisher_sees_what_no_handler_wants() -> None:
    """Law: a publisher's mock sees a message that no handler's tags select."""
    broker = make()
    answers = broker.publisher("bills")

    @broker.subscriber("bills", group="archive", tags="paid")
    async def keep(text: str) -> None:
        raise AssertionError(text)

    async with TestOrderlyMQBroker(broker):
        await answers.publish("sent")
        answers.mock.assert_called_once_with("sent")
        keep.mock.assert_not_called()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"tags": "||"}, "names no tag"),
        ({"topic": "a b"}, "the topic name"),
        ({"group": "a b"}, "the group name"),
        ({"ordered": "queue"}, "ordered is 'queue'"),
    ],
)
def test_a_subscriber_that_no_consumer_could_be_is_refused_where_it_is_declared(
    wrong: dict[str, Any], text: str
) -> None:
    """Law: a subscriber with impossible settings is refused where it is declared, also with the test broker."""
    with pytest.raises(SettingError, match=text):
        make().subscriber(**{"topic": "orders", "group": "billing", **wrong})


@pytest.mark.parametrize(
    ("publish", "text"),
    [
        ({"message": "x", "key": ""}, "the key is empty"),
        ({"message": "x" * 101}, "over max value"),
        ({"message": "x", "topic": "a b"}, "the topic"),
    ],
)
async def test_the_test_broker_refuses_what_a_producer_refuses(
    publish: dict[str, Any], text: str
) -> None:
    """Law: the test broker refuses what a producer refuses."""
    broker = make(producer_settings=ProducerSettings(max_message_size_bytes=100))

    async with TestOrderlyMQBroker(broker) as test:
        with pytest.raises(SettingError, match=text):
            await test.publish(**{"topic": "orders", **publish})


async def test_what_is_not_there_is_refused() -> None:
    """Law: missing features are refused by name with an alternative; a group has one subscriber."""
    broker = make()
    subscriber = broker.subscriber("orders", group="billing")

    with pytest.raises(SetupError, match="group billing already has a subscriber"):
        broker.subscriber("bills", group="billing")
    with pytest.raises(FeatureNotSupportedException, match=r"Producer\.request"):
        await broker.request("x", "orders")
    with pytest.raises(FeatureNotSupportedException, match="get_one"):
        await subscriber.get_one()
    with pytest.raises(FeatureNotSupportedException, match="async for"):
        aiter(subscriber)
    with pytest.raises(FeatureNotSupportedException):
        await broker.publish_batch("x", queue="orders")
    assert await broker.ping(1) is False


async def test_a_ping_takes_no_longer_than_it_may() -> None:
    """Law: a ping keeps its time limit, and another kind of server counts as no answer."""
    async with running() as cluster, started(make(name_servers=cluster.address)) as broker:
        asked = cluster.faults[RequestCode.GET_BROKER_CLUSTER_INFO]
        asked += [silence, lambda command, _: command.reply(body=b"[]")]
        began_s = time.monotonic()
        silent = await broker.ping(0.05)
        took_s = time.monotonic() - began_s
        foreign = await broker.ping(None)

        assert (silent, foreign, await broker.ping(5)) == (False, False, True)
        assert took_s < 2


async def test_a_stop_before_a_handler_in_a_thread_begins_counts_no_try() -> None:
    """Law: a stop before a handler's thread begins counts no try."""
    subscriber = make().subscriber("orders", group="billing")
    subscriber(lambda text: None)
    subscriber._in_threads = subscriber.running = True

    listening = asyncio.create_task(subscriber._listen(messages(0), None))
    await asyncio.sleep(0)
    await subscriber.stop()

    with pytest.raises(NotBegun):
        await listening


def test_asyncapi_shows_topics_and_types() -> None:
    """Law: AsyncAPI shows topics and types without a cluster."""
    broker = make(description="ours")

    @broker.publisher("bills")
    @broker.subscriber("orders", group="billing", description="bills orders")
    async def bill(order: Order) -> Order:
        return order

    shown = json.loads(AsyncAPI(broker).to_specification().to_json())

    assert {each["address"] for each in shown["channels"].values()} == {"orders", "bills"}
    assert "Order" in shown["components"]["schemas"]


# -- with a cluster


@pytest.mark.parametrize("ordered", [True, "key"])
async def test_handlers_get_the_messages_of_a_key_in_order(
    orderlymq_cluster: Cluster, ordered: Literal["key"] | bool
) -> None:
    """Law: handlers get a key's messages in order, again after an error; answers keep the key."""
    for topic in ("orders", "bills"):
        orderlymq_cluster.create_topic(topic)
    if ordered == "key":
        with AdminClient() as admin:
            admin.set_group(SubscriptionGroupConfig("billing", concurrency=BY_KEY))
    broker = make()
    tries: list[int] = []
    kept: list[tuple[str | None, int]] = []

    @broker.publisher("bills")
    @broker.subscriber(
        "orders", group="billing", ordered=ordered, consume_from="first", settings=QUICK
    )
    async def bill(number: int) -> int:
        tries.append(number)
        if number == 2 and tries.count(2) < 3:
            raise ValueError(number)
        return number * 10

    @broker.subscriber("bills", group="archive", consume_from="first", settings=QUICK)
    async def keep(number: int, message: OrderlyMQMessage) -> None:
        kept.append((message.key, number))

    async with started(broker):
        assert await broker.ping(1) is True
        for number in range(5):
            await broker.publish(number, "orders", key="k")
        await until(lambda: len(kept) == 5)

    assert tries == [0, 1, 2, 2, 2, 3, 4]
    assert kept == [("k", number * 10) for number in range(5)]


async def test_the_test_broker_works_with_a_cluster_too(orderlymq_cluster: Cluster) -> None:
    """Law: with `with_real=True` the mocks see messages that came through the brokers."""
    orderlymq_cluster.create_topic("orders")
    broker = make()

    @broker.subscriber("orders", group="billing", consume_from="first")
    async def bill(order: Order) -> None:
        pass

    async with TestOrderlyMQBroker(broker, with_real=True) as real:
        await real.publish(Order(id="o", amount=3), "orders", key="k")
        await bill.wait_call(timeout=20)
        bill.mock.assert_called_once_with({"id": "o", "amount": 3})


@pytest.mark.parametrize(
    ("policy", "seen"),
    [
        (AckPolicy.NACK_ON_ERROR, ["bad", "bad", "good"]),
        (AckPolicy.REJECT_ON_ERROR, ["bad", "good"]),
        (AckPolicy.ACK, ["bad", "good"]),
        (AckPolicy.ACK_FIRST, ["bad", "good"]),
    ],
)
async def test_what_an_error_means_is_the_policy_of_the_subscriber(
    orderlymq_cluster: Cluster, policy: AckPolicy, seen: list[str]
) -> None:
    """Law: the subscriber's policy decides whether an error delivers a message again or completes it."""
    orderlymq_cluster.create_topic("orders", queues=1)
    broker = make(ack_policy=AckPolicy.MANUAL)
    got: list[str] = []

    @broker.subscriber(
        "orders", group="billing", consume_from="first", settings=QUICK, ack_policy=policy
    )
    async def bill(text: str) -> None:
        got.append(text)
        if got == ["bad"]:
            raise ValueError(text)

    async with started(broker):
        for text in ("bad", "good"):
            await broker.publish(text, "orders", key="k")
        await until(lambda: got[-1:] == ["good"])

    assert got == seen


async def test_a_handler_decides_by_itself(orderlymq_cluster: Cluster) -> None:
    """Law: a handler may decide with `ack`, `nack`, `reject` or FastStream's exceptions;
    without a decision an error delivers again.
    """
    orderlymq_cluster.create_topic("orders", queues=1)
    broker = make(ack_policy=AckPolicy.MANUAL)
    got: list[str] = []

    @broker.subscriber("orders", group="manual", consume_from="first", settings=QUICK)
    async def decide(text: str, message: OrderlyMQMessage) -> None:
        got.append(text)
        first = got.count(text) == 1
        if text == "silent" and first:
            return
        if text == "nack" and first:
            await message.nack()
        await (message.reject() if text == "reject" else message.ack())

    raised: list[str] = []

    @broker.subscriber(
        "orders", group="raises", consume_from="first", settings=QUICK, ack_policy=AckPolicy.ACK
    )
    async def throw(text: str) -> None:
        raised.append(text)
        if text == "nack" and raised.count(text) == 1:
            raise NackMessage
        if text == "reject":
            raise RejectMessage

    sent = ["silent", "nack", "reject", "last"]
    async with started(broker):
        for text in sent:
            await broker.publish(text, "orders", key="k")
        await until(lambda: got[-1:] == raised[-1:] == ["last"])

    assert got == ["silent", "silent", "nack", "nack", "reject", "last"]
    assert raised == ["silent", "nack", "nack", "reject", "last"]


async def test_a_handler_stops_its_subscriber(orderlymq_cluster: Cluster) -> None:
    """Law: a handler may stop its subscriber without waiting for itself; messages not acknowledged go to the next member."""
    orderlymq_cluster.create_topic("orders", queues=1)
    broker, other = make(), make()
    got: list[str] = []

    @broker.subscriber("orders", group="billing", consume_from="first", settings=QUICK)
    async def stop(text: str) -> None:
        got.append(f"stops at {text}")
        raise StopConsume

    @other.subscriber("orders", group="billing", consume_from="first", settings=QUICK)
    async def go_on(text: str) -> None:
        got.append(text)

    async with started(broker):
        for text in ("first", "second"):
            await broker.publish(text, "orders", key="k")
        await until(lambda: bool(got))
    async with started(other):
        await until(lambda: len(got) == 3)

    assert got == ["stops at first", "first", "second"]


async def test_a_handler_in_a_thread_that_outlives_the_consume_timeout_is_alone_with_its_key(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a threaded handler that exceeds the consume time-out stays alone with its key,
    because a thread cannot be stopped.
    """
    orderlymq_cluster.create_topic("orders", queues=1)
    with AdminClient() as admin:
        by_key = SubscriptionGroupConfig("billing", concurrency=BY_KEY, consume_timeout_minute=0)
        admin.set_group(by_key)
    broker = make()
    settings = replace(QUICK, consume_timeout=1)
    seen: list[str] = []

    @broker.subscriber(
        "orders", group="billing", ordered="key", consume_from="first", settings=settings
    )
    def handle(text: str) -> None:
        seen.append(f"{text} begins")
        time.sleep(2.5 if text == "long" else 0)
        seen.append(f"{text} ends")

    async with started(broker):
        for text in ("long", "next"):
            await broker.publish(text, "orders", key="k")
        await until(lambda: "next ends" in seen)

    assert seen == ["long begins", "long ends", "next begins", "next ends"]


@pytest.mark.long
@pytest.mark.parametrize("ordered", [True, "key"])
async def test_a_handler_in_a_thread_that_outlives_its_service_keeps_its_lock(
    orderlymq_cluster: Cluster, ordered: Literal["key"] | bool
) -> None:
    """Law: a threaded handler that outlives its service keeps its lock until the lease ends."""
    orderlymq_cluster.create_topic("orders", queues=1)
    by_key = SubscriptionGroupConfig(
        "billing", concurrency=BY_KEY if ordered == "key" else BY_QUEUE
    )
    broker = make()
    begun, finish = threading.Event(), threading.Event()

    @broker.subscriber(
        "orders",
        group="billing",
        ordered=ordered,
        consume_from="first",
        settings=ConsumerSettings(shutdown_timeout=0.05),
    )
    def handle(text: str) -> None:
        begun.set()
        finish.wait(30)

    try:
        with AdminClient() as admin:
            admin.set_group(by_key)
            async with started(broker):
                await broker.publish("long", "orders", key="k")
                await until(begun.is_set)
            held = len(admin.locks("billing"))
            held += sum(each.in_hand for each in admin.lanes("billing").queues)
    finally:
        finish.set()

    assert held == 1


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("ordered", [False, True, "key"])
async def test_a_stop_fails_no_message_that_no_handler_has_seen(
    orderlymq_cluster: Cluster, ordered: Literal["key"] | bool, concurrency: int
) -> None:
    """Law: a stop counts no try for messages that no handler has seen."""
    orderlymq_cluster.create_topic("orders", queues=2)
    if ordered == "key":
        with AdminClient() as admin:
            admin.set_group(SubscriptionGroupConfig("billing", concurrency=BY_KEY))
    broker, other = make(), make()
    tries: dict[str, int] = {}
    begun, finish = asyncio.Event(), asyncio.Event()

    async def handle(text: str, message: OrderlyMQMessage) -> None:
        if text == "long":
            begun.set()
            await finish.wait()
        assert text not in tries
        tries[text] = message.raw_message.message.reconsume_times

    for each in (broker, other):
        each.subscriber(
            "orders",
            group="billing",
            ordered=ordered,
            concurrency=concurrency,
            consume_from="first",
            settings=ConsumerSettings(suspend_current_queue_time=0.01, max_reconsume_times=1),
        )(handle)

    async with started(broker):
        await broker.publish("long", "orders", key="k")
        await begun.wait()
        for number in range(4):
            await broker.publish(f"early {number}", "orders", key=number)
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0)
        for number in range(4):
            await broker.publish(f"late {number}", "orders", key=number)
        await asyncio.sleep(0.3)  # Until they would be given to a consumer that is not suspended.
        assert not any(text.startswith("late") for text in tries)
        finish.set()
        await stopping
    async with started(other):
        await until(lambda: len(tries) == 9)

    assert set(tries.values()) == {0}
    assert not [e for e in orderlymq_cluster.recording.events if e.kind is Kind.FAILED]


async def test_an_application_runs_until_it_is_asked_to_end(orderlymq_cluster: Cluster) -> None:
    """Law: a FastStream application runs until it is asked to end; a response may set key and headers."""
    for topic in ("orders", "bills"):
        orderlymq_cluster.create_topic(topic)
    broker = make()
    app = FastStream(broker, logger=None)
    got: list[tuple[str | None, dict[str, str], str]] = []

    @broker.publisher("bills", headers={"from": "billing", "kind": "bill"})
    @broker.subscriber("orders", group="billing", consume_from="first")
    async def bill(text: str) -> OrderlyMQResponse:
        return OrderlyMQResponse(text.upper(), key="other", headers={"kind": "special"})

    @broker.subscriber("bills", group="archive", consume_from="first")
    async def keep(text: str, message: OrderlyMQMessage) -> None:
        got.append((message.key, message.headers, text))
        app.exit()

    @app.after_startup
    async def send() -> None:
        await broker.publish("text", "orders", key="k", tags="T", correlation_id="c")

    async with asyncio.timeout(30):
        await app.run()

    assert got == [("other", {"from": "billing", "kind": "special"}, "TEXT")]


@pytest.mark.parametrize("nothing", ["", b"", None])
async def test_a_handler_may_return_nothing(
    orderlymq_cluster: Cluster, nothing: str | bytes | None
) -> None:
    """Law: a handler may return an empty value, which is sent as JSON because a body is never empty."""
    for topic in ("orders", "bills"):
        orderlymq_cluster.create_topic(topic, queues=1)
    broker = make()
    got: asyncio.Queue[str | bytes | None] = asyncio.Queue()

    @broker.publisher("bills")
    @broker.subscriber("orders", group="billing", consume_from="first", settings=QUICK)
    async def bill(text: str) -> str | bytes | None:
        return nothing if text == "nothing" else text

    @broker.subscriber("bills", group="archive", consume_from="first")
    async def keep(text: str | None) -> None:
        got.put_nowait(text)

    async with started(broker), asyncio.timeout(20):
        for text in ("nothing", "next"):
            await broker.publish(text, "orders", key="k")
        assert await got.get() == (None if nothing is None else "")
        assert await got.get() == "next"


async def test_a_message_that_cannot_be_sent_is_refused_in_the_sdks_words(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a message that cannot be sent is refused with the SDK's error before anything is sent."""
    async with started(make()) as broker:
        with pytest.raises(SettingError, match="the key is empty"):
            await broker.publish("x", "orders", key="")
        with pytest.raises(SettingError, match="property name KEYS is reserved"):
            await broker.publish("x", "orders", headers={"KEYS": "x"})
