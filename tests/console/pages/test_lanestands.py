"""Queues of a group by key that stand still: no skip is offered, because it would lose what lanes still owe."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.admin.explanation import explain_key
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import ReceivedMessage
from orderlymq_console.actions.reset import plan_reset
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.models import LaneCounts
from orderlymq_console.pages.blocked import blocked
from orderlymq_console.pages.overview import overview
from orderlymq_console.parameters import Parameters
from orderlymq_console.status import StatusReport
from orderlymq_console.web.renderer import Renderer, Who
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import LaneShown, LaneTable, QueueLanes
from orderlymq_testing.cluster import Cluster
from tests.console.readings import ROW, Readings, told
from tests.console.signedin import ALICE

FULL = "2048 messages of a queue wait behind busy lanes"
FIGURES = QueueLanes("orders", "broker-a", 0, 5_000, 0, 300, 4, 0, 0, 1, 0, FULL)
LANES = (
    LaneShown("orders", "broker-a", 0, 1, "a", "held", 0, 296, 3, 1_000),
    LaneShown("orders", "broker-a", 0, 3, "c", "inHand", 8, 1, 0, 3_000, holder="bob"),
    LaneShown("orders", "broker-a", 0, 2, "b", "inHand", 4, 1, 0, 2_000, holder="alice"),
    LaneShown("orders", "broker-a", 1, 4, "d", "inHand", 4, 1, 0, 1_000, holder="eve"),
)
TABLE = LaneTable("Key", (FIGURES,), LANES)
STOOD = {**ROW, "offset": 5_000, "holder": None}


@pytest.fixture
async def reader() -> AsyncIterator[Readings]:
    """A queue of 5,000 examined messages, of which lanes owe 300."""
    reader = Readings(told(STOOD))
    reader.answers = {"locks": {}, "lanes": TABLE, "parked": [], "progress": {}}
    yield reader
    await reader.collector.close()


def words(page: Any) -> str:
    """Return the page's text for an account that may act."""
    request: web.Request = make_mocked_request("GET", "/blocked")
    who = Who(ALICE, "proof")
    return Renderer("", read_only=False).live("blocked.html", request, who, page=page)


async def test_a_queue_of_lanes_offers_no_skip_and_names_who_has_lanes_in_hand(
    reader: Readings,
) -> None:
    """Law: a standing queue of lanes offers no skip, and says how many lanes are in hand, who has the oldest,
    and what is owed.
    """
    page = await blocked(reader, Parameters({}))
    queue, lane = page.rows
    html = words(page)

    assert (queue.kind, queue.by_key, queue.holder, queue.in_hand_since_ms) == (
        "queue",
        True,
        "alice",
        2_000,
    )
    assert isinstance(queue.lanes, LaneCounts)
    assert (queue.lanes.in_hand, queue.lanes.held, queue.lanes.owed) == (4, 1, 300)
    assert FULL in queue.todo
    assert "members that have lanes in hand" in queue.todo
    assert "release the lanes" in queue.todo
    assert (lane.kind, lane.offset) == ("lane", 0)
    assert "/reset?" not in html
    assert "No member holds" not in html
    assert "skip the message:" not in html


@pytest.mark.parametrize(
    ("row", "is_skipped"),
    [
        ({"byKey": True}, False),
        ({}, False),
        ({"byKey": False}, True),
        ({"holder": "alice"}, True),
    ],
)
async def test_a_message_is_skipped_only_where_it_is_known_that_the_group_takes_queues(
    reader: Readings, row: dict[str, object], is_skipped: bool
) -> None:
    """Law: a skip is offered only if the group is known to consume by queue; a holder of a whole queue proves that."""
    reader.status = told({**STOOD, **row})
    del reader.answers["lanes"]

    page = await blocked(reader, Parameters({}))
    first = await overview(reader, Parameters({}))

    (trouble,) = (each for each in first.troubles if "no progress" in each.text)
    assert ("skip the message" in trouble.todo) is is_skipped
    assert ("skip the message" in page.rows[0].todo) is is_skipped
    assert ("/reset?" in words(page)) is is_skipped


@pytest.mark.parametrize("state", ["parked", "held"])
async def test_a_blocked_queue_is_counted_beside_the_lanes_that_wait(
    reader: Readings, state: str
) -> None:
    """Law: a blocked queue is counted, so the cluster is not healthy.

    A held lane is counted too; a parked one goes on by itself.
    """
    waits = {"group": "shipping", "state": state, "lanes": 1}
    watch = {"examinedAt": 1, "blockedKnown": True, "lanes": [waits], "blocked": [STOOD]}
    reader.status = StatusReport.model_validate({"leader": 1, "term": 1, "watch": watch})

    page = await overview(reader, Parameters({}))

    held = state == "held"
    assert page.state == "troubled"
    assert page.blocked.value == 1 + held
    assert page.sentence == "1 queue is blocked" + ", and 1 key waits for a release" * held + "."


@pytest.mark.cluster
async def test_a_reset_of_a_group_by_key_says_what_its_lanes_owe(troubled: Cluster) -> None:
    """Law: the preview of a reset of a group by key says what its lanes owe, and which completed messages come again."""
    troubled.create_topic("laned", queues=1)
    at = troubled.name_server

    def listen(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        if messages[0].key == "bad":
            raise RuntimeError("no such order")

    async with AdminClient(at) as admin, Producer(name_servers=at) as producer:
        by_key = SubscriptionGroupConfig("laning", concurrency="Key", on_dead_letter="HoldKey")
        await admin.set_group(by_key)
        for key in ("bad", "good", "good", "bad", "good"):
            await producer.send("laned", "x", key=key)
        async with Consumer(
            "laning",
            at,
            topics="laned",
            ordered="key",
            consume_from="first",
            listener=listen,
            settings=ConsumerSettings(max_reconsume_times=1),
        ):
            while [  # noqa: ASYNC110 - nothing signals it
                (row.scanned, row.owed, row.held) for row in (await admin.lanes("laning")).queues
            ] != [(5, 2, 1)]:
                await asyncio.sleep(0.02)
        await producer.send("laned", "x", key="late")

        async def effect(offset: int) -> tuple[str, str]:
            wanted = {"group": "laning", "topic": "laned", "to": "offset", "offset": str(offset)}
            wanted["queue"] = "broker-a:0"
            plan = await plan_reset(ClusterReader(admin, Collector()), Parameters(wanted))
            (lanes,) = (each for each in plan.effects if "lanes" in each)
            assert plan.following == ()
            return plan.moves[0].effect, lanes

        effects = [await effect(offset) for offset in (0, 2, 5, 6)]
        (good,) = (await explain_key(admin, "laned", "good")).groups

    assert (good.committed, good.begin, good.following) == (0, 5, None)
    assert [each for each, _ in effects] == [
        "delivers 5 messages again",
        "skips up to 2 messages, and delivers 3 messages again",
        "skips 2 messages",
        "skips 3 messages",
    ]
    assert {said for _, said in effects} == {
        "The lanes of these queues end. They owe 2 messages; those before the new offset will not be delivered. "
        "A lane in hand ends when its attempt ends."
    }
