"""Other events that answer a waiting fetch than a message or the end of an attempt."""

from orderlymq_broker.processors.lanes.fetch import PLANNED_MAX
from orderlymq_broker.state.records import Commit, OffsetsReset
from orderlymq_protocol.body.lanes import Lane
from tests.broker.processors.driver import TOOL, Shell
from tests.broker.processors.lanes.member import GROUP, TOPIC, Member, keys, lanes, lead, produce
from tests.broker.processors.requests import create


def given(shell: Shell, opaque: int) -> tuple[Lane, ...]:
    """Return the lanes that a fetch got; it must have been answered."""
    reply = shell.reply_to(opaque)
    assert reply is not None, "the fetch waits"
    return lanes(reply)


def test_a_reset_serves_who_waits() -> None:
    """Law: after a reset a waiting member gets the messages that are owed again."""
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    a.done(*a.fetch())
    waiting = a.wait()

    back = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}
    assert shell.call(222, {**back, "offset": "0", "queueId": "0"}, caller=TOOL).code == 0

    assert keys(given(shell, waiting)) == ["x", "y"]


def test_a_reset_of_another_topic_serves_nobody() -> None:
    """Law: a reset of another topic answers no fetch."""
    shell = lead()
    a = Member(shell)
    waiting = a.wait()
    create(shell, OffsetsReset((Commit(GROUP, f"%RETRY%{GROUP}", 0, 0),)))

    assert shell.reply_to(waiting) is None


def test_a_renewal_that_completes_what_has_stopped_a_queue_serves_who_waits() -> None:
    """Law: a renewal that completes the message which stopped a queue answers waiting fetches."""
    shell = lead(on_dead_letter="StopQueue", retry_max_times=1)
    produce(shell, "x", "x", "y")
    a, b = Member(shell), Member(shell, "b")
    x, y = a.fetch()
    a.say("retry", x, delay_millis=1_000)
    a.say("release", y)
    shell.pass_time(1_100)
    (x,) = b.fetch(maxPerLane=2)
    assert x.offsets == (0, 1)
    waiting = a.wait()
    assert shell.reply_to(waiting) is None

    assert b.say("renew", x, offset=0).verdict == "renewed"

    assert keys(given(shell, waiting)) == ["y"]
    shell.replay()


def test_the_next_tick_serves_who_waits_where_a_turn_was_lost() -> None:
    """Law: if an error elsewhere in the core loses a turn, the next tick answers the waiting fetches."""
    shell = lead()
    a = Member(shell)
    a.wait()
    for _ in range(PLANNED_MAX + 1):
        waiting = a.submit()
        shell.later.clear()
    produce(shell, "x")

    shell.pass_time(200)
    shell.settle()

    assert keys(given(shell, waiting)) == ["x"]
