"""The life of a key on one time line: sent, stored, delivered, tried, completed, parked, released, with sources."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.admin.explanation import READ_MAX, GroupAndKey, KeyExplanation
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import ReceivedMessage
from orderlymq_console.app import Console
from orderlymq_console.cluster import Answers
from orderlymq_console.collector import Reading
from orderlymq_console.pages.key import sentence
from orderlymq_console.pages.keylife import MESSAGES_MAX, lane_state, standstills
from orderlymq_console.pages.message import ANY_LANE
from orderlymq_console.settings import ConsoleSettings
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import LaneShown
from orderlymq_testing.cluster import Cluster
from tests.client.messages import QUEUE, message
from tests.console.readings import ROW, told

BAD = "order 1"


def listen(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
    if messages[0].key == BAD:
        raise ValueError("no such account")


async def life(browser: aiohttp.ClientSession, console: Console, key: str, end: str) -> Any:
    """Return the page of a key when its time line contains a text."""
    while True:
        address = f"{console.url}/api/key?topic=orders&key={quote(key)}"
        async with browser.get(address) as answer:
            page = await answer.json()
        if any(end in each["text"] for each in page["events"]):
            return page
        await asyncio.sleep(0.2)


@pytest.mark.cluster
async def test_a_key_is_followed_from_its_producer_to_its_release(
    tmp_path: Path, browser: aiohttp.ClientSession
) -> None:
    """Law: a key's steps from traces, messages, locks and observations are in order of time, without those of other keys."""
    with Cluster(tmp_path) as cluster:
        cluster.create_topic("orders", queues=1)
        server = cluster.name_server
        settings = ConsoleSettings(name_servers=server, port=0)
        async with AdminClient(server) as admin, Console(settings) as console:
            await admin.set_group(SubscriptionGroupConfig("accounts", on_dead_letter="HoldKey"))
            async with (
                Producer("shop", server, trace=True) as producer,
                Consumer(
                    "accounts",
                    server,
                    topics="orders",
                    ordered=True,
                    consume_from="first",
                    listener=listen,
                    trace=True,
                    settings=ConsumerSettings(max_reconsume_times=1),
                ) as consumer,
            ):
                await producer.send("orders", "created", key=BAD)
                for number in range(MESSAGES_MAX + 5):
                    await producer.send("orders", str(number), key="order 2")
                await life(browser, console, BAD, "became a dead letter")
                page = await life(browser, console, BAD, "delivered, try 2")
                other = await life(browser, console, "order 2", "completed")
                await admin.release_key("accounts", "orders", BAD)
                released = await life(browser, console, BAD, "it was released")

    texts = [(each["source"], each["who"], each["text"]) for each in reversed(page["events"])]
    steps = [
        (source, who, text.split(" after ")[0].split(" from ")[0]) for source, who, text in texts
    ]
    assert ("seen", "accounts", f"queue lock held by {consumer.client_id} with epoch 1") in steps
    steps = [each for each in steps if not each[2].startswith("queue lock")]
    assert steps.index(("trace", "shop", "sent")) < steps.index(("log", "", "stored"))
    assert steps.index(("log", "", "stored")) < steps.index(
        ("trace", "accounts", "delivered, try 1")
    )
    assert ("trace", "accounts", "delivered, try 2") in steps
    assert ("log", "accounts", "became a dead letter") in steps
    assert ("seen", "accounts", "parked behind a dead letter") in steps
    (row,) = page["messages"]
    assert row["groups"][0]["state"] == (
        f"It is a dead letter of the group. Its key is parked since offset {row['offset']}."
    )
    assert released["events"][0]["text"] == "no longer parked: it was released"
    assert len(other["messages"]) == MESSAGES_MAX
    assert (
        f"Its newest {MESSAGES_MAX} messages are shown; earlier ones were not read."
        in other["unsure"]
    )
    assert not any("dead letter" in each["text"] for each in other["events"])


def lane(**values: Any) -> LaneShown:
    shown = {"topic": "orders", "broker_name": "broker-a", "queue_id": 0, "lane": 0, "key": "k"}
    return LaneShown(**{**shown, "state": "inHand", "offset": 7, "waiting": 2, **values})


@pytest.mark.parametrize(
    ("following", "shown", "begin", "offset", "text"),
    [
        (None, lane(holder="alice"), None, 7, "alice has it in hand."),
        (None, lane(state="ready"), None, 7, "It goes to the next member that fetches."),
        (None, lane(), None, 9, "It waits in the lane of its key, which continues at offset 7."),
        (None, lane(), None, 6, "It is consumed: the lane of its key is past it."),
        (8, None, 5, 8, "It waits in the lane of its key, which continues at offset 8."),
        (8, None, 5, 6, "It is consumed: the lane of its key is past it."),
        (None, None, 5, 6, "It is consumed: the lane of its key is past it."),
        (None, None, 5, 5 + READ_MAX, "It is behind the first 1,000 messages that wait"),
        (None, None, 5_000, 3_000, "It is consumed: the lane of its key is past it."),
        (None, None, 5_000, 5_000 + READ_MAX, "It is behind the first 1,000 messages that wait"),
    ],
)
def test_a_lane_shows_what_becomes_of_a_message_that_its_group_has_not_committed(
    following: int | None, shown: LaneShown | None, begin: int | None, offset: int, text: str
) -> None:
    """Law: a lane's messages are completed in order, even if another lane delays the committed offset."""
    each = GroupAndKey("billing", None, 5, following, None, None, True, shown, begin=begin)

    assert lane_state(each, message(offset)).startswith(text)


@pytest.mark.parametrize(
    ("by_key", "begin", "end", "text"),
    [
        (True, 5_000, 5_500, "The group has consumed every message of the key."),
        (True, 5_000, 6_001, "None of the first 1,000 messages that the group has not examined"),
        (False, 0, 5_000, "None of the first 1,000 waiting messages is of this key"),
        (False, 0, 1_000, "The group has consumed every message of the key."),
    ],
)
def test_a_key_of_which_nothing_is_owed_is_consumed_as_far_as_was_read(
    by_key: bool, begin: int, end: int, text: str
) -> None:
    """Law: a key without owed messages counts as consumed as far as the group has looked,
    not only to the committed offset.
    """
    each = GroupAndKey("billing", None, 0, None, None, None, by_key, begin=begin)
    explained = KeyExplanation("orders", "k", True, QUEUE, 1, 0, end, (each,))

    assert sentence(each, explained).startswith(text)


def test_a_message_is_not_said_to_be_completed_where_lanes_go_by_another_property() -> None:
    """Law: if lanes go by another property, a key's messages have an unknown state, not a completed one."""
    each = GroupAndKey("billing", None, 5, None, None, None, True, lane_property="order")

    assert lane_state(each, message(6)) == ANY_LANE


def test_a_queue_that_stands_still_is_an_event_of_the_keys_in_it() -> None:
    """Law: a queue that stands still is an event for its keys, in its own groups only, at the leader's time,
    even for old messages.
    """
    rows = [ROW, {**ROW, "queue": 1}, {**ROW, "topic": "other"}, {**ROW, "group": "stranger"}]
    each = GroupAndKey("shipping", None, 7, 7, 0, None)
    explained = KeyExplanation("orders", "k", True, QUEUE, 2, 0, 99, (each,))
    known = {name: Reading(told(*rows), "", 0.0) for name in ("broker-a", "broker-b")}

    (event,) = standstills(Answers(known), explained)

    assert (event.at_ms, event.who, event.offset) == (1_000, "shipping", 7)
