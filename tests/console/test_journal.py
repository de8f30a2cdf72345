"""Changes in the cluster, from the leaders' reports at two looks."""

from typing import Any

from orderlymq.admin.client import QueueLock
from orderlymq_console.journal import CHANGES_MAX, HOUR_MS, KEYS_MAX, Journal
from orderlymq_console.pages.changes import last_hour
from orderlymq_console.status import StatusReport
from orderlymq_protocol.body.messagequeue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def status(leader: int = 1, term: int = 1, **values: Any) -> StatusReport:
    replicas = {"1": {"active": True}, "2": {"active": values.pop("second", True)}}
    watch = {
        "examinedAt": 1,
        "blocked": values.pop("blocked", ()),
        "blockedKnown": values.pop("known", True),
    }
    told = {"leader": leader, "term": term, "replicas": replicas, "watch": watch, **values}
    return StatusReport.model_validate(told)


def lock(client_id: str, epoch: int, held_since_ms: int) -> QueueLock:
    return QueueLock(QUEUE, client_id, "", epoch, 30_000, held_since_ms)


def texts(journal: Journal) -> list[str]:
    return [change.text for change in journal.last_hour()]


def test_what_was_so_before_the_first_look_is_no_change() -> None:
    """Law: the first look and an unchanged status give no changes."""
    journal = Journal(Clock())
    journal.note("a", status(second=False, diskFull=True, members=3))
    journal.note("a", status(second=False, diskFull=True, members=3))

    assert texts(journal) == []


def test_leaders_replicas_disks_and_members_change() -> None:
    """Law: changes of leader, replicas, disk and members are listed newest first, with the time of the look."""
    clock = Clock()
    journal = Journal(clock)
    journal.note("a", status(members=3))
    clock.now_s += 60
    journal.note("a", status(2, 5, second=False, diskFull=True, members=2))
    clock.now_s += 60
    journal.note("a", status(2, 5, members=2))

    assert sorted(texts(journal)[:2]) == ["replica 2 is active again", "the disk has room again"]
    assert sorted(texts(journal)[2:]) == [
        "consumer groups have 2 members",
        "node 2 leads in term 5",
        "replica 2 is not active",
        "the disk is full; sends are refused",
    ]
    assert {change.at_ms for change in journal.last_hour()} == {
        int((clock.now_s - 60) * 1000),
        int(clock.now_s * 1000),
    }


def test_a_standstill_has_the_time_that_its_leader_reports_also_at_the_first_look() -> None:
    """Law: a standstill has its leader's time, even at the first look, and its end is a change too."""
    clock = Clock()
    journal = Journal(clock)
    since_ms = int(clock.now_s * 1000) - 120_000
    row = {"group": "shipping", "topic": "orders", "queue": 0, "offset": 7, "since": since_ms}
    journal.note("a", status(blocked=[row]))
    (begin,) = journal.last_hour()
    journal.note("a", status())

    assert (begin.at_ms, begin.text) == (
        since_ms,
        "queue 0 of orders in group shipping is blocked at offset 7",
    )
    assert texts(journal)[0] == "queue 0 of orders in group shipping makes progress again"


def test_silence_ends_nothing_but_itself() -> None:
    """Law: a silent leader, or one that has not examined its groups, ends nothing that was known."""
    journal = Journal(Clock())
    row = {"group": "g", "topic": "t", "queue": 0, "offset": 7, "since": 1}
    journal.note("a", status(blocked=[row]))
    journal.note("a", None, "connection refused")
    journal.note("a", StatusReport.model_validate({"leader": 2, "term": 2}))
    journal.note("a", status(2, 2, blocked=[row]))

    assert sorted(texts(journal)) == [
        "answers again",
        "has no leader that answers: connection refused",
        "node 2 leads in term 2",
    ]


def test_a_new_leader_that_has_not_looked_long_enough_ends_no_standstill() -> None:
    """Law: a new leader ends no standstill before it has looked long enough."""
    journal = Journal(Clock())
    row = {"group": "g", "topic": "t", "queue": 0, "offset": 7, "since": 1}
    journal.note("a", status(blocked=[row]))
    journal.note("a", status(2, 2, known=False))
    journal.note("a", status(2, 2, known=False))
    assert texts(journal) == ["node 2 leads in term 2"]

    journal.note("a", status(2, 2))
    assert "queue 0 of t in group g makes progress again" in texts(journal)


def test_what_is_older_than_an_hour_is_left_out() -> None:
    clock = Clock()
    journal = Journal(clock)
    journal.note("a", status())
    journal.note("a", status(2, 2))
    clock.now_s += HOUR_MS / 1000 + 1

    assert texts(journal) == []


def test_nothing_takes_a_change_of_leader_away() -> None:
    """Law: many changes of members take one row, so they never push a change of leader out;
    what was dropped is named by its time.
    """
    clock = Clock()
    journal = Journal(clock)
    journal.note("a", status(members=10))
    clock.now_s += 1
    journal.note("a", status(2, 2, members=10))
    for number in range(600):
        clock.now_s += 1
        journal.note("a", status(2, 2, members=11 + number % 2))
    assert texts(journal) == ["consumer groups have 12 members", "node 2 leads in term 2"]
    assert journal.whole_since_ms == journal.since_ms

    for number in range(CHANGES_MAX + 1):
        clock.now_s += 1
        journal.note("a", status(2, 2, second=number % 2 == 1))
    shown, left_out = last_hour(journal)

    assert "node 2 leads in term 2" in texts(journal)
    assert len(shown) + left_out == CHANGES_MAX + 2
    assert journal.whole_since_ms > journal.since_ms


def test_a_start_is_reported_once_and_each_start_is_reported() -> None:
    """Law: each start is reported once: small differences in its computed time are the same start,
    as is a leader that comes back.
    """
    clock = Clock()
    journal = Journal(clock)
    begin_ms = int(clock.now_s * 1000)
    journal.note("a", status(uptime_ms=600_000))
    journal.note("a", status(uptime_ms=601_900))
    journal.note("a", status(2, 2, uptime_ms=500_000))
    journal.note("a", status(1, 3, uptime_ms=600_000))
    journal.note("a", None, "gone")
    clock.now_s += 60
    journal.note("a", status(1, 4, uptime_ms=1_000))

    starts = [change for change in journal.last_hour() if "started" in change.text]
    assert [(change.at_ms - begin_ms, change.text) for change in starts] == [
        (59_000, "node 1, the leader, started its process"),
        (-500_000, "node 2, the leader, started its process"),
        (-600_000, "node 1, the leader, started its process"),
    ]


def test_locks_change_hands_and_those_that_were_not_seen_are_counted() -> None:
    """Law: lock changes and changes of leader are listed together, newest first, and holders that no look saw are counted."""
    clock = Clock()
    journal = Journal(clock)
    begin_ms = int(clock.now_s * 1000)
    journal.note("broker-a", status())
    journal.note_locks("billing", "broker-a", {QUEUE: lock("one", 1, begin_ms - 5_000)})
    clock.now_s += 10
    journal.note("broker-a", status(2, 2))
    clock.now_s += 10
    journal.note_locks("billing", "broker-a", {QUEUE: lock("two", 4, begin_ms + 12_000)})
    clock.now_s += 10
    journal.note_locks("billing", "broker-a", {})

    assert [(change.at_ms - begin_ms, change.text) for change in journal.locks_of("billing")] == [
        (30_000, "free; two held it with epoch 4"),
        (12_000, "held by two with epoch 4; 2 earlier holders were not seen"),
        (10_000, "node 2 leads in term 2"),
        (-5_000, "held by one with epoch 1"),
    ]
    assert journal.locks_of("other") == ()


def test_a_key_that_stood_and_stands_no_more_went_on() -> None:
    """Law: a standing key begins at its broker's time and ends at the look that misses it,
    unless that look saw only a part.
    """
    clock = Clock()
    journal = Journal(clock)
    since_ms = int(clock.now_s * 1000) - 60_000
    parked = {(QUEUE, "order-1"): ("key", since_ms)}

    journal.note_keys("shipping", "broker-a", parked, is_whole=True)
    journal.note_keys("shipping", "broker-a", parked, is_whole=True)
    journal.note_keys("shipping", "broker-a", {}, is_whole=False)
    journal.note_keys("shipping", "broker-b", {}, is_whole=True)
    clock.now_s += 5
    journal.note_keys("shipping", "broker-a", {}, is_whole=True)

    assert [(each.at_ms, each.text) for each in journal.key_of("shipping", QUEUE, "order-1")] == [
        (since_ms, "parked behind a dead letter"),
        (int(clock.now_s * 1000), "no longer parked: it was released"),
    ]
    assert journal.key_of("shipping", QUEUE, "order-2") == ()
    assert journal.key_of("billing", QUEUE, "order-1") == ()


def test_what_is_remembered_of_keys_has_a_limit() -> None:
    """Law: the number of remembered keys has a limit; keys beyond it leave no rows."""
    journal = Journal(Clock())
    many = {(QUEUE, f"{number}"): ("held", 1) for number in range(KEYS_MAX + 1)}
    journal.note_keys("shipping", "broker-a", many, is_whole=True)

    later = dict.fromkeys([*many][-2:], ("deadLettering", 2))
    journal.note_keys("shipping", "broker-a", later, is_whole=False)

    last = [journal.key_of("shipping", QUEUE, f"{each}") for each in (KEYS_MAX - 1, KEYS_MAX)]
    assert [[change.text for change in each] for each in last] == [
        ["its lane is held", "its dead letter is being stored"],
        [],
    ]
