"""Beginnings of the lanes of a group that has committed nothing, by what its members say."""

import pytest

from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import (
    GROUP,
    Member,
    committed,
    join,
    keys,
    lead,
    produce,
)
from tests.broker.processors.lanes.test_retention import old

FIRST, LAST = "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET"
TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def trimmed(from_where: str) -> tuple[Shell, Member]:
    """Return a queue of which retention has taken two messages and left one, and a member that joins then."""
    shell, member = old("v", "w")
    shell.pass_time(20_000)
    produce(shell, "x")
    join(shell, "a", from_where=from_where)
    return shell, member


@pytest.mark.parametrize(("from_where", "first"), [(FIRST, ["x"]), (TIMESTAMP, ["x"]), (LAST, [])])
def test_the_first_fetch_says_where_a_trimmed_queue_begins(
    from_where: str, first: list[str]
) -> None:
    """Messages that come after it are delivered, though nothing was there to hand out."""
    shell, member = trimmed(from_where)

    assert keys(member.fetch()) == first
    assert committed(shell) == 3 - len(first)
    produce(shell, "y", "z")
    assert keys(member.fetch()) == ["y", "z"]
    shell.replay()


def test_a_fetch_that_waits_at_the_end_of_a_trimmed_queue_gets_what_comes() -> None:
    """It has looked when it began to wait."""
    shell, member = trimmed(LAST)

    waiting = member.wait()
    produce(shell, "y")

    reply = shell.reply_to(waiting)
    assert reply is not None
    assert reply.code == 0


def test_a_beginning_is_written_once() -> None:
    """A second look at an idle queue writes nothing."""
    shell, member = trimmed(LAST)
    member.fetch()
    entries = len(shell.log)

    assert member.fetch() == ()
    assert Member(shell, "a").fetch() == ()
    assert len(shell.log) == entries


def test_a_member_from_the_last_on_begins_a_whole_queue_at_its_start() -> None:
    """As RocketMQ's clients do where retention has taken nothing yet."""
    shell, member = old("v", "w")
    shell.wall_ms -= 7_200_000
    join(shell, "a", from_where=LAST)

    assert keys(member.fetch()) == ["v", "w"]
    assert shell.state.offsets.get(GROUP, "orders", 0) == 0


def test_all_queues_of_a_topic_begin_with_the_first_fetch() -> None:
    """However little it asks for: what comes to a queue from then on is delivered."""
    shell = lead(queues=2)
    produce(shell, "v")
    a = Member(shell)

    assert keys(a.fetch(maxLanes=1)) == ["v"]

    assert [queue.place[2] for queue in shell.state.lanes.of_group(GROUP)] == [0, 1]
    assert (committed(shell), committed(shell, 1)) == (0, 0)
