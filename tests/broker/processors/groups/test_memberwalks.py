"""Walks over many members, which the leader does in steps."""

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.core.longwalks import WALK_STEP_MAX
from orderlymq_broker.state.records import GroupSet, MemberLeft, MemberSeen
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, heartbeat


def test_many_members_are_taken_in_and_out_in_turns(shell: Shell) -> None:
    """Law: many members are added and removed in steps, each once."""
    count = 2 * WALK_STEP_MAX + 1
    groups = [f"g{number}" for number in range(64)]
    create(shell, *map(GroupSet, groups))
    shell.follow()
    for number in range(count):
        caller = Caller(100 + number // 64, "192.0.2.7", 40_000)
        heartbeat(shell, f"c{number}", caller=caller, group=groups[number % 64])

    shell.run(shell.core.become_leader(shell.term + 1, shell.state.physical_end, shell.now))
    taken = [sum(isinstance(of, MemberSeen) for of in each.records) for each in shell.pending]
    shell.settle()

    assert sum(taken) == WALK_STEP_MAX
    assert sum(len(shell.state.members.of_group(group)) for group in groups) == count
    shell.wall_ms += 1_000_000
    shell.run(shell.core.tick(shell.now))
    taken = [sum(isinstance(of, MemberLeft) for of in each.records) for each in shell.pending]
    shell.settle()
    assert sum(taken) == WALK_STEP_MAX
    assert not list(shell.state.members.groups())
    assert shell.core.context.counters["members_expired"] == count


def test_a_wish_that_changes_while_members_are_taken_in_stands(shell: Shell) -> None:
    """Law: a subscription changed during the walk stays; the walk does not write the old one back."""
    create(shell, GroupSet("billing"))
    shell.follow()
    for number in range(WALK_STEP_MAX - 1):
        caller = Caller(100 + number // 64, "192.0.2.7", 40_000)
        heartbeat(shell, f"c{number}", caller=caller)
    shared = Caller(99_999, "192.0.2.8", 40_000)
    for client in ("last of the first step", "alice"):
        heartbeat(shell, client, caller=shared, tags="paid")
    shell.run(shell.core.become_leader(shell.term + 1, shell.state.physical_end, shell.now))

    assert heartbeat(shell, "alice", caller=shared, tags="*", sub_version=2).code == 0

    member = shell.state.members.get("billing", "alice")
    assert member is not None
    assert {wish.expression for wish in member.subscriptions} == {"*"}
