"""Actions on offsets: a reset or skip shows each queue before, and does exactly that or nothing."""

import asyncio
import re
from collections.abc import Sequence

import aiohttp
import pytest

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.message import ReceivedMessage
from orderlymq_console.app import Console
from orderlymq_console.links import skip_link
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_testing.cluster import Cluster
from tests.console.signedin import ALICE, RESET, Log, fields, post, sign_in

pytestmark = pytest.mark.cluster


async def test_a_reset_shows_each_queue_and_moves_the_group(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Law: a reset shows for each queue how many messages are skipped or repeated, and then moves the group."""
    await sign_in(browser, guarded, ALICE)
    async with browser.get(f"{guarded.url}{RESET}&to=earliest") as answer:
        earliest = await answer.text()
    form = await fields(browser, guarded, f"{RESET}&to=earliest")
    status, html = await post(browser, guarded, RESET, {**form, "confirm": "billing"})
    async with AdminClient(troubled.name_server) as admin:
        offsets = [each.consumer_offset for each in (await admin.progress("billing")).values()]

    assert "messages again" in earliest
    assert (status, "4 queues moved" in html) == (200, True), html
    assert offsets == [0, 0, 0, 0]
    assert [(line["action"], line["outcome"]) for line in log.lines] == [
        ("reset", "begins"),
        ("reset", "done: 4 queues moved"),
    ]
    for wrong in ("", "yesterday", "1900-01-01", "9" * 39, "offset", "offset&queue=broker-a:0"):
        async with browser.get(f"{guarded.url}{RESET}&to={wrong}") as answer:
            assert answer.status == 400


async def progress(cluster: Cluster, topic: str) -> list[tuple[int, int]]:
    """Return offset and end of each queue of the group billing."""
    async with AdminClient(cluster.name_server) as admin:
        found = await admin.progress("billing", topic)
    return [(each.consumer_offset, each.broker_offset) for each in found.values()]


async def test_a_reset_to_the_end_ends_where_it_was_shown(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: a reset to the end goes to the end that was shown; later messages are still delivered."""
    troubled.create_topic("later", queues=1)
    path = "/groups/billing/reset?topic=later&to=latest"
    await sign_in(browser, guarded, ALICE)
    async with Producer(name_servers=troubled.name_server) as producer:
        await producer.send("later", "1", key="k")
        form = await fields(browser, guarded, path)
        await producer.send("later", "2", key="k")
    status, html = await post(browser, guarded, path, {**form, "confirm": "billing"})

    assert (status, "1 queue moved" in html) == (200, True), html
    assert await progress(troubled, "later") == [(1, 2)]


async def test_a_reset_of_a_group_that_has_gone_on_is_refused(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Law: a reset is refused if the group has consumed since the preview, or the stamp has other offsets;
    nothing is moved or logged.
    """
    troubled.create_topic("moving", queues=1)
    queue = MessageQueue("moving", "broker-a", 0)
    path = "/groups/billing/reset?topic=moving&to=earliest"
    await sign_in(browser, guarded, ALICE)
    async with (
        AdminClient(troubled.name_server) as admin,
        Producer(name_servers=troubled.name_server) as producer,
    ):
        for text in "123":
            await producer.send("moving", text, key="k")
        await admin.set_offsets("billing", "moving", {queue: 2})
        form = {**await fields(browser, guarded, path), "confirm": "billing"}
        await admin.set_offsets("billing", "moving", {queue: 3})
        moved = await post(browser, guarded, path, form)
        stamps = ('[["broker-a",0,3,4]]', '[["broker-a",0,3,-1]]', '[["broker-a",0,3]]', "[", "[7]")
        forged = [await post(browser, guarded, path, form | {"stamp": each}) for each in stamps]

    assert (moved[0], "The state has changed since" in moved[1]) == (409, True), moved
    assert [status for status, _ in forged] == [409] * 5
    assert await progress(troubled, "moving") == [(3, 3)]
    assert log.lines == []


async def test_a_link_cannot_have_a_preview_show_other_offsets(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: a link with a false stamp cannot change what a preview shows: a reset to the earliest message goes there."""
    troubled.create_topic("linked", queues=1)
    async with Producer(name_servers=troubled.name_server) as producer:
        await producer.send("linked", "1", key="k")
    async with AdminClient(troubled.name_server) as admin:
        await admin.set_offsets("billing", "linked", {MessageQueue("linked", "broker-a", 0): 1})
    path = "/groups/billing/reset?topic=linked&to=earliest"
    await sign_in(browser, guarded, ALICE)

    form = await fields(browser, guarded, path + '&stamp=[["broker-a",0,1,1]]')

    assert form["stamp"] == '[["broker-a", 0, 1, 0]]'


async def test_one_message_of_one_queue_is_skipped_with_the_next_ones_shown(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Law: a skip passes one message of one queue, shown with the next ones; other queues stay,
    and the audit log has the offset.
    """
    troubled.create_topic("poison", queues=2)
    first, second = (MessageQueue("poison", "broker-a", number) for number in (0, 1))
    path = skip_link("billing", "poison", "broker-a", 0, 1)
    await sign_in(browser, guarded, ALICE)
    async with (
        AdminClient(troubled.name_server) as admin,
        Producer(name_servers=troubled.name_server) as producer,
    ):
        for text in ("before", "poison", "next", "after"):
            await producer.send("poison", text, queue=0)
            await producer.send("poison", text, queue=1)
        await admin.set_offsets("billing", "poison", {first: 1, second: 1})
    async with browser.get(guarded.url + path) as answer:
        shown = await answer.text()
    form = {**await fields(browser, guarded, path), "confirm": "billing"}
    status, html = await post(browser, guarded, path, form)
    for wrong in ("7", "-1", "x"):
        async with browser.get(f"{guarded.url}{path.rpartition('=')[0]}={wrong}") as answer:
            assert answer.status == 400

    assert "continues at offset 2 in queue broker-a:0 of poison: it skips 1 message" in shown
    assert re.findall(r"<pre[^>]*>([^<]*)</pre>", shown) == ["poison", "next", "after"]
    assert shown.count("badge critical") == 1
    assert (status, "1 queue moved" in html) == (200, True), html
    assert await progress(troubled, "poison") == [(2, 4), (1, 4)]
    assert log.lines[0]["thing"] == {
        "group": "billing",
        "topic": "poison",
        "name": "billing",
        "stamp": '[["broker-a", 0, 1, 2]]',
        "to": "offset",
        "queue": "broker-a:0",
        "offset": "2",
    }


async def test_a_member_goes_on_behind_the_message_that_is_skipped(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: a running member goes on after the skipped message and is never called with it again."""
    troubled.create_topic("stuck", queues=1)
    path = skip_link("waiters", "stuck", "broker-a", 0, 0)
    consumed: list[str] = []
    fails = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        if messages[0].text == "poison":
            loop.call_soon_threadsafe(fails.set)
            raise RuntimeError("never")
        consumed.extend(message.text for message in messages)

    await sign_in(browser, guarded, ALICE)
    async with (
        Producer(name_servers=troubled.name_server) as producer,
        Consumer(
            "waiters",
            troubled.name_server,
            topics="stuck",
            ordered=True,
            consume_from="first",
            listener=listen,
        ),
    ):
        for text in ("poison", "next", "after"):
            await producer.send("stuck", text, key="k")
        await fails.wait()
        form = {**await fields(browser, guarded, path), "confirm": "waiters"}
        status, html = await post(browser, guarded, path, form)
        while len(consumed) < 2:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.02)

    assert (status, "1 queue moved" in html) == (200, True), html
    assert consumed == ["next", "after"]
