"""One message or one member: where a message is for each group, and what a member's listener does."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import ReceivedMessage
from orderlymq_console.app import Console
from orderlymq_console.pages.member import listener_topics
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.catalogue import SendMessageHeader
from orderlymq_testing.cluster import Cluster

pytestmark = pytest.mark.cluster


async def ask(
    browser: aiohttp.ClientSession, console: Console, path: str, status: int = 200
) -> Any:
    """Return the JSON of a page."""
    async with browser.get(f"{console.url}/api{path}") as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def held(browser: aiohttp.ClientSession, console: Console) -> list[dict[str, Any]]:
    """Return the messages of the key with the held lane."""
    page = await ask(browser, console, "/topics/orders/messages?key=order-3")
    rows: list[dict[str, Any]] = page["rows"]
    return rows


def place(row: dict[str, Any]) -> str:
    return f"/message?topic=orders&queue={row['brokerGroup']}:{row['queue']}&offset={row['offset']}"


async def test_a_message_shows_where_it_is_for_each_group(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a message's page has its state per group: the one at which a lane is held, with the error, and the next one,
    which waits.
    """
    first, second, *_ = await held(browser, console)

    page = await ask(browser, console, place(first))
    later = await ask(browser, console, place(second))

    (group,) = page["groups"]
    assert (group["group"], group["state"], group["tries"]) == (
        "billing",
        "A lane is blocked at it: held.",
        1,
    )
    assert "the card service refuses" in group["lastError"]
    assert page["row"]["body"]["form"] == "json"
    (group,) = later["groups"]
    assert group["state"] == (
        f"Its key is held since offset {first['offset']}; it waits behind that message."
    )
    assert (group["tries"], group["lastError"]) == (None, "")


async def test_a_message_is_found_by_both_of_its_ids(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a message is found by its producer's id and by its place, with the body as text or hex."""
    row = (await held(browser, console))[0]

    for message_id in (row["messageId"], row["offsetMessageId"]):
        page = await ask(browser, console, f"/message?topic=orders&id={message_id}")
        assert page["row"]["offset"] == row["offset"]
    as_hex = await ask(browser, console, place(row) + "&form=hex")
    assert as_hex["row"]["body"]["text"].startswith("00000000  7b 22 6f 72 64 65 72")


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/message?topic=orders", 400, "give the queue and offset"),
        ("/message?topic=orders&queue=broker-a:0&offset=999999", 404, "there is no message"),
        ("/message?topic=orders&queue=broker-a:99&offset=0", 404, "has no queue"),
        ("/message?topic=orders&id=none", 404, "there is no message none"),
        ("/message?topic=nowhere&id=none", 404, "there is no topic"),
        ("/groups/billing/member", 400, "client must be"),
    ],
)
async def test_what_does_not_exist_is_said(
    console: Console, browser: aiohttp.ClientSession, path: str, status: int, text: str
) -> None:
    assert text in (await ask(browser, console, path, status))["error"]


@pytest.mark.parametrize("born_ms", [2**62, -(2**62), 2**47])
async def test_a_time_that_is_none_is_shown_as_the_number_that_it_is(
    console: Console, browser: aiohttp.ClientSession, troubled: Cluster, born_ms: int
) -> None:
    """Law: an impossible time, which a producer may write, is shown as its number and breaks no page."""
    topic = f"odd-{born_ms % 1000}"
    troubled.create_topic(topic, queues=1)
    header = SendMessageHeader(
        producer_group="odd",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=born_ms,
        flag=0,
    )
    async with AdminClient(troubled.name_server) as admin:
        (address,) = (await admin.brokers()).values()
        code = RequestCode.SEND_MESSAGE_V2
        await admin.instance.call(address, code, header.to_ext_v2(), b"x")
    for path in (
        f"/topics/{topic}/messages?queue=broker-a:0&offset=0",
        f"/message?topic={topic}&queue=broker-a:0&offset=0",
    ):
        async with browser.get(console.url + path) as answer:
            html = await answer.text()
        assert (answer.status, str(born_ms) in html) == (200, True), html


async def test_a_member_that_is_gone_is_unknown_with_the_reason(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a member that is gone is unknown with the reason; none of its figures becomes zero."""
    page = await ask(browser, console, "/groups/billing/member?client=nobody")

    assert page["unknown"]
    assert (page["queues"], page["stacks"], page["isSuspended"]) == ([], "", None)


async def test_a_member_shows_the_stack_of_its_running_listener(
    console: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: a member's page shows the stack of its hanging listener and what it has of its queues."""
    hangs, goes_on = threading.Event(), threading.Event()

    def wait_for_the_card_service(_: Sequence[ReceivedMessage], __: OrderedContext) -> None:
        hangs.set()
        goes_on.wait(60)

    troubled.create_topic("hanging", queues=1)
    server = troubled.name_server
    async with (
        Producer(name_servers=server) as producer,
        Consumer(
            "patient",
            server,
            topics="hanging",
            ordered=True,
            consume_from="first",
            listener=wait_for_the_card_service,
        ) as consumer,
    ):
        await producer.send("hanging", "x", key="k")
        await asyncio.to_thread(hangs.wait)
        path = f"/groups/patient/member?client={quote(consumer.client_id)}"
        page = await ask(browser, console, path)
        async with browser.get(console.url + path) as answer:
            html = await answer.text()
        goes_on.set()

    assert "wait_for_the_card_service" in page["stacks"]
    assert "wait_for_the_card_service" in html
    (queue,) = [row for row in page["queues"] if row["topic"] == "hanging"]
    assert (queue["tries"], queue["locked"], page["isSuspended"]) == (0, True, False)
    assert page["properties"]["PROP_CONSUMEORDERLY"] == "true"
    assert queue["calledMs"] > 0
    assert page["busy"] == {"value": 1, "unknown": "", "atLeast": False}
    assert page["threads"] == ConsumerSettings().consume_thread_max
    assert "Busy listener threads" in html
    (topic,) = [row for row in page["topics"] if row["topic"] == "hanging"]
    assert (topic["callMs"], topic["consumedPerSecond"], topic["failedHour"]) == (0, 0, 0)
    assert "A call takes" in html


@pytest.mark.parametrize("told", [None, [], {"orders": 5}, {"orders": {"consumeRT": "x"}}, {5: {}}])
def test_times_of_listeners_in_another_form_are_unknown(told: object) -> None:
    """Law: listener times of an unknown form are unknown, and cost nothing else."""
    assert {(row.topic, row.call_ms) for row in listener_topics(told)} <= {("orders", None)}


def test_times_of_listeners_are_numbers() -> None:
    """Law: listener times are per topic; what is no number, negative or infinite is unknown."""
    told = {"orders": {"consumeRT": 12.5, "consumeOKTPS": 3, "consumeFailedTPS": -1}}
    told["payments"] = {"consumeRT": float("nan"), "consumeOKTPS": True}

    orders, payments = listener_topics(told)

    assert (orders.call_ms, orders.consumed_per_second) == (12.5, 3)
    assert (orders.failed_per_second, orders.failed_hour) == (None, None)
    assert (payments.call_ms, payments.consumed_per_second) == (None, None)
