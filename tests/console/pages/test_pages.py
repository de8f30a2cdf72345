"""Each page of a real cluster, as HTML and JSON, and how many questions it costs."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from orderlymq import Producer
from orderlymq_console.app import Console
from orderlymq_console.web.viewers import VIEWERS_MAX
from orderlymq_console.web.views import VIEWS
from orderlymq_testing.cluster import Cluster
from tests.console.conftest import HOSTILE_BODY, HOSTILE_ERROR, HOSTILE_KEY

pytestmark = pytest.mark.cluster


async def get(browser: aiohttp.ClientSession, console: Console, path: str) -> Any:
    """Return the JSON of a page."""
    async with browser.get(f"{console.url}/api{path}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def show(browser: aiohttp.ClientSession, console: Console, path: str) -> str:
    """Return the HTML of a page."""
    async with browser.get(console.url + path) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


async def test_the_first_page_says_in_one_sentence_what_is_wrong(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: the first page says in one sentence what is wrong; before the leader has looked,
    and before two looks for rates, it is unknown.
    """
    page = await get(browser, console, "/overview")
    assert page["messagesIn"] == {
        "value": None,
        "unknown": "a rate needs two readings a second apart",
        "atLeast": False,
    }
    while page["blocked"]["value"] != 1 or page["messagesIn"]["value"] is None:
        assert page["blocked"]["value"] in (None, 0, 1)
        await asyncio.sleep(0.2)
        page = await get(browser, console, "/overview")

    assert (page["state"], page["sentence"]) == ("troubled", "1 key waits for a release.")
    (group,) = page["brokerGroups"]
    assert (group["name"], group["leader"], group["unknown"]) == ("broker-a", 1, "")
    assert page["messagesIn"]["value"] == 0
    assert [(row["group"], row["topic"]) for row in page["lags"]] == [("billing", "orders")]


async def test_the_held_lane_stands_on_its_page_with_cause_and_cure(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a held lane's row has its time, message, tries, last error, what waits behind it and what to do."""
    page = await get(browser, console, "/blocked")
    while not page["rows"]:
        await asyncio.sleep(0.2)
        page = await get(browser, console, "/blocked")

    (row,) = page["rows"]
    assert (row["kind"], row["state"], row["group"], row["topic"]) == (
        "lane",
        "held",
        "billing",
        "orders",
    )
    assert (row["key"], row["tries"], row["behind"]["value"]) == ("order-3", 1, 5)
    assert HOSTILE_ERROR in row["lastError"]
    assert "Repair the cause" in row["todo"]
    html = await show(browser, console, "/blocked")
    assert "&lt;b onmouseover=alert(1)&gt;" in html
    assert HOSTILE_ERROR not in html


async def test_topics_are_searched(console: Console, browser: aiohttp.ClientSession) -> None:
    """Law: topics can be searched; the system's own are shown only on request."""
    found = await get(browser, console, "/topics?q=ORD")
    system = await get(browser, console, "/topics?system=1&q=TBW")

    assert [row["topic"] for row in found["rows"]] == ["orders"]
    assert (found["rows"][0]["ordered"], found["rows"][0]["queues"]) == (True, 4)
    assert [row["topic"] for row in system["rows"]] == ["TBW102"]
    assert (await get(browser, console, "/topics?q=TBW"))["rows"] == []


async def test_a_topic_shows_queues_heads_and_ends(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a topic's page has its queues with first offset and end, and its consumer groups."""
    page = await get(browser, console, "/topics/orders")

    assert (page["ordered"], page["messages"]["value"], len(page["queues"])) == (True, 26, 4)
    assert sum(row["end"]["value"] - row["head"]["value"] for row in page["queues"]) == 26
    assert page["groups"] == ["billing"]
    assert "billing" in await show(browser, console, "/topics/orders")


async def test_a_topic_shows_how_fast_messages_come(
    console: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: a topic's rate is that of the last minute, and 0 if no message came."""
    troubled.create_topic("rated", queues=1)
    quiet = await get(browser, console, "/topics/rated")
    async with Producer(name_servers=troubled.name_server) as producer:
        for number in range(30):
            await producer.send("rated", f"{number}")
    page = await get(browser, console, "/topics/rated")
    while not page["messagesIn"]["value"]:
        await asyncio.sleep(0.2)
        page = await get(browser, console, "/topics/rated")

    assert quiet["messagesIn"] == {"value": 0, "unknown": "", "atLeast": False}
    assert 0.4 <= page["messagesIn"]["value"] <= 30
    assert "last minute" in await show(browser, console, "/topics/rated")


async def test_messages_are_browsed_by_offset_and_by_key(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: messages are found by offset and by key, numbers in bodies keep all digits, and no text becomes markup."""
    page = await get(browser, console, "/topics/orders/messages?key=order-3")
    assert [json.loads(row["body"]["text"])["order"] for row in page["rows"]] == [
        3,
        7,
        11,
        15,
        19,
        23,
    ]
    assert "12345678901234567890" in page["rows"][0]["body"]["text"]
    place = f"{page['brokerGroup']}:{page['queue']}"

    one = await get(
        browser,
        console,
        f"/topics/orders/messages?queue={place}&offset={page['rows'][1]['offset']}&count=1",
    )
    assert [row["messageId"] for row in one["rows"]] == [page["rows"][1]["messageId"]]
    later = await get(browser, console, f"/topics/orders/messages?queue={place}&offset=999999")
    assert (later["rows"], later["following"]) == ([], None)
    early = await get(
        browser, console, f"/topics/orders/messages?queue={place}&time=2020-01-01T00:00:00"
    )
    assert early["offset"] == 0

    hostile = f"/topics/orders/messages?key={quote(HOSTILE_KEY)}"
    (row,) = (await get(browser, console, hostile))["rows"]
    assert (row["key"], row["body"]["text"]) == (HOSTILE_KEY, HOSTILE_BODY)
    html = await show(browser, console, hostile)
    assert "<img" not in html
    assert "<script>" not in html
    binary = await get(browser, console, "/topics/orders/messages?key=binary")
    assert (binary["rows"][0]["body"]["form"]) == "hex"


async def test_groups_are_listed_and_shown(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: groups are listed, and a group's page has lanes, lag and what stands still."""
    rows = (await get(browser, console, "/groups"))["rows"]
    page = await get(browser, console, "/groups/billing")

    assert [(row["group"], row["ordering"]) for row in rows] == [("billing", "by key")]
    assert (page["ordering"], page["onDeadLetter"], page["members"]) == ("by key", "HoldKey", [])
    assert sum(row["held"] for row in page["lanes"]) == 1
    assert [row["key"] for row in page["standing"]] == ["order-3"]
    assert page["lag"]["value"] > 0
    assert "No member is online" in await show(browser, console, "/groups/billing")


async def test_a_key_is_explained(console: Console, browser: aiohttp.ClientSession) -> None:
    """Law: a key's page has its queue, and that the group has parked it."""
    page = await get(browser, console, "/key?topic=orders&key=order-3")
    other = await get(browser, console, "/key?topic=orders&key=order-1")
    absent = await get(browser, console, "/key?topic=nowhere&key=x")
    question = await get(browser, console, "/key")

    (group,) = page["groups"]
    assert (page["queues"], group["group"], group["nextOfKey"]) == (
        4,
        "billing",
        group["committed"]["value"],
    )
    assert group["state"].startswith("The key is parked")
    assert other["groups"][0]["parkedSinceMs"] is None
    assert "no broker has the topic nowhere" in absent["unknown"]
    assert question["groups"] == []


async def test_the_life_of_a_key_stands_on_one_time_line(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a key's time line has its newest messages with their state, and each event with its source."""
    page = await get(browser, console, "/key?topic=orders&key=order-3")
    html = await show(browser, console, "/key?topic=orders&key=order-3")
    other = await get(browser, console, "/key?topic=orders&key=order-1")
    offsets = [row["offset"] for row in page["messages"]]
    states = [row["groups"][0]["state"] for row in page["messages"]]

    assert (len(offsets), offsets) == (6, sorted(offsets, reverse=True))
    assert states[-1] == "A lane is blocked at it: held."
    assert {state.split(" since")[0] for state in states[:-1]} == {"Its key is held"}
    events = page["events"]
    assert [each["atMs"] for each in events] == sorted((e["atMs"] for e in events), reverse=True)
    assert sum(each["text"].startswith("stored, born ") for each in events) == 6
    assert ("seen", "billing", "its lane is held") in [
        (each["source"], each["who"], each["text"]) for each in events
    ]
    assert any("no topic RMQ_SYS_TRACE_TOPIC" in each for each in page["unsure"])
    assert any("Brokers keep no history" in each for each in page["unsure"])
    assert html.count('scope="rowgroup"') == 6
    assert {row["groups"][0]["state"] for row in other["messages"]} <= {
        "It is consumed: the lane of its key is past it.",
        "The group has committed it: it was consumed or skipped.",
    }


async def test_raft_and_dead_letters(console: Console, browser: aiohttp.ClientSession) -> None:
    page = await get(browser, console, "/raft")
    letters = await get(browser, console, "/dead-letters")

    (group,) = page["brokerGroups"]
    assert [(row["role"], row["active"]) for row in group["replicas"]] == [("leader", True)]
    assert group["commit"] >= group["applied"] > 0
    assert [row["snapshot"] for row in group["replicas"]] == [None]
    assert letters["rows"] == []
    assert "No dead letters" in await show(browser, console, "/dead-letters")


@pytest.mark.parametrize(
    "path",
    [
        "/topics/nowhere",
        "/groups/nowhere",
        "/topics/orders/messages?queue=broker-a:99",
        "/topics/nowhere/messages",
    ],
)
async def test_what_does_not_exist_is_not_found(
    console: Console, browser: aiohttp.ClientSession, path: str
) -> None:
    """Law: unknown names give 404, as page and as JSON."""
    async with browser.get(console.url + path) as answer:
        assert answer.status == 404
        assert "there is no" in await answer.text() or "has no queue" in await answer.text()
    async with browser.get(f"{console.url}/api{path}") as answer:
        assert answer.status == 404
        assert "error" in await answer.json()


async def test_many_viewers_cost_the_brokers_one_look(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: many viewers cost the brokers one look: a burst on all pages asks each question once."""
    paths = ["/", "/raft", "/api/overview", "/api/raft"]
    await asyncio.gather(*(show(browser, console, path) for path in paths * 10))
    first = console.collector.asked
    await asyncio.gather(*(show(browser, console, path) for path in paths * 10))

    assert first <= 4  # The brokers, their status, and each once more if a second had passed.
    assert console.collector.asked <= first + 2


async def test_an_open_page_follows_the_cluster(
    console: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: an open page gets its live part when it changes; pages without one have no events."""
    async with browser.get(f"{console.url}/events/topics/orders") as events:
        assert events.headers["Content-Type"].startswith("text/event-stream")
        async with asyncio.timeout(20):
            assert await events.content.readline() == b"event: live\n"
            data = (await events.content.readline()).removeprefix(b"data: ")
    assert "<h2>Queues</h2>" in json.loads(data)
    assert "<html" not in json.loads(data)
    async with browser.get(f"{console.url}/events/topics/orders/messages") as answer:
        assert answer.status == 404
    for path, status in (("/topics?page=x", 400), ("/topics/nowhere", 404)):
        async with browser.get(f"{console.url}/events{path}") as answer:
            assert answer.status == status
    async with browser.head(f"{console.url}/events/topics/orders") as answer:
        assert answer.status == 405


async def test_viewers_who_leave_are_followed_no_more(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: viewers that leave are not followed any more, and the number of open pages has a limit."""
    answers = [
        await browser.get(f"{console.url}/events/raft", timeout=aiohttp.ClientTimeout(60))
        for _ in range(VIEWERS_MAX)
    ]
    async with browser.get(f"{console.url}/events/raft") as answer:
        assert answer.status == 503
        assert "more than 100 pages are open" in await answer.text()
    for each in answers:
        each.close()
    while console.viewers.count:  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(0.1)


async def test_a_page_takes_little_of_the_wire(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: the first page with all that it needs is smaller than 250 KB."""
    total = 0
    for path in ("/", "/static/console.css", "/static/console.js", "/static/icon.svg"):
        total += len(await show(browser, console, path))

    assert total < 250_000


def test_every_page_has_an_address_of_its_own() -> None:
    assert len({view.path for view in VIEWS}) == len(VIEWS)
