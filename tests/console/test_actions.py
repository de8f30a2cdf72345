"""Actions: shown before they are done, confirmed by name, for accounts with the right, in the audit log."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Sequence
from html import unescape
from typing import Any

import aiohttp
import pytest

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import Message, ReceivedMessage
from orderlymq_console.actions.release import plan_release
from orderlymq_console.app import Console
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.links import skip_link
from orderlymq_console.parameters import Parameters
from orderlymq_console.settings import Account, ConsoleSettings
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_testing.cluster import Cluster

pytestmark = pytest.mark.cluster

ALICE, BOB = Account("alice", "act", "a" * 24), Account("bob", "view", "b" * 24)
SKIP = "/groups/billing/release?topic=orders&key=order-3&how=skip"
RETRY = "/groups/billing/release?topic=orders&key=order-3&how=retry"
RESET = "/groups/billing/reset?topic=orders"


class Log(io.StringIO):
    """An audit log that can be full."""

    is_full = False
    lines_max = 100

    def write(self, text: str) -> int:
        if self.is_full or len(self.lines) == self.lines_max:
            raise OSError(28, "No space left on device")
        return super().write(text)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line)["audit"] for line in self.getvalue().splitlines()]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def guarded(troubled: Cluster, log: Log) -> AsyncIterator[Console]:
    """A console with two accounts."""
    settings = ConsoleSettings(name_servers=troubled.name_server, port=0, accounts=(ALICE, BOB))
    async with Console(settings, log) as running:
        yield running


async def sign_in(browser: aiohttp.ClientSession, console: Console, account: Account) -> None:
    form = {"token": account.token}
    async with browser.post(f"{console.url}/sign-in", data=form, allow_redirects=False) as answer:
        assert answer.status == 303


async def fields(browser: aiohttp.ClientSession, console: Console, path: str) -> dict[str, str]:
    """Return the hidden fields of the form that a preview shows."""
    async with browser.get(console.url + path) as answer:
        html = await answer.text()
        assert answer.status == 200, html
    form = html[html.index('<form class="confirm"') :]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in found}


async def post(
    browser: aiohttp.ClientSession, console: Console, path: str, form: dict[str, str]
) -> tuple[int, str]:
    async with browser.post(console.url + path.partition("?")[0], data=form) as answer:
        return answer.status, await answer.text()


async def held(cluster: Cluster) -> list[tuple[str, int]]:
    async with AdminClient(cluster.name_server) as admin:
        lanes = (await admin.lanes("billing")).lanes
    return [(lane.key, lane.tries) for lane in lanes if lane.state == "held"]


async def test_only_an_account_with_the_right_acts(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """An account that may only look is shown neither buttons nor a preview."""
    await sign_in(browser, guarded, BOB)
    for path in (SKIP, RESET):
        async with browser.get(guarded.url + path) as answer:
            assert answer.status == 403
            assert "may look, not act" in await answer.text()
    async with browser.get(f"{guarded.url}/groups/billing") as answer:
        html = await answer.text()
    assert "Skip…" not in html
    proof = re.findall(r'name="proof" value="([^"]+)"', html)[0]
    form = {
        "proof": proof,
        "topic": "orders",
        "key": "order-3",
        "how": "skip",
        "confirm": "order-3",
    }
    assert (await post(browser, guarded, SKIP, form))[0] == 403


async def test_nobody_acts_by_a_link_or_by_a_token_alone(
    console: Console, guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """On this machine looking is open, acting is not."""
    async with browser.get(console.url + SKIP) as answer:
        assert answer.status == 401
    bearer = {"Authorization": f"Bearer {ALICE.token}"}
    async with browser.get(guarded.url + SKIP, headers=bearer) as answer:
        assert answer.status == 401
    async with browser.post(guarded.url + SKIP, headers=bearer) as answer:
        assert answer.status == 401
    assert await held(troubled) == [("order-3", 1)]


async def test_a_read_only_console_changes_nothing(
    troubled: Cluster, browser: aiohttp.ClientSession
) -> None:
    """Not for anybody."""
    settings = ConsoleSettings(
        name_servers=troubled.name_server, port=0, accounts=(ALICE,), read_only=True
    )
    async with Console(settings, Log()) as running:
        await sign_in(browser, running, ALICE)
        async with browser.get(running.url + SKIP) as answer:
            assert answer.status == 403
            assert "read-only" in await answer.text()


async def test_a_preview_says_what_will_happen_and_does_nothing(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """The message, what follows it, and that nobody is there to consume it."""
    await sign_in(browser, guarded, ALICE)
    async with browser.get(guarded.url + SKIP) as answer:
        skip = await answer.text()
    async with browser.get(guarded.url + RETRY) as answer:
        retry = await answer.text()

    assert "becomes a dead letter in %DLQ%billing" in skip
    assert "5 messages of the key follow" in skip
    assert skip.count('<article class="message">') == 4
    assert "hands the lane out again now" in retry
    assert "No member of the group is online" in retry
    assert await held(troubled) == [("order-3", 1)]
    assert log.lines == []


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"confirm": ""}, 400, "The confirmation must name order-3"),
        ({"confirm": "order-33"}, 400, "The confirmation must name order-3"),
        ({"stamp": "broker-a:0:1:0:0"}, 409, "It stands elsewhere now than it was shown"),
        ({"proof": "x"}, 403, "the form is too old"),
        ({"key": "order-1", "confirm": "order-1"}, 404, "has not parked key order-1"),
        ({"topic": "nowhere"}, 404, "has not parked"),
        ({"how": "explode"}, 400, "how must be one of"),
    ],
)
async def test_what_does_not_fit_what_was_shown_is_not_done(
    guarded: Console,
    browser: aiohttp.ClientSession,
    troubled: Cluster,
    log: Log,
    change: dict[str, str],
    status: int,
    said: str,
) -> None:
    """The lane stands as before, and no line says that something began."""
    await sign_in(browser, guarded, ALICE)
    form = await fields(browser, guarded, SKIP)

    found, html = await post(browser, guarded, SKIP, {**form, "confirm": "order-3", **change})

    assert (found, said in html) == (status, True), html
    assert await held(troubled) == [("order-3", 1)]
    assert log.lines == []


async def test_without_an_audit_log_nothing_is_done(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """The sentence says why."""
    await sign_in(browser, guarded, ALICE)
    form = await fields(browser, guarded, SKIP)
    log.is_full = True

    status, html = await post(browser, guarded, SKIP, {**form, "confirm": "order-3"})

    assert status == 503
    assert "the audit log cannot be written" in html
    assert await held(troubled) == [("order-3", 1)]


async def test_a_skip_makes_a_dead_letter_and_lets_the_lane_go_on(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """It stands in the audit log before and after, and on its page; the same form does nothing twice."""
    await sign_in(browser, guarded, ALICE)
    form = {**await fields(browser, guarded, SKIP), "confirm": "order-3"}

    status, html = await post(browser, guarded, SKIP, form)
    again = await post(browser, guarded, SKIP, form)

    assert (status, "Done: 1 lane or key released" in html) == (200, True), html
    assert again[0] in (404, 409)
    assert await held(troubled) == []
    async with browser.get(f"{guarded.url}/api/dead-letters") as answer:
        rows = (await answer.json())["rows"]
    while not rows or rows[0]["letters"]["value"] != 1:
        await asyncio.sleep(0.2)
        async with browser.get(f"{guarded.url}/api/dead-letters") as answer:
            rows = (await answer.json())["rows"]
    assert [(row["group"], row["onDeadLetter"]) for row in rows] == [("billing", "HoldKey")]
    assert [(line["account"], line["action"], line["outcome"]) for line in log.lines] == [
        ("alice", "skip", "begins"),
        ("alice", "skip", "done: 1 lane or key released"),
    ]
    assert log.lines[0]["thing"]["name"] == "order-3"
    async with browser.get(f"{guarded.url}/audit") as answer:
        assert "1 lane or key released" in await answer.text()
    async with browser.get(f"{guarded.url}/api/audit") as answer:
        assert len((await answer.json())["lines"]) == 2


async def test_a_key_parked_behind_a_dead_letter_is_released(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Of an ordered group under HoldKey; its letters stay until a redrive, and the page of dead letters leads there."""
    await park(troubled, "shipping", "order-2")
    await sign_in(browser, guarded, ALICE)
    async with browser.get(f"{guarded.url}/api/groups/shipping") as answer:
        (row,) = (await answer.json())["standing"]
    async with browser.get(f"{guarded.url}/groups/shipping") as answer:
        html = await answer.text()
    path = "/groups/shipping/release?topic=orders&key=order-2&how=release"
    await no_lag(troubled, "shipping")
    async with browser.get(guarded.url + path) as answer:
        shown = await answer.text()

    form = {**await fields(browser, guarded, path), "confirm": "order-2"}
    status, html_done = await post(browser, guarded, path, form)

    assert (row["kind"], row["key"], row["releasable"]) == ("key", "order-2", True)
    assert 'href="/dead-letters/shipping"' in html
    assert "/release?" not in html
    assert "in %DLQ%shipping until a redrive" in shown
    assert "checkbox" not in shown
    assert (status, "Done: 1 lane or key released" in html_done) == (200, True), html_done
    async with AdminClient(troubled.name_server) as admin:
        assert await admin.parked_keys("shipping") == []


async def test_what_passes_dead_letters_needs_a_second_consent(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """A release or a redrive while the queue has a lag: it says how many wait, and goes when they are many more."""
    troubled.create_topic("claims", queues=1)
    query = "topic=claims&key=order-2"
    release, redrive = (f"/groups/filing/{name}?{query}" for name in ("release", "redrive"))
    async with Producer(name_servers=troubled.name_server) as producer:
        await producer.send("claims", "1", key="order-2")
        await park(troubled, "filing", "order-2", topic="claims")
        await no_lag(troubled, "filing")
        await producer.send("claims", "2", key="order-2")
        await sign_in(browser, guarded, ALICE)
        async with browser.get(guarded.url + release + "&how=release") as answer:
            shown = await answer.text()
        form = {**await fields(browser, guarded, release), "confirm": "order-2"}
        without = await post(browser, guarded, release, form)
        assert log.lines == []
        await producer.send("claims", "3", key="order-1")
        more = await post(browser, guarded, release, form | {"consent": "1"})
        form = {**await fields(browser, guarded, release), "confirm": "order-2", "consent": "1"}
        released = await post(browser, guarded, release, form)
        form = {**await fields(browser, guarded, redrive), "confirm": "order-2"}
        again = await post(browser, guarded, redrive, form)
        redriven = await post(browser, guarded, redrive, form | {"consent": "1"})

    assert (
        "1 message waits in queue broker-a:0 of claims. Those of a key are consumed before" in shown
    )
    assert (without[0], "Nothing was done: agree to" in without[1]) == (400, True), without
    assert more[0] == 409
    assert released[0] == 200, released
    assert (again[0], "2 messages wait in queue" in again[1]) == (400, True), again
    assert (redriven[0], "1 dead letter sent" in redriven[1]) == (200, True), redriven
    assert log.lines[0]["thing"]["consent"].startswith("2 messages wait in queue")


async def test_of_one_group_there_is_one_change_at_a_time(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Law: a form that is sent twice begins once; the second one is planned when the first has ended, and finds nothing."""
    troubled.create_topic("parcels", queues=1)
    async with Producer(name_servers=troubled.name_server) as producer:
        await producer.send("parcels", "1", key="order-2")
        await park(troubled, "posting", "order-2", topic="parcels")
    await no_lag(troubled, "posting")
    await sign_in(browser, guarded, ALICE)
    for name in ("release", "redrive"):
        path = f"/groups/posting/{name}?topic=parcels&key=order-2"
        form = {**await fields(browser, guarded, path), "confirm": "order-2"}
        answers = await asyncio.gather(*(post(browser, guarded, path, form) for _ in range(2)))
        assert sorted(status for status, _ in answers) == [200, 404], answers

    assert [line["outcome"] for line in log.lines] == [
        "begins",
        "done: 1 lane or key released",
        "begins",
        "done: 1 dead letter sent",
    ]


async def no_lag(cluster: Cluster, group: str) -> None:
    """Set the offsets of a group to the ends of the topics that it consumes, as its members would."""
    async with AdminClient(cluster.name_server) as admin:
        for topic in await admin.topics_of_group(group):
            await admin.reset_offsets(group, topic, "latest")


async def park(cluster: Cluster, group: str, *bad_keys: str, topic: str = "orders") -> None:
    """Consume in order until these keys are parked."""

    def listen(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        if messages[0].key in bad_keys:
            raise RuntimeError("no such customer")

    async with AdminClient(cluster.name_server) as admin:
        await admin.set_group(SubscriptionGroupConfig(group, on_dead_letter="HoldKey"))
        async with Consumer(
            group,
            cluster.name_server,
            topics=topic,
            ordered=True,
            consume_from="first",
            listener=listen,
            settings=ConsumerSettings(max_reconsume_times=1),
        ):
            while len(await admin.parked_keys(group)) < len(bad_keys):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.05)


async def test_a_reset_shows_each_queue_and_moves_the_group(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Messages passed over and delivered again are counted before."""
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
    """Return offset and end of each queue of group billing."""
    async with AdminClient(cluster.name_server) as admin:
        found = await admin.progress("billing", topic)
    return [(each.consumer_offset, each.broker_offset) for each in found.values()]


async def test_a_reset_to_the_end_ends_where_it_was_shown(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """The broker delivers messages that were sent after the plan was shown."""
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
    """Also one whose stamp names other offsets than the broker keeps; nothing is moved and no line written."""
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

    assert (moved[0], "It stands elsewhere now" in moved[1]) == (409, True), moved
    assert [status for status, _ in forged] == [409] * 5
    assert await progress(troubled, "moving") == [(3, 3)]
    assert log.lines == []


async def test_a_link_cannot_have_a_preview_show_other_offsets(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: a reset to the earliest message goes there, whatever stamp stands in its address."""
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
    """The other queues stay, and the audit log says which offset was set."""
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

    assert "goes on at offset 2 in queue broker-a:0 of poison: it passes 1 message over" in shown
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
    """Its listener is never called with the message again."""
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


async def test_a_key_is_what_it_is_with_the_blanks_around_it(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Another key without them is left alone, and no confirmation without them counts."""
    troubled.create_topic("blanks", queues=1)
    path = "/groups/spacing/release?topic=blanks&key=k%20"
    async with Producer(name_servers=troubled.name_server) as producer:
        for key in ("k", "k "):
            await producer.send("blanks", "x", key=key)
    await park(troubled, "spacing", "k", "k ", topic="blanks")
    await no_lag(troubled, "spacing")
    await sign_in(browser, guarded, ALICE)

    form = await fields(browser, guarded, path)
    wrong = await post(browser, guarded, path, form | {"confirm": "k"})
    right = await post(browser, guarded, path, form | {"confirm": "k "})

    assert (form["key"], wrong[0], right[0]) == ("k ", 400, 200), right
    async with AdminClient(troubled.name_server) as admin:
        assert [each.key for each in await admin.parked_keys("spacing")] == ["k"]


async def test_a_lane_is_found_among_more_than_a_broker_lists(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """It lists 256 of them, and is asked for this one."""
    troubled.create_topic("wide", queues=1)
    keys = [f"k-{number}" for number in range(300)]

    def listen(_: Sequence[ReceivedMessage], __: OrderedContext) -> None:
        raise RuntimeError("all of them")

    async with (
        AdminClient(troubled.name_server) as admin,
        Producer(name_servers=troubled.name_server) as producer,
    ):
        by_key = SubscriptionGroupConfig("many", concurrency="Key", on_dead_letter="HoldKey")
        await admin.set_group(by_key)
        await producer.send_batch(
            [Message(topic="wide", body=b"x", key=key) for key in keys], queue=0
        )
        async with Consumer(
            "many",
            troubled.name_server,
            topics="wide",
            ordered="key",
            consume_from="first",
            listener=listen,
            settings=ConsumerSettings(max_reconsume_times=1),
        ):
            while sum(row.held for row in (await admin.lanes("many")).queues) < len(keys):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        listed = {lane.key for lane in (await admin.lanes("many")).lanes}
    (unlisted, *_) = sorted(set(keys) - listed)
    await sign_in(browser, guarded, ALICE)
    form = await fields(
        browser, guarded, f"/groups/many/release?topic=wide&key={unlisted}&how=skip"
    )

    assert (form["key"], form["how"]) == (unlisted, "skip")


async def test_a_preview_shows_the_message_of_a_lane_that_goes_by_another_property(
    troubled: Cluster,
) -> None:
    """No message has the lane's key as its sharding key: the one that the lane stands at is shown all the same."""
    troubled.create_topic("sides", queues=1)
    at = troubled.name_server

    def listen(_: Sequence[ReceivedMessage], __: OrderedContext) -> None:
        raise RuntimeError("no such order")

    async with AdminClient(at) as admin, Producer(name_servers=at) as producer:
        group = SubscriptionGroupConfig("by-order", concurrency="Key", lane_key_property="order")
        await admin.set_group(group)
        for customer in ("alice", "bob"):
            order = {"order": f"of {customer}"}
            await producer.send(
                Message(topic="sides", body=b"x", key=customer, properties=order), queue=0
            )
        async with Consumer(
            "by-order", at, topics="sides", ordered="key", consume_from="first", listener=listen
        ):
            while sum(row.parked for row in (await admin.lanes("by-order")).queues) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        wanted = {"group": "by-order", "topic": "sides", "key": "of bob", "how": "retry"}
        plan = await plan_release(ClusterReader(admin, Collector()), Parameters(wanted))

    assert [(row.offset, row.key) for row in plan.following] == [(1, "bob")]
