"""The limits of lanes: what happens at each of them, and what still goes on."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core import capacity
from orderlymq_broker.processors.groups import offsets
from orderlymq_broker.processors.lanes import fetch, overview, planner
from orderlymq_broker.settings import RaftSettings
from orderlymq_broker.state.lanes.lane import KEY_BYTES_MAX
from orderlymq_broker.state.lanes.lanerecords import LanesFetched as Record
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset, TopicSet
from orderlymq_protocol.body.lanes import (
    LANE_MESSAGES_MAX,
    LaneReport,
    LaneReports,
    LanesFetched,
)
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from tests.broker.processors.driver import Shell, settings
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    caller_of,
    join,
    keys,
    lanes,
    lead,
    produce,
    table,
)
from tests.broker.processors.lanes.test_modes import release
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat_body,
    properties,
    send,
    send_ext,
)


def limited(member: Member) -> str:
    """Fetch lanes of every kind; return the reason why there are no more."""
    reply = member.ask(maxLanes=256)
    return LanesFetched.decode(reply.body)[0].limited if reply.code == 0 else reply.remark or ""


def test_the_lanes_of_all_groups_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the lanes of all groups together are bounded; near the limit each group has a share, and none is left without.

    A group that waits gets more as soon as another one frees lanes.
    """
    for module in (planner, fetch):
        monkeypatch.setattr(module, "LANES_MAX", 12)
    monkeypatch.setattr(planner, "LANES_OF_GROUP_MAX", 8)
    shell = lead()
    produce(shell, *[f"key-{number}" for number in range(20)])
    groups = [f"group-{number}" for number in range(4)]
    member = Member(shell)
    given = []
    for group in groups:
        create(shell, GroupSet(group, concurrency="Key"))
        shell.call(34, {}, heartbeat_body("a", group, (TOPIC,)), caller=caller_of("a"))
        given.append(member.fetch(consumerGroup=group, maxLanes=256))

    # The third group finds two with lanes, and is the third itself.
    assert [len(each) for each in given] == [8, 8, 12 // 3, 12 // 4]
    waiting = member.wait(consumerGroup="group-3")
    assert table(shell, consumerGroup="group-3").queues[0].limited == planner.LANES_SHARED
    assert shell.reply_to(waiting) is None
    for group, some in zip(groups[:2], given, strict=False):
        ended = tuple(
            LaneReport(0, each.lane, each.attempt, "done", each.offsets[0]) for each in some
        )
        ext, body = member.ext(consumerGroup=group), LaneReports(ended).to_json()
        shell.call(RequestCode.ORDERLYMQ_COMPLETE_LANES, ext, body, caller=member.caller)

    shell.pass_time(200)

    reply = shell.reply_to(waiting)
    assert reply is not None
    assert len(lanes(reply)) == 8 - len(given[3])
    shell.replay()


def test_groups_without_lanes_take_no_share_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a group without lanes in hand or in trouble takes no share from others."""
    for module in (planner, fetch):
        monkeypatch.setattr(module, "LANES_MAX", 12)
    monkeypatch.setattr(planner, "LANES_OF_GROUP_MAX", 8)
    shell = lead()
    groups = ["noisy-0", "noisy-1", *[f"idle-{number}" for number in range(20)], "healthy"]
    member = Member(shell)
    produce(shell, "first")
    for group in groups:
        create(shell, GroupSet(group, concurrency="Key"))
        shell.call(34, {}, heartbeat_body("a", group, (TOPIC,)), caller=caller_of("a"))
        if group.startswith("idle"):
            (lane,) = member.fetch(consumerGroup=group)
            done = LaneReports((LaneReport(0, lane.lane, lane.attempt, "done", 0),)).to_json()
            ext = member.ext(consumerGroup=group)
            shell.call(RequestCode.ORDERLYMQ_COMPLETE_LANES, ext, done, caller=member.caller)
    produce(shell, *[f"key-{number}" for number in range(20)])
    given = [
        len(member.fetch(consumerGroup=group, maxLanes=256))
        for group in ("noisy-0", "noisy-1", "healthy")
    ]

    assert given == [8, 8, 12 // 3]
    shell.replay()


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from([1, 900, 20_000]), st.sampled_from("++-")),
        max_size=400,
    )
)
def test_the_lanes_of_all_groups_have_a_bound_whatever_comes_and_goes(
    moves: list[tuple[int, int, str]],
) -> None:
    """Law: all lanes together stay below the limit plus the sum of the shares (limit / k for the k-th group),
    whatever comes and goes.
    """
    counts: Counter[int] = Counter()
    for group, count, move in moves:
        own = counts[group]
        if move == "+":
            most = planner.share(counts.total(), len(+counts), own)
            own = max(own, min(most, own + count))
        else:
            own = max(0, own - count)
        counts[group] = own
        shares = (
            min(planner.LANES_OF_GROUP_MAX, planner.LANES_MAX // place)
            for place in range(1, len(+counts) + 1)
        )
        # Groups that grew below the limit have less than twice the limit together with the others.
        bound = planner.LANES_MAX + planner.LANES_OF_GROUP_MAX + sum(shares)
        assert counts.total() <= bound
    assert sum(planner.LANES_MAX // place for place in range(1, 10_001)) < 10 * planner.LANES_MAX


@pytest.mark.parametrize("trouble", ["inHand", "parked", "held"])
def test_a_million_keys_in_flight_are_as_many_lanes_as_there_may_be(
    monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Law: at its limit a group gets no new lanes and learns why; existing ones go on and free places."""
    monkeypatch.setattr(planner, "LANES_OF_GROUP_MAX", 8)
    shell = lead(on_dead_letter="HoldKey", retry_max_times=1 if trouble == "held" else -1)
    produce(shell, *[f"key-{number}" for number in range(12)], "key-0")
    a, b = Member(shell), Member(shell, "b")
    given = a.fetch(maxLanes=256)
    if trouble != "inHand":
        for lane in given:
            assert a.say("retry", lane, delay_millis=60_000).verdict == trouble

    assert (len(given), limited(b)) == (8, planner.LANES_FULL)
    assert [row.limited for row in table(shell).queues] == [planner.LANES_FULL]
    if trouble == "parked":
        shell.pass_time(60_000)
        given = a.fetch(maxLanes=256)
    if trouble == "held":
        for lane in given[:3]:
            assert release(shell, lane.key, "skip") == [lane.key]
        shell.pass_time(1_000)
    else:
        a.done(*given[:3])

    assert len(b.fetch(maxLanes=256)) == 3
    shell.replay()


def test_a_key_that_is_busy_is_taken_in_though_there_is_no_room_for_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: at the limit the scan still takes messages of existing lanes, up to the first new key."""
    monkeypatch.setattr(planner, "LANES_OF_GROUP_MAX", 2)
    shell = lead()
    produce(shell, "x", "y", "x", "y", "new", "x")
    a = Member(shell)
    x, _ = a.fetch()

    assert a.fetch() == ()
    (queue,) = table(shell).queues

    assert (queue.scanned, queue.owed) == (4, 4)
    a.done(x)
    assert keys(a.fetch()) == ["x"]


def test_a_queue_that_owes_too_much_is_looked_at_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a queue that owes too many messages is not scanned further until it owes fewer;
    its lanes and other queues go on.
    """
    monkeypatch.setattr(planner, "OWED_MAX", 3)
    shell = lead(queues=2)
    produce(shell, "deep", "deep", "deep", queue=0)
    a = Member(shell)
    (deep,) = a.fetch()
    produce(shell, "new", queue=0)
    produce(shell, "other", queue=1)

    reply = a.ask()
    assert keys(lanes(reply)) == ["other"]
    assert LanesFetched.decode(reply.body)[0].limited == planner.OWED_FULL
    assert [row.limited for row in table(shell).queues] == [planner.OWED_FULL, ""]

    a.done(deep)
    assert sorted(keys(a.fetch())) == ["deep", "new"]


def test_a_member_has_no_more_in_hand_than_one_process_works_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a member gets at most as many lanes as a process can work on; others get the rest."""
    monkeypatch.setattr(planner, "IN_HAND_MAX", 3)
    shell = lead()
    produce(shell, *[f"key-{number}" for number in range(5)])
    a, b = Member(shell), Member(shell, "b")
    first = a.fetch()

    assert (len(first), limited(a)) == (3, planner._HAND_FULL)
    assert len(b.fetch()) == 2
    a.done(first[0])
    produce(shell, "more")
    assert keys(a.fetch()) == ["more"]


def test_the_queues_of_a_topic_begin_some_at_a_time() -> None:
    """Law: the queues of a topic begin some at a time, because each is a row and an offset on every replica."""
    count = 2 * planner.BEGUN_AT_ONCE_MAX + 1
    shell = lead(queues=count)
    produce(shell, "x", queue=count - 1)

    assert keys(Member(shell).fetch()) == ["x"]

    begun = [
        sum(part.begins for part in each.queues)
        for each in shell.proposed
        if isinstance(each, Record)
    ]
    assert begun == [planner.BEGUN_AT_ONCE_MAX, planner.BEGUN_AT_ONCE_MAX, 1]
    shell.replay()


@pytest.fixture
def _few_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a broker group to 10 offsets, 8 of them for groups by key."""
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 10)
    for module in (fetch, overview):
        monkeypatch.setattr(module, "LANE_OFFSETS_MAX", 8)


@pytest.mark.usefixtures("_few_offsets")
def test_groups_by_key_leave_room_for_the_first_commits_of_others() -> None:
    """Law: groups by key leave room for others' offsets: queues without room do not begin, and the member learns why."""
    shell = lead(queues=16)
    create(shell, OffsetsReset((Commit(GROUP, TOPIC, 15, 0),)), GroupSet("plain"))
    produce(shell, "x", queue=15)
    member = Member(shell)

    assert keys(member.fetch()) == ["x"]
    assert limited(member) == planner.OFFSETS_FULL

    begun = [queue.place[2] for queue in shell.state.lanes.of_group(GROUP)]
    assert (sorted(begun), shell.state.offsets.count) == ([*range(7), 15], 8)
    assert [shell.call(15, commit_ext(0, queue, "plain")).code for queue in range(3)] == [0, 0, 1]


@pytest.mark.usefixtures("_few_offsets")
def test_queues_that_cannot_begin_are_shown_with_the_reason() -> None:
    """Law: queues that cannot begin are shown with the reason, as in fetches."""
    shell = lead(queues=10)
    create(shell, OffsetsReset((Commit(GROUP, TOPIC, 9, 0),)), TopicSet("other", 1, 1))
    create(shell, GroupSet("plain"))
    assert table(shell).queues == ()
    Member(shell).fetch()

    shown = {row.queue_id: row.limited for row in table(shell, topic=TOPIC).queues}
    begun = [*range(7), 9]
    assert shown == dict.fromkeys(begun, "") | dict.fromkeys([7, 8], planner.OFFSETS_FULL)
    assert len(table(shell).queues) == 10
    assert table(shell, topic="other").queues == ()
    assert table(shell, consumerGroup="plain").queues == ()


@pytest.mark.usefixtures("_few_offsets")
def test_fetches_of_one_round_trip_share_the_room_for_offsets() -> None:
    """Law: the offsets of uncommitted fetches count for the limit."""
    shell = lead(queues=6)
    create(shell, GroupSet("other", concurrency="Key"))
    shell.call(34, {}, heartbeat_body("b", "other", (TOPIC,)), caller=caller_of("b"))

    Member(shell).submit()
    Member(shell, "b").submit(consumerGroup="other")
    shell.settle()

    assert shell.state.offsets.count == 8
    assert not shell.core.context.entries.pending_rows


@pytest.mark.parametrize("limit", ["bytes", "count"])
def test_lanes_that_wait_for_the_log_keep_so_many_messages_in_memory_and_no_more(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Law: while nothing commits, the lanes of waiting fetches use bounded memory;
    further fetches are refused as busy (2).
    """
    if limit == "count":
        monkeypatch.setattr(capacity, "UNCOMMITTED_COUNT_MAX", 3)
    size_max = 256 << 10 if limit == "bytes" else 64 << 20
    shell = Shell(settings(raft=RaftSettings(uncommitted_size_max=size_max))).lead()
    topics = tuple(f"topic-{number}" for number in range(12))
    create(shell, *(TopicSet(each, 1, 1) for each in topics), GroupSet(GROUP, concurrency="Key"))
    shell.call(34, {}, heartbeat_body("a", GROUP, topics), caller=caller_of("a"))
    for topic in topics:
        send(shell, topic, b"x" * (64 << 10), properties(__SHARDINGKEY="x"), e=0)
    member = Member(shell)

    asked = [member.submit(topic=topic) for topic in topics]

    view = shell.core.context.view
    codes = [(reply := shell.reply_to(each)) and reply.code for each in asked]
    assert codes == [None] * 4 + [ResponseCode.SYSTEM_BUSY] * 8
    assert len(view.fetching) == 4
    shell.settle()
    replies = [reply for each in asked[:4] if (reply := shell.reply_to(each))]
    assert [keys(lanes(reply)) for reply in replies] == [["x"]] * 4
    assert view.fetching_bytes == 0
    assert keys(member.fetch(topic=topics[-1])) == ["x"]


def test_an_attempt_has_a_bounded_number_of_messages() -> None:
    """Law: an attempt has a bounded number of messages."""
    shell = lead()
    produce(shell, *["x"] * (LANE_MESSAGES_MAX + 5))

    (x,) = Member(shell).fetch(maxPerLane=2**31 - 1)

    assert (len(x.offsets), x.behind) == (LANE_MESSAGES_MAX, 5)


def batch(shell: Shell, *values: bytes) -> RemotingCommand:
    """Send a batch of messages with these keys (bytes); return the answer."""
    entries = [BatchEntry(0, b"paid", b"__SHARDINGKEY\x01" + value) for value in values]
    return shell.call(320, send_ext(TOPIC, m="true", e=0), encode_batch(entries))


def test_a_key_is_any_text_and_nothing_else() -> None:
    """Law: a key is any valid text: bytes that are no UTF-8 are refused before they are stored; an empty key means none."""
    shell = lead()
    assert batch(shell, b"x", b"\xff").code == ResponseCode.MESSAGE_ILLEGAL
    assert batch(shell, b"a\x00b", b"\xf0\x9f\x98\x80", b"", b"a\x00b", b"").code == 0

    given = Member(shell).fetch()

    assert [(each.key, each.offsets, each.behind) for each in given] == [
        ("a\x00b", (0,), 1),
        ("\U0001f600", (1,), 0),
        ("", (2,), 0),
        ("", (4,), 0),
    ]
    shell.replay()


@pytest.mark.parametrize("more", [0, 1], ids=["longest", "longer"])
@pytest.mark.parametrize("letter", ["k", "ü"])
def test_keys_around_the_limit_are_distinguished(letter: str, more: int) -> None:
    """Law: keys are limited in bytes; a longer one is replaced by a digest that equals no other key."""
    shell = lead()
    whole = letter * (KEY_BYTES_MAX // len(letter.encode()) + more)
    produce(shell, whole, whole[:-1], whole, whole + letter)
    a = Member(shell)

    given = a.fetch()

    assert [(each.offsets, each.behind) for each in given] == [((0,), 1), ((1,), 0), ((3,), 0)]
    for lane in shell.state.lanes.queues_of("billing", TOPIC)[0].lanes.values():
        assert len(lane.key.encode()) <= KEY_BYTES_MAX
    shell.replay()


def test_what_was_never_handed_out_is_completed_by_nobody() -> None:
    """Law: a report with an attempt number that was not given out is stale and changes nothing."""
    shell = lead(queues=2)
    produce(shell, "x", queue=0)
    produce(shell, "y", queue=1)
    a = Member(shell)
    x, y = a.fetch()
    guesses = [
        {"lane": x.lane + 100, "attempt": x.attempt + 100},
        {"lane": x.lane, "attempt": x.attempt + 1},
        {"queue_id": 7},
        {"lane": 2**63 - 1, "attempt": 2**63 - 1},
    ]

    for guess in guesses:
        wrong = type(x)(
            guess.get("queue_id", 0),
            guess.get("lane", x.lane),
            guess.get("attempt", x.attempt),
            "x",
            (0,),
        )
        assert a.say("done", wrong, offset=0).verdict == "stale", guess
        assert a.say("renew", wrong, offset=0).verdict == "stale", guess

    assert [row.owed for row in table(shell).queues] == [1, 1]
    assert a.done(x, y) == ["done", "done"]


def test_a_former_holder_completes_and_renews_nothing() -> None:
    """Law: reports of a member whose lease ended and whose lane another one has are stale, also when repeated."""
    shell = lead()
    join(shell, "a")
    produce(shell, "x", "x")
    a, b = Member(shell), Member(shell, "b")
    (former,) = a.fetch(leaseMillis=1_000)
    shell.pass_time(1_200)
    join(shell, "b")
    (present,) = b.fetch(leaseMillis=600_000)

    for _ in range(2):
        assert [a.say(said, former, offset=0).verdict for said in ("renew", "retry", "done")] == [
            "stale"
        ] * 3
        assert present.offsets == former.offsets
    assert table(shell).queues[0].committed == 0
    assert b.done(present) == b.done(present) == ["done"]
    assert [each.offsets for each in b.fetch()] == [(1,)]


def test_no_connection_takes_the_places_of_all_fetches_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: when too many fetches wait, the connection with the most gives up its oldest; others wait on."""
    monkeypatch.setattr(fetch, "WAITING_MAX", 4)
    monkeypatch.setattr(fetch, "_GIVEN_UP_COUNT", 2)
    shell = lead()
    topics = tuple(f"topic-{number}" for number in range(4))
    create(shell, *(TopicSet(each, 1, 1) for each in topics))
    shell.call(34, {}, heartbeat_body("a", GROUP, topics), caller=caller_of("a"))
    a, b = Member(shell), Member(shell, "b")
    waiting = [a.wait(topic=each) for each in topics]

    mine = b.wait()

    replies = [shell.reply_to(each) for each in waiting]
    assert [each and (each.code, each.remark) for each in replies] == [
        *[(ResponseCode.PULL_RETRY_IMMEDIATELY, "TOO_MANY_WAIT")] * 2,
        *[None] * 2,
    ]
    assert shell.reply_to(mine) is None
    assert shell.core.lanes.fetcher.waiting_count == 3
