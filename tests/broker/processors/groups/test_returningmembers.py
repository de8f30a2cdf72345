"""Members that come back while the record that takes them out is under way."""

from orderlymq_broker.state.records import GroupSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, heartbeat


def test_a_client_that_is_back_while_its_leaving_is_under_way_stays(shell: Shell) -> None:
    """Law: after a heartbeat that was answered its client is a member, whatever was proposed before."""
    create(shell, GroupSet("billing"))
    heartbeat(shell, "alice")
    shell.wall_ms += 121_000
    shell.run(shell.core.tick(shell.now))
    assert shell.pending

    assert heartbeat(shell, "alice").code == 0

    assert "alice" in shell.state.members.of_group("billing")


def test_a_member_that_is_back_writes_no_record_with_each_heartbeat(shell: Shell) -> None:
    """Law: a heartbeat that says nothing new is no record, also of one that was away."""
    create(shell, GroupSet("billing"))
    heartbeat(shell, "alice")
    shell.wall_ms += 121_000
    shell.run(shell.core.tick(shell.now))
    heartbeat(shell, "alice")
    proposed = len(shell.proposed)

    heartbeat(shell, "alice")

    assert len(shell.proposed) == proposed
