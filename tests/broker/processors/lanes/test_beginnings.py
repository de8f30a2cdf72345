"""Where the lanes of a group without commits begin, as its members ask."""

import pytest

from orderlymq_broker.processors.lanes import planner
from orderlymq_broker.state.lanes.lanerecords import LanesFetched
from orderlymq_broker.state.records import QueueFloor, RetentionAdvanced
from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    committed,
    join,
    keys,
    lanes,
    lead,
    produce,
)
from tests.broker.processors.lanes.test_retention import old
from tests.broker.processors.requests import create, properties, send_ext

FIRST, LAST = "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET"
TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def trimmed(from_where: str) -> tuple[Shell, Member]:
    """Return a queue from which retention has deleted two messages and kept one, and a member that joins then."""
    shell, member = old("v", "w")
    shell.pass_time(20_000)
    produce(shell, "x")
    join(shell, "a", from_where=from_where)
    return shell, member


@pytest.mark.parametrize(("from_where", "first"), [(FIRST, ["x"]), (TIMESTAMP, ["x"]), (LAST, [])])
def test_the_first_fetch_says_where_a_trimmed_queue_begins(
    from_where: str, first: list[str]
) -> None:
    """Law: the first fetch stores where a trimmed queue begins, even if it finds nothing; later messages are delivered."""
    shell, member = trimmed(from_where)

    assert keys(member.fetch()) == first
    assert committed(shell) == 3 - len(first)
    produce(shell, "y", "z")
    assert keys(member.fetch()) == ["y", "z"]
    shell.replay()


def test_a_fetch_that_waits_at_the_end_of_a_trimmed_queue_gets_what_comes() -> None:
    """Law: a fetch that waits at the end of a trimmed queue has looked at it, and gets the next message."""
    shell, member = trimmed(LAST)

    waiting = member.wait()
    produce(shell, "y")

    reply = shell.reply_to(waiting)
    assert reply is not None
    assert reply.code == 0


def test_a_beginning_is_written_once() -> None:
    """Law: the beginning is written once; a second look at an idle queue writes nothing."""
    shell, member = trimmed(LAST)
    member.fetch()
    entries = len(shell.log)

    assert member.fetch() == ()
    assert Member(shell, "a").fetch() == ()
    assert len(shell.log) == entries


def test_a_member_from_the_last_on_begins_a_whole_queue_at_its_start() -> None:
    """Law: a member that begins "from the last" begins a queue that still has all messages at its start,
    as RocketMQ's clients do.
    """
    shell, member = old("v", "w")
    shell.wall_ms -= 7_200_000
    join(shell, "a", from_where=LAST)

    assert keys(member.fetch()) == ["v", "w"]
    assert shell.state.offsets.get(GROUP, "orders", 0) == 0


def test_all_queues_of_a_topic_begin_with_the_first_fetch() -> None:
    """Law: the first fetch begins all queues of a topic, so that later messages in any of them are delivered."""
    shell = lead(queues=2)
    produce(shell, "v")
    a = Member(shell)

    assert keys(a.fetch(maxLanes=1)) == ["v"]

    assert [queue.place[2] for queue in shell.state.lanes.of_group(GROUP)] == [0, 1]
    assert (committed(shell), committed(shell, 1)) == (0, 0)


def age_out(shell: Shell, queues: range) -> None:
    """Let each queue get a message, and retention delete it."""
    for queue in queues:
        produce(shell, "gone", queue=queue)
    topic_id = shell.state.topics.by_name[TOPIC].id
    floors = [QueueFloor(topic_id, queue, 1) for queue in queues]
    create(shell, RetentionAdvanced(tuple(floors)))


def test_no_queue_begins_behind_what_comes_while_a_listener_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a message acknowledged after the first answer is delivered, even if the queues need several rounds to begin."""
    monkeypatch.setattr(planner, "BEGUN_AT_ONCE_MAX", 1)
    shell = lead(queues=3)
    age_out(shell, range(3))
    join(shell, "a", from_where=LAST)
    member = Member(shell)

    waiting = member.submit(maxLanes=1)
    for _ in range(6):
        if shell.reply_to(waiting) is None:
            shell.submit(310, send_ext(TOPIC, properties(__SHARDINGKEY="x"), e=0), b"paid")
            shell.turn()
            shell.go_on()
    reply = shell.reply_to(waiting)
    assert reply is not None
    (x,) = lanes(reply)
    produce(shell, "late", queue=2)
    member.done(x)

    assert sorted(keys(member.fetch())) == ["late", "x"]


def test_queues_pass_over_what_retention_took_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: queues skip what retention deleted some at a time, because each is a row on every replica."""
    shell = lead(queues=4)
    member = Member(shell)
    member.fetch()
    age_out(shell, range(3))
    monkeypatch.setattr(planner, "BEGUN_AT_ONCE_MAX", 2)
    produce(shell, "x", queue=2)

    assert keys(member.fetch()) == ["x"]

    _, *moved = [len(each.queues) for each in shell.proposed if isinstance(each, LanesFetched)]
    assert moved == [2, 1]
    assert [committed(shell, queue) for queue in range(4)] == [1, 1, 1, 0]
    assert shell.core.context.counters["lane_messages_expired"] == 3
    shell.replay()


def test_who_comes_while_queues_begin_is_not_told_that_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a fetch during such a round is not answered "nothing there"; the next rounds go on."""
    monkeypatch.setattr(planner, "BEGUN_AT_ONCE_MAX", 2)
    shell = lead(queues=7)
    produce(shell, "x", "y", queue=6)
    members = [Member(shell), Member(shell, "b")]

    asked = [member.submit(maxLanes=1, suspendTimeoutMillis=0) for member in members]
    shell.settle()

    replies = [reply for each in asked if (reply := shell.reply_to(each)) is not None]
    assert [[each.key for each in lanes(reply)] for reply in replies] == [["x"], ["y"]]
