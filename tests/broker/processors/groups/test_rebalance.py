"""Notices of changed members (40): when they are sent, to whom, and which are repeated."""

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.core.longwalks import WALK_STEP_MAX
from orderlymq_broker.processors.groups.rebalance import NOTICES_MAX
from orderlymq_broker.state.groups.lockrecords import LocksReleased, LocksRequested
from orderlymq_broker.state.records import GroupSet, TopicDeleted, TopicSet
from tests.broker.processors.driver import ALICE, BOB, TOOL, Shell
from tests.broker.processors.requests import create, heartbeat, lock, pull, unlock

ALICE_AGAIN = Caller(11, ALICE.host, 50_001)
BOB_AGAIN = Caller(12, BOB.host, 50_002)


def ordered(shell: Shell) -> Shell:
    """Alice holds queue 0 of `orders` and Bob queue 1; no notice is waiting."""
    create(shell, TopicSet("orders", 2, 2, order=True), GroupSet("billing"))
    heartbeat(shell, "alice")
    heartbeat(shell, "bob", caller=BOB)
    assert lock(shell, "alice", 0) == {0: 1}
    assert lock(shell, "bob", 1, caller=BOB) == {1: 1}
    shell.notified()
    return shell


def close(shell: Shell, caller: Caller) -> None:
    shell.run(shell.core.connection_closed(caller.connection))
    shell.settle()


def expire(shell: Shell, client: str) -> None:
    shell.run(shell.core.client_dead(client, "process 4711 does not exist any more"))
    shell.settle()


def test_a_notice_about_a_dead_member_follows_the_release_of_its_locks(shell: Shell) -> None:
    """Law: the notice of a dead member is sent when its locks are free,
    because a Java 4 client tries once and then waits 20 s.
    """
    ordered(shell)

    close(shell, ALICE)
    assert shell.notified() == []
    expire(shell, "alice")

    assert shell.notified() == [BOB.connection]
    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}
    shell.pass_time(10_000)
    assert shell.notified() == []


def test_a_member_that_held_nothing_is_missed_immediately(shell: Shell) -> None:
    """Law: the leaving of a member without locks is announced immediately."""
    ordered(shell)
    unlock(shell, "alice", 0)
    shell.notified()

    close(shell, ALICE)

    assert shell.notified() == [BOB.connection]


def test_many_members_that_come_and_go_with_one_entry_are_one_notice_for_each(shell: Shell) -> None:
    """Law: many joins and leaves in one entry make one notice per member."""
    create(shell, GroupSet("billing"))
    shell.follow()
    callers = [Caller(100 + number, "192.0.2.7", 40_000 + number) for number in range(50)]
    for caller in callers:
        heartbeat(shell, f"c{caller.connection}", caller=caller)

    shell.lead()
    assert shell.notified() == [caller.connection for caller in callers]
    for caller in callers[10:]:
        shell.run(shell.core.connection_closed(caller.connection))
    shell.settle()

    assert shell.notified() == [caller.connection for caller in callers[:10]]


def test_a_member_that_is_back_before_a_proof_costs_nobody_a_rebalance(shell: Shell) -> None:
    """Law: a member that reconnects before it is proven dead causes no notice."""
    ordered(shell)

    close(shell, ALICE)
    heartbeat(shell, "alice", caller=ALICE_AGAIN)
    shell.pass_time(1_000)

    assert shell.notified() == []


def test_a_survivor_that_has_only_pulled_at_a_new_leader_is_notified() -> None:
    """Law: after a change of leader, a member that has only pulled so far is notified too."""
    successor = ordered(Shell().lead()).restart().lead()
    assert pull(successor, caller=BOB_AGAIN, queue=1, sysFlag=0, subVersion=1).code in (0, 19)
    assert successor.notified() == []

    expire(successor, "alice")

    assert successor.notified() == [BOB_AGAIN.connection]


def test_who_has_said_who_it_is_or_has_gone_is_guessed_at_no_more() -> None:
    """Law: once it has named itself, or its connection is closed, such a connection gets no extra notice."""
    successor = ordered(Shell().lead()).restart().lead()
    for caller in (ALICE_AGAIN, BOB_AGAIN):
        pull(
            successor,
            caller=caller,
            queue=caller.connection - ALICE_AGAIN.connection,
            sysFlag=0,
            subVersion=1,
        )
    heartbeat(successor, "bob", caller=BOB_AGAIN)
    close(successor, ALICE_AGAIN)
    successor.notified()

    expire(successor, "alice")

    assert successor.notified() == [BOB_AGAIN.connection]
    close(successor, BOB_AGAIN)
    assert successor.core.context.sessions.consumers_at("billing") == []


def test_who_reads_for_a_group_without_members_is_not_notified(shell: Shell) -> None:
    """Law: a client that pulls for a group without members is a tool and is not notified."""
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing"))

    assert pull(shell, caller=TOOL).code == 19

    assert shell.core.context.sessions.consumers_at("billing") == []


def test_members_are_notified_twice_more_of_a_queue_that_nobody_takes(shell: Shell) -> None:
    """Law: members are told twice more of a queue that nobody takes, after one and four seconds."""
    ordered(shell)
    close(shell, ALICE)
    expire(shell, "alice")
    told = [shell.notified()]

    for ms in (900, 200, 2_700, 300, 60_000):
        shell.pass_time(ms)
        lock(shell, "bob", 1, caller=BOB)
        told.append(shell.notified())

    bob = [BOB.connection]
    assert told == [bob, [], bob, [], bob, []]


def test_members_are_no_longer_notified_of_a_queue_that_was_taken_or_deleted(shell: Shell) -> None:
    """Law: queues that were taken or deleted cause no repeated notice."""
    ordered(shell)
    close(shell, ALICE)
    close(shell, BOB)
    heartbeat(shell, "carol", caller=BOB_AGAIN)
    expire(shell, "alice")
    expire(shell, "bob")
    shell.notified()
    assert lock(shell, "carol", 0, caller=BOB_AGAIN) == {0: 2}

    shell.pass_time(1_100)
    assert shell.notified() == [BOB_AGAIN.connection]
    create(shell, TopicDeleted("orders"))
    shell.notified()
    shell.pass_time(10_000)

    assert shell.notified() == []


def test_a_new_leader_notifies_of_queues_that_were_free_already() -> None:
    """Law: a new leader announces queues that are free, because its predecessor may have died before its notice."""
    leader = ordered(Shell().lead())
    unlock(leader, "alice", 0)
    successor = leader.restart().lead()
    heartbeat(successor, "bob", caller=BOB_AGAIN)
    assert successor.notified() == []

    successor.pass_time(1_100)

    assert successor.notified() == [BOB_AGAIN.connection]
    successor.follow()
    successor.pass_time(10_000)
    assert successor.notified() == []


def reminded(shell: Shell) -> int:
    """Return of how many free queues members will be told again."""
    return sum(len(each.queues) for each in shell.core.rebalance._reminders.values())


def test_a_new_leader_looks_at_many_free_queues_in_turns() -> None:
    """Law: a new leader looks at many free queues in steps."""
    count = WALK_STEP_MAX + 100
    shell = Shell().lead()
    create(shell, TopicSet("orders", count, count), GroupSet("billing"))
    heartbeat(shell, "bob", caller=BOB)
    names = tuple(("orders", queue) for queue in range(count))
    create(shell, LocksRequested("billing", "alice", "192.0.2.1:1", 60_000, names))
    create(shell, LocksReleased("billing", "alice", names))
    shell.follow()
    shell.settle()

    shell.run(shell.core.become_leader(shell.term + 1, shell.state.physical_end, shell.now))
    assert 0 < reminded(shell) < WALK_STEP_MAX
    shell.settle()
    assert reminded(shell) == count
    shell.notified()

    shell.monotonic_ms += 1_001
    create(shell, LocksRequested("billing", "bob", "192.0.2.2:1", 60_000, names[1:]))
    shell.run(shell.core.tick(shell.now))
    assert 1 < reminded(shell) < count
    shell.settle()
    assert reminded(shell) == 1
    assert shell.notified() == [BOB.connection]


def test_many_members_are_notified_in_turns(shell: Shell) -> None:
    """Law: many members are notified in steps, each once."""
    create(shell, GroupSet("billing"))
    callers = [Caller(100 + number, "192.0.2.7", 40_000) for number in range(NOTICES_MAX + 1)]
    for caller in callers:
        heartbeat(shell, f"c{caller.connection}", caller=caller)
    shell.notified()

    shell.run(shell.core.rebalance.notify(["billing"]))

    assert shell.notified() == [caller.connection for caller in callers[:NOTICES_MAX]]
    shell.settle()
    assert shell.notified() == [callers[-1].connection]
