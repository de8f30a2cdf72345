"""Programs of guides, meant for a reader's own service, do what the page says; a cluster in this process answers them."""

import ast
import asyncio
import contextlib
import inspect
import runpy
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orderlymq import (
    AdminClient,
    Avro,
    BodyInvalid,
    ConcurrentContext,
    Consumer,
    LitePullConsumer,
    Producer,
    ProducerSettings,
    ReceivedMessage,
    blocking,
)
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster
from tests.docs.tutorial import HOWTO, ROOT, blocks

__all__ = ["orderlymq_cluster"]

PYTHON = HOWTO / "python.md"
TRANSACTIONS = HOWTO / "transactions.md"
Names = dict[str, Any]


def programs(page: Path, section: str = "") -> list[str]:
    """Return the Python programs of a page, or of one of its sections."""
    return [each.text for each in blocks(page, section) if each.language == "python"]


async def carry_out(program: str, names: Names | None = None) -> Names:
    """Run *program* with the given *names*; return all names afterwards. It may await outside of functions."""
    code = compile(program, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = {**(names or {}), "__name__": "page"}
    left = eval(code, made)
    if inspect.iscoroutine(left):
        await left
    return made


async def printed(output: pytest.CaptureFixture[str], *lines: str) -> None:
    """Return when each of *lines* was printed."""
    said = ""
    async with asyncio.timeout(20):
        while any(line not in said for line in lines):
            await asyncio.sleep(0.01)
            said += output.readouterr().out


async def send(*steps: str | bytes) -> None:
    """Send the steps of one order."""
    async with Producer() as producer:
        for step in steps:
            await producer.send("orders", step, key="order-4711")


@contextlib.asynccontextmanager
async def beside(coroutine: Any) -> AsyncIterator[None]:
    """Run an endless coroutine during the block."""
    task = asyncio.ensure_future(coroutine)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_first_program_sends(orderlymq_cluster: Cluster) -> None:
    """The address on the page is replaced by the cluster's."""
    orderlymq_cluster.create_topic("orders")
    program = programs(PYTHON)[0]
    assert "10.0.0.5:9876" in program

    await carry_out(program.replace("10.0.0.5:9876", orderlymq_cluster.name_server))

    assert orderlymq_cluster.verdict().counts["acknowledged"] == 1


async def test_a_payment_whose_answer_is_late_is_stored_once(orderlymq_cluster: Cluster) -> None:
    """The program sends the same object again if the result is unknown."""
    orderlymq_cluster.create_topic("orders", queues=1)
    (program,) = programs(PYTHON, "Errors of a send")
    pay = (await carry_out(program))["pay"]
    settings = ProducerSettings(send_message_timeout=2.0, retry_times_when_send_failed=0)

    async with Producer(settings=settings) as producer:
        await producer.send("orders", "created", key="order-4711", timeout=20)
        orderlymq_cluster.delay("send", by=2.2)
        await pay(producer)
    async with AdminClient() as admin:
        stats = await admin.topic_stats("orders")

    assert [each.max_offset for each in stats.values()] == [2]


async def test_the_listener_of_the_page_listens_in_order(
    orderlymq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The listener prints the messages that it gets, and returns."""
    orderlymq_cluster.create_topic("orders")
    (program,) = programs(PYTHON, "Listen in order")
    listener = (await carry_out(program))["listener"]

    async with Consumer("billing", topics="orders", ordered=True, listener=listener):
        await send("created", "paid")
        await printed(capsys, "order-4711 created\norder-4711 paid")


async def test_a_consumer_by_key_books_each_message(orderlymq_cluster: Cluster) -> None:
    """The reader's own code books a message; the block continues until all are booked."""
    orderlymq_cluster.create_topic("orders")
    (program,) = programs(PYTHON, "Consume by key")
    booked: list[str] = []

    async def book(message: ReceivedMessage) -> None:
        booked.append(message.text)

    async def all_booked() -> None:
        await send("created", "paid")
        async with asyncio.timeout(20):
            while len(booked) < 2:  # noqa: ASYNC110 - the listener is called elsewhere
                await asyncio.sleep(0.01)

    program = program.replace("    ...\n", "    await all_booked()\n")
    await carry_out(program, {"book": book, "all_booked": all_booked})

    assert booked == ["created", "paid"]


async def test_the_loop_of_the_page_prints_what_comes(
    orderlymq_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop waits for more messages until its task is cancelled."""
    orderlymq_cluster.create_topic("orders")
    (program,) = programs(PYTHON, "Loop over messages")
    made = await carry_out(program)

    async with beside(made["bill"]()):
        await send("created", "paid")
        await printed(capsys, "order-4711 created", "order-4711 paid")
    await made["bill_for"](0.1)


async def test_typed_bodies_are_read_by_their_type_and_by_newer_ones(
    orderlymq_cluster: Cluster,
) -> None:
    """A reader with both schemas reads messages that a writer with the first one sent."""
    orderlymq_cluster.create_topic("orders")
    typed, evolving = [await carry_out(each) for each in programs(PYTHON, "Typed bodies")]
    order: BaseModel = typed["Order"](number=4711, total=12.5)
    bill = typed["ORDERS"].encode(order)
    first = Avro(dict, evolving["FIRST"]).encode({"number": 4711})
    await send(bill, "no order", first)

    read: list[ReceivedMessage] = []
    async with Consumer("billing", topics="orders", ordered=True, consume_from="first") as consumer:
        async for message in consumer:
            read.append(message)
            if len(read) == 3:
                break

    assert typed["ORDERS"].decode(read[0]) == order
    with pytest.raises(BodyInvalid):
        typed["ORDERS"].decode(read[1])
    assert evolving["BILLS"].decode(read[2]) == evolving["Bill"](4711, "EUR")


async def test_the_test_of_the_page_passes(orderlymq_cluster: Cluster) -> None:
    """A leader is killed during the page's test."""
    (program,) = programs(PYTHON, "Test against a real cluster")
    made = await carry_out(program)

    await made["test_orders_are_consumed_in_order"](orderlymq_cluster)

    assert orderlymq_cluster.verdict().counts["delivered"] == 2


def test_every_program_of_the_guide_for_python_is_carried_out_here() -> None:
    """A new program needs a test."""
    assert len(programs(PYTHON)) == 8
    assert len(programs(TRANSACTIONS)) == 2


async def test_a_booking_is_announced_once_it_is_committed(orderlymq_cluster: Cluster) -> None:
    """`book` and `was_booked` come from the example that the page names."""
    orderlymq_cluster.create_topic("booked")
    (program,) = programs(
        TRANSACTIONS,
        "A message that depends on a local transaction",
    )
    example = ROOT / "examples" / "python" / "transaction.py"
    made = await asyncio.to_thread(runpy.run_path, str(example))

    await asyncio.to_thread(asyncio.run, carry_out(program, made))

    consumer = LitePullConsumer("audit", consume_from="first")
    consumer.subscribe("booked")
    seen: list[str] = []
    async with consumer:
        async with asyncio.timeout(20):
            while len(seen) < 3:
                seen += [message.text for message in await consumer.poll(1)]
        await consumer.commit()
    assert seen == ["chair", "table", "chair"]


async def test_a_question_gets_its_reply(orderlymq_cluster: Cluster) -> None:
    """The first line sends the request; the second is in the listener that answers."""
    orderlymq_cluster.create_topic("questions")
    (program,) = programs(TRANSACTIONS, "Requests and replies")
    ask, answer = program.splitlines()
    async with Producer("prices") as producer:

        async def listener(messages: Sequence[ReceivedMessage], _: ConcurrentContext) -> None:
            for message in messages:
                await carry_out(answer, {"producer": producer, "message": message})

        async with Consumer("price-desk", topics="questions", ordered=False, listener=listener):
            made = await carry_out(ask.replace("timeout=3", "timeout=20"), {"producer": producer})

    assert made["reply"].text == "costs 12"


def test_a_condition_on_properties_is_what_a_consumer_subscribes_to() -> None:
    """The page shows its effect by commands, which another test runs."""
    (program,) = programs(HOWTO / "filters.md")
    consumer = blocking.LitePullConsumer("by-amount")

    exec(program, {"consumer": consumer})
