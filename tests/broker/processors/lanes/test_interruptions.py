"""Attempts that end without a word: a member is proven dead, or its lease is over."""

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
    """Let a member die without a word, and the next process of it come."""
    create(shell, ClientDead(client, "the process is gone"))
    join(shell, client)


def end_lease(shell: Shell, client: str = "a") -> None:
    shell.pass_time(1_200)
    join(shell, client)


def deadly(shell: Shell, times: int) -> list[int]:
    """Kill a member as often with what it gets; return the tries it saw."""
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
    """Lead for another term; return what the former one has proposed, which is in no log."""
    former, shell.pending = shell.pending, []
    shell.run(shell.core.become_follower(leader_known=True))
    shell.core.proposals_lost()
    shell.lead()
    return former


def lose(shell: Shell, former: list[Propose]) -> None:
    """Let it be certain that the proposals of a former term are lost: another entry has their place."""
    for each in former:
        if each.lost is not None:
            shell.run(each.lost(None))


def propose_letter(shell: Shell) -> None:
    """Let the leader propose the dead letter that waits, if nobody has."""
    shell.wall_ms += 100
    shell.run(shell.core.tick(shell.now))


def test_a_late_loss_of_a_former_term_lets_no_second_letter_be_proposed() -> None:
    """One message that failed is one dead letter."""
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
    """Two plans of one state would both take a message out that retention has taken, and the second another one."""
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
    """It goes on without a pause: one death proves nothing about a message."""
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
    """Its last member died with it in hand, and nobody fetches: else nobody could let the queue go on."""
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
    """Two programs with one instance name share a client id: the death of one proves nothing for the other."""
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
    ends |= {(a.peer.host, a.peer.port)}
    shell.run(shell.core.client_dead("a", "process 77 is gone", ends))
    shell.settle()
    assert [(each.key, each.tries) for each in b.fetch()] == [("x", 1)]
    assert a.done(lane) == ["stale"]
    shell.replay()


def test_lanes_of_who_is_no_member_any_more_are_perhaps_of_another_program() -> None:
    """Nothing shows where it is; they end with their leases."""
    shell = lead()
    produce(shell, "x")
    a, b = Member(shell), Member(shell, "b")
    a.fetch(leaseMillis=1_000)
    create(shell, MemberLeft(GROUP, "a"))
    ends = frozenset({(a.peer.host, a.peer.port)})

    shell.run(shell.core.client_dead("a", "process 77 is gone", ends))
    shell.settle()

    assert not b.fetch()
    shell.pass_time(1_200)
    assert keys(b.fetch()) == ["x"]


def test_from_the_second_time_on_the_lane_is_parked_in_between() -> None:
    """A message that kills its consumers does not kill all of them within a second; other keys go on."""
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
    """After as many times as the group allows; its lane goes on behind it."""
    shell = lead(retry_max_times=4)
    produce(shell, "x", "x", body=b"deadly")

    assert deadly(shell, 4) == [0, 1, 2, 3]

    assert letters(shell) == [b"deadly"]
    assert [(each.offsets, each.tries) for each in Member(shell).fetch()] == [((1,), 0)]
    shell.replay()


@pytest.mark.parametrize(("policy", "state"), [("HoldKey", "held"), ("StopQueue", "parked")])
def test_the_policy_of_the_group_decides_about_a_deadly_message(policy: str, state: str) -> None:
    """As for one that fails."""
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
    """The pauses grow; the message stays."""
    shell = lead(retry_max_times=-1)
    produce(shell, "x")

    assert deadly(shell, 20) == list(range(20))


def test_two_deaths_prove_nothing_whatever_the_maximum() -> None:
    """The lane may have waited for a worker of the process that died: nobody had begun its message."""
    shell = lead(retry_max_times=1)
    produce(shell, "x")

    assert deadly(shell, 2) == [0, 1]

    assert f"%DLQ%{GROUP}" not in shell.state.topics.by_name
    assert [each.tries for each in Member(shell).fetch()] == [2]


def test_suspects_are_not_in_one_hand() -> None:
    """A member with a lane that ended so twice gets no other such lane: the deadly message takes no other with it."""
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
    """The broker did not hand out the message that follows."""
    shell = lead()
    produce(shell, "x", "x")
    a = Member(shell)
    (x,) = a.fetch()
    a.say("renew", x, offset=0)

    kill(shell)

    assert [(each.offsets, each.tries) for each in a.fetch()] == [((1,), 0)]


def test_who_leaves_in_good_order_costs_no_try() -> None:
    """An unregistered member and a released lane say that nothing has failed."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    a.say("release", x)
    a.fetch()
    shell.call(35, {"clientID": "a", "consumerGroup": GROUP}, peer=a.peer)
    join(shell, "a")

    assert [each.tries for each in a.fetch()] == [0]


def test_a_failure_proves_that_a_consumer_survives_the_message() -> None:
    """It is no suspect any more; its tries go on."""
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
    """A member that dies may have worked on a later message than the first, so the next one gets one message."""
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
