"""Troubles that users must watch: each is produced, shown, logged once with a hint, and disappears when it is over."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core.effects import Now
from orderlymq_broker.processors.observe import lags, messages
from orderlymq_broker.processors.observe import watch as watching
from orderlymq_broker.processors.observe.messages import (
    KEYS_COUNTED,
    MESSAGES_MIN,
    SAMPLE_EVERY,
    WINDOW_MS,
    Frequent,
    Loads,
)
from orderlymq_broker.processors.observe.status import REPEAT_MS, SERIES_MAX, SHOWN_MAX
from orderlymq_broker.processors.observe.watch import BLOCKED_MS, LOOK_MS, STEP_WORK_MAX
from orderlymq_broker.state.records import (
    Append,
    Commit,
    GroupSet,
    OffsetsCommitted,
    OffsetsReset,
    TopicSet,
)
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import ALICE, BOB, START_MS, Shell
from tests.broker.processors.groups.test_returningmembers import unregister
from tests.broker.processors.lanes.member import Member, lead, produce, without_tail
from tests.broker.processors.requests import create, heartbeat, lock, send


def watch(admin: Shell) -> Any:
    return admin.core.group_status()["watch"]


def warnings(admin: Shell, part: str) -> list[str]:
    return [text for text in admin.core.watch.warnings.take() if part in text]


def commit(admin: AdminShell, offset: int, queue: int = 0) -> None:
    create(admin, OffsetsCommitted((Commit("billing", "orders", queue, offset, 1),)))


def series(admin: AdminShell, name: str) -> dict[tuple[str, ...], float]:
    return dict(admin.core.watch.series()[name].rows)


@pytest.fixture
def busy(admin: AdminShell) -> AdminShell:
    """A topic with messages of one key, and an ordered group whose member holds queue 0."""
    create_topic(admin, order=True)
    create(admin, GroupSet("billing", orderly=True))
    heartbeat(admin, "alice")
    lock(admin, "alice", 0)
    for number in range(3):
        send(admin, props=f"UNIQ_KEY\x01ID{number}\x02__SHARDINGKEY\x01order-7", e=0)

    return admin


def test_lag_is_reported_in_messages_and_in_seconds(busy: AdminShell) -> None:
    """Law: lag is shown per group and topic: the messages not consumed, and the age in seconds of the oldest."""
    busy.pass_time(20_000, step=1_000)
    commit(busy, 1)
    busy.pass_time(LOOK_MS, step=1_000)

    (lag,) = watch(busy)["lag"]
    assert (lag["group"], lag["topic"], lag["messages"]) == ("billing", "orders", 2)
    assert 20 <= lag["seconds"] <= 26
    assert series(busy, "group_lag_messages") == {("billing", "orders"): 2}
    assert series(busy, "group_lag_seconds") == {("billing", "orders"): lag["seconds"]}

    commit(busy, 3)
    busy.pass_time(LOOK_MS, step=1_000)
    assert watch(busy)["lag"] == []


def test_a_member_that_broadcasts_hides_no_lag_of_the_others(busy: AdminShell) -> None:
    """Law: only a group whose members all broadcast has no lag, because they keep their offsets themselves."""
    heartbeat(busy, "carol", caller=BOB, group="cache", model="BROADCASTING")
    heartbeat(busy, "bob", caller=BOB, model="BROADCASTING")

    busy.pass_time(LOOK_MS + 1_000, step=1_000)

    assert [(lag["group"], lag["messages"]) for lag in watch(busy)["lag"]] == [("billing", 3)]


def test_a_topic_that_members_no_longer_want_has_no_lag(busy: AdminShell) -> None:
    """Law: a topic to which no online member subscribes has no lag; with nobody online it has."""
    create_topic(busy, "former")
    send(busy, "former", e=0)
    create(busy, OffsetsReset((Commit("billing", "former", 0, 0),)))

    busy.pass_time(BLOCKED_MS + LOOK_MS, step=1_000)

    assert {lag["topic"] for lag in watch(busy)["lag"]} <= {"orders"}
    assert {row["topic"] for row in watch(busy)["blocked"]} <= {"orders"}


def test_a_blocked_queue_is_named_with_its_message_key_and_since_when(busy: AdminShell) -> None:
    """Law: a queue without progress for half a minute, with messages and members, is shown with message, key and holder."""
    commit(busy, 1)
    began = busy.wall_ms
    busy.pass_time(BLOCKED_MS + 2 * LOOK_MS, step=1_000)

    (row,) = watch(busy)["blocked"]
    assert {name: row[name] for name in ("group", "topic", "queue", "offset", "holder")} == {
        "group": "billing",
        "topic": "orders",
        "queue": 0,
        "offset": 1,
        "holder": "alice",
    }
    assert (row["messageId"], row["key"], row["tries"]) == ("ID1", "order-7", 0)
    assert began <= row["since"] <= began + LOOK_MS
    assert series(busy, "blocked_queues") == {("billing",): 1}
    (text,) = warnings(busy, "makes no progress in queue 0 of orders")
    assert "ID1" in text
    assert "orderlymq group reset" in text
    assert (row["connected"], row["byKey"]) == (True, False)


def test_a_blocked_queue_shows_that_its_holder_is_away(busy: AdminShell) -> None:
    """Law: a blocked queue shows that its holder is not connected, and when its lease ends."""
    busy.pass_time(BLOCKED_MS - LOOK_MS, step=1_000)
    lock(busy, "alice", 0)
    heartbeat(busy, "bob", caller=BOB)
    busy.run(busy.core.connection_closed(ALICE.connection))
    busy.pass_time(3 * LOOK_MS, step=1_000)

    (row,) = watch(busy)["blocked"]
    (text,) = warnings(busy, "makes no progress in queue 0 of orders")

    assert (row["holder"], row["connected"], row["leaseMillis"]) == ("alice", False, 60_000)
    assert row["listener"] == "its holder is not connected"
    assert "its lease of 60 s ends" in text
    assert "listener's log" not in text


def test_a_queue_of_which_only_lanes_wait_is_not_blocked() -> None:
    """Law: a queue that only held lanes and lanes in hand keep back is not blocked;
    one with a ready lane that nobody takes is.
    """
    admin = lead(on_dead_letter="HoldKey", retry_max_times=1)
    produce(admin, "held", "in-hand", "ready")
    member = Member(admin)
    held, _, ready = member.fetch(leaseMillis=600_000)
    assert member.say("retry", held).verdict == "held"
    member.done(ready)
    admin.pass_time(BLOCKED_MS + 2 * LOOK_MS, step=1_000)
    assert watch(admin)["blocked"] == []

    produce(admin, "new")
    admin.pass_time(BLOCKED_MS + 2 * LOOK_MS, step=1_000)
    (row,) = watch(admin)["blocked"]
    assert (row["queue"], row["offset"], row["key"]) == (0, 3, "new")
    assert (row["byKey"], row["holder"]) == (True, None)
    (text,) = warnings(admin, "makes no progress in queue 0")
    assert "A reset of its offsets drops all messages that still wait in lanes" in text

    member.done(*member.fetch())
    admin.pass_time(LOOK_MS, step=1_000)
    assert watch(admin)["blocked"] == []


def test_a_queue_that_moves_is_not_blocked_and_one_that_moves_again_no_more(
    busy: AdminShell,
) -> None:
    """Law: each progress starts the time again; a queue without members is not blocked."""
    for offset in (1, 2):
        commit(busy, offset)
        busy.pass_time(BLOCKED_MS - LOOK_MS, step=1_000)
    assert watch(busy)["blocked"] == []

    busy.pass_time(3 * LOOK_MS, step=1_000)
    assert len(watch(busy)["blocked"]) == 1
    commit(busy, 3)
    busy.pass_time(LOOK_MS, step=1_000)
    assert watch(busy)["blocked"] == []


@pytest.mark.parametrize(("away_ms", "blocked"), [(100_000, 0), (20_000, 1)])
def test_a_queue_is_blocked_since_its_group_has_members(
    busy: AdminShell, away_ms: int, blocked: int
) -> None:
    """Law: after a time without members a queue is not blocked at once; members that end again and again block it."""
    commit(busy, 1)
    for _ in range(3):
        unregister(busy)
        busy.pass_time(away_ms, step=1_000)
        heartbeat(busy, "alice")
        busy.pass_time(2 * LOOK_MS, step=1_000)

    assert len(watch(busy)["blocked"]) == blocked


def test_a_warning_is_said_once_and_again_while_it_lasts(busy: AdminShell) -> None:
    """Law: a warning is logged once, and again every ten minutes while it lasts."""
    busy.pass_time(BLOCKED_MS + 2 * LOOK_MS, step=1_000)
    heartbeat(busy, "alice")
    assert len(warnings(busy, "no progress")) == 1

    for _ in range(12):
        busy.pass_time(REPEAT_MS // 12, step=1_000)
        heartbeat(busy, "alice")
    assert len(warnings(busy, "no progress")) == 1


def test_a_message_that_fails_again_and_again_is_reported(admin: AdminShell) -> None:
    """Law: a message is shown from its third try on, and when it is dead, with id, key, tries, topic and what to do."""
    create_topic(admin)
    create(admin, GroupSet("billing", retry_max_times=4))
    send(admin, props="UNIQ_KEY\x01POISON;ls\x02KEYS\x01order-7", e=0)
    for times in range(5):
        physical = admin.state.physical_end - 1
        found = max(
            entry.physical
            for queue in admin.state.topics.queues()
            for entry in queue.tail
            if entry.physical <= physical
        )
        admin.call(
            36,
            {
                "offset": str(found),
                "group": "billing",
                "delayLevel": "1",
                "originMsgId": "x",
                "originTopic": "orders",
            },
        )
        admin.pass_time(2_000 + LOOK_MS, step=100)
        tries = [row["tries"] for row in watch(admin)["failing"]]
        assert tries == ([times + 1] if times >= 2 else []), times

    (row,) = watch(admin)["failing"]
    assert (row["group"], row["topic"], row["messageId"], row["key"], row["dead"]) == (
        "billing",
        "orders",
        "POISON;ls",
        "order-7",
        True,
    )
    assert series(admin, "failing_messages") == {("billing",): 1}
    said = warnings(admin, "POISON")
    assert len(said) == 2  # It fails again, and then it is dead.
    assert "orderlymq message show 'POISON;ls' --topic orders" in said[-1]
    assert "orderlymq message resend" in said[-1]


def test_a_lock_whose_renewals_were_missed_is_reported_before_it_ends(busy: AdminShell) -> None:
    """Law: a lock with two of three renewals missed is shown with its holder, the time left and the connection."""
    busy.pass_time(35_000, step=1_000)
    assert watch(busy)["expiring"] == []
    busy.pass_time(10_000, step=1_000)

    (row,) = watch(busy)["expiring"]
    assert (row["holder"], row["queue"], row["connected"]) == ("alice", 0, True)
    assert 0 < row["leftMillis"] < 20_000
    (text,) = warnings(busy, "has missed renewals")
    assert "another member takes the queue over" in text

    lock(busy, "alice", 0)
    busy.pass_time(LOOK_MS, step=1_000)
    assert watch(busy)["expiring"] == []


def test_one_client_id_on_two_connections_is_reported_with_both_addresses(
    admin: AdminShell,
) -> None:
    """Law: a client id on two connections is shown with both addresses until one is gone."""
    heartbeat(admin, "same", caller=ALICE)
    heartbeat(admin, "same", caller=BOB)
    admin.pass_time(LOOK_MS, step=1_000)

    (row,) = watch(admin)["duplicates"]
    assert row == {
        "clientId": "same",
        "addresses": [f"{ALICE.host}:{ALICE.port}", f"{BOB.host}:{BOB.port}"],
        "groups": ["billing"],
    }
    (text,) = warnings(admin, "on two connections at the same time")
    assert "instance name" in text
    assert series(admin, "duplicate_clients") == {(): 1}

    admin.run(admin.core.connection_closed(ALICE.connection))
    admin.settle()
    admin.pass_time(LOOK_MS, step=1_000)
    assert watch(admin)["duplicates"] == []


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"tags": "paid"}, "topic orders: * and paid"),
        ({"topics": ("orders", "refunds")}, "topic refunds: nothing and *"),
        ({"model": "BROADCASTING"}, "message_model: CLUSTERING and BROADCASTING"),
    ],
)
def test_members_that_want_different_things_are_reported(
    admin: AdminShell, other: dict[str, Any], difference: str
) -> None:
    """Law: members with different subscriptions are shown with the difference; equal ones are not."""
    create_topic(admin)
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB, kind="")
    admin.pass_time(LOOK_MS, step=1_000)
    assert watch(admin)["disagreeing"] == []

    heartbeat(admin, "bob", caller=BOB, sub_version=2, **other)
    admin.pass_time(LOOK_MS, step=1_000)

    (row,) = watch(admin)["disagreeing"]
    assert row == {"group": "billing", "members": ["alice", "bob"], "difference": difference}
    (text,) = warnings(admin, "disagree")
    assert "same subscriptions" in text


def test_a_hot_queue_and_a_hot_key_are_found(admin: AdminShell) -> None:
    """Law: a queue and a key with most of a minute's messages are shown with their share and a hint."""
    create_topic(admin)
    admin.pass_time(100)
    for number in range(MESSAGES_MIN):
        hot = number % 5 != 0
        key = "whale" if hot else f"small-{number}"
        send(admin, props=f"__SHARDINGKEY\x01{key}", e=1 if hot else number % 4)
    admin.pass_time(60_000 + LOOK_MS, step=1_000)

    (queue,) = watch(admin)["hotQueues"]
    assert (queue["topic"], queue["queue_id"], queue["queues"]) == ("orders", 1, 4)
    assert queue["share"] >= 0.8
    (key_row,) = watch(admin)["hotKeys"]
    assert (key_row["key"], key_row["share"] == pytest.approx(0.8, abs=0.15)) == ("whale", True)
    assert series(admin, "topic_greatest_queue_share")[("orders",)] >= 0.8
    (hot_queue, hot_key) = sorted(
        warnings(admin, "orders"), key=lambda text: text[:3], reverse=True
    )
    assert "skew-report" in hot_queue
    assert "Choose a finer key" in hot_key

    admin.pass_time(60_000 + LOOK_MS, step=1_000)
    assert (watch(admin)["hotQueues"], watch(admin)["hotKeys"]) == ([], [])


def test_a_minute_is_judged_some_queues_at_a_time(
    admin: AdminShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a minute with messages in many queues is judged some queues at a time, and shown when all are judged."""
    monkeypatch.setattr(messages, "JUDGED_MAX", 10)
    create_topic(admin, queues=30)
    send(admin)
    (record,) = [each for each in admin.proposed if type(each) is Append]
    loads = Loads(admin.core.context)
    loads.tick(Now(0, 0))
    loads.appended([record] * MESSAGES_MIN)
    loads.appended([msgspec.structs.replace(record, queue_id=queue) for queue in range(1, 30)])

    found: list[int] = []
    for tick in range(5):
        loads.tick(Now(0, WINDOW_MS + 100 * tick))
        found.append(len(loads.hot_queues))

    assert found == [0, 0, 0, 1, 1]


def test_messages_spread_evenly_or_few_are_no_finding(admin: AdminShell) -> None:
    """Law: evenly spread or few messages are no hot queue."""
    create_topic(admin)
    for number in range(MESSAGES_MIN):
        send(admin, props=f"KEYS\x01k{number}", e=number % 4)
    create_topic(admin, "quiet")
    for _ in range(20):
        send(admin, "quiet", e=0)
    admin.pass_time(60_000 + LOOK_MS, step=1_000)

    assert (watch(admin)["hotQueues"], watch(admin)["hotKeys"]) == ([], [])


@given(st.lists(st.sampled_from("abcdefghij"), max_size=300), st.integers(1, 6))
def test_frequent_items_are_never_overlooked(items: list[str], room: int) -> None:
    """Law: the estimated count of an item is never too high, and too low by at most the total divided by the room."""
    frequent = Frequent(room)
    for item in items:
        frequent.add(item)

    exact = Counter(items)
    assert len(frequent.counts) <= room
    for item in exact:
        counted = frequent.counts.get(item, 0)
        assert exact[item] - len(items) / (room + 1) <= counted <= exact[item]


def test_the_room_for_keys_finds_every_hot_one() -> None:
    """Law: the room for keys is large enough to find every hot one."""
    assert 1 / KEYS_COUNTED < 0.2
    assert SAMPLE_EVERY * 10 < MESSAGES_MIN


def test_another_leader_looks_again(busy: AdminShell) -> None:
    """Law: findings belong to the leader that made them; a former leader shows none."""
    busy.pass_time(BLOCKED_MS + 2 * LOOK_MS, step=1_000)
    assert watch(busy)["blocked"]

    busy.follow()

    assert watch(busy) == {"examinedAt": 0, "blockedKnown": False, "lag": []}
    assert busy.core.watch.series()["blocked_queues"].rows == []
    assert busy.wall_ms > START_MS


def test_a_new_leader_says_that_it_does_not_know_yet_what_stands_still(busy: AdminShell) -> None:
    """Law: a new leader says that blocked queues are unknown until each lagging queue has moved or stood long enough."""
    busy.pass_time(LOOK_MS, step=1_000)
    assert (watch(busy)["blocked"], watch(busy)["blockedKnown"]) == ([], False)

    busy.pass_time(BLOCKED_MS + LOOK_MS, step=1_000)
    assert len(watch(busy)["blocked"]) == 1
    assert watch(busy)["blockedKnown"]


def test_a_queue_that_moves_or_that_nobody_consumes_leaves_nothing_to_wait_for(
    busy: AdminShell,
) -> None:
    """Law: a cluster without standing queues is known to be healthy after two looks."""
    busy.pass_time(LOOK_MS, step=1_000)
    commit(busy, 1)
    busy.pass_time(LOOK_MS, step=1_000)
    assert watch(busy)["blockedKnown"]

    idle = lead()
    idle.pass_time(LOOK_MS, step=1_000)
    assert watch(idle)["blockedKnown"]


def test_parked_keys_and_waiting_lanes_are_counted_by_group() -> None:
    """Law: parked keys and waiting lanes are counted by group; lanes in hand do not count."""
    shell = lead(on_dead_letter="HoldKey")
    before = shell.core.group_status()["watch"]
    produce(shell, "x", "y", "z")
    member = Member(shell)
    x, y, _ = member.fetch()
    member.say("retry", x, tries_max=1)
    member.say("retry", y, delay_millis=100_000)
    shell.pass_time(LOOK_MS)

    after = shell.core.group_status()["watch"]

    assert "lanes" not in before
    assert after["lanes"] == [
        {"group": "billing", "state": "held", "lanes": 1},
        {"group": "billing", "state": "parked", "lanes": 1},
    ]
    assert after["parkedKeys"] == []
    assert after["examinedAt"] > 0


def test_a_look_at_many_groups_is_cut_into_ticks(admin: AdminShell) -> None:
    """Law: a look at many groups is split over ticks, and the last result is shown meanwhile."""
    create_topic(admin, "orders", readQueueNums=8, writeQueueNums=8)
    send(admin, e=0)
    groups = [f"group-{number:04}" for number in range(STEP_WORK_MAX // 4)]
    for begin in range(0, len(groups), 500):
        some = groups[begin : begin + 500]
        create(admin, *(GroupSet(each) for each in some))
        create(admin, OffsetsReset(tuple(Commit(each, "orders", 0, 0) for each in some)))
    admin.pass_time(2 * LOOK_MS)
    before = watch(admin)["examinedAt"]

    ticks = 0
    while watch(admin)["examinedAt"] == before:
        admin.pass_time(100)
        ticks += 1
        assert ticks < 10 + LOOK_MS // 100
    assert sum(each.messages for each in admin.core.watch._lags) == SERIES_MAX < len(groups)
    began = watch(admin)["examinedAt"]
    assert admin.wall_ms - began >= 100, "the look ended in the tick in which it began"


def test_a_look_at_one_large_group_is_cut_into_ticks(
    admin: AdminShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a look at one large group is split over ticks too, and each topic is counted completely."""
    monkeypatch.setattr(watching, "STEP_WORK_MAX", 40)
    monkeypatch.setattr(watching, "_WORK_OF_PART", 20)
    names = [f"t{number}" for number in range(4)]
    create(admin, *(TopicSet(name, 32, 32) for name in names), GroupSet("billing"))
    for name in names:
        create(admin, OffsetsReset(tuple(Commit("billing", name, queue, 0) for queue in range(32))))
        for queue in range(32):
            send(admin, name, e=queue)
    admin.pass_time(2 * LOOK_MS)
    before = watch(admin)["examinedAt"]

    ticks_under_way = 0
    while watch(admin)["examinedAt"] == before:
        admin.pass_time(100)
        ticks_under_way += admin.core.watch._looking is not None

    assert ticks_under_way >= 3
    assert [(each["topic"], each["messages"]) for each in watch(admin)["lag"]] == [
        (name, 32) for name in names
    ]


def test_of_many_lags_the_greatest_are_kept(
    admin: AdminShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: of many lags the greatest are kept, found step by step; sorting forty thousand takes 50 ms."""
    monkeypatch.setattr(lags, "SERIES_MAX", 2)
    create_topic(admin, "orders")
    for queue in (0, 0, 0, 1):
        send(admin, e=queue)
    committed = {"a": 3, "b": 0, "c": 2, "d": 2}
    for group, offset in committed.items():
        create(admin, GroupSet(group))
        create(admin, OffsetsReset((Commit(group, "orders", 0, offset, 0),)))

    admin.pass_time(2 * LOOK_MS)

    found = admin.core.watch._lags
    assert [(each.group, each.messages) for each in found] == [("b", 4), ("c", 2)]


@pytest.fixture
def late(admin: AdminShell, monkeypatch: pytest.MonkeyPatch) -> AdminShell:
    """A look reads two times from the store; a group stands still in a queue whose messages are not in memory."""
    monkeypatch.setattr(lags, "READS_MAX", 2)
    without_tail(admin)
    create_topic(admin, "orders")
    create(admin, GroupSet("moving"), GroupSet("standing"))
    for queue in (0, 1, 2):
        for _ in range(6):
            send(admin, e=queue)
    return admin


def stand(admin: AdminShell, group: str, *offsets: int) -> None:
    """Set a group's offsets in the first queues, and let the leader look."""
    commits = (Commit(group, "orders", queue, offset) for queue, offset in enumerate(offsets))
    create(admin, OffsetsReset(tuple(commits)))
    admin.pass_time(LOOK_MS, step=1_000)


def test_who_stands_still_gets_the_age_of_its_messages_whoever_moves(late: AdminShell) -> None:
    """Law: the group that waited longest for a reading of its age is next; until then it has no age."""
    create(late, OffsetsReset(tuple(Commit("moving", "orders", queue, 6) for queue in range(3))))
    create(late, OffsetsReset(tuple(Commit("standing", "orders", queue, 6) for queue in (0, 1))))
    stand(late, "moving", 2, 2)
    first = series(late, "group_lag_seconds")

    stand(late, "moving", 3, 3)
    stand(late, "moving", 4, 4)

    ages = series(late, "group_lag_seconds")
    assert first.keys() == {("moving", "orders")}
    assert ages.keys() == {("moving", "orders"), ("standing", "orders")}
    assert all(10 <= age <= 16 for age in ages.values())
    assert series(late, "group_lag_messages").keys() == ages.keys()


def test_who_moves_keeps_the_last_age_that_was_read(
    late: AdminShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a moving group keeps its last age, which is never too small;
    a group that was set back has none until the next reading.
    """
    stand(late, "standing", 4, 4, 6)
    (before,) = series(late, "group_lag_seconds").values()
    monkeypatch.setattr(lags, "READS_MAX", 0)

    stand(late, "standing", 5, 5)
    (moved,) = series(late, "group_lag_seconds").values()
    stand(late, "standing", 1, 1)

    assert moved == pytest.approx(before + LOOK_MS / 1000)
    assert series(late, "group_lag_seconds") == {}
    assert watch(late)["lag"][0]["seconds"] == 0.0


def test_only_what_is_shown_of_blocked_queues_is_read(busy: AdminShell) -> None:
    """Law: all blocked queues count, but only those that are shown are read."""
    groups = [f"group-{number:03}" for number in range(SHOWN_MAX + 20)]
    create(busy, *(GroupSet(each) for each in groups))
    create(busy, OffsetsReset(tuple(Commit(each, "orders", 0, 0) for each in groups)))
    for each in groups:
        heartbeat(busy, "alice", group=each)

    busy.pass_time(BLOCKED_MS + 2 * LOOK_MS, step=1_000)

    rows = busy.core.watch._found["blocked"]
    assert len(rows) == SHOWN_MAX
    assert all(row["messageId"] for row in rows)
    assert sum(series(busy, "blocked_queues").values()) == len(groups) + 1
