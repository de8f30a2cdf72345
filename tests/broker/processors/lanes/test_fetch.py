"""Fetches of lanes: which member gets what, which wait, and what a repeat gets."""

from collections.abc import Callable
from typing import Any

import pytest

from orderlymq_broker.core.longwalks import WALK_STEP_MAX
from orderlymq_broker.processors.fetch.filter import registered_filter
from orderlymq_broker.processors.groups.locks import LEASE_MS_MIN
from orderlymq_broker.processors.lanes import fetch
from orderlymq_broker.processors.lanes.scan import SCAN_MAX
from orderlymq_broker.state.lanes.lane import RUN_MAX
from orderlymq_broker.state.lanes.lanerecords import Granted, LanesGranted
from orderlymq_broker.state.lanes.lanerecords import LanesFetched as Record
from orderlymq_broker.state.records import GroupDeleted, GroupSet, TopicDeleted, TopicSet
from orderlymq_broker.state.topics.queues import DEFAULT_TAIL_SIZE
from orderlymq_protocol.body.lanes import LANES_MAX, LanesFetched
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.broker.processors.halves import COMMIT, begin, end
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    caller_of,
    committed,
    join,
    keys,
    lanes,
    lead,
    produce,
    stored,
    without_tail,
)
from tests.broker.processors.requests import create, heartbeat_body, properties, send


@pytest.mark.parametrize("from_store", [False, True], ids=["tail", "store"])
def test_members_share_a_queue_by_its_keys(*, from_store: bool) -> None:
    """Law: each key goes to one member at a time, its later messages wait, and bodies arrive as they were sent."""
    shell = lead()
    produce(shell, "x", "y", "x", "", "")
    if from_store:
        without_tail(shell)
    a, b = Member(shell), Member(shell, "b")

    reply = a.ask(maxLanes=2)
    first, second = lanes(reply), b.fetch()

    assert [(each.key, each.offsets) for each in first] == [("x", (0,)), ("y", (1,))]
    assert [(each.key, each.offsets) for each in second] == [("", (3,)), ("", (4,))]
    assert [each.body for each in stored(reply)] == [b"paid", b"paid"]
    assert b.fetch() == ()
    assert a.done(first[0]) == ["done"]
    assert [(each.key, each.offsets) for each in b.fetch()] == [("x", (2,))]
    shell.replay()


def test_a_scan_goes_on_from_the_store_into_the_tail() -> None:
    """Law: members get every message of a backlog that is partly in the store and partly in memory,
    before the offset passes it.
    """
    shell = lead()
    produce(shell, "w")
    without_tail(shell)
    shell.state.tail.resize(DEFAULT_TAIL_SIZE)
    produce(shell, *["x"] * 200)
    member = Member(shell)
    seen: list[int] = []

    while given := member.fetch(maxPerLane=100):
        seen += [offset for each in given for offset in each.offsets]
        assert set(member.done(*given)) == {"done"}

    assert (seen, committed(shell)) == (list(range(201)), 201)
    shell.replay()


def test_a_broker_that_may_only_be_written_hands_out_no_lanes() -> None:
    """Law: with brokerPermission 2, fetches are refused with 16 and what to do, also those that wait."""
    shell = lead()
    member = Member(shell)
    waiting = member.wait()

    shell.call(25, {}, b"brokerPermission=2\n")
    produce(shell, "x")

    for refused in (shell.reply_to(waiting), member.ask()):
        assert refused is not None
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "brokerPermission is 2" in (refused.remark or "")


def test_a_fetch_waits_for_a_message_and_for_a_lane() -> None:
    """Law: a new message or a completed lane answers a waiting fetch."""
    shell = lead()
    a, b = Member(shell), Member(shell, "b")
    waiting = a.wait()
    assert shell.reply_to(waiting) is None

    produce(shell, "x", "x")
    first = shell.reply_to(waiting)
    assert first is not None
    (x,) = lanes(first)
    later = b.wait()
    assert shell.reply_to(later) is None
    a.done(x)

    second = shell.reply_to(later)
    assert second is not None
    assert [each.offsets for each in lanes(second)] == [(1,)]


def test_a_wait_ends_without_lanes() -> None:
    """Law: a fetch that waits as long as the member said is answered "nothing found"."""
    shell = lead()
    waiting = Member(shell).wait(suspendTimeoutMillis=5_000)

    shell.pass_time(4_900)
    assert shell.reply_to(waiting) is None
    shell.pass_time(200)

    reply = shell.reply_to(waiting)
    assert reply is not None
    assert reply.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("new_leader", [False, True])
def test_a_repeat_gets_the_attempts_of_the_first(*, new_leader: bool) -> None:
    """Law: a fetch repeated with the same number gets the same attempts, also from another leader,
    so that a lost answer blocks no lane.
    """
    shell = lead()
    produce(shell, "x", "x", "y")
    a = Member(shell)
    first = a.fetch(maxPerLane=2)
    if new_leader:
        shell = shell.restart().lead()
        a.shell = shell
        join(shell, "a")

    a.sequence -= 1
    assert a.fetch(maxPerLane=2) == first
    a.done(first[1])
    a.sequence -= 1
    assert a.fetch() == first[:1]
    assert a.fetch() == ()


def test_a_repeat_renews_no_lease() -> None:
    """Law: a repeat does not renew the leases of its attempts."""
    shell = lead()
    produce(shell, "x")
    a, b = Member(shell), Member(shell, "b")
    (x,) = a.fetch(leaseMillis=2_000)

    for _ in range(3):
        shell.pass_time(600)
        a.sequence -= 1
        assert a.fetch(leaseMillis=2_000) == (x,)
    shell.pass_time(400)

    assert keys(b.fetch()) == ["x"]
    assert a.done(x) == ["stale"]


def test_a_repeat_takes_the_place_of_the_first_while_that_waits() -> None:
    """Law: a member has one waiting fetch per topic; a repeat replaces the first, which is told to ask again."""
    shell = lead()
    a = Member(shell)
    first = a.wait()
    a.sequence -= 1
    second = a.wait()
    produce(shell, "x")

    former, reply = shell.reply_to(first), shell.reply_to(second)
    assert former is not None
    assert former.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply is not None
    assert keys(lanes(reply)) == ["x"]


def test_a_repeat_that_comes_while_the_first_is_in_the_log_gets_its_attempts() -> None:
    """Law: a repeat that comes while the first is uncommitted gets the first one's lanes."""
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    ext = a.ext(sequence=1, maxLanes=1)
    first = shell.submit(RequestCode.ORDERLYMQ_FETCH_LANES, ext, caller=a.caller)
    second = shell.submit(RequestCode.ORDERLYMQ_FETCH_LANES, ext, caller=a.caller)

    shell.settle()

    former, reply = shell.reply_to(first), shell.reply_to(second)
    assert former is not None
    assert former.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply is not None
    assert keys(lanes(reply)) == ["x"]
    assert shell.state.lanes.in_hand_count("a", GROUP, TOPIC) == 1


def test_a_key_with_a_large_backlog_takes_one_lane() -> None:
    """Law: a key with a large backlog takes one lane; keys behind it are found in the same or the next fetch."""
    shell = lead()
    produce(shell, *["hot"] * 300, "cold")
    without_tail(shell)
    a, b = Member(shell), Member(shell, "b")

    assert keys(a.fetch(maxLanes=1)) == ["hot"]
    assert keys(b.fetch(maxLanes=1)) == ["cold"]


def test_new_keys_are_looked_for_though_old_backlogs_never_end() -> None:
    """Law: one in four lanes comes from messages that were not scanned yet, even if old backlogs never end."""
    shell = lead()
    hot = [f"hot{number}" for number in range(8)]
    produce(shell, *hot * 20, *[f"cold{number}" for number in range(4)])
    a, b = Member(shell), Member(shell, "b")
    given = a.fetch(maxLanes=8)
    seen = keys(b.fetch(maxLanes=1))
    for _ in range(5):
        a.done(*given)
        given = a.fetch(maxLanes=4)
        seen += [key for key in keys(given) if key.startswith("cold")]

    assert seen == ["cold0", "cold1", "cold2", "cold3"]


def test_the_oldest_message_goes_first() -> None:
    """Law: of the ready lanes, the one with the oldest first message is handed out."""
    shell = lead()
    produce(shell, "x", "y", "z", "z", "y", "x")
    a = Member(shell)
    a.done(*a.fetch())

    assert [keys(a.fetch(maxLanes=1)) for _ in range(3)] == [["z"], ["y"], ["x"]]


@pytest.mark.parametrize("asked", [1, 4])
def test_queues_are_served_in_turn(asked: int) -> None:
    """Law: queues are served in turn, however long one is."""
    shell = lead(queues=2)
    produce(shell, *[f"x{number}" for number in range(40)])
    produce(shell, "y", queue=1)
    a = Member(shell)

    seen = [each.queue_id for _ in range(4) for each in a.fetch(maxLanes=asked)]

    assert 1 in seen


def test_a_member_may_have_several_messages_of_a_lane() -> None:
    """Law: a member gets as many messages of a lane as it asks for, in order; the number of the others is reported."""
    shell = lead()
    produce(shell, *["x"] * 70)

    (x,) = Member(shell).fetch(maxPerLane=3)

    assert (x.offsets, x.behind) == ((0, 1, 2), 67)


def test_messages_that_were_found_one_by_one_come_together() -> None:
    """Law: messages of a waiting key found by many scans are handed out together, as if one scan had found them."""
    shell = lead()
    a = Member(shell)
    count = 3 * RUN_MAX
    produce(shell, "x")
    (x,) = a.fetch()
    for _ in range(count - 1):
        produce(shell, "x")
        assert a.fetch() == ()
    assert a.done(x) == ["done"]

    seen = []
    while given := a.fetch(maxPerLane=RUN_MAX // 4):
        (x,) = given
        seen.append(x.offsets)
        a.done(x)

    assert [offset for each in seen for offset in each] == list(range(1, count))
    assert len(seen) == 3 * 4
    shell.state.check_invariants()
    shell.replay()


def test_an_answer_has_a_limit_of_bytes() -> None:
    """Law: an answer's bytes are limited, but one message is always returned."""
    shell = lead()
    produce(shell, "x", "y", "z", body=b"m" * 1_000)
    a = Member(shell)

    assert [len(a.fetch(maxBytes=size)) for size in (1, 2_500)] == [1, 2]


def test_delayed_messages_and_committed_halves_join_the_lane_of_their_key() -> None:
    """Law: a delayed message or committed half message joins its key's lane when it enters the queue;
    a half message is in no lane.
    """
    shell = lead()
    a = Member(shell)
    half = begin(shell, b"half", __SHARDINGKEY="x")
    send(shell, TOPIC, b"later", properties(DELAY="1", __SHARDINGKEY="x"))
    produce(shell, "x", body=b"first")
    (first,) = a.fetch()
    waiting = a.wait(maxPerLane=2)
    shell.pass_time(1_500)
    end(shell, half, COMMIT)

    assert shell.reply_to(waiting) is None
    a.done(first)

    reply = shell.reply_to(waiting)
    assert reply is not None
    assert [each.body for each in stored(reply)] == [b"later", b"half"]
    assert keys(lanes(reply)) == ["x"]


def test_an_expression_passes_over_what_the_group_does_not_want() -> None:
    """Law: messages that an SQL92 subscription does not match are skipped; the lane goes on."""
    shell = lead()
    join(shell, "a", tags="colour = 'red'", kind="SQL92")
    for colour in ("red", "blue", "red"):
        send(shell, TOPIC, b"", properties(colour=colour, __SHARDINGKEY="x"))

    (x,) = Member(shell).fetch(maxPerLane=3)

    assert x.offsets == (0, 2)


def test_a_filter_passes_over_what_the_group_does_not_want() -> None:
    """Law: messages that a tag filter does not match count as completed, so that the committed offset passes them."""
    shell = lead()
    join(shell, "a", tags="a")
    join(shell, "b", tags="a")
    produce(shell, "x", "y")

    waiting = Member(shell).wait()

    assert shell.reply_to(waiting) is None
    assert committed(shell) == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"consumerGroup": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"clientId": "stranger"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"subVersion": 9}, ResponseCode.SUBSCRIPTION_NOT_LATEST),
        ({"maxLanes": 0}, ResponseCode.SYSTEM_ERROR),
        ({"maxLanes": LANES_MAX + 1}, ResponseCode.SYSTEM_ERROR),
        ({"maxLanes": "many"}, ResponseCode.SYSTEM_ERROR),
        ({"clientId": "a" * 600}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_fetch_that_cannot_be_served_is_refused_by_name(
    change: dict[str, str], code: int
) -> None:
    """Law: a fetch that cannot be served is refused with a reason, and nothing is handed out."""
    shell = lead()
    produce(shell, "x")

    reply = Member(shell).ask(**change)

    assert (reply.code, bool(reply.remark)) == (code, True)
    assert shell.core.lanes.fetcher.waiting_count == 0
    assert keys(Member(shell, "b").fetch()) == ["x"]


def test_a_group_by_queues_has_no_lanes() -> None:
    """Law: a fetch in a group by queue is refused, so that the member learns the group's mode."""
    shell = lead()
    create(shell, GroupSet(GROUP))

    assert Member(shell).ask().code == ResponseCode.ORDERLYMQ_NOT_BY_KEY


def test_a_broadcasting_member_has_no_lanes() -> None:
    """Law: a broadcasting member gets no lanes, because all members would need each key."""
    shell = lead()
    join(shell, "a", model="BROADCASTING")

    assert Member(shell).ask().code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("record", [GroupDeleted(GROUP), TopicDeleted(TOPIC)])
def test_who_waits_for_what_is_deleted_is_answered(record: GroupDeleted | TopicDeleted) -> None:
    """Law: fetches that wait for a deleted topic or group are answered."""
    shell = lead()
    waiting = Member(shell).wait()

    create(shell, record)

    reply = shell.reply_to(waiting)
    assert reply is not None
    assert reply.code in (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
    )


@pytest.mark.parametrize("record", [GroupDeleted(GROUP), TopicDeleted(TOPIC)])
def test_the_leader_keeps_nothing_of_what_is_deleted(record: GroupDeleted | TopicDeleted) -> None:
    """Law: the leader keeps no leases or pauses of deleted topics and groups."""
    shell = lead()
    produce(shell, "x", "y")
    member = Member(shell)
    x, _ = member.fetch()
    member.say("retry", x, delay_millis=100_000)
    shell.wall_ms -= 3_600_000  # The pause of x was begun by a clock that was ahead.
    shell.lead()
    join(shell, "a")
    produce(shell, "z")
    assert keys(member.fetch()) == ["z"]
    leases = shell.core.lanes.leases
    assert (len(leases._deadlines.ends), len(leases._due_ms)) == (2, 1)

    create(shell, record)

    assert not shell.core.lanes.fetcher._turns
    assert not leases._deadlines.ends
    assert not leases._due_ms


def test_the_leases_of_what_is_deleted_are_forgotten_in_turns() -> None:
    """Law: leases of deleted topics are removed in steps, which also see later deletions."""
    count = WALK_STEP_MAX // 2 + 1
    shell = lead(queues=2)
    now = shell.now
    leases = shell.core.lanes.leases
    for topic in ("other", "third"):
        found = tuple(Granted(0, each, each, "", (each,), 0, 0, 0) for each in range(1, count + 1))
        leases.granted(LanesGranted(GROUP, topic, "a", 1_000, found), now)

    shell.run(leases.forget_gone(now))
    assert len(leases._deadlines.ends) == 2 * count - WALK_STEP_MAX
    leases.granted(LanesGranted(GROUP, "fourth", "a", 1_000, found), now)
    shell.run(leases.forget_gone(now))
    assert len(shell.later) == 1
    shell.settle()

    assert not leases._deadlines.ends


def test_many_fetches_that_wait_are_answered_in_turns() -> None:
    """Law: when leadership ends, waiting fetches are answered some hundred per turn."""
    shell = lead()
    topics = [f"topic-{number}" for number in range(300)]
    create(shell, *(TopicSet(topic, 1, 1) for topic in topics))
    shell.call(34, {}, heartbeat_body("a", GROUP, (TOPIC, *topics)), caller=caller_of("a"))
    member = Member(shell)
    waiting = [member.wait(topic=topic) for topic in topics]

    shell.follow()
    at_once = sum(shell.reply_to(each) is not None for each in waiting)
    shell.go_on()

    replies = [shell.reply_to(each) for each in waiting]
    assert at_once == 256
    assert [each and each.remark for each in replies] == ["LEADER_CHANGED"] * 300


def test_who_waits_learns_that_the_leader_changes() -> None:
    """Law: a change of leader tells waiting members to ask again, with the same number."""
    shell = lead()
    waiting = Member(shell).wait()

    shell.follow()

    reply = shell.reply_to(waiting)
    assert reply is not None
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY


def judged_with(count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many fetches are planned for one more fetch, one message and one time-out while so many wait."""
    shell = lead()
    judged = 0

    def counted(*arguments: Any) -> Any:
        nonlocal judged
        judged += 1
        return registered_filter(*arguments)

    members = [Member(shell, chr(ord("c") + number)) for number in range(count)]
    for member in members:
        join(shell, member.client)
        member.wait()
    member = Member(shell)
    told = []
    monkeypatch.setattr(fetch, "registered_filter", counted)
    acts: tuple[Callable[[], object], ...] = (
        lambda: member.wait(suspendTimeoutMillis=1_000),
        lambda: shell.pass_time(1_200),
        lambda: produce(shell, "x"),
    )
    for act in acts:
        judged = 0
        act()
        told.append(judged)
    monkeypatch.undo()
    return told


def test_fetches_that_wait_for_nothing_new_are_not_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: waiting fetches are planned again only for news, so a member's cost does not grow with idle members."""
    assert judged_with(20, monkeypatch) == judged_with(5, monkeypatch)


def test_a_closed_connection_waits_for_nothing() -> None:
    """Law: a closed connection's waiting fetch is dropped; later messages go to other members."""
    shell = lead()
    a = Member(shell)
    a.wait()
    shell.run(shell.core.connection_closed(a.caller.connection))
    shell.settle()

    produce(shell, "x")

    assert keys(Member(shell, "b").fetch()) == ["x"]


def test_a_long_key_is_a_lane_of_its_own() -> None:
    """Law: long keys that differ behind the length limit have different lanes; equal ones share one."""
    shell = lead()
    produce(shell, "k" * 2_000 + "1", "k" * 2_000 + "2", "k" * 2_000 + "1")

    given = Member(shell).fetch()

    assert [(each.offsets, each.behind) for each in given] == [((0,), 1), ((1,), 0)]


def test_a_group_may_name_the_property_that_is_the_key() -> None:
    """Law: a group may name the property that holds the key."""
    shell = lead(lane_key_property="KEYS")
    for key in ("x", "y", "x"):
        send(shell, TOPIC, b"paid", properties(KEYS=key), e=0)

    assert keys(Member(shell).fetch()) == ["x", "y"]


@pytest.mark.parametrize(("asked", "lease"), [(None, 30_000), (5, LEASE_MS_MIN), (7_000, 7_000)])
def test_a_lease_has_bounds(asked: int | None, lease: int) -> None:
    """Law: a lease is limited; the answer says how long it lasts."""
    shell = lead()
    produce(shell, "x")
    more = {} if asked is None else {"leaseMillis": asked}

    reply = Member(shell).ask(**more)

    assert LanesFetched.decode(reply.body)[0].lease_millis == lease


def test_a_lost_proposal_hands_nothing_out() -> None:
    """Law: if a plan is lost, nothing is handed out; the member asks again."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    opaque = shell.submit(
        RequestCode.ORDERLYMQ_FETCH_LANES, a.ext(sequence=1, maxLanes=1), caller=a.caller
    )

    shell.lose_proposals()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert keys(a.fetch()) == ["x"]


def test_deep_backlogs_of_many_queues_take_small_steps() -> None:
    """Law: a turn scans a bounded number of messages in all queues together;
    a new key behind deep backlogs is still found.
    """
    shell = lead(queues=3)
    deep = SCAN_MAX // 2
    for queue in range(3):
        produce(shell, *["deep"] * deep, queue=queue)
    produce(shell, "new", queue=2)
    a = Member(shell)
    held = (*a.fetch(), *a.fetch())

    assert keys(held) == ["deep"] * 3 + ["new"]

    steps = [
        sum(each.scanned - each.start for each in record.queues)
        for record in shell.proposed
        if isinstance(record, Record)
    ]
    assert sum(steps) == 3 * deep + 1
    assert max(steps) <= SCAN_MAX
    shell.replay()
