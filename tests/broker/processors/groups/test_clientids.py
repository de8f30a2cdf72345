"""Which connection may speak for a client id, in virtual time; RocketMQ's own clients must go on working (ADR 22)."""

import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.state.records import GroupSet, TopicSet
from tests.broker.processors.driver import ALICE, BOB, Shell
from tests.broker.processors.requests import (
    create,
    heartbeat,
    heartbeat_body,
    lock,
    lock_body,
    pull,
    send,
    unlock,
)

SECOND_PORT = Caller(11, ALICE.host, 50_001)
# The same machine under another address, as a node port or a balancer may choose.
MOVED = Caller(12, "192.0.2.77", 50_002)
GRACE_MS = 35_000


@pytest.fixture
def shell() -> Shell:
    made = Shell().lead()
    create(made, TopicSet("orders", 2, 2, order=True), GroupSet("billing"))
    send(made)
    return made


def close(shell: Shell, caller: Caller) -> None:
    shell.run(shell.core.connection_closed(caller.connection))
    shell.settle()


def beat(shell: Shell, caller: Caller, version: int = 1, client: str = "alice") -> int:
    return shell.call(34, {}, heartbeat_body(client, sub_version=version), caller=caller).code


def test_a_client_uses_several_connections_of_one_host(shell: Shell) -> None:
    """Law: a client may use several connections of one host; clients up to 4.4 lock over port - 2."""
    heartbeat(shell, "alice")

    assert lock(shell, "alice", 0, caller=SECOND_PORT) == {0: 1}
    close(shell, SECOND_PORT)
    unlock(shell, "alice", 0, caller=Caller(13, ALICE.host, 50_003))

    assert shell.state.locks.get("billing", "orders", 0) is None


def test_a_client_comes_back_over_a_new_connection_while_the_old_one_looks_open(
    shell: Shell,
) -> None:
    """Law: a client may use a new connection while the old one still looks open."""
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)

    assert beat(shell, SECOND_PORT) == 0
    assert lock(shell, "alice", 0, caller=SECOND_PORT) == {0: 1}
    assert pull(shell, caller=SECOND_PORT).code == 0


def test_a_client_comes_back_to_the_next_leader(shell: Shell) -> None:
    """Law: at a new leader a lock request may be the first that names a client."""
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    successor = shell.restart().lead()

    assert lock(successor, "alice", 0, caller=SECOND_PORT) == {0: 1}


def test_a_client_that_is_silent_no_longer_keeps_its_id_from_others(shell: Shell) -> None:
    """Law: a client without heartbeats for a while no longer keeps its id from others, even if its connection is open."""
    heartbeat(shell, "alice")
    shell.pass_time(GRACE_MS, step=1_000)
    assert beat(shell, BOB, version=2) == 20516
    shell.pass_time(1_000, step=1_000)

    assert beat(shell, BOB, version=2) == 0
    assert beat(shell, ALICE) == 20516
    presence = shell.core.context.sessions.presence
    assert [each.connection for each in presence.values()] == [BOB.connection]
    assert lock(shell, "alice", 0, caller=BOB) == {0: 1}
    assert shell.call(41, {}, lock_body("alice", 1), caller=ALICE).code == 20516


def test_a_connection_that_lost_its_id_is_nowhere_remembered_with_it(shell: Shell) -> None:
    """Law: a connection that lost its id is forgotten in all groups, also those that the new one does not name."""
    heartbeat(shell, "alice", group="audit")
    shell.pass_time(GRACE_MS + 1_000, step=1_000)

    assert beat(shell, BOB, version=2) == 0
    close(shell, ALICE)

    assert list(shell.core.context.sessions.presence) == [("billing", "alice")]


def test_a_closed_connection_gives_the_id_back_when_nothing_is_held(shell: Shell) -> None:
    heartbeat(shell, "alice")
    close(shell, ALICE)

    assert beat(shell, BOB, version=2) == 0


def test_what_a_client_holds_is_no_other_hosts_before_its_lease_ends(shell: Shell) -> None:
    """Law: another host gets a client id with locks only when its lease has ended,
    because a listener may still run (ADR 16).
    """
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    close(shell, ALICE)
    shell.pass_time(59_000, step=1_000)
    assert beat(shell, BOB, version=2) == 20516
    shell.pass_time(2_000, step=1_000)

    assert beat(shell, BOB, version=2) == 0
    assert lock(shell, "alice", 0, caller=BOB) == {0: 2}


def test_proof_of_death_gives_the_id_back(shell: Shell) -> None:
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    close(shell, ALICE)
    shell.run(shell.core.client_dead("alice", "its process is gone"))
    shell.settle()

    assert beat(shell, BOB, version=2) == 0


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_client_whose_address_has_changed_gets_its_id_back_with_its_next_heartbeat(
    shell: Shell, fails_over: bool
) -> None:
    """Law: a client whose address changed gets its id back with its next heartbeat,
    known by its subscription versions (milliseconds).
    """
    heartbeat(shell, "alice", sub_version=111)
    lock(shell, "alice", 0)
    close(shell, ALICE)
    if fails_over:
        shell = shell.restart().lead()
    assert shell.call(41, {}, lock_body("alice", 0), caller=MOVED).code == 20516

    assert beat(shell, MOVED, version=111) == 0

    assert lock(shell, "alice", 0, caller=MOVED) == {0: 1}
    assert pull(shell, caller=MOVED).code == 0
    assert beat(shell, ALICE, version=222) == 20516


def test_versions_open_nothing_while_the_first_is_heard_of(shell: Shell) -> None:
    """Law: equal versions do not open an id while the first client is heard of, because tools show versions to others."""
    heartbeat(shell, "alice", sub_version=111)
    lock(shell, "alice", 0)

    assert beat(shell, MOVED, version=111) == 20516


def test_a_second_client_of_the_id_is_counted_and_shown(shell: Shell) -> None:
    heartbeat(shell, "alice")

    beat(shell, BOB)

    context = shell.core.context
    assert context.duplicate_clients == {"alice": (ALICE, BOB)}
    assert context.counters["duplicate_clients"] == 1


def test_other_clients_of_a_connection_are_not_concerned(shell: Shell) -> None:
    """Law: other clients on a connection that lost an id are not affected."""
    heartbeat(shell, "alice")
    heartbeat(shell, "carol", caller=BOB)
    beat(shell, BOB)

    assert shell.core.clients_of(BOB.connection) == ["carol"]
    assert beat(shell, BOB, client="carol") == 0
