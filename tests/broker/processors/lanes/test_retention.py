"""Retention and lanes: owed messages stay, whether they are handed out before, during or after a round of retention."""

import pytest

from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset, TopicSet
from orderlymq_broker.store.kv import Family, StoreFailed
from orderlymq_protocol.codes import RequestCode
from tests.broker.processors.driver import Shell, settings
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    committed,
    forget,
    join,
    keys,
    lead,
    produce,
)
from tests.broker.processors.requests import create
from tests.broker.processors.send.test_copies import append, records, source

HOUR_MS = 3_600_000


def old(*messages: str) -> tuple[Shell, Member]:
    """Return a leader that keeps messages for an hour and has these, two hours old, and a member."""
    storage = StorageSettings(retention_ms=HOUR_MS)
    shell = Shell(settings(storage=storage)).lead()
    create(shell, TopicSet(TOPIC, 1, 1, order=True), GroupSet(GROUP, concurrency="Key"))
    produce(shell, *messages)
    shell.wall_ms += 2 * HOUR_MS
    join(shell, "a")
    return shell, Member(shell)


def kept(shell: Shell) -> int:
    return len(shell.store.scan(Family.MESSAGES, b"", b"\xff" * 9, limit=100))


def test_a_full_disk_stores_the_letter_that_keeps_retention_from_making_room() -> None:
    """Law: on a full disk dead letters are still stored, because a lane keeps its message until then."""
    shell, member = old("x")
    (x,) = member.fetch()
    produce(shell, "y")
    shell.core.set_environment(0.91, {})
    member.say("retry", x, tries_max=1)

    shell.pass_time(12_000)

    assert shell.core.context.counters["dead_letters"] == 1
    assert committed(shell) == 1


def test_no_message_behind_a_missing_one_is_handed_out() -> None:
    """Law: if entries of a queue are missing in the store, the replica ends instead of skipping messages."""
    shell = lead()
    produce(shell, "u", "v", "w", "x", "y")
    forget(shell, 0, 1, 3)
    member = Member(shell)

    with pytest.raises(StoreFailed, match="has 2 of 5 entries"):
        member.fetch()

    assert committed(shell) == 0


@pytest.mark.parametrize("result", ["retry", "dead letter"])
def test_no_owed_message_that_is_missing_is_passed_over(result: str) -> None:
    """Law: an owed message that is missing is skipped neither by a retry nor as a dead letter."""
    shell = lead()
    produce(shell, "x", "x")
    member = Member(shell)
    (x,) = member.fetch()
    member.say("retry", x, delay_millis=1_000, tries_max=1 if result == "dead letter" else 0)
    forget(shell, 0)

    def go_on() -> None:
        shell.pass_time(2_000)
        member.fetch()

    with pytest.raises(StoreFailed, match="has no entry at offset 0"):
        go_on()

    assert committed(shell) == 0
    assert shell.core.context.counters["dead_letters"] == 0


@pytest.mark.parametrize("first", ["fetch", "round"])
def test_what_is_handed_out_while_a_round_goes_on_stays(first: str) -> None:
    """Law: messages handed out during a round of retention are kept, whichever record is applied first."""
    shell, member = old("x", "y")
    ext = member.ext(sequence=1, maxLanes=1, suspendTimeoutMillis=0)

    def fetch() -> None:
        shell.submit(RequestCode.ORDERLYMQ_FETCH_LANES, ext, caller=member.caller)

    def begin_round() -> None:
        shell.run(shell.core.tick(shell.now))

    for step in (fetch, begin_round) if first == "fetch" else (begin_round, fetch):
        step()
    shell.settle()
    owed = [each for each in shell.state.lanes.all() if each.owed]
    shell.pass_time(20_000)

    stored = shell.state.topics.by_name[TOPIC].queue(0)
    assert [queue.low_water() for queue in owed] == ([0] if first == "fetch" else [])
    assert stored.min_offset == (0 if first == "fetch" else 2)
    assert kept(shell) == (2 if first == "fetch" else 0)
    shell.replay()


def test_what_is_owed_is_kept_as_long_as_it_takes() -> None:
    """Law: a parked message and those behind it stay longer than the retention time, until it is completed."""
    shell, member = old("x", "y")
    x, y = member.fetch()
    member.say("retry", x, delay_millis=3 * HOUR_MS)
    member.done(y)

    shell.pass_time(2 * HOUR_MS, step=10_000)
    assert kept(shell) == 2
    join(shell, "a")
    shell.pass_time(2 * HOUR_MS, step=10_000)
    join(shell, "a")

    (again,) = member.fetch()
    assert keys((again,)) == ["x"]
    member.done(again)
    shell.pass_time(60_000)
    assert kept(shell) == 0
    shell.replay()


def test_what_nobody_has_looked_at_goes_and_is_counted() -> None:
    """Law: messages that nobody has scanned may be deleted, and are counted; the lanes go on behind them."""
    shell, member = old("w", "x", "y")
    member.done(*member.fetch(maxLanes=1))
    shell.pass_time(20_000)
    assert kept(shell) == 0
    produce(shell, "z")
    join(shell, "a")

    assert [(each.key, each.offsets) for each in member.fetch()] == [("z", (3,))]
    assert shell.core.context.counters["lane_messages_expired"] == 2


@pytest.mark.parametrize("begun", [True, False], ids=["behind the scan", "before any scan"])
def test_what_is_gone_is_passed_though_nothing_follows_it(*, begun: bool) -> None:
    """Law: deleted messages leave no lag, even if nothing follows them; an autoscaler would never end."""
    shell, member = old("w", "x", "y")
    if begun:
        member.done(*member.fetch(maxLanes=1))
    else:
        create(shell, OffsetsReset((Commit(GROUP, TOPIC, 0, 0, 0),)))
    shell.pass_time(20_000)
    assert kept(shell) == 0
    join(shell, "a")

    assert member.fetch() == ()
    assert committed(shell) == 3
    assert shell.core.context.counters["lane_messages_expired"] == (2 if begun else 3)
    assert member.fetch() == ()
    assert shell.core.context.counters["lane_messages_expired"] == (2 if begun else 3)
    shell.replay()


def test_what_a_copied_queue_never_had_does_not_count_as_gone() -> None:
    """Law: in a mirrored queue, messages before the source's first offset do not count as deleted."""
    shell = lead(queues=2)
    member = Member(shell)
    assert member.fetch() == ()
    assert append(shell, *records(source(9), 3), begins="true").code == 0

    member.done(*member.fetch())

    assert committed(shell, queue=1) == 4
    assert shell.core.context.counters["lane_messages_expired"] == 0
    assert shell.restart().state.topics.by_name[TOPIC].queues[1].first_offset == 3
    shell.replay()
