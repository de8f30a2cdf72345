"""Members that come back while their removal is uncommitted."""

from collections.abc import Callable

import pytest

from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.codes import RequestCode
from tests.broker.processors.driver import ALICE, Shell
from tests.broker.processors.requests import create, heartbeat, lock


def fall_silent(shell: Shell) -> None:
    shell.wall_ms += 121_000
    shell.run(shell.core.tick(shell.now))


def unregister(shell: Shell) -> None:
    shell.submit(RequestCode.UNREGISTER_CLIENT, {"clientID": "alice", "consumerGroup": "billing"})


def close(shell: Shell) -> None:
    shell.run(shell.core.connection_closed(ALICE.connection))


def die(shell: Shell) -> None:
    shell.run(shell.core.client_dead("alice", "its process is gone"))


@pytest.mark.parametrize("leave", [fall_silent, unregister, close, die])
def test_a_client_that_is_back_while_its_leaving_is_under_way_stays(
    shell: Shell, leave: Callable[[Shell], None]
) -> None:
    """Law: a client whose heartbeat was answered is a member, whatever removal was proposed before."""
    create(shell, GroupSet("billing"))
    heartbeat(shell, "alice")
    leave(shell)
    assert shell.pending

    assert heartbeat(shell, "alice").code == 0

    assert "alice" in shell.state.members.of_group("billing")
    assert not shell.core.context.entries.pending_removals


def test_a_client_whose_lease_ends_behind_a_change_of_leader_is_back_in_time() -> None:
    """Law: this holds for a client whose leases ended at a change of leader."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1, order=True), GroupSet("billing"))
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    other = shell.restart().lead()
    other.wall_ms += 61_000
    other.run(other.core.locks.tick(other.now))
    assert other.pending

    assert heartbeat(other, "alice").code == 0

    assert "alice" in other.state.members.of_group("billing")
    other.replay()


def test_a_member_that_is_back_writes_no_record_with_each_heartbeat(shell: Shell) -> None:
    """Law: after that, its heartbeats without news write no records."""
    create(shell, GroupSet("billing"))
    heartbeat(shell, "alice")
    shell.wall_ms += 121_000
    shell.run(shell.core.tick(shell.now))
    heartbeat(shell, "alice")
    proposed = len(shell.proposed)

    heartbeat(shell, "alice")

    assert len(shell.proposed) == proposed
