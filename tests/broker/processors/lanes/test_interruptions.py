"""Attempts that end without a report: the member is proven dead, or its lease ends."""

from collections.abc import Callable

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.state.groups.lockrecords import ClientDead
from orderlymq_broker.state.records import MemberLeft, TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import (
    GROUP,
    Member,
    committed,
    expire,
    join,
    keys,
    lead,
    produce,
    table,
)
from tests.broker.processors.lanes.test_modes import release
from tests.broker.processors.lanes.test_reports import letters
from tests.broker.processors.requests import create


def kill(shell: Shell, client: str = "a") -> None:
    """Let a member die without a report, and its next process join."""
    create(shell, ClientDead(client, "the process is gone"))
    join(shell, client)


def end_lease(shell: Shell, client: str = "a") -> None:
    shell.pass_time(1_200)
    join(shell, client)


def deadly(shell: Shell, times: int) -> list[int]:
    """Let members die so many times with what they get; return the tries that they saw."""
    told = []
    member = Member(shell)
    for _ in range(times):
        (given,) = member.fetch()
        told.append(given.tries)
        kill(shell)
        shell.pass_time(300_000, step=10_000)
        join(shell, "a")
    return told


def lead_again(shell: Shell) -> list[Propose]:
    """Lead for another term; return the proposals of the former one, which are in no log."""
    former, shell.pending = shell.pending, []
    shell.run(shell.core.become_follower(leader_known=True))
    shell.core.proposals_lost()
    shell.lead()
    return former


def lose(shell: Shell, former: list[Propose]) -> None:
    """Make it certain that the proposals of a former term are lost, because another entry has their place."""
    for each in former:
        if each.lost is not None:
            shell.run(each.lost(None))


def propose_letter(shell: Shell) -> None:
    """Let the leader propose the waiting dead letter, if it has not been proposed."""
    shell.wall_ms += 100
    shell.run(shell.core.tick(shell.now))


def test_a_late_loss_of_a_former_term_lets_no_second_letter_be_proposed() -> None:
    """Law: a failed message makes one dead letter, even if a former term's proposal is lost late."""
    shell = lead()
    create(shell, TopicSet(f"%DLQ%{GROUP}", 1, 1))
    produce(shell, "x", "x")
    (x,) = Member(shell).fetch()
    Member(shell).say("retry", x, tries_max=1)
    propose_letter(shell)
    former = lead_again(shell)
    propose_letter(shell)

    lose(shell, former)
    propose_letter(shell)
    shell.settle()

    assert letters(shell) == [b"paid"]


def test_a_late_loss_of_a_former_term_lets_no_second_plan_be_made() -> None:
    """Law: a late loss of a former term's plan does not lead to two plans from one state, which would remove two messages."""
    shell = lead()
    produce(shell, "x", "x", "x")
    a, b = Member(shell), Member(shell, "b")
    (x,) = a.fetch(maxPerLane=3)
    a.say("release", x)
    expire(shell, 1)
    a.submit()
    former = lead_again(shell)
    b.submit()

    lose(shell, former)
    a.submit()
    shell.settle()

    assert [lane.offset for lane in table(shell, key="x").lanes] == [1]


@pytest.mark.parametrize("end", [kill, end_lease])
def test_an_attempt_that_ends_without_a_word_is_a_try_of_its_first_message(
    end: Callable[[Shell], None],
) -> None:
    """Law: an attempt that ends without a report counts as a try of its first message, without a pause."""
    shell = lead()
    produce(shell, "x", "x")
    a, b = Member(shell), Member(shell, "b")
    a.fetch(maxPerLane=2, leaseMillis=1_000)

    end(shell)

    (again,) = b.fetch(maxPerLane=2)
    assert (again.offsets, again.tries, again.behind) == ((0,), 1, 1)
    b.done(again)
    assert [(each.offsets, each.tries) for each in b.fetch()] == [((1,), 0)]
    shell.replay()


@pytest.mark.parametrize("action", ["skip", "retry"])
def test_a_lane_that_stops_its_queue_is_released_though_it_is_ready(action: str) -> None:
    """Law: an administrator can release a lane that stops its queue even if its member died with it in hand."""
    shell = lead(on_dead_letter="StopQueue", retry_max_times=1)
    produce(shell, "x", "y")
    a = Member(shell)
    (x, y) = a.fetch()
    a.done(y)
    a.say("retry", x, delay_millis=0)
    a.fetch()
    kill(shell)

    (shown,) = table(shell).lanes
    assert (shown.key, shown.state) == ("x", "ready")
    assert release(shell, "x", action) == ["x"]
    shell.pass_time(200)

    produce(shell, "y", "x")
    assert keys(a.fetch()) == (["y", "x"] if action == "skip" else ["x", "y"])
    assert letters(shell) == ([b"paid"] if action == "skip" else [])
    shell.replay()


def test_lanes_of_a_member_that_is_elsewhere_are_of_another_program() -> None:
    """Law: lanes of a member with another address are kept; another program may have the same client id."""
    shell = lead()
    produce(shell, "x")
    a, b = Member(shell), Member(shell, "b")
    (lane,) = a.fetch()
    ends = frozenset({("192.0.2.1", 9)})

    shell.run(shell.core.client_dead("a", "process 77 is gone", ends))
    shell.settle()

    assert not b.fetch()
    assert a.done(lane) == ["done"]
    produce(shell, "x")
    (lane,) = a.fetch()
    ends |= {(a.caller.host, a.caller.port)}
    shell.run(shell.core.client_dead("a", "process 77 is gone", ends))
    shell.settle()
    assert [(each.key, each.tries) for each in b.fetch()] == [("x", 1)]
    assert a.done(lane) == ["stale"]
    shell.replay()


def test_lanes_of_who_is_no_member_any_more_are_perhaps_of_another_program() -> None:
    """Law: if the holder is no member any more, its address is unknown, so its lanes end with their leases."""
    shell = lead()
    produce(shell, "x")
    a, b = Member(shell), Member(shell, "b")
    a.fetch(leaseMillis=1_000)
    create(shell, MemberLeft(GROUP, "a"))
    ends = frozenset({(a.caller.host, a.caller.port)})

    shell.run(shell.core.client_dead("a", "process 77 is gone", ends))
    shell.settle()

    assert not b.fetch()
    shell.pass_time(1_200)
    assert keys(b.fetch()) == ["x"]


def test_from_the_second_time_on_the_lane_is_parked_in_between() -> None:
    """Law: from the second such end on, the lane is parked, so that a deadly message does not kill all consumers quickly;
    other keys go on.
    """
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    for _ in range(2):
        a.done(*(each for each in a.fetch() if each.key == "y"))
        kill(shell)

    (shown,) = table(shell).lanes
    assert (shown.key, shown.state, shown.tries) == ("x", "parked", 2)
    assert shown.reason == "a died with it in hand: the process is gone"
    produce(shell, "y")
    assert keys(a.fetch()) == ["y"]
    shell.pass_time(1_000)
    assert keys(a.fetch()) == ["x"]


def test_a_message_that_kills_its_consumers_becomes_a_dead_letter() -> None:
    """Law: after the group's maximum of such ends the message becomes a dead letter, and its lane goes on."""
    shell = lead(retry_max_times=4)
    produce(shell, "x", "x", body=b"deadly")

    assert deadly(shell, 4) == [0, 1, 2, 3]

    assert letters(shell) == [b"deadly"]
    assert [(each.offsets, each.tries) for each in Member(shell).fetch()] == [((1,), 0)]
    shell.replay()


@pytest.mark.parametrize(("policy", "state"), [("HoldKey", "held"), ("StopQueue", "parked")])
def test_the_policy_of_the_group_decides_about_a_deadly_message(policy: str, state: str) -> None:
    """Law: the group's policy decides about such a message as about one that fails."""
    shell = lead(retry_max_times=3, on_dead_letter=policy)
    produce(shell, "x")
    assert deadly(shell, 2) == [0, 1]
    produce(shell, "y")
    member = Member(shell)

    assert keys(member.fetch(maxLanes=1)) == ["x"]
    kill(shell)

    assert [(each.key, each.state, each.tries) for each in table(shell).lanes] == [("x", state, 3)]
    assert keys(member.fetch()) == ([] if policy == "StopQueue" else ["y"])


def test_a_group_without_a_maximum_tries_for_ever() -> None:
    """Law: a group without a maximum tries for ever, with growing pauses."""
    shell = lead(retry_max_times=-1)
    produce(shell, "x")

    assert deadly(shell, 20) == list(range(20))


def test_two_deaths_prove_nothing_whatever_the_maximum() -> None:
    """Law: two such ends prove nothing, even with a maximum of 1, because the message may not have been begun."""
    shell = lead(retry_max_times=1)
    produce(shell, "x")

    assert deadly(shell, 2) == [0, 1]

    assert f"%DLQ%{GROUP}" not in shell.state.topics.by_name
    assert [each.tries for each in Member(shell).fetch()] == [2]


def test_suspects_are_not_in_one_hand() -> None:
    """Law: a member gets at most one lane that ended so twice, so that a deadly message does not take another with it."""
    shell = lead(retry_max_times=3)
    produce(shell, "x", "y")
    a, b = Member(shell), Member(shell, "b")
    for _ in range(2):
        assert len(a.fetch()) == 2
        kill(shell)
    shell.pass_time(1_000)

    assert keys(a.fetch()) == ["x"]
    limited = a.ask()
    assert limited.code == 19
    assert "ended without a report" in (limited.remark or "")
    assert keys(b.fetch()) == ["y"]


def test_a_lane_of_which_everything_in_hand_is_complete_has_no_try() -> None:
    """Law: if all messages in hand were completed, the next message has no try."""
    shell = lead()
    produce(shell, "x", "x")
    a = Member(shell)
    (x,) = a.fetch()
    a.say("renew", x, offset=0)

    kill(shell)

    assert [(each.offsets, each.tries) for each in a.fetch()] == [((1,), 0)]


def test_who_leaves_in_good_order_costs_no_try() -> None:
    """Law: a member that unregisters or releases a lane causes no try."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    a.say("release", x)
    a.fetch()
    shell.call(35, {"clientID": "a", "consumerGroup": GROUP}, caller=a.caller)
    join(shell, "a")

    assert [each.tries for each in a.fetch()] == [0]


def test_a_failure_proves_that_a_consumer_survives_the_message() -> None:
    """Law: a reported failure shows that the consumer survives the message; its tries go on, and it is no suspect."""
    shell = lead(retry_max_times=4)
    produce(shell, "x")
    assert deadly(shell, 2) == [0, 1]
    a = Member(shell)
    (x,) = a.fetch()
    a.say("retry", x, delay_millis=0)
    (again,) = a.fetch()
    kill(shell)

    (lane,) = a.fetch()
    assert (again.tries, lane.tries) == (3, 4)


def test_a_deadly_message_behind_others_of_its_key_is_the_one_that_is_dead() -> None:
    """Law: after such an end the lane is handed out one message at a time, so that the deadly one is found behind others."""
    shell = lead(retry_max_times=3)
    for body in (b"one", b"two", b"deadly", b"four"):
        produce(shell, "x", body=body)
    a = Member(shell)

    for _ in range(20):
        for lane in a.fetch(maxPerLane=16):
            if 2 in lane.offsets:
                kill(shell)
                shell.pass_time(5_000)
                join(shell, "a")
            else:
                a.done(lane)

    assert letters(shell) == [b"deadly"]
    assert committed(shell) == 4
    shell.replay()
