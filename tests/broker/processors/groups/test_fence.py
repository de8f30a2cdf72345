"""The fence: which clients may pull and commit the queues of an ordered group."""

from typing import NoReturn

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.state.records import GroupDeleted, GroupSet, MemberSeen, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE, BOB, TOOL, Shell
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    lock,
    lock_body,
    offset_of,
    pull,
    pull_ext,
    send,
    unlock,
)

ALICE_AGAIN = Caller(11, ALICE.host, 50_001)
BOB_AGAIN = Caller(12, BOB.host, 50_002)
NEIGHBOUR = Caller(13, ALICE.host, 50_003)


def declare(shell: Shell, **members: object) -> RemotingCommand:
    """Change the group `billing` as an administrator does."""
    return shell.call(200, body=fastjson.dumps({"groupName": "billing", **members}), caller=TOOL)


def test_a_group_that_is_declared_concurrent_is_consumed_without_locks(shell: Shell) -> None:
    """Law: a group may be declared concurrent by its own field (not RocketMQ's), and only while nobody holds a queue;
    then no locks are needed.
    """
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))
    send(shell)
    heartbeat(shell, "ordered", caller=ALICE)
    assert lock(shell, "ordered", 0, caller=ALICE) == {0: 1}
    heartbeat(shell, "concurrent", caller=BOB)

    locked = declare(shell, consumeConcurrently=True)
    assert locked.code == 1
    assert "while its members hold queue locks (1)" in (locked.remark or "")
    unlock(shell, "ordered", 0, caller=ALICE)
    assert declare(shell, consumeMessageOrderly=False, retryMaxTimes=3).code == 0
    refused = pull(shell, caller=BOB)
    assert refused.code == 1
    assert "orderlymq group set billing --ordering concurrent" in (refused.remark or "")

    assert declare(shell, consumeConcurrently=True).code == 0
    assert declare(shell, consumeMessageOrderly=False, retryMaxTimes=4).code == 0
    assert pull(shell, caller=BOB).code == 0
    asked = shell.call(41, body=lock_body("ordered", 0), caller=ALICE)
    assert asked.code == 16
    assert "orderlymq group set billing --ordering ordered" in (asked.remark or "")
    assert not shell.restart().state.is_ordered("billing")

    assert declare(shell, consumeMessageOrderly=True, consumeConcurrently=True).code == 1
    assert declare(shell, consumeMessageOrderly=True).code == 0
    assert pull(shell, caller=BOB).code == 1
    assert lock(shell, "ordered", 0, caller=ALICE) == {0: 2}


def ordered(shell: Shell, messages: int = 5) -> Shell:
    """Alice holds queue 0 of `orders`; Bob is a member too."""
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"))
    for queue in (0, 1):
        for number in range(messages):
            send(shell, body=str(number).encode(), e=queue)
    heartbeat(shell, "alice", caller=ALICE)
    heartbeat(shell, "bob", caller=BOB)
    assert lock(shell, "alice", 0, caller=ALICE) == {0: 1}
    return shell


def commit(shell: Shell, offset: int, caller: Caller, *, oneway: bool = True) -> int | None:
    """Commit queue 0; return the reply's code, if there is one."""
    reply = shell.ask(15, commit_ext(offset), caller=caller, oneway=oneway)
    shell.pass_time(100)
    return reply.code if reply is not None else None


def test_the_holder_is_served_and_others_learn_who_holds(shell: Shell) -> None:
    """Law: only the holder is served; others get code 1, which Java repeats after 3 s,
    with holder and epoch in the remark.
    """
    ordered(shell)

    assert pull(shell, caller=ALICE).code == 0
    refused = pull(shell, caller=BOB)

    assert refused.code == 1
    assert "locked by alice with epoch 1 since 17000000" in (refused.remark or "")


def test_without_a_lock_nobody_of_the_group_is_served(shell: Shell) -> None:
    """Law: after its first lock a group is ordered, and a queue without a holder serves nobody."""
    ordered(shell)

    assert pull(shell, caller=ALICE, queue=1).code == 1
    unlock(shell, "alice", 0, caller=ALICE)
    assert pull(shell, caller=ALICE).code == 1


def test_a_group_that_is_ordered_by_configuration_needs_no_first_lock(shell: Shell) -> None:
    """Law: with consumeMessageOrderly the fence holds from the start."""
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing", orderly=True), GroupSet("free"))

    assert pull(shell).code == 1
    assert pull(shell, group="free").code == 19


def test_tools_under_other_groups_read_what_they_like(shell: Shell) -> None:
    """Law: the fence is the group's, so tools with other groups may read the topic."""
    ordered(shell)

    assert pull(shell, caller=TOOL, group="TOOLS_CONSUMER").code == 0


def test_broadcasting_members_pass(shell: Shell) -> None:
    """Law: broadcasting members are served without a lock."""
    create(shell, TopicSet("orders", 1, 1))
    send(shell)
    heartbeat(shell, "alice", caller=ALICE, model="BROADCASTING")
    heartbeat(shell, "bob", caller=BOB, model="BROADCASTING")
    lock(shell, "alice", 0, caller=ALICE)

    assert pull(shell, caller=ALICE).code == 0
    assert pull(shell, caller=BOB).code == 0
    assert pull(shell, caller=BOB_AGAIN).code == 0
    assert not shell.state.is_ordered("billing")


def test_a_member_that_broadcasts_lets_nobody_else_pass(shell: Shell) -> None:
    """Law: a broadcasting member does not open the fence for unknown connections of its group."""
    ordered(shell)
    heartbeat(shell, "carol", caller=Caller(20, "10.0.0.20", 50_000), model="BROADCASTING")

    assert pull(shell, caller=BOB_AGAIN).code == 1
    assert commit(shell, 3, caller=BOB_AGAIN) in (None, 1)
    assert offset_of(shell) is None
    assert pull(shell, caller=Caller(20, "10.0.0.20", 50_000)).code == 0
    assert pull(shell, caller=ALICE).code == 0


def test_after_a_fail_over_the_holder_is_known_by_its_subscription() -> None:
    """Law: after a change of leader, the holder is recognised by its subscription version until its heartbeat comes (up
    to 30 s).
    """
    leader = ordered(Shell().lead())
    heartbeat(leader, "alice", caller=ALICE, sub_version=111)

    successor = leader.restart().lead()

    assert pull(successor, caller=ALICE_AGAIN, subVersion=111).code == 0
    assert pull(successor, caller=BOB_AGAIN, subVersion=111).code == 1
    assert pull(successor, caller=ALICE_AGAIN, subVersion=111, queue=1).code == 1


class Unwalked(dict[str, MemberSeen]):
    """Members that fail if they are iterated over."""

    def values(self) -> NoReturn:
        raise AssertionError("went over all members of the group")


def test_after_a_fail_over_a_pull_looks_at_members_of_its_address_alone() -> None:
    """Law: such a pull looks only at members of its address, because a thousand members may pull several times a second."""
    leader = ordered(Shell().lead())
    heartbeat(leader, "alice", caller=ALICE, sub_version=111)
    successor = leader.restart().lead()
    members = successor.state.members
    members._groups["billing"] = Unwalked(members._groups["billing"])

    assert pull(successor, caller=ALICE_AGAIN, subVersion=111).code == 0
    assert successor.call(15, commit_ext(2), caller=ALICE_AGAIN).code == 0


def test_two_clients_of_one_address_never_both_pull_an_ordered_queue() -> None:
    """Law: of two clients at one address, never do both pull an ordered queue."""
    leader = ordered(Shell().lead())
    heartbeat(leader, "alice", caller=ALICE, sub_version=111)
    heartbeat(leader, "carol", caller=NEIGHBOUR, sub_version=112)

    successor = leader.restart().lead()

    for version in ("112", "0", "", "-1", "110", "0111"):
        assert pull(successor, caller=NEIGHBOUR, subVersion=version).code == 1, version
    assert pull(successor, caller=ALICE_AGAIN, subVersion=111).code == 0


def test_what_two_members_of_one_address_both_say_proves_nothing() -> None:
    """Law: if two members of one address have the same version, both wait until they name themselves."""
    leader = ordered(Shell().lead())
    heartbeat(leader, "alice", caller=ALICE, sub_version=111)
    heartbeat(leader, "carol", caller=NEIGHBOUR, sub_version=111)

    successor = leader.restart().lead()

    assert pull(successor, caller=ALICE_AGAIN, subVersion=111).code == 1
    heartbeat(successor, "alice", caller=ALICE_AGAIN, sub_version=111)
    assert pull(successor, caller=ALICE_AGAIN, subVersion=111).code == 0


def test_a_commit_after_a_fail_over_counts_where_the_holder_pulls() -> None:
    """Law: after a change of leader, a commit (which names no sender) counts if its connection has pulled as the holder."""
    leader = ordered(Shell().lead())
    heartbeat(leader, "alice", caller=ALICE, sub_version=111)
    successor = leader.restart().lead()

    commit(successor, 2, ALICE_AGAIN)
    commit(successor, 3, NEIGHBOUR)
    assert offset_of(successor) is None
    assert pull(successor, caller=ALICE_AGAIN, subVersion=111).code == 0
    commit(successor, 4, NEIGHBOUR)
    commit(successor, 2, ALICE_AGAIN)
    assert offset_of(successor) == 2

    unlock(successor, "alice", 0, caller=NEIGHBOUR)
    lock(successor, "bob", 0, caller=BOB)
    commit(successor, 5, ALICE_AGAIN)
    assert offset_of(successor) == 2


def test_a_holder_that_pulls_over_a_known_connection_is_not_the_unknown_one_beside_it() -> None:
    """Law: if the holder pulls over a known connection, an unknown one of its address is not the holder."""
    successor = ordered(Shell().lead()).restart().lead()
    heartbeat(successor, "alice", caller=ALICE_AGAIN, sub_version=111)
    assert pull(successor, caller=ALICE_AGAIN).code == 0

    assert pull(successor, caller=NEIGHBOUR, subVersion=111).code == 1


def test_a_client_that_says_who_it_is_is_judged_exactly(shell: Shell) -> None:
    """Law: with omqClientId and omqEpoch, exactly the live epoch of the holder counts, over any connection of its host."""
    ordered(shell)

    assert pull(shell, caller=ALICE_AGAIN, omqClientId="alice", omqEpoch="1").code == 0
    assert pull(shell, caller=TOOL, omqClientId="alice", omqEpoch="1").code == 20516
    assert pull(shell, caller=ALICE, omqClientId="alice", omqEpoch="2").code == 1
    assert pull(shell, caller=ALICE, omqClientId="bob", omqEpoch="1").code == 20516
    unlock(shell, "alice", 0, caller=ALICE)
    lock(shell, "bob", 0, caller=BOB)
    lock(shell, "alice", 1, caller=ALICE)
    assert pull(shell, caller=ALICE, omqClientId="alice", omqEpoch="1").code == 1


def test_a_held_pull_is_judged_again_when_it_is_answered(shell: Shell) -> None:
    """Law: a held pull is checked again when it is answered; if the lock has gone to another client, it gets nothing."""
    ordered(shell)
    opaque = shell.submit(11, pull_ext(sysFlag=6, offset=5), caller=ALICE)
    unlock(shell, "alice", 0, caller=ALICE)
    lock(shell, "bob", 0, caller=BOB)

    send(shell, body=b"for bob")

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.body) == (1, b"")


# -- commits -------------------------------------------------------------------------------------


def test_commits_of_the_holder_count_and_those_of_others_are_dropped(shell: Shell) -> None:
    """Law: others' commits are dropped and counted; if a reply is wanted, it is 1."""
    ordered(shell)

    commit(shell, 2, ALICE)
    assert offset_of(shell) == 2
    commit(shell, 4, BOB)
    assert commit(shell, 4, BOB, oneway=False) == 1

    assert offset_of(shell) == 2
    assert shell.core.context.counters["fenced_commits"] == 2


def test_a_late_commit_of_a_former_holder_does_not_move_the_new_ones_offset(shell: Shell) -> None:
    """Law: a commit after the release of the lock moves nothing; one gathered before it counts."""
    ordered(shell)
    commit(shell, 1, ALICE)
    shell.submit(15, commit_ext(2), caller=ALICE, oneway=True)
    unlock(shell, "alice", 0, caller=ALICE)
    lock(shell, "bob", 0, caller=BOB)
    assert offset_of(shell) == 2, "what was committed before the release counts"

    commit(shell, 5, ALICE)

    assert offset_of(shell) == 2


def test_a_commit_that_meets_the_end_of_its_lock_in_the_log_is_passed_over(shell: Shell) -> None:
    """Law: a commit is judged by its epoch when it is applied, so one behind its lock's end is skipped."""
    ordered(shell)
    commit(shell, 1, ALICE)
    shell.submit(42, {}, lock_body("alice", 0), caller=ALICE)
    shell.submit(41, {}, lock_body("bob", 0), caller=BOB)
    shell.submit(15, commit_ext(4), caller=ALICE, oneway=True)
    shell.run(shell.core.tick(shell.now))
    shell.settle()

    assert offset_of(shell) == 1


def test_without_a_lock_members_are_dropped_and_tools_pass(shell: Shell) -> None:
    """Law: without a holder, members' commits are dropped, but a tool may set the offset."""
    ordered(shell)
    shell.pass_time(shell.core.context.settings.timers.lock_lease_ms + 1_000)

    commit(shell, 1, ALICE)
    commit(shell, 1, BOB)
    assert offset_of(shell) is None
    assert commit(shell, 3, TOOL, oneway=False) == 0

    assert offset_of(shell) == 3


def test_a_member_that_was_forgotten_is_no_tool(shell: Shell) -> None:
    """Law: a member that was dropped for silence is no tool; its late commits move nothing."""
    ordered(shell)
    shell.pass_time(shell.core.context.settings.timers.client_expiry_ms + 2_000, step=1_000)
    assert not shell.state.members.of_group("billing")

    commit(shell, 3, ALICE)
    assert commit(shell, 3, ALICE, oneway=False) == 1
    commit(shell, 3, NEIGHBOUR)

    assert offset_of(shell) is None


def test_the_commit_of_a_pull_is_fenced_like_any_other(shell: Shell) -> None:
    """Law: the commit in a pull is fenced too: a refused pull commits nothing."""
    ordered(shell)

    pull(shell, caller=BOB, sysFlag=5, commitOffset=4)
    pull(shell, caller=ALICE, sysFlag=5, commitOffset=3)
    shell.pass_time(100)

    assert offset_of(shell) == 3


def test_who_gave_a_queue_back_may_still_commit_until_another_holds_it(shell: Shell) -> None:
    """Law: the last holder may still commit after its release, until another client holds the queue; Java unlocks first."""
    ordered(shell)
    pull(shell, caller=ALICE)
    unlock(shell, "alice", 0, caller=ALICE)

    commit(shell, 2, BOB)
    assert offset_of(shell, 0) != 2
    commit(shell, 3, ALICE)
    assert offset_of(shell, 0) == 3
    assert lock(shell, "bob", 0, caller=BOB) == {0: 2}
    commit(shell, 5, ALICE)
    assert offset_of(shell, 0) == 3


def test_a_commit_on_its_way_when_the_queue_changes_hands_is_void(shell: Shell) -> None:
    """Law: a gathered commit of epoch 1 does not count under epoch 2."""
    ordered(shell)
    unlock(shell, "alice", 0, caller=ALICE)
    shell.ask(15, commit_ext(4), caller=ALICE, oneway=True)

    lock(shell, "bob", 0, caller=BOB)

    # Gathered commits enter the log before any change of a lock, with their epochs.
    assert offset_of(shell, 0) == 4
    commit(shell, 5, ALICE)
    assert offset_of(shell, 0) == 4


def test_an_epoch_ends_with_its_group(shell: Shell) -> None:
    """Law: an epoch ends with its group; a former holder moves no offset of a new group with that name."""
    ordered(shell)
    mine = {"omqClientId": "alice", "omqEpoch": "1"}
    create(shell, GroupDeleted("billing", clean_offsets=True))

    late = shell.ask(15, {**commit_ext(3), **mine}, caller=ALICE)

    assert late is not None
    assert late.code == 1
    assert "epoch 1 of queue 0 of topic orders ended when group billing was deleted" in str(
        late.remark
    )
    assert pull(shell, caller=ALICE, omqClientId="alice", omqEpoch="1").code == 1
    assert shell.state.offsets.get("billing", "orders", 0) is None
