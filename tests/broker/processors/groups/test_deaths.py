"""A client that is proven dead loses its locks and memberships, by any report of its death."""

from orderlymq_broker.state.records import TopicSet
from tests.broker.processors.driver import ALICE, BOB, Shell
from tests.broker.processors.groups.test_members import body_of, members
from tests.broker.processors.requests import create, heartbeat, heartbeat_body, lock, lock_body


def test_a_dead_client_loses_locks_and_memberships_immediately(shell: Shell) -> None:
    """Law: a proof of death frees locks immediately and notifies members; the next holder has the next epoch."""
    create(shell, TopicSet("orders", 2, 2))
    shell.call(34, {}, body_of("alice", "billing", "audit"))
    shell.call(34, {}, body_of("bob", "billing", "audit"), caller=BOB)
    for group in ("billing", "audit"):
        lock(shell, "alice", 0, group=group)
    shell.notified()

    opaque = shell.submit(20502, {"clientId": "alice", "proof": "pod gone"})
    assert shell.reply_to(opaque) is None
    shell.settle()

    assert shell.reply_to(opaque) is not None
    assert (members(shell), members(shell, "audit")) == (["bob"], ["bob"])
    assert shell.notified() == [BOB.connection, BOB.connection]
    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}
    assert shell.call(20502, {"clientId": "nobody"}).code == 0


def test_a_lock_that_was_asked_for_from_elsewhere_is_of_another_program(shell: Shell) -> None:
    """Law: a lock taken from another address is kept, because another program may have the same client id."""
    create(shell, TopicSet("orders", 2, 2))
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    ends = frozenset({(BOB.host, BOB.port)})

    shell.run(shell.core.client_dead("alice", "no process 4711", ends))
    shell.settle()
    assert shell.state.locks.holds("billing", "alice")

    ends |= {(ALICE.host, ALICE.port)}
    shell.run(shell.core.client_dead("alice", "no process 4711", ends))
    shell.settle()
    assert not shell.state.locks.holds("billing", "alice")


def test_a_reported_death_spares_a_lock_that_was_asked_for_from_elsewhere(shell: Shell) -> None:
    """Law: this holds for reported deaths too; a container's next process has the same client id."""
    create(shell, TopicSet("orders", 2, 2))
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    alice, bob = f"{ALICE.host}:{ALICE.port}", f"{BOB.host}:{BOB.port}"

    shell.call(20502, {"clientId": "alice", "proof": "restarted", "addresses": bob})
    assert shell.state.locks.holds("billing", "alice")
    assert members(shell) == ["alice"]

    shell.call(20502, {"clientId": "alice", "proof": "restarted", "addresses": f"{alice},{bob}"})
    assert not shell.state.locks.holds("billing", "alice")


def test_a_death_also_ends_what_is_not_applied_yet(shell: Shell) -> None:
    """Law: a proof of death also ends a membership and a lock that are not applied yet."""
    create(shell, TopicSet("orders", 2, 2))
    shell.submit(34, {}, heartbeat_body("alice"))
    shell.submit(41, {}, lock_body("alice", 0))
    ends = frozenset({(ALICE.host, ALICE.port)})

    shell.run(shell.core.connection_closed(ALICE.connection))
    shell.run(shell.core.client_dead("alice", "no process 4711", ends))
    shell.settle()

    assert members(shell) == []
    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}


def test_a_reported_death_also_ends_what_is_not_applied_yet(shell: Shell) -> None:
    """Law: so does a reported death, because its reporter does not look again."""
    create(shell, TopicSet("orders", 2, 2))
    shell.submit(41, {}, lock_body("alice", 0))

    opaque = shell.submit(20502, {"clientId": "alice", "proof": "pod gone"})
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == 0
    assert not shell.state.locks.holds("billing", "alice")
    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}


def test_a_lock_from_elsewhere_that_is_not_applied_yet_saves_its_client(shell: Shell) -> None:
    """Law: an uncommitted lock from another address saves its client."""
    create(shell, TopicSet("orders", 2, 2))
    shell.submit(41, {}, lock_body("alice", 0), caller=BOB)
    ends = frozenset({(ALICE.host, ALICE.port)})

    shell.run(shell.core.client_dead("alice", "no process 4711", ends))
    shell.settle()

    assert shell.state.locks.holds("billing", "alice")


def test_the_shell_may_report_a_death_too(shell: Shell) -> None:
    """Law: the shell may report the death of a local process."""
    create(shell, TopicSet("orders", 2, 2))
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)

    shell.run(shell.core.client_dead("alice", "no process 4711"))
    shell.settle()

    assert members(shell) == []
    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}
