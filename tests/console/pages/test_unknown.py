"""A value that a broker group does not report is unknown on each page, never nobody, nothing or zero."""

import dataclasses
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from orderlymq.admin.client import QueueLock
from orderlymq.admin.operations import ParkedKey
from orderlymq_console.cluster import Answers
from orderlymq_console.collector import Reading
from orderlymq_console.models import Figure, Snapshot
from orderlymq_console.pages.blocked import blocked, group_parts
from orderlymq_console.pages.groups import group
from orderlymq_console.pages.message import of_group
from orderlymq_console.pages.overview import overview, raft
from orderlymq_console.pages.topics import topic
from orderlymq_console.pages.undelivered import waiting
from orderlymq_console.parameters import Parameters
from orderlymq_console.status import SHOWN_MAX, TAKING_OVER, StatusReport
from orderlymq_console.web.renderer import Renderer, Who
from orderlymq_protocol.body.clients import Connection, ConsumerConnection
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import LaneShown, LaneTable, QueueLanes
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import OffsetWrapper, TopicOffset
from tests.client.messages import message
from tests.console.readings import ROW, Readings, told

QUEUE = MessageQueue("orders", "broker-a", 0)
SHIPPING = Parameters({"group": "shipping"})


@pytest.fixture
async def reader() -> AsyncIterator[Readings]:
    """An ordered group with a member and an offset; other questions have no answer."""
    reader = Readings(told({**ROW, "holder": "alice"}))
    config = SubscriptionGroupConfig("shipping", consume_message_orderly=True)
    online = ConsumerConnection((Connection("alice", "10.0.0.1:5", "PYTHON", 1),))
    reader.answers = {
        "groups": {"shipping": config},
        "connections": [online],
        "progress": {QUEUE: OffsetWrapper(10, 7)},
    }
    yield reader
    await reader.collector.close()


def locks(client_id: str) -> dict[MessageQueue, QueueLock]:
    return {QUEUE: QueueLock(QUEUE, client_id, f"{client_id}:1", 1, 30_000, 1)}


def words(page: Any, template: str = "group.html") -> str:
    """Return the live part of a page, of a group by default."""
    request: web.Request = make_mocked_request("GET", "/groups/shipping")
    return Renderer("", read_only=True).live(template, request, Who(), page=page)


async def test_a_holder_that_no_broker_names_is_not_nobody(reader: Readings) -> None:
    """Law: if no broker names holders, a queue's holder and a member's queues are unknown, not nobody and none."""
    page = await group(reader, SHIPPING)

    (queue,) = page.queues
    (member,) = page.members
    assert (queue.holder, queue.holder_unknown) == (None, "no answer about locks")
    assert member.queues == Figure(unknown="broker-a: no answer about locks")
    assert "nobody" not in words(page)
    assert "no answer about locks" in words(page)

    reader.answers["locks"] = {}
    page = await group(reader, SHIPPING)
    assert (page.queues[0].holder_unknown, page.members[0].queues) == ("", Figure(value=0))
    assert "nobody" in words(page.model_copy(update={"ordering": "ordered"}))


@pytest.mark.parametrize("kind", ["locks", "lanes", "parked", "progress"])
async def test_a_part_of_the_page_that_fails_is_named(reader: Readings, kind: str) -> None:
    """Law: a failed part of a page is named, so that missing rows do not mean that nothing stands still."""
    reader.answers |= {"locks": {}, "lanes": LaneTable(), "parked": []}
    del reader.answers[kind]

    found = await blocked(reader, SHIPPING)
    page = await group(reader, SHIPPING)

    assert [each.unknown for each in found.missing] == [f"no answer about {kind}"]
    assert [each.unknown for each in page.missing] == [f"no answer about {kind}"]


@pytest.mark.parametrize(("now", "address"), [("alice", "alice:1"), ("bob", None)])
async def test_the_address_beside_a_holder_is_its_own(
    reader: Readings, now: str, address: str | None
) -> None:
    """Law: the shown address is that of the shown holder; the leader's answer is seconds old and the holder may have
    changed.
    """
    reader.answers |= {"locks": locks(now), "lanes": LaneTable(), "parked": []}

    (row,) = (await blocked(reader, SHIPPING)).rows

    assert (row.holder, row.holder_address) == ("alice", address)


async def test_a_holder_that_is_away_has_no_log_to_read(reader: Readings) -> None:
    """Law: for a holder that is gone the advice is its lease or its death, not its log; to skip the message frees no lock."""
    lock = dataclasses.replace(locks("alice")[QUEUE], is_connected=False)
    reader.answers |= {"locks": {QUEUE: lock}, "lanes": LaneTable(), "parked": []}

    (row,) = (await blocked(reader, SHIPPING)).rows

    assert row.todo.startswith("alice is not connected, and nothing proves that it is dead. Wait: ")
    assert "the lease of 30 s ends" in row.todo
    assert "skip" not in row.todo

    # Another holder has the queue now, and its log may help.
    reader.answers["locks"] = {QUEUE: dataclasses.replace(lock, client_id="bob")}
    (row,) = (await blocked(reader, SHIPPING)).rows
    assert "Read the log" in row.todo


async def test_the_first_page_knows_that_a_holder_is_away() -> None:
    """Law: the first page knows without another question that a holder is away, if the leader reports it;
    an older one does not.
    """
    away = {**ROW, "holder": "alice", "connected": False, "leaseMillis": 60_000}

    first = await overview(Readings(told(away)), SHIPPING)
    before = await overview(Readings(told({**ROW, "holder": "alice"})), SHIPPING)

    (said,) = (each.todo for each in first.troubles if "no progress" in each.text)
    (unsaid,) = (each.todo for each in before.troubles if "no progress" in each.text)
    assert said.startswith("alice is not connected, and nothing proves that it is dead. Wait: ")
    assert "the lease of 60 s ends" in said
    assert unsaid.startswith("Read the log of alice's listener")


async def test_a_queue_that_stands_shows_since_when_its_listener_has_the_message(
    reader: Readings,
) -> None:
    """Law: a standing queue has the time since when its listener has the message, if the member reported one."""
    reader.answers |= {"locks": locks("alice"), "lanes": LaneTable(), "parked": []}
    for called, shown in ((1_000_000, 1_000_000), (0, None), (None, None)):
        reader.status = told({**ROW, "holder": "alice", "listenerCalled": called})
        page = await group(reader, SHIPPING)
        assert page.standing[0].called_ms == shown
        assert ("Listener called" in words(page)) is (shown is not None)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (told(examined=0), "has not examined its groups yet"),
        (StatusReport(), "is taking over another state"),
    ],
)
async def test_what_is_left_out_has_its_own_reason(
    reader: Readings, status: StatusReport, reason: str
) -> None:
    """Law: what is left out has its own reason on each page: the leader has not looked yet,
    or the replica takes over a state.
    """
    reader.status = status

    page = await blocked(reader, SHIPPING)
    first = await overview(reader, SHIPPING)

    assert reason in page.left_out
    for figure in (first.lag, first.oldest_seconds, first.blocked):
        assert (figure.value, reason in figure.unknown) == (None, True)


async def test_a_replica_that_takes_over_another_state_has_no_figures(reader: Readings) -> None:
    """Law: while a replica takes over another state its figures (members, waiting messages) are unknown, not zero."""
    reader.status = StatusReport()

    first, page = await overview(reader, SHIPPING), await waiting(reader, SHIPPING)
    (row,) = page.rows

    for figure in (first.members, row.timers, row.levels, row.open, row.given_up):
        assert figure == Figure(unknown=TAKING_OVER)


class TwoLeaders(Readings):
    """A reader of two broker groups; the first one names 24 producer groups."""

    async def statuses(self) -> Answers[StatusReport]:
        """Return both statuses."""
        many = {f"g{number:02}": 5 for number in range(24)}
        return Answers({"broker-a": _open(150, many), "broker-b": _open(7, {"a": 7})})


def _open(count: int, groups: dict[str, int]) -> Reading[StatusReport]:
    rows = {name: {"open": each} for name, each in groups.items()}
    found = {"watch": {"examinedAt": 1, "blockedKnown": True}}
    transactions = {"transactions": {"open": count, "groups": rows}}
    return Reading(StatusReport.model_validate(found | transactions), "", 0.0)


async def test_transactions_of_groups_that_a_leader_does_not_name_are_not_none() -> None:
    """Law: transactions of groups that a leader does not name are not counted as none; it names only the largest."""
    page = await waiting(TwoLeaders(told()), Parameters({}))

    assert page.groups_left_out == Figure(value=5, at_least=True)
    assert [(row.group, row.open) for row in page.groups[:2]] == [
        ("a", Figure(value=7, at_least=True)),
        ("g00", Figure(value=5)),
    ]
    assert "≥ 5 more producer groups are not shown" in words(page, "waiting.html")


@pytest.mark.parametrize(
    ("offset", "part"),
    [(6, "Whether it is a dead letter or is tried again is unknown"), (9, "The state of its lane")],
)
async def test_a_message_that_nobody_reports_is_not_said_to_be_consumed(
    reader: Readings, offset: int, part: str
) -> None:
    """Law: if nobody reports a message's state it is not called consumed; the reason is shown beside what is known."""
    row = await of_group(reader, Answers({}), "shipping", message(offset))

    assert part in row.state


@pytest.mark.parametrize(
    ("table", "properties", "waits"),
    [
        (LaneTable("Key"), {}, False),
        (LaneTable("Key"), {"__SHARDINGKEY": "k"}, False),
        (LaneTable("Key", lane_key_property="order"), {}, False),
        (LaneTable("Key", lane_key_property="order"), {"__SHARDINGKEY": "o1"}, False),
        (LaneTable("Key", lane_key_property="order"), {"order": "o1"}, True),
    ],
)
async def test_a_message_waits_behind_those_of_its_own_lane(
    reader: Readings, table: LaneTable, properties: dict[str, str], waits: bool
) -> None:
    """Law: a message waits only for its own lane; without a key for nothing.

    Lanes may go by another property than the sharding key.
    """
    parked = [
        LaneShown("orders", "broker-a", 0, number, key, "parked", number, 1)
        for number, key in ((7, ""), (8, "o1"))
    ]
    reader.answers |= {"locks": {}, "lanes": replace(table, lanes=tuple(parked)), "parked": []}
    found = message(9)
    found.properties |= properties

    row = await of_group(reader, Answers({}), "shipping", found)

    expected = "Its key is parked since offset 8; it waits behind that message."
    assert (row.state == expected) is waits
    assert waits or row.state.startswith("The group consumes by key.")


@pytest.mark.parametrize(
    ("key", "name", "seen"),
    [("k", "__SHARDINGKEY", 1), ("k", "order", 0), ("", "__SHARDINGKEY", 0)],
)
async def test_the_life_of_a_key_has_what_its_own_lane_did(
    reader: Readings, key: str, name: str, seen: int
) -> None:
    """Law: a key's life has only its own lane's events, not those of keyless messages or of another property's lane."""
    lane = LaneShown("orders", "broker-a", 0, 1, key, "held", 7, 1)
    figures = QueueLanes("orders", "broker-a", 0, 9, 7, 1, 0, 0, 0, 1)
    table = LaneTable("Key", (figures,), (lane,), name)
    reader.answers |= {"locks": {}, "lanes": table, "parked": []}

    await group_parts(reader, "shipping")

    assert len(reader.journal.key_of("shipping", QUEUE, key)) == seen


def watched(**found: object) -> StatusReport:
    return StatusReport.model_validate({"watch": {"examinedAt": 1, "blockedKnown": True, **found}})


async def test_what_needs_somebody_is_asked_before_what_goes_on_by_itself(reader: Readings) -> None:
    """Law: with many groups those with a held lane are asked first; groups that are left out are named."""
    pauses = [{"group": f"a{number:02}", "state": "parked", "lanes": 9} for number in range(21)]
    held = {"group": "payments", "state": "held", "lanes": 1}
    reader.status = watched(lanes=(*pauses, held))
    lane = LaneShown("orders", "broker-a", 0, 1, "k", "held", 7, 1)
    reader.answers |= {"locks": {}, "lanes": LaneTable("Key", (), (lane,)), "parked": []}

    page = await blocked(reader, SHIPPING)

    assert {row.group for row in page.rows} == {"payments", *(f"a{n:02}" for n in range(19))}
    assert page.left_out.startswith("Something is blocked in 2 more groups: a19, a20; ")


async def test_a_list_that_is_cut_is_not_called_whole(reader: Readings) -> None:
    """Law: if a leader or broker names only some entries, page and count are lower bounds."""
    reader.answers |= {"locks": {}, "lanes": LaneTable(), "parked": []}
    many = [{**ROW, "queue": number} for number in range(SHOWN_MAX)]
    reader.status = watched(blocked=many)
    page, first = await blocked(reader, SHIPPING), await overview(reader, SHIPPING)
    one = {"group": "shipping", "state": "held", "lanes": 300}
    reader.status = watched(lanes=(one,))
    counts = QueueLanes("orders", "broker-a", 0, 300, 0, 300, 0, 0, 0, 300)
    reader.answers["lanes"] = LaneTable("Key", (counts,))
    lanes = await blocked(reader, SHIPPING)

    assert (first.blocked.value, first.blocked.at_least) == (100, True)
    assert first.sentence == "100 queues are blocked, and what else is blocked is unknown."
    assert (
        "What else is blocked in broker-a is unknown: a leader reports at most 100" in page.left_out
    )
    assert lanes.left_out == (
        "not listed: 300 more lanes of group shipping in broker-a; open its page"
    )


async def test_an_order_that_no_name_server_reports_is_not_any_order(reader: Readings) -> None:
    """Law: if no name server reports a topic's order, or nobody its expansion, that is unknown, with who did not answer."""
    reader.answers |= {"stats": {QUEUE: TopicOffset(0, 5, 0)}, "rate of": 1.0, "groups of": []}
    request: web.Request = make_mocked_request("GET", "/topics/orders")

    page = await topic(reader, Parameters({"topic": "orders"}))
    html = Renderer("", read_only=True).live("topic.html", request, Who(), page=page)

    assert (page.ordered, page.expansion) == (None, ())
    assert "It is unknown whether its queues are being expanded: broker-a: no answer" in html
    assert "any</dd>" not in html
    assert {each.name for each in page.missing} == {"broker-a", "name servers"}


async def test_a_snapshot_stands_beside_the_replica_that_it_was_sent_to(reader: Readings) -> None:
    """Law: a snapshot is shown at the replica that it was sent to."""
    snapshot = {"index": 17, "bytes": 4_096, "age_ms": 60_000}
    replicas: dict[str, Any] = {"1": {"snapshot": None}, "2": {"snapshot": snapshot}}
    reader.status = StatusReport.model_validate({"leader": 1, "term": 1, "replicas": replicas})

    page = await raft(reader, Parameters({}))
    (group,) = page.broker_groups
    own, sent = group.replicas

    assert own.snapshot is None
    assert sent.snapshot == Snapshot(index=17, size_bytes=4_096, age_seconds=60)
    assert "4.0 KiB" in words(page, "raft.html")


async def test_a_group_of_which_nobody_reports_anything_has_no_figures(reader: Readings) -> None:
    """Law: a group about which nobody reports has unknown figures, not `no offset` or `nothing on dead letter`."""
    reader.answers = {}

    html = words(await group(reader, SHIPPING))

    assert "no offset" not in html
    assert html.count('class="unknown"') >= 6
    assert '<dt>Dead-letter policy</dt><dd><span class="unknown">' in html


async def test_what_stands_still_comes_before_dead_letters(reader: Readings) -> None:
    """Law: standing queues are listed before dead letters, so fifty letters do not push the one standing queue out."""
    letters = [
        {
            "group": "billing",
            "topic": "orders",
            "messageId": f"ID{number}",
            "tries": 3,
            "dead": True,
        }
        for number in range(60)
    ]
    watch = {
        "examinedAt": 1,
        "blockedKnown": True,
        "blocked": [{**ROW, "since": 9_000}],
        "failing": letters,
    }
    reader.status = StatusReport.model_validate({"leader": 1, "term": 1, "watch": watch})
    reader.answers["parked"] = [
        ParkedKey(MessageQueue("orders", "broker-a", 1), f"k{number}", 1_000, 0, "ID", 0)
        for number in range(60)
    ]

    first = (await overview(reader, Parameters({}))).troubles[0]
    page = await blocked(reader, Parameters({}))

    assert (first.severity, first.link) == ("critical", "/blocked")
    assert "Queue 0 of orders makes no progress in group shipping" in first.text
    assert [row.kind for row in page.rows[:2]] == ["queue", "key"]
