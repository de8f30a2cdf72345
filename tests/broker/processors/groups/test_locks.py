"""Queue locks as clients request them, and the leader's lease clock."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.core.effects import Now
from orderlymq_broker.processors.groups import locks
from orderlymq_broker.processors.groups.locklog import HOLDERS_SHOWN, Line, LockReports
from orderlymq_broker.processors.groups.locks import (
    LOCKS_MAX,
    REFUSAL_MS,
)
from orderlymq_broker.state.groups.lockrecords import LockRef, LocksExpired, LocksRequested
from orderlymq_broker.state.records import (
    GroupSet,
    TopicDeleted,
    TopicSet,
)
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.clients import LOCK_QUEUES_MAX
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.broker.processors.driver import ALICE, BOB, Shell, settings
from tests.broker.processors.requests import create, heartbeat, lock, lock_body, unlock

ORDERS = TopicSet("orders", 4, 4, order=True)
LEASE_MS = 60_000


def table(shell: Shell) -> list[dict[str, Any]]:
    body = fastjson.loads(shell.call(20501, {"consumerGroup": "billing"}).body)
    rows: list[dict[str, Any]] = body["locks"]
    return rows


def test_free_own_expired_and_foreign_queues_are_distinguished(shell: Shell) -> None:
    """Law: the reply lists the granted queues in the request's spelling and order: free, own and expired ones,
    not those of others.
    """
    create(shell, ORDERS)
    assert lock(shell, "bob", 2, caller=BOB) == {2: 1}
    shell.monotonic_ms += LEASE_MS + 1  # No tick has noticed yet that bob's lease on 2 is over.
    assert lock(shell, "alice", 0) == {0: 1}
    assert lock(shell, "bob", 3, caller=BOB) == {3: 1}

    reply = shell.call(41, {}, lock_body("alice", 3, 2, 1, 0))

    assert reply.body == (
        b'{"epochs":[2,1,1],"lockOKMQSet":['
        b'{"brokerName":"broker-a","queueId":2,"topic":"orders"},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"orders"},'
        b'{"brokerName":"broker-a","queueId":0,"topic":"orders"}]}'
    )


def test_the_log_shows_of_each_request_what_was_got_taken_and_refused(shell: Shell) -> None:
    """Law: the log shows which queues were granted, taken over and refused, in RocketMQ's words;
    renewals are not logged (LOG-10 to LOG-12).
    """
    create(shell, ORDERS)
    lock(shell, "bob", 2, caller=BOB)
    shell.monotonic_ms += LEASE_MS + 1
    lock(shell, "bob", 3, caller=BOB)
    reports = shell.core.locks.reports
    reports.take()

    lock(shell, "alice", 0, 1, 2, 3)
    said = reports.take()
    lock(shell, "alice", 0, 1, 2)

    assert said == [
        Line(
            "info",
            "tryLockBatch, message queue not locked, I got it. Group: billing NewClientId: alice "
            "mq: orders:0, orders:1",
        ),
        Line(
            "warning",
            "tryLockBatch, message queue lock expired, I got it. Group: billing OldClientId: bob "
            "NewClientId: alice mq: orders:2",
        ),
        Line(
            "warning",
            "tryLockBatch, message queue locked by other client. Group: billing OtherClientId: bob "
            "NewClientId: alice mq: orders:3",
        ),
    ]
    assert reports.take() == []


def test_who_asks_in_vain_is_logged_once_a_minute_and_many_queues_in_one_line(shell: Shell) -> None:
    """Law: repeated refusals are logged once a minute, many queues in one line."""
    create(shell, TopicSet("orders", 9, 9, order=True))
    lock(shell, "bob", *range(9), caller=BOB, lease_ms=600_000)
    (first,) = shell.core.locks.reports.take()

    for _ in range(25):
        lock(shell, "alice", *range(9))
        shell.monotonic_ms += 3_000
    said = shell.core.locks.reports.take()

    assert first.text.endswith("mq: orders:0, orders:1, orders:2, orders:3 and 5 more")
    assert len(said) == 2
    assert all("locked by other client" in line.text for line in said)


def test_a_storm_of_a_thousand_groups_is_served() -> None:
    """Law: a thousand groups get the locks of their 64 queues each, and a second member gets none (LCK-20)."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 64, 64, order=True))
    groups = [f"group-{number}" for number in range(1_000)]

    for group in groups:
        shell.submit(41, {}, lock_body("alice", *range(64), group=group))
    shell.settle()

    held = Counter(each.group for each in shell.state.locks.held())
    assert held == dict.fromkeys(groups, 64)
    assert lock(shell, "bob", *range(64), caller=BOB, group=groups[-1]) == {}


def test_a_lease_of_exactly_its_length_still_holds(shell: Shell) -> None:
    """Law: a lease of 60 s still holds at 60.000 s and is over at 60.001 s."""
    create(shell, ORDERS)
    lock(shell, "bob", 0, caller=BOB)

    shell.monotonic_ms += LEASE_MS
    assert lock(shell, "alice", 0) == {}
    shell.monotonic_ms += 1
    assert lock(shell, "alice", 0) == {0: 2}


def test_unknown_queues_and_queues_of_other_brokers_are_not_granted(shell: Shell) -> None:
    """Law: unknown queues and queues of other brokers are not granted."""
    create(shell, ORDERS)

    assert lock(shell, "alice", 0, broker="broker-b") == {}
    assert lock(shell, "alice", 4, -1) == {}
    assert lock(shell, "alice", 0, topic="unknown") == {}
    assert lock(shell, "alice") == {}
    assert not shell.state.is_ordered("billing")


def test_locks_are_per_group(shell: Shell) -> None:
    """Law: locks are per group, so two groups may hold the same queue."""
    create(shell, ORDERS)

    assert lock(shell, "alice", 0) == {0: 1}
    assert lock(shell, "bob", 0, caller=BOB, group="audit") == {0: 1}


def test_the_reply_waits_for_the_record_and_one_request_is_one_record(shell: Shell) -> None:
    """Law: a lock request is one record, and its reply waits until that is applied."""
    create(shell, ORDERS, GroupSet("billing"))
    before = len(shell.proposed)

    opaque = shell.submit(41, {}, lock_body("alice", 0, 1, 2, 3))
    assert shell.reply_to(opaque) is None
    shell.settle()

    assert shell.reply_to(opaque) is not None
    assert len(shell.proposed) == before + 1


def test_a_renewed_lock_keeps_its_epoch_and_its_holder(shell: Shell) -> None:
    """Law: a renewed lock keeps epoch and holder and never expires."""
    create(shell, ORDERS)
    for _ in range(10):
        assert lock(shell, "alice", 0) == {0: 1}
        shell.pass_time(20_000, step=1_000)

    assert lock(shell, "bob", 0, caller=BOB) == {}


def test_the_lock_table_names_who_was_refused_while_it_keeps_asking(shell: Shell) -> None:
    """Law: the lock table names a refused member in wantedBy as long as it keeps asking."""
    create(shell, ORDERS)
    lock(shell, "alice", 0, 1)
    lock(shell, "bob", 0, caller=BOB)
    lock(shell, "alice", 0, 1)
    assert [each["wantedBy"] for each in table(shell)] == ["bob", ""]

    shell.monotonic_ms += REFUSAL_MS - 1
    lock(shell, "alice", 0, 1)
    assert [each["wantedBy"] for each in table(shell)] == ["bob", ""]
    shell.monotonic_ms += 1
    assert [each["wantedBy"] for each in table(shell)] == ["", ""]


def test_a_refused_member_that_gets_the_queue_wants_it_no_more(shell: Shell) -> None:
    """Law: a refused member that gets the queue is no longer named."""
    create(shell, ORDERS)
    lock(shell, "alice", 0)
    lock(shell, "bob", 0, caller=BOB)
    unlock(shell, "alice", 0)
    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}

    assert [(each["clientId"], each["wantedBy"]) for each in table(shell)] == [("bob", "")]


def test_who_was_refused_is_forgotten_with_the_topic(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: refusals are forgotten, for example with their topic, so that memory stays bounded."""
    monkeypatch.setattr(locks, "_SEEN_SLACK", 4)
    create(shell, GroupSet("billing"))
    for number in range(20):
        name = f"orders-{number}"
        create(shell, TopicSet(name, 1, 1, order=True))
        lock(shell, "alice", 0, topic=name)
        lock(shell, "bob", 0, topic=name, caller=BOB)
        create(shell, TopicDeleted(name))

    assert len(shell.core.locks._refused) <= 4 + 2


def test_an_expired_lock_is_freed_and_the_members_are_notified(shell: Shell) -> None:
    """Law: after its lease a lock is freed, and members are notified when that is committed."""
    create(shell, ORDERS)
    heartbeat(shell, "alice")
    heartbeat(shell, "bob", caller=BOB)
    lock(shell, "alice", 0)
    shell.notified()

    shell.pass_time(LEASE_MS)
    heartbeat(shell, "alice")
    assert (table(shell)[0]["clientId"], shell.notified()) == ("alice", [])
    shell.pass_time(100)

    assert (table(shell), shell.notified()) == ([], [ALICE.connection, BOB.connection])


def test_an_expiry_on_its_way_cannot_free_a_renewed_lock(shell: Shell) -> None:
    """Law: an expiry names the renewal that it saw, so a renewed lock is not freed."""
    create(shell, ORDERS)
    lock(shell, "alice", 0)
    held = shell.state.locks.get("billing", "orders", 0)
    assert held is not None
    lock(shell, "alice", 0)

    create(shell, LocksExpired("billing", (LockRef("orders", 0, held.stamp),)))

    assert table(shell)[0]["clientId"] == "alice"


def test_a_renewal_in_the_same_turn_as_the_expiry_keeps_the_lock(shell: Shell) -> None:
    """Law: if renewal and expiry are in one turn, the earlier renewal wins."""
    create(shell, ORDERS)
    lock(shell, "alice", 0)
    shell.monotonic_ms += LEASE_MS + 1

    shell.submit(41, {}, lock_body("alice", 0))
    shell.run(shell.core.tick(shell.now))
    shell.settle()

    assert [(each["clientId"], each["epoch"]) for each in table(shell)] == [("alice", 1)]


def test_a_leader_that_has_not_seen_the_renewal_runs_the_lease_in_full() -> None:
    """Law: a leader that has not seen the last renewal counts the lease in full, never too short."""
    shell = Shell().lead()
    create(shell, ORDERS)
    lock(shell, "alice", 0)
    shell.pass_time(50_000, step=1_000)

    successor = shell.restart()
    successor.monotonic_ms = shell.monotonic_ms
    successor.lead()
    successor.pass_time(LEASE_MS, step=1_000)
    assert lock(successor, "bob", 0, caller=BOB) == {}
    successor.pass_time(200)

    assert lock(successor, "bob", 0, caller=BOB) == {0: 2}


def test_a_new_leader_counts_a_lease_from_the_renewal_it_has_applied(shell: Shell) -> None:
    """Law: a new leader counts a lease from the renewal that it applied, so leases end in spite of changes of leader.

    If each leader began to count again, a dead client's locks could live for ever.
    """
    create(shell, ORDERS)
    lock(shell, "alice", 0)
    shell.pass_time(10_000, step=1_000)
    shell.follow()
    renewal = LocksRequested(
        "billing", "alice", "192.0.2.1:40001", LEASE_MS, (("orders", 0),), orderly=True
    )
    create(shell, renewal)
    shell.monotonic_ms += 40_000

    shell.lead()
    shell.pass_time(LEASE_MS - 40_000, step=1_000)
    assert lock(shell, "bob", 0, caller=BOB) == {}
    shell.pass_time(200)

    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}


def test_what_was_seen_of_a_former_holder_does_not_count_for_the_next(shell: Shell) -> None:
    """Law: a lease counts only from the renewal that the table names, not from a former holder's."""
    create(shell, ORDERS)
    lock(shell, "alice", 0)
    shell.pass_time(50_000, step=1_000)
    unlock(shell, "alice", 0)
    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}

    shell.follow()
    shell.lead()
    shell.pass_time(LEASE_MS, step=1_000)

    assert lock(shell, "alice", 0) == {}


def test_the_table_of_locks_survives_a_fail_over() -> None:
    """Law: the lock table survives a change of leader with holder and epoch."""
    leader = Shell().lead()
    create(leader, ORDERS)
    lock(leader, "alice", 0, lease_ms=15_000)

    successor = leader.restart().lead()

    assert lock(successor, "bob", 0, caller=BOB) == {}
    (entry,) = table(successor)
    assert entry == {
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 0,
        "consumerGroup": "billing",
        "clientId": "alice",
        "address": "192.0.2.1:40001",
        "epoch": 1,
        "leaseMillis": 15_000,
        "heldSinceMillis": leader.wall_ms,
        "connected": False,
        "wantedBy": "bob",
    }


def test_the_asked_lease_is_bounded(shell: Shell) -> None:
    """Law: a requested lease is limited to between one second and ten minutes."""
    create(shell, ORDERS)
    lock(shell, "alice", 0, lease_ms=1)
    lock(shell, "alice", 1, lease_ms=10**9)

    assert [each["leaseMillis"] for each in table(shell)] == [1_000, 600_000]


def test_only_the_holder_releases_and_the_epoch_outlives_the_lock(shell: Shell) -> None:
    """Law: only the holder releases a lock; a foreign unlock is answered 0 and ignored.

    The next holder's epoch is one more.
    """
    create(shell, ORDERS)
    heartbeat(shell, "bob", caller=BOB)
    lock(shell, "alice", 0)
    shell.notified()

    unlock(shell, "bob", 0, caller=BOB)
    assert (len(table(shell)), shell.notified()) == (1, [])
    unlock(shell, "alice", 0)
    assert (table(shell), shell.notified()) == ([], [ALICE.connection, BOB.connection])

    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}
    unlock(shell, "bob", 0, caller=BOB)
    assert lock(shell, "bob", 0, caller=BOB) == {0: 3}


def test_an_unlock_behind_its_lock_in_one_turn_releases_it(shell: Shell) -> None:
    """Law: an unlock in the same turn as its lock releases it."""
    create(shell, ORDERS)
    shell.submit(41, {}, lock_body("alice", 0))
    shell.submit(42, {}, lock_body("alice", 0), oneway=True)
    shell.settle()

    assert table(shell) == []


def test_an_unlock_of_a_queue_that_cannot_be_spoils_no_other(shell: Shell) -> None:
    """Law: an unlock of queue -1 does not affect the others in the request; an impossible number is refused."""
    create(shell, ORDERS)
    lock(shell, "alice", 0, 1)

    unlock(shell, "alice", 0, -1)
    refused = shell.call(42, {}, lock_body("alice", 1, -(2**31)))

    assert [row["queueId"] for row in table(shell)] == [1]
    assert (refused.code, "not a queue" in (refused.remark or "")) == (1, True)


def test_one_request_makes_few_lines_whichever_clients_have_its_queues() -> None:
    """Law: one request writes few, short log lines, whatever the number of queues and holders."""
    reports = LockReports()
    held = {MessageQueue("t" * 9_000, "b", n): f"c{n}" for n in range(5_000)}
    expired = {MessageQueue("u" * 9_000, "b", n): (f"d{n}", True) for n in range(5_000)}

    reports.decided("billing", "alice", expired, held, Now(0, 0))

    lines = reports.take()
    assert len(lines) == 2 * HOLDERS_SHOWN
    assert max(len(line.text) for line in lines) < 1_000


@pytest.mark.parametrize("leader_known", [True, False])
def test_a_follower_refuses_locks_and_releases_nothing(shell: Shell, leader_known: bool) -> None:
    """Law: a follower refuses 41 with an error, because Java gives up queues missing in a success;
    it answers 42 with ok and changes nothing.
    """
    create(shell, ORDERS)
    lock(shell, "alice", 0)
    shell.follow(leader_known=leader_known)

    refused = shell.call(41, {}, lock_body("alice", 0))
    assert (refused.code, refused.body) == (1, b"")
    assert "does not lead group broker-a" in (refused.remark or "")
    unlock(shell, "alice", 0)

    assert shell.state.locks.get("billing", "orders", 0) is not None


def test_bad_bodies_are_refused(shell: Shell) -> None:
    """Law: a wrong body (no JSON, no client id, a zero byte, a bad group) is refused with 1."""
    for body in (
        b"{",
        b"[]",
        b"{}",
        lock_body("", 0),
        lock_body("a\x00b", 0),
        lock_body("alice", 0, group="../x"),
        lock_body("a" * 600, 0),
    ):
        assert shell.call(41, {}, body).code == 1
        assert shell.call(42, {}, body).code == 1


CLIENTS = ["alice", "bob", "carol"]


@hypothesis_settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lock", "unlock", "wait", "fail over", "die"]),
            st.integers(0, 2),
            st.integers(0, 1),
            st.integers(1, 70_000),
        ),
        max_size=40,
    )
)
def test_at_any_time_a_queue_has_one_holder_and_epochs_only_rise(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Law: a queue has one holder at any time, and epochs only rise; a twin records who was granted, and until when."""
    shell = Shell().lead()
    create(shell, ORDERS, GroupSet("billing"))
    # Maps a queue to (client, monotonic end of its lease).
    granted: dict[int, tuple[str, int]] = {}
    epochs: dict[int, tuple[int, str]] = {}
    for kind, who, queue, ms in steps:
        client = CLIENTS[who]
        if kind == "lock":
            epoch = lock(shell, client, queue).get(queue)
            holder, end = granted.get(queue, ("", 0))
            if epoch is not None:
                assert holder in ("", client) or end < shell.monotonic_ms
                before, owner = epochs.get(queue, (0, ""))
                assert (epoch, client) == (before, owner) or epoch > before
                epochs[queue] = (epoch, client)
                granted[queue] = (client, shell.monotonic_ms + LEASE_MS)
            else:
                assert holder not in ("", client)
        elif kind == "unlock":
            unlock(shell, client, queue)
            if granted.get(queue, ("", 0))[0] == client:
                del granted[queue]
        elif kind == "wait":
            shell.pass_time(ms, step=500)
            granted = {q: g for q, g in granted.items() if g[1] >= shell.monotonic_ms}
        elif kind == "fail over":
            shell.follow()
            # It has applied the renewals itself, so leases go on.
            shell.lead()
        else:
            shell.call(20502, {"clientId": client, "proof": "no such process"})
            granted = {q: g for q, g in granted.items() if g[0] != client}
    shell.restart()


def test_a_request_for_too_many_queues_is_refused_whole(shell: Shell) -> None:
    """Law: a request for too many queues is refused as a whole."""
    create(shell, TopicSet("orders", LOCK_QUEUES_MAX + 1, 1), GroupSet("billing"))
    for code in (41, 42):
        refused = shell.call(code, {}, lock_body("alice", *range(LOCK_QUEUES_MAX + 1)))
        assert (refused.code, "divide them" in (refused.remark or "")) == (1, True)
    assert not shell.state.locks.holds_any("alice")

    assert len(lock(shell, "alice", *range(LOCK_QUEUES_MAX))) == LOCK_QUEUES_MAX


def test_a_lock_makes_the_group_that_owns_its_rows() -> None:
    """Law: a lock creates its group, so that its rows are deleted with it; if groups may not be created,
    it is refused with 26.
    """
    shell = Shell().lead()
    create(shell, ORDERS)
    assert lock(shell, "alice", 0) == {0: 1}
    assert shell.state.groups.get("billing") is not None

    strict = Shell(settings(auto_create_group=False)).lead()
    create(strict, ORDERS)
    refused = strict.call(41, {}, lock_body("alice", 0))
    assert (refused.code, list(strict.state.locks.held())) == (26, [])


def test_renewals_that_are_outdated_are_forgotten(shell: Shell) -> None:
    """Law: the lease clock holds little more than the running leases, however often they are renewed."""
    create(shell, ORDERS)
    for _ in range(200):
        lock(shell, "alice", 0)

    assert len(shell.core.locks._deadlines._times) <= 100


def test_locks_of_further_queues_are_refused_when_there_are_too_many(shell: Shell) -> None:
    """Law: the number of lock rows is limited; a queue that a group locked once can be locked again."""
    create(shell, ORDERS)
    assert lock(shell, "alice", 0) == {0: 1}
    unlock(shell, "alice", 0)
    missing = LOCKS_MAX - shell.state.locks.count
    shell.state.locks.count += missing

    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}
    refused = shell.call(41, {}, lock_body("bob", 0, 1), caller=BOB)

    assert refused.code == 1
    assert refused.remark is not None
    assert "delete groups or topics" in refused.remark
    shell.state.locks.count -= missing
    shell.state.check_invariants()
