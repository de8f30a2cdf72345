"""Actions are previewed, confirmed by name, done only by accounts with the right, and written to the audit log."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.admin.operations import ParkedKey
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import Message, ReceivedMessage
from orderlymq_console.actions.release import plan_release
from orderlymq_console.app import Console
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.parameters import Parameters
from orderlymq_console.settings import ConsoleSettings
from orderlymq_console.web import changes
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_testing.cluster import Cluster
from tests.console.conftest import hold_lane
from tests.console.signedin import ALICE, BOB, RESET, RETRY, SKIP, Log, fields, post, sign_in

pytestmark = pytest.mark.cluster


def fresh(name: str) -> str:
    """Return a name that no other test, and no earlier try of this one, has used."""
    return f"{name}-{uuid4().hex[:6]}"


async def held(cluster: Cluster, group: str = "billing") -> list[tuple[str, int]]:
    async with AdminClient(cluster.name_server) as admin:
        lanes = (await admin.lanes(group)).lanes
    return [(lane.key, lane.tries) for lane in lanes if lane.state == "held"]


async def test_only_an_account_with_the_right_acts(
    guarded: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: only an account with the right acts; an account that may only look sees neither buttons nor a preview."""
    await sign_in(browser, guarded, BOB)
    for path in (SKIP, RESET):
        async with browser.get(guarded.url + path) as answer:
            assert answer.status == 403
            assert "may only view" in await answer.text()
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
    """Law: nobody acts without signing in to an account: not by a link, nor by a token alone, even on this machine."""
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
    """Law: a read-only console refuses actions of every account."""
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
    """Law: a preview shows the message, what follows it and whether members are online, and changes nothing."""
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
        ({"stamp": "broker-a:0:1:0:0"}, 409, "The state has changed since it was shown"),
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
    """Law: a form that differs from what was shown is refused; the lane stays and the audit log has no line."""
    await sign_in(browser, guarded, ALICE)
    form = await fields(browser, guarded, SKIP)

    found, html = await post(browser, guarded, SKIP, {**form, "confirm": "order-3", **change})

    assert (found, said in html) == (status, True), html
    assert await held(troubled) == [("order-3", 1)]
    assert log.lines == []


async def test_without_an_audit_log_nothing_is_done(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Law: if the audit log cannot be written nothing is done, and the page says why."""
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
    """Law: a skip makes a dead letter and the lane goes on; the audit log has it before and after,
    and a repeated form does nothing.
    """
    group = fresh("skipping")
    await hold_lane(troubled.name_server, group)
    path = f"/groups/{group}/release?topic=orders&key=order-3&how=skip"
    await sign_in(browser, guarded, ALICE)
    form = {**await fields(browser, guarded, path), "confirm": "order-3"}

    status, html = await post(browser, guarded, path, form)
    again = await post(browser, guarded, path, form)

    assert (status, "Done: 1 lane or key released" in html) == (200, True), html
    assert again[0] in (404, 409)
    assert await held(troubled, group) == []
    rows: list[dict[str, Any]] = []
    while not rows or rows[0]["letters"]["value"] != 1:
        await asyncio.sleep(0.2)
        async with browser.get(f"{guarded.url}/api/dead-letters") as answer:
            rows = [row for row in (await answer.json())["rows"] if row["group"] == group]
    assert [row["onDeadLetter"] for row in rows] == ["HoldKey"]
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
    """Law: a key parked behind a dead letter (ordered group, HoldKey) is released; its letters stay,
    and its page leads to it.
    """
    group = fresh("shipping")
    await park(troubled, group, "order-2")
    await sign_in(browser, guarded, ALICE)
    async with browser.get(f"{guarded.url}/api/groups/{group}") as answer:
        (row,) = (await answer.json())["standing"]
    async with browser.get(f"{guarded.url}/groups/{group}") as answer:
        html = await answer.text()
    path = f"/groups/{group}/release?topic=orders&key=order-2&how=release"
    await no_lag(troubled, group)
    async with browser.get(guarded.url + path) as answer:
        shown = await answer.text()

    form = {**await fields(browser, guarded, path), "confirm": "order-2"}
    status, html_done = await post(browser, guarded, path, form)

    assert (row["kind"], row["key"], row["releasable"]) == ("key", "order-2", True)
    assert f'href="/dead-letters/{group}"' in html
    assert "/release?" not in html
    assert f"in %DLQ%{group} until a redrive" in shown
    assert "checkbox" not in shown
    assert (status, "Done: 1 lane or key released" in html_done) == (200, True), html_done
    async with AdminClient(troubled.name_server) as admin:
        assert await admin.parked_keys(group) == []


async def test_what_passes_dead_letters_needs_a_second_consent(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Law: a release or redrive that would pass waiting messages needs a second consent for their number,
    asked again if it grows much.
    """
    topic, group = fresh("claims"), fresh("filing")
    troubled.create_topic(topic, queues=1)
    query = f"topic={topic}&key=order-2"
    release, redrive = (f"/groups/{group}/{name}?{query}" for name in ("release", "redrive"))
    async with Producer(name_servers=troubled.name_server) as producer:
        await producer.send(topic, "1", key="order-2")
        await park(troubled, group, "order-2", topic=topic)
        await no_lag(troubled, group)
        await producer.send(topic, "2", key="order-2")
        await sign_in(browser, guarded, ALICE)
        async with browser.get(guarded.url + release + "&how=release") as answer:
            shown = await answer.text()
        form = {**await fields(browser, guarded, release), "confirm": "order-2"}
        without = await post(browser, guarded, release, form)
        assert log.lines == []
        await producer.send(topic, "3", key="order-1")
        more = await post(browser, guarded, release, form | {"consent": "1"})
        form = {**await fields(browser, guarded, release), "confirm": "order-2", "consent": "1"}
        released = await post(browser, guarded, release, form)
        form = {**await fields(browser, guarded, redrive), "confirm": "order-2"}
        again = await post(browser, guarded, redrive, form)
        redriven = await post(browser, guarded, redrive, form | {"consent": "1"})

    assert (
        f"1 message waits in queue broker-a:0 of {topic}. Waiting messages of a key are consumed before"
        in shown
    )
    assert (without[0], "Nothing was done: tick the box to agree to" in without[1]) == (
        400,
        True,
    ), without
    assert more[0] == 409
    assert released[0] == 200, released
    assert (again[0], "2 messages wait in queue" in again[1]) == (400, True), again
    assert (redriven[0], "1 dead letter sent" in redriven[1]) == (200, True), redriven
    assert log.lines[0]["thing"]["consent"].startswith("2 messages wait in queue")


async def test_of_one_group_there_is_one_change_at_a_time(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster, log: Log
) -> None:
    """Law: a group has one change at a time: a form that is sent twice is done once,
    the second is planned later and finds nothing.
    """
    topic, group = fresh("parcels"), fresh("posting")
    troubled.create_topic(topic, queues=1)
    async with Producer(name_servers=troubled.name_server) as producer:
        await producer.send(topic, "1", key="order-2")
        await park(troubled, group, "order-2", topic=topic)
    await no_lag(troubled, group)
    await sign_in(browser, guarded, ALICE)
    for name in ("release", "redrive"):
        path = f"/groups/{group}/{name}?topic={topic}&key=order-2"
        form = {**await fields(browser, guarded, path), "confirm": "order-2"}
        answers = await asyncio.gather(*(post(browser, guarded, path, form) for _ in range(2)))
        assert sorted(status for status, _ in answers) == [200, 404], answers

    assert [line["outcome"] for line in log.lines] == [
        "begins",
        "done: 1 lane or key released",
        "begins",
        "done: 1 dead letter sent",
    ]


@pytest.mark.parametrize(
    ("patience_s", "outcome"),
    [
        (20, "done: 3 dead letters sent"),
        # Those that were sent before the end are counted.
        (
            0,
            r"failed: ([12] of 3 dead letters sent; the outcome of the others is unknown: )?cancelled",
        ),
    ],
)
async def test_the_console_ends_when_its_changes_have_ended(
    troubled: Cluster,
    browser: aiohttp.ClientSession,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    patience_s: float,
    outcome: str,
) -> None:
    """Law: a closing console waits for running changes; one that takes too long is cancelled, and the audit log says so."""
    monkeypatch.setattr(changes, "_CLOSE_MAX_S", patience_s)
    topic, group = fresh("crates"), fresh("stacking")
    release, redrive = (
        f"/groups/{group}/{name}?topic={topic}&key=order-2" for name in ("release", "redrive")
    )
    troubled.create_topic(topic, queues=1)
    async with Producer(name_servers=troubled.name_server) as producer:
        for number in range(3):
            await producer.send(topic, str(number), key="order-2")
    await park(troubled, group, "order-2", topic=topic, behind=2)
    await no_lag(troubled, group)
    settings = ConsoleSettings(name_servers=troubled.name_server, port=0, accounts=(ALICE,))
    async with Console(settings, log) as console:
        await sign_in(browser, console, ALICE)
        confirm = {"confirm": "order-2"}
        form = await fields(browser, console, release)
        await post(browser, console, release, form | confirm)
        form = await fields(browser, console, redrive)
        troubled.delay("send", 1.5, times=3)
        sending = asyncio.create_task(post(browser, console, redrive, form | confirm))
        while len(log.lines) < 3:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.02)
    outcomes = [line["outcome"] for line in log.lines]
    await asyncio.gather(sending, return_exceptions=True)

    assert outcomes[:3] == ["begins", "done: 1 lane or key released", "begins"]
    assert re.fullmatch(outcome, outcomes[3])


async def no_lag(cluster: Cluster, group: str) -> None:
    """Set a group's offsets to the ends of its topics, as its members would."""
    async with AdminClient(cluster.name_server) as admin:
        for topic in await admin.topics_of_group(group):
            await admin.reset_offsets(group, topic, "latest")


async def park(
    cluster: Cluster, group: str, *bad_keys: str, topic: str = "orders", behind: int = 0
) -> None:
    """Consume in order until these keys are parked, each with *behind* letters after the first."""

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
            parked: list[ParkedKey] = []
            while sum(1 + each.behind for each in parked) < len(bad_keys) + behind:
                await asyncio.sleep(0.05)
                parked = await admin.parked_keys(group)


async def test_a_key_is_what_it_is_with_the_blanks_around_it(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: blanks around a key belong to it: the key without them is another one, and the confirmation must have them."""
    topic, group = fresh("blanks"), fresh("spacing")
    troubled.create_topic(topic, queues=1)
    path = f"/groups/{group}/release?topic={topic}&key=k%20"
    async with Producer(name_servers=troubled.name_server) as producer:
        for key in ("k", "k "):
            await producer.send(topic, "x", key=key)
    await park(troubled, group, "k", "k ", topic=topic)
    await no_lag(troubled, group)
    await sign_in(browser, guarded, ALICE)

    form = await fields(browser, guarded, path)
    wrong = await post(browser, guarded, path, form | {"confirm": "k"})
    right = await post(browser, guarded, path, form | {"confirm": "k "})

    assert (form["key"], wrong[0], right[0]) == ("k ", 400, 200), right
    async with AdminClient(troubled.name_server) as admin:
        assert [each.key for each in await admin.parked_keys(group)] == ["k"]


async def test_a_lane_is_found_among_more_than_a_broker_lists(
    guarded: Console, browser: aiohttp.ClientSession, troubled: Cluster
) -> None:
    """Law: a lane beyond the 256 that a broker lists is found, because the broker is asked for it by name."""
    topic, group = fresh("wide"), fresh("many")
    troubled.create_topic(topic, queues=1)
    keys = [f"k-{number}" for number in range(300)]

    def listen(_: Sequence[ReceivedMessage], __: OrderedContext) -> None:
        raise RuntimeError("all of them")

    async with (
        AdminClient(troubled.name_server) as admin,
        Producer(name_servers=troubled.name_server) as producer,
    ):
        by_key = SubscriptionGroupConfig(group, concurrency="Key", on_dead_letter="HoldKey")
        await admin.set_group(by_key)
        await producer.send_batch(
            [Message(topic=topic, body=b"x", key=key) for key in keys], queue=0
        )
        async with Consumer(
            group,
            troubled.name_server,
            topics=topic,
            ordered="key",
            consume_from="first",
            listener=listen,
            settings=ConsumerSettings(max_reconsume_times=1),
        ):
            while sum(row.held for row in (await admin.lanes(group)).queues) < len(keys):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        listed = {lane.key for lane in (await admin.lanes(group)).lanes}
    (unlisted, *_) = sorted(set(keys) - listed)
    await sign_in(browser, guarded, ALICE)
    form = await fields(
        browser, guarded, f"/groups/{group}/release?topic={topic}&key={unlisted}&how=skip"
    )

    assert (form["key"], form["how"]) == (unlisted, "skip")


async def test_a_preview_shows_the_message_of_a_lane_that_goes_by_another_property(
    troubled: Cluster,
) -> None:
    """Law: the preview shows the message of a lane even if lanes go by another property than the sharding key."""
    topic, group = fresh("sides"), fresh("by-order")
    troubled.create_topic(topic, queues=1)
    at = troubled.name_server

    def listen(_: Sequence[ReceivedMessage], __: OrderedContext) -> None:
        raise RuntimeError("no such order")

    async with AdminClient(at) as admin, Producer(name_servers=at) as producer:
        by_order = SubscriptionGroupConfig(group, concurrency="Key", lane_key_property="order")
        await admin.set_group(by_order)
        for customer in ("alice", "bob"):
            order = {"order": f"of {customer}"}
            await producer.send(
                Message(topic=topic, body=b"x", key=customer, properties=order), queue=0
            )
        async with Consumer(
            group, at, topics=topic, ordered="key", consume_from="first", listener=listen
        ):
            while sum(row.parked for row in (await admin.lanes(group)).queues) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        wanted = {"group": group, "topic": topic, "key": "of bob", "how": "retry"}
        plan = await plan_release(ClusterReader(admin, Collector()), Parameters(wanted))

    assert [(row.offset, row.key) for row in plan.following] == [(1, "bob")]
