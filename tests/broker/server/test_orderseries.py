"""Metrics of order: which member holds a queue under which epoch, and how long a key has been held."""

from collections.abc import Iterator
from functools import partial

import pytest

from orderlymq_broker.processors.observe import status
from orderlymq_broker.processors.observe.watch import LOOK_MS
from orderlymq_broker.server import orderseries
from orderlymq_broker.server.orderseries import backlog_series, order_series
from orderlymq_broker.state.groups.parkedkeyrecords import KeyParked
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsCommitted
from tests.broker.calls import calls_in
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import BOB, Shell
from tests.broker.processors.lanes.member import Member, lead, produce, table
from tests.broker.processors.requests import create, heartbeat, lock, send, unlock


def rows(shell: Shell, name: str) -> dict[tuple[str, ...], float]:
    return dict(order_series(shell.core.context, shell.wall_ms)[name].rows)


@pytest.fixture
def held(admin: AdminShell) -> AdminShell:
    """An ordered consumer group in which alice holds two queues."""
    create_topic(admin, order=True)
    create(admin, GroupSet("billing", orderly=True))
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB)
    lock(admin, "alice", 0, 1)
    return admin


def test_a_hand_over_shows_another_holder_with_a_higher_epoch(held: AdminShell) -> None:
    """Law: a held queue has one row, with its holder and epoch; a free queue has none."""
    assert rows(held, "queue_lock_epoch") == {
        ("billing", "orders", "0", "alice"): 1,
        ("billing", "orders", "1", "alice"): 1,
    }

    unlock(held, "alice", 0)
    assert rows(held, "queue_lock_epoch") == {("billing", "orders", "1", "alice"): 1}
    lock(held, "bob", 0, caller=BOB)

    assert rows(held, "queue_lock_epoch") == {
        ("billing", "orders", "0", "bob"): 2,
        ("billing", "orders", "1", "alice"): 1,
    }


def test_only_the_leader_reports(held: AdminShell) -> None:
    """Law: only the leader reports, so that each change of holder is counted once."""
    held.follow()

    assert rows(held, "queue_lock_epoch") == {}


def test_too_many_locks_show_those_that_changed_hands_last(
    held: AdminShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the number of rows is limited to the locks that changed last."""
    monkeypatch.setattr(orderseries, "SERIES_MAX", 1)
    monkeypatch.setattr(status, "SERIES_MAX", 1)
    held.pass_time(1_000)
    lock(held, "bob", 2, caller=BOB)

    assert rows(held, "queue_lock_epoch") == {("billing", "orders", "2", "bob"): 1}


def test_the_age_is_that_of_the_oldest_lane_that_waits_for_a_release() -> None:
    """Law: the age is that of the oldest lane that waits for a release;
    a lane that is tried again by itself does not count.
    """
    shell = lead(on_dead_letter="HoldKey")
    produce(shell, "x", "y", "z")
    member = Member(shell)
    x, y, z = member.fetch()
    member.say("retry", z, delay_millis=100_000)
    assert rows(shell, "parked_oldest_seconds") == {}

    member.say("retry", x, tries_max=1)
    shell.pass_time(7_000, step=1_000)
    member.say("retry", y, tries_max=1)

    ((group, age),) = rows(shell, "parked_oldest_seconds").items()
    assert group == ("billing",)
    assert age == pytest.approx(7, abs=0.5)


@pytest.mark.interpreted
def test_of_many_lanes_that_wait_for_a_release_one_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: only the oldest lane of a state is looked at, so that a scrape does not grow with the lanes."""
    shell = lead(on_dead_letter="HoldKey")
    produce(shell, *"abcdefgh")
    member = Member(shell)
    for task in member.fetch():
        member.say("retry", task, tries_max=1)
        shell.pass_time(1_000)
    in_state, seen = LaneQueue.in_state, []

    def counting(queue: LaneQueue, state: LaneState) -> Iterator[Lane]:
        for each in in_state(queue, state):
            if state is LaneState.HELD:
                seen.append(each)
            yield each

    monkeypatch.setattr(LaneQueue, "in_state", counting)
    (age,) = rows(shell, "parked_oldest_seconds").values()

    assert len({id(each) for each in seen}) == 1
    assert age == pytest.approx(8, abs=0.5)


def test_a_scrape_takes_no_step_per_queue_without_lanes() -> None:
    """Law: a scrape does not grow with the queues without lanes, of which there may be hundreds of thousands."""
    shells = [lead(queues=count) for count in (2, 200)]
    for shell in shells:
        produce(shell, "x")
        assert len(Member(shell).fetch()) == 1

    few, many = (
        calls_in(partial(order_series, shell.core.context, shell.wall_ms)) for shell in shells
    )

    assert few == many


def test_the_age_is_that_of_the_oldest_parked_key(held: AdminShell) -> None:
    """Law: the age is that of the oldest parked key, in whatever order its queues parked theirs."""
    for queue in (1, 0):
        held.pass_time(2_000)
        create(held, KeyParked("billing", "orders", queue, "k", 0, "M", 1))
    held.pass_time(3_000)

    assert rows(held, "parked_oldest_seconds") == {("billing",): pytest.approx(5, abs=0.5)}


def test_the_oldest_lane_of_each_state_is_timed() -> None:
    """Law: for each state the oldest lane's age is shown: in hand, ready, and parked."""
    shell = lead()
    produce(shell, "x", "y", "z")
    member = Member(shell)
    x, y, _ = member.fetch(leaseMillis=600_000)
    shell.pass_time(3_000, step=1_000)
    member.say("retry", x, delay_millis=100_000)
    shell.pass_time(4_000, step=1_000)
    member.say("release", y)
    shell.pass_time(2_000, step=1_000)

    ages = rows(shell, "lane_oldest_seconds")

    assert ages == {
        ("billing", "inHand"): pytest.approx(9, abs=0.5),
        ("billing", "parked"): pytest.approx(6, abs=0.5),
        ("billing", "ready"): pytest.approx(2, abs=0.5),
    }
    shell.follow()
    assert rows(shell, "lane_oldest_seconds") == {}


def backlog(shell: Shell) -> dict[tuple[str, ...], float]:
    watch = shell.core.watch
    is_examined = bool(watch.report()["examinedAt"])
    found = backlog_series(shell.core.context, watch.series(), is_examined=is_examined)
    return dict(found["group_backlog_messages"].rows)


def test_a_group_that_has_consumed_all_has_a_backlog_of_zero(held: AdminShell) -> None:
    """Law: a consumer group that has consumed everything has backlog 0; before the leader has looked, and at followers,
    there is no row.
    """
    create(held, GroupSet("audit"))
    for queue in (0, 0, 1):
        send(held, e=queue)
    unexamined = backlog(held)
    held.pass_time(LOOK_MS + 1_000, step=1_000)
    some = backlog(held)
    create(held, OffsetsCommitted((Commit("billing", "orders", 0, 2, 1),)))
    create(held, OffsetsCommitted((Commit("billing", "orders", 1, 1, 1),)))
    held.pass_time(LOOK_MS + 1_000, step=1_000)

    assert unexamined == {}
    assert some == {("billing",): 3, ("audit",): 0}
    assert backlog(held) == {("billing",): 0, ("audit",): 0}
    held.follow()
    assert backlog(held) == {}


def test_the_backlog_of_a_group_by_key_is_what_it_has_not_consumed() -> None:
    """Law: the backlog of a group by key counts messages that are not completed, not those behind the committed offset."""
    shell = lead(on_dead_letter="HoldKey", retry_max_times=1)
    produce(shell, "x", "x", *"abcd")
    member = Member(shell)
    x, *others = member.fetch(maxLanes=3)
    member.say("retry", x)
    member.done(*others)
    assert table(shell).queues[0].committed == 0

    shell.pass_time(LOOK_MS + 1_000, step=1_000)

    assert backlog(shell) == {("billing",): 4}


def test_a_group_that_broadcasts_has_no_backlog(held: AdminShell) -> None:
    """Law: a broadcasting consumer group has no backlog row, because 0 would let an autoscaler stop its members."""
    send(held, e=0)
    heartbeat(held, "screen", caller=BOB, group="screens", model="BROADCASTING")
    held.pass_time(LOOK_MS + 1_000, step=1_000)

    assert backlog(held) == {("billing",): 1}
