"""Reports of members about attempts: renewals, failures, dead letters, and members that die."""

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.processors.lanes.deadletters import LETTERS_MAX
from orderlymq_broker.processors.schedule.delaylevels import SIZE_MAX
from orderlymq_broker.state.groups.lockrecords import ClientDead
from orderlymq_broker.state.lanes.lanerecords import LaneDeadLettered, LanesFetched
from orderlymq_broker.state.records import Refused, TopicSet
from orderlymq_protocol.body.lanes import (
    LANES_MAX,
    REASON_LENGTH_MAX,
    RETRY_PAUSE_MS,
    LaneReport,
    LaneReports,
)
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.message.properties import decode_properties
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX
from tests.broker.processors.driver import ALICE, DAY_MS, START_MS, Shell
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    caller_of,
    committed,
    expire,
    join,
    keys,
    lanes,
    lead,
    produce,
    table,
)
from tests.broker.processors.requests import (
    STORED_WITH,
    bodies,
    create,
    messages,
    properties,
    pull,
    send,
)

LETTERS = f"%DLQ%{GROUP}"


def letters(shell: Shell) -> list[bytes]:
    return bodies(pull(shell, group="tools", topic=LETTERS, sysFlag=4))


def test_one_request_completes_many_lanes_in_one_record() -> None:
    """Law: one request completes many lanes in one record; a stale report does not affect the others."""
    shell = lead()
    produce(shell, "x", "y", "z")
    a = Member(shell)
    x, y, z = a.fetch()
    a.done(x)
    before = len(shell.proposed)

    assert a.done(x, y, z) == ["done"] * 3
    assert len(shell.proposed) == before + 1
    assert committed(shell) == 3


def test_an_attempt_ends_when_its_lease_is_over() -> None:
    """Law: when a lease ends, only that member's lanes are handed out again, and its later reports are stale."""
    shell = lead()
    produce(shell, "x", "y")
    a, b = Member(shell), Member(shell, "b")
    (x,) = a.fetch(maxLanes=1, leaseMillis=5_000)
    (y,) = b.fetch(maxLanes=1, leaseMillis=60_000)

    shell.pass_time(4_900)
    assert b.fetch() == ()
    shell.pass_time(300)
    (again,) = b.fetch()

    assert (again.key, again.offsets, again.tries) == ("x", (0,), 1)
    assert a.done(x) == ["stale"]
    assert b.done(y, again) == ["done"] * 2


def test_a_renewed_lease_begins_again() -> None:
    """Law: a renewal starts the lease again; one that completes nothing writes no record."""
    shell = lead()
    produce(shell, "x")
    a, b = Member(shell), Member(shell, "b")
    (x,) = a.fetch(leaseMillis=5_000)
    before = len(shell.proposed)

    for _ in range(4):
        shell.pass_time(4_000)
        assert a.say("renew", x).verdict == "renewed"

    assert len(shell.proposed) == before
    assert b.fetch() == ()
    assert a.done(x) == ["done"]


def test_renewals_that_are_outdated_are_forgotten() -> None:
    """Law: the lease clock holds little more than the running leases, however often they are renewed."""
    shell = lead()
    produce(shell, "x", "y")
    a, b = Member(shell), Member(shell, "b")
    x, y = a.fetch(leaseMillis=5_000)
    shell.pass_time(1_000)

    for _ in range(5):
        a.report(*[LaneReport(x.queue_id, x.lane, x.attempt, "renew", -1)] * LANES_MAX)
    assert len(shell.core.lanes.leases._deadlines._times) <= 100

    shell.pass_time(4_200)
    assert [each.key for each in b.fetch()] == ["y"]
    assert a.done(x, y) == ["done", "stale"]


def test_a_renewal_that_comes_too_late_is_stale() -> None:
    """Law: a lease whose end is already proposed cannot be renewed."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch(leaseMillis=5_000)
    shell.wall_ms += 5_001
    shell.monotonic_ms += 5_001
    shell.run(shell.core.tick(shell.now))

    assert a.say("renew", x).verdict == "stale"


def test_a_new_leader_runs_every_lease_in_full() -> None:
    """Law: a new leader runs every lease in full, because it does not know how much is left."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch(leaseMillis=10_000)
    shell.pass_time(8_000)

    other = shell.restart().lead()
    for client in "ab":
        join(other, client)
    b = Member(other, "b")
    other.pass_time(9_000)
    assert b.fetch() == ()
    other.pass_time(1_300)

    assert [each.offsets for each in b.fetch()] == [x.offsets]


def test_a_failed_message_stops_its_own_lane() -> None:
    """Law: a failed message parks its own lane, longer with each try; other keys go on."""
    shell = lead()
    produce(shell, "x", "x", "y")
    a = Member(shell)
    x, y = a.fetch()

    verdict = a.say("retry", x, reason="boom" * 100)
    assert (verdict.verdict, verdict.tries) == ("parked", 1)
    assert verdict.due_millis == shell.wall_ms + RETRY_PAUSE_MS
    a.done(y)
    produce(shell, "y")
    assert keys(a.fetch()) == ["y"]
    shell.pass_time(RETRY_PAUSE_MS)

    (again,) = a.fetch()
    assert (again.key, again.offsets, again.tries) == ("x", (0,), 1)
    (shown,) = [each for each in table(shell).lanes if each.key == "x"]
    assert len(shown.reason) == REASON_LENGTH_MAX
    assert a.say("retry", again).due_millis == shell.wall_ms + 2 * RETRY_PAUSE_MS


def test_a_client_may_say_how_long_a_lane_waits() -> None:
    """Law: a client may say how long a lane waits; when it is due, a waiting fetch gets it."""
    shell = lead()
    produce(shell, "x")
    a, b = Member(shell), Member(shell, "b")
    (x,) = a.fetch()

    a.say("retry", x, delay_millis=7_000)
    waiting = b.wait()
    shell.pass_time(6_900)
    assert shell.reply_to(waiting) is None
    shell.pass_time(300)

    assert shell.reply_to(waiting) is not None


def test_a_message_that_failed_too_often_becomes_a_dead_letter() -> None:
    """Law: under Continue a message that failed too often becomes a dead letter and its lane goes on,
    also over a change of leader.
    """
    shell = lead(retry_max_times=2)
    produce(shell, "x", "x")
    a = Member(shell)
    (first,) = a.fetch()
    a.say("retry", first, delay_millis=0)
    (second,) = a.fetch()
    assert a.say("retry", second).verdict == "dead"
    assert a.fetch() == ()

    shell = shell.restart().lead()
    a.shell = shell
    join(shell, "a")
    shell.pass_time(500)

    assert letters(shell) == [b"paid"]
    (following,) = a.fetch()
    assert (following.offsets, following.tries) == ((1,), 0)
    assert committed(shell) == 1
    shell.replay()


@pytest.mark.parametrize("offset", [0, 1])
def test_a_message_that_fails_again_after_a_reset_is_a_dead_letter_again(offset: int) -> None:
    """Law: a message that fails again after a reset makes another dead letter."""
    shell = lead(retry_max_times=1)
    send(shell, TOPIC, b"paid", properties(UNIQ_KEY="U", __SHARDINGKEY="x"))
    a = Member(shell)
    for _ in range(2):
        for lane in a.fetch():
            assert a.say("retry", lane).verdict == "dead"
        shell.pass_time(500)
        header = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}
        reply = shell.call(222, {**header, "queueId": "0", "offset": str(offset)})
        assert reply.code == 0, reply.remark

    assert letters(shell) == [b"paid"] * (2 - offset)
    shell.replay()


def test_a_held_lane_waits_for_an_administrator() -> None:
    """Law: under HoldKey the message stays first in its lane until an administrator releases it."""
    shell = lead(on_dead_letter="HoldKey")
    produce(shell, "x", "x", "y")
    a = Member(shell)
    x, y = a.fetch()

    assert a.say("retry", x, tries_max=1).verdict == "held"
    a.done(y)
    shell.pass_time(600_000)
    for client in "ab":
        join(shell, client)

    assert a.fetch() == ()
    assert committed(shell) == 0
    assert [(each.key, each.state, each.waiting) for each in table(shell).lanes] == [
        ("x", "held", 2)
    ]


def test_under_stop_queue_a_dead_message_stops_its_queue() -> None:
    """Law: under StopQueue a dead message stops its queue: attempts in hand end,
    and nothing else is handed out until it succeeds.
    """
    shell = lead(on_dead_letter="StopQueue")
    produce(shell, "x", "y")
    a = Member(shell)
    (x,) = a.fetch(maxLanes=1)

    assert a.say("retry", x, tries_max=1, delay_millis=1_000).verdict == "parked"
    stopped = a.ask()
    assert stopped.code == 19
    assert "StopQueue" in (stopped.remark or "")
    shell.pass_time(1_100)
    (again,) = a.fetch()
    assert again.key == "x"
    a.done(again)

    assert keys(a.fetch()) == ["y"]


@pytest.mark.parametrize("how", ["proof", "unregister"])
def test_a_member_that_is_gone_costs_its_own_lanes(how: str) -> None:
    """Law: a dead member's lanes go to waiting members immediately; those of others stay."""
    shell = lead()
    produce(shell, "x", "y")
    a, b = Member(shell), Member(shell, "b")
    a.fetch(maxLanes=1)
    (y,) = b.fetch()
    waiting = b.wait()

    if how == "proof":
        create(shell, ClientDead("a", "gone"))
    else:
        ext = {"clientID": "a", "consumerGroup": GROUP}
        shell.call(35, ext, caller=caller_of("a"))

    reply = shell.reply_to(waiting)
    assert reply is not None
    assert [(each.key, each.offsets) for each in lanes(reply)] == [("x", (0,))]
    assert b.done(y) == ["done"]


def test_a_closed_connection_proves_nothing() -> None:
    """Law: a closed connection ends no attempt; the member stays until its leases end."""
    shell = lead()
    produce(shell, "x")
    a, b = Member(shell), Member(shell, "b")
    (x,) = a.fetch()
    shell.run(shell.core.connection_closed(a.caller.connection))
    shell.settle()

    assert b.fetch() == ()
    assert a.done(x) == ["done"]


def test_a_request_that_nobody_understands_changes_nothing() -> None:
    """Law: a request with an unknown result, too many reports or no JSON is refused as a whole."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    good = LaneReport(0, x.lane, x.attempt, "done", 0)
    wrong = LaneReport(0, x.lane, x.attempt, "perhaps")
    code = RequestCode.ORDERLYMQ_COMPLETE_LANES
    wrongs = [
        LaneReports((good, wrong)).to_json(),
        LaneReports((good,) * (LANES_MAX + 1)).to_json(),
        b"{]",
        b"[]",
        b'{"lanes":[{}]}',
    ]

    for body in wrongs:
        assert shell.call(code, a.ext(), body, caller=a.caller).code == 1
    assert committed(shell) == 0
    assert a.done(x) == ["done"]


def test_another_member_completes_nothing_of_ours() -> None:
    """Law: another member cannot complete or renew an attempt, even with its numbers."""
    shell = lead()
    produce(shell, "x")
    a, b = Member(shell), Member(shell, "b")
    (x,) = a.fetch()

    assert b.done(x) == ["stale"]
    assert b.say("renew", x).verdict == "stale"
    assert committed(shell) == 0


def test_the_time_of_a_hand_out_is_reported() -> None:
    """Law: since_millis is the time of the hand-out by the leader's clock."""
    shell = lead()
    produce(shell, "x")

    assert Member(shell).fetch()[0].since_millis == START_MS


@pytest.mark.parametrize("room", [0, 30, 90], ids=["none", "for the topic", "for most"])
def test_a_message_with_full_properties_becomes_a_dead_letter(room: int) -> None:
    """Law: a message whose properties are full becomes a dead letter too, with as many added properties as fit."""
    shell = lead(retry_max_times=1)
    stored_with = len(properties(**STORED_WITH))
    keyed = properties(__SHARDINGKEY="x", UNIQ_KEY="u", big="")
    big = "y" * (PROPERTIES_BYTES_MAX - room - stored_with - len(keyed) - 1)
    send(shell, TOPIC, b"full", keyed + big, caller=ALICE, e=0)
    produce(shell, "x")
    a = Member(shell)
    (full,) = a.fetch()

    assert a.say("retry", full).verdict == "dead"
    shell.pass_time(500)

    (letter,) = messages(pull(shell, group="tools", topic=LETTERS, sysFlag=4))
    found = decode_properties(letter.properties)
    assert (letter.body, found["big"]) == (b"full", big)
    assert found.get("RETRY_TOPIC") == (TOPIC if room else None)
    (following,) = a.fetch()
    assert following.offsets == (1,)
    shell.replay()


def test_a_letter_whose_topic_cannot_be_made_stays_with_its_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: if the dead-letter topic's name is too long, the message stays in its lane; other keys go on."""
    monkeypatch.setattr("tests.broker.processors.lanes.member.GROUP", "g" * 123)
    shell = lead(retry_max_times=1)
    produce(shell, "x", "y")
    a = Member(shell)
    dead, other = a.fetch()
    assert a.say("retry", dead).verdict == "dead"

    shell.pass_time(500)

    assert a.done(other) == ["done"]
    assert a.fetch() == ()
    assert committed(shell) == 0
    assert not [name for name in shell.state.topics.by_name if name.startswith("%DLQ%")]


def test_letters_that_are_lost_again_and_again_keep_no_others_back() -> None:
    """Law: each tick goes on behind the last letter, so that letters lost again and again do not delay others."""
    shell = lead(retry_max_times=1)
    produce(shell, *[f"key-{number}" for number in range(LETTERS_MAX + 1)])
    a = Member(shell)
    for lane in a.fetch(maxLanes=LETTERS_MAX + 1):
        assert a.say("retry", lane).verdict == "dead"
    create(shell, TopicSet(LETTERS, 1, 1))
    named = set()

    for _ in range(2):
        shell.run(shell.core.tick(shell.now))
        named |= {
            record.offset
            for proposal in shell.pending
            for record in proposal.records
            if isinstance(record, LaneDeadLettered)
        }
        shell.lose_proposals()

    assert named == set(range(LETTERS_MAX + 1))


def test_a_tick_stores_no_more_bytes_of_letters_than_the_delay_levels_hand_on() -> None:
    """Law: a tick stores a bounded number of bytes of dead letters, so that the leader is not silent."""
    shell = lead(retry_max_times=1)
    produce(shell, "u", "v", "w", "x", "y", body=bytes(SIZE_MAX // 2))
    create(shell, TopicSet(LETTERS, 1, 1))
    a = Member(shell)
    while found := a.fetch():
        for lane in found:
            assert a.say("retry", lane).verdict == "dead"
    counts = []

    for _ in range(3):
        shell.run(shell.core.tick(shell.now))
        counts.append(len(shell.pending))
        shell.settle()

    assert counts == [2, 2, 1]


def test_the_end_of_a_lane_whose_message_is_gone_hangs_on_no_record_before_it() -> None:
    """Law: the end of a lane whose message is gone does not depend on other records of its entry."""
    shell = lead(retry_max_times=1)
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    create(shell, TopicSet(LETTERS, 1, 1))
    assert a.say("retry", x).verdict == "dead"
    expire(shell, 1)
    counters = shell.core.context.counters

    shell.run([Propose([LanesFetched(GROUP, TOPIC, "nobody", 1, 5_000, ())])])
    shell.monotonic_ms += 100
    shell.run(shell.core.tick(shell.now))
    before = counters["dead_letters"]
    outcomes = shell.turn()

    assert isinstance(outcomes[0], Refused)
    assert table(shell).lanes == ()
    assert counters["dead_letters"] == before
    shell.replay()


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
def test_a_lane_that_a_leader_with_another_clock_has_parked_waits_no_longer_than_its_pause(
    ahead_ms: int,
) -> None:
    """Law: if the former leader's clock was ahead, a parked lane's pause counts from the begin of the new term."""
    shell = lead()
    shell.wall_ms += ahead_ms
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    a.say("retry", x, delay_millis=10_000)

    other = shell.restart()
    other.wall_ms -= ahead_ms
    other.lead()
    join(other, "a")
    a = Member(other)
    waiting = a.wait()
    other.pass_time(9_000)
    assert (other.reply_to(waiting) is None) == (ahead_ms > 0)
    other.pass_time(1_200)

    assert other.reply_to(waiting) is not None


def test_a_parked_lane_waits_its_pause_when_the_clock_that_began_it_is_set_back() -> None:
    """Law: if the clock is set back, a parked lane still waits no longer than its pause."""
    shell = lead()
    produce(shell, "x")
    member = Member(shell, "a")
    shell.set_clock(shell.wall_ms + DAY_MS)
    shell.pass_time(1_000)
    (lane,) = member.fetch()
    member.say("retry", lane)

    shell.set_clock(shell.wall_ms - DAY_MS)
    shell.pass_time(5_000)

    assert keys(member.fetch()) == ["x"]


def test_pauses_of_lanes_that_are_parked_no_more_are_forgotten() -> None:
    """Law: such corrected pauses are forgotten with their parked lanes."""
    shell = lead()
    produce(shell, "x")
    member = Member(shell, "a")
    shell.pass_time(1_000)

    for _ in range(3):
        (lane,) = member.fetch()
        member.say("retry", lane)
        shell.set_clock(shell.wall_ms - DAY_MS)
        shell.pass_time(30_000, step=1_000)

    assert len(shell.core.lanes.leases._due_ms) == 1
    assert keys(member.fetch()) == ["x"]
