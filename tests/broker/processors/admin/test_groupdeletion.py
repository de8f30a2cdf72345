"""A consumer group is deleted only while nobody holds its locks or lanes; else two members could work on one key."""

from collections.abc import Callable
from typing import Any

import pytest

from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE, BOB, TOOL, Shell, settings
from tests.broker.processors.lanes.member import GROUP, TOPIC, Member, keys, lead, produce
from tests.broker.processors.requests import create, heartbeat, lock, lock_body, unlock

IN_USE = ResponseCode.ORDERLYMQ_GROUP_IN_USE
LEASE_MS = 60_000
GONE = {"groupName": GROUP, "cleanOffset": "true"}


def submit(shell: Shell) -> int:
    return shell.submit(RequestCode.DELETE_SUBSCRIPTIONGROUP, GONE, caller=TOOL)


def delete(shell: Shell) -> RemotingCommand:
    return shell.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, GONE, caller=TOOL)


def by_queue() -> Shell:
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 2, 2, order=True), GroupSet(GROUP, orderly=True))
    return shell


def test_a_group_whose_queues_are_locked_stays() -> None:
    """Law: a group with held queue locks is not deleted; a new group's member could get a queue that another one works on."""
    shell = by_queue()
    assert lock(shell, "alice", 0, 1) == {0: 1, 1: 1}

    refused = delete(shell)

    assert (refused.code, refused.remark) == (
        IN_USE,
        "group[billing] is in use: its members hold 2 queue locks (orderlymq group show); stop its consumers, or "
        "wait until their leases end, then delete it again",
    )
    assert lock(shell, "bob", 0, caller=BOB) == {}
    unlock(shell, "alice", 0, 1)
    assert delete(shell).code == 0
    assert GROUP not in shell.state.groups.by_name


@pytest.mark.parametrize("end", ["lease", "proof"])
def test_a_group_goes_when_the_last_holder_is_over(end: str) -> None:
    """Law: a group can be deleted when its last holder's lease has ended or its death is proven."""
    shell = by_queue()
    lock(shell, "alice", 0)
    assert delete(shell).code == IN_USE

    if end == "lease":
        shell.pass_time(LEASE_MS + 200)
    else:
        shell.run(shell.core.client_dead("alice", "the process is gone"))
        shell.settle()

    assert delete(shell).code == 0


def test_a_group_whose_lanes_are_in_hand_stays() -> None:
    """Law: a group with lanes in hand is not deleted."""
    shell = lead()
    produce(shell, "x", "y")
    member = Member(shell)
    given = member.fetch()

    refused = delete(shell)

    assert refused.code == IN_USE
    assert "its members hold 2 lanes (" in str(refused.remark)
    assert keys(given) == ["x", "y"]
    assert member.done(*given) == ["done", "done"]
    assert delete(shell).code == 0


def test_lanes_that_nobody_has_keep_no_group() -> None:
    """Law: parked and ready lanes, on which nobody works, do not prevent the deletion."""
    shell = lead()
    produce(shell, "x", "y")
    member = Member(shell)
    parked, released = member.fetch()
    member.say("retry", parked, delay_millis=60_000)
    member.say("release", released)

    assert delete(shell).code == 0


def ask_for_lanes(shell: Shell) -> int:
    return Member(shell).submit()


def ask_for_locks(shell: Shell) -> int:
    return shell.submit(41, {}, lock_body("alice", 0), caller=ALICE)


def filled() -> Shell:
    shell = lead()
    produce(shell, "x")
    return shell


WAYS = pytest.mark.parametrize(
    ("make", "ask"), [(by_queue, ask_for_locks), (filled, ask_for_lanes)], ids=["locks", "lanes"]
)


@WAYS
def test_what_is_being_given_to_a_member_keeps_its_group(
    make: Callable[[], Shell], ask: Callable[[Shell], int]
) -> None:
    """Law: a lock or lane that is being granted keeps its group, because its record is applied before the deletion."""
    shell = make()
    asked = ask(shell)

    deleted = submit(shell)
    shell.settle()

    assert codes(shell, asked, deleted) == [0, IN_USE]
    assert GROUP in shell.state.groups.by_name


@WAYS
def test_nobody_gets_anything_of_a_group_whose_deletion_is_under_way(
    make: Callable[[], Shell], ask: Callable[[Shell], int]
) -> None:
    """Law: nothing is granted for a group whose deletion is proposed."""
    shell = make()
    deleted = submit(shell)

    ask(shell)
    shell.settle()

    assert codes(shell, deleted) == [0]
    assert not list(shell.state.locks.held(GROUP))
    assert not shell.state.lanes.in_hand_count("a", GROUP, TOPIC)


@pytest.mark.parametrize("creates", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_no_member_joins_a_group_whose_deletion_is_under_way(creates: bool, known: bool) -> None:
    """Law: a heartbeat behind a proposed deletion creates the group again, where members may do so;
    else the member would wait for minutes.
    """
    shell = Shell(settings(auto_create_group=creates)).lead()
    create(shell, TopicSet(TOPIC, 2, 2), GroupSet(GROUP, on_dead_letter="HoldKey"))
    if known:
        heartbeat(shell, "alice")
    submit(shell)

    heartbeat(shell, "alice")

    assert set(shell.state.members.of_group(GROUP)) == ({"alice"} if creates else set())
    made = {GROUP: GroupSet(GROUP)} if creates else {}
    assert {name: row for name, row in shell.state.groups.by_name.items() if name == GROUP} == made
    shell.replay()


@WAYS
def test_what_is_lost_on_its_way_to_a_member_keeps_no_group(
    make: Callable[[], Shell], ask: Callable[[Shell], int]
) -> None:
    """Law: a lost grant does not prevent the deletion."""
    shell = make()
    ask(shell)
    shell.lose_proposals()

    assert delete(shell).code == 0


def codes(shell: Shell, *opaques: int) -> list[Any]:
    replies = [shell.reply_to(each) for each in opaques]
    return [None if each is None else each.code for each in replies]
