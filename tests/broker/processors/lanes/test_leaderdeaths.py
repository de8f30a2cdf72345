"""
A leader dies in each step of each request about lanes, and the client repeats the request to the next leader.

The steps: proposed but in no log; committed but not applied; applied but not answered. In each case members get the same
lanes, and messages the same tries, as without the death.
"""

from collections.abc import Callable

import pytest

from orderlymq_broker.state.records import TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.lanes import LaneReport, LaneReports, LaneVerdict, LaneVerdicts
from orderlymq_protocol.codes import RequestCode
from tests.broker.processors.driver import TOOL, Shell
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    committed,
    join,
    lead,
    produce,
    table,
)
from tests.broker.processors.lanes.test_interruptions import propose_letter
from tests.broker.processors.lanes.test_reports import letters
from tests.broker.processors.requests import create

Death = Callable[[Shell], Shell]


def proposed(shell: Shell) -> Shell:
    """Die while the proposals are in no log."""
    assert shell.pending
    return shell.restart()


def in_the_log(shell: Shell) -> Shell:
    """Die when the proposals are committed but applied by no replica."""
    data = shell.core.context.entries.build(shell.pending, shell.wall_ms).data
    follower = shell.restart()
    follower.run(follower.core.applied(follower.apply(data), follower.now))
    return follower


def applied(shell: Shell) -> Shell:
    """Die when the proposals are applied, before an answer arrives."""
    assert shell.pending
    shell.turn()
    return shell.restart()


deaths = pytest.mark.parametrize("death", [proposed, in_the_log, applied])


def next_leader(shell: Shell, death: Death) -> Shell:
    """Let the leader die; return the next one, which the members have found."""
    found = death(shell).lead()
    for client in "ab":
        join(found, client)
    return found


def given(shell: Shell, client: str, sequence: int) -> list[tuple[str, int, int]]:
    """Fetch with a number; return key, attempt and offset of each message."""
    member = Member(shell, client)
    member.sequence = sequence - 1
    return [(each.key, each.attempt, offset) for each in member.fetch() for offset in each.offsets]


def check(shell: Shell, holders: dict[str, str]) -> None:
    """Assert who holds which key, and that the log leads to the same state."""
    rows = [lane for key in "xyz" for lane in table(shell, key=key).lanes]
    assert {lane.key: lane.holder for lane in rows if lane.state == "inHand"} == holders
    shell.replay()


@deaths
@pytest.mark.parametrize("first", ["a", "b"])
def test_a_fetch_gives_each_lane_to_one_member(death: Death, first: str) -> None:
    """Law: each lane goes to one member; the one whose answer was lost gets its lanes by repeating its number."""
    shell = lead()
    produce(shell, "x", "y", "x")
    Member(shell).submit()

    found = next_leader(shell, death)
    got = {client: given(found, client, 1) for client in sorted("ab", reverse=first == "b")}

    holder = first if death is proposed else "a"
    other = {"a": "b", "b": "a"}[holder]
    assert [(key, offset) for key, _, offset in got[holder]] == [("x", 0), ("y", 1)]
    assert got[other] == []
    check(found, {"x": holder, "y": holder})
    assert committed(found) == 0


@deaths
def test_a_completion_counts_once(death: Death) -> None:
    """Law: a completion counts once and a failure is one try; the key's next message goes to one member."""
    shell = lead()
    produce(shell, "x", "y", "x")
    a = Member(shell)
    x, y = a.fetch()
    reports = (
        LaneReport(0, x.lane, x.attempt, "done", 0),
        LaneReport(0, y.lane, y.attempt, "retry", delay_millis=5_000),
    )
    code, body = RequestCode.ORDERLYMQ_COMPLETE_LANES, LaneReports(reports).to_json()
    shell.submit(code, a.ext(), body, caller=a.caller)

    found = next_leader(shell, death)
    reply = found.call(code, a.ext(), body, caller=a.caller)

    verdicts = LaneVerdicts.from_json(reply.body).of(reports)
    due_ms = verdicts[1].due_millis
    assert verdicts == (
        LaneVerdict(0, x.lane, x.attempt, "done"),
        LaneVerdict(0, y.lane, y.attempt, "parked", 1, due_ms),
    )
    assert [(key, offset) for key, _, offset in given(found, "b", 1)] == [("x", 2)]
    assert given(found, "a", 2) == []
    check(found, {"x": "b"})
    assert committed(found) == 1


@deaths
def test_a_message_that_failed_becomes_one_dead_letter(death: Death) -> None:
    """Law: a failed message makes one dead letter, and its lane goes on only after that is stored."""
    shell = lead(retry_max_times=1)
    create(shell, TopicSet(f"%DLQ%{GROUP}", 1, 1))
    produce(shell, "x", "x")
    a = Member(shell)
    (x,) = a.fetch()
    assert a.say("retry", x).verdict == "dead"
    propose_letter(shell)

    found = next_leader(shell, death)
    found.pass_time(2_000)

    assert letters(found) == [b"paid"]
    assert [(key, offset) for key, _, offset in given(found, "b", 1)] == [("x", 1)]
    assert given(found, "a", 2) == []
    check(found, {"x": "b"})
    assert committed(found) == 1


@deaths
@pytest.mark.parametrize("action", ["retry", "skip"])
def test_a_release_lets_a_lane_go_once(death: Death, action: str) -> None:
    """Law: a repeated release releases nothing else."""
    shell = lead(on_dead_letter="HoldKey", retry_max_times=1)
    create(shell, TopicSet(f"%DLQ%{GROUP}", 1, 1))
    produce(shell, "x", "x", "x")
    a = Member(shell)
    (x,) = a.fetch()
    assert a.say("retry", x).verdict == "held"
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "key": "x", "action": action}
    ext |= {"queueId": "0", "firstOffset": "0"}
    shell.submit(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, caller=TOOL)

    found = next_leader(shell, death)
    reply = found.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, caller=TOOL)
    found.pass_time(2_000)

    rows = fastjson.loads(reply.body)["parkedKeys"]
    assert [each["key"] for each in rows] == (["x"] if death is proposed else [])
    goes_on = 0 if action == "retry" else 1
    assert [(key, offset) for key, _, offset in given(found, "b", 1)] == [("x", goes_on)]
    assert given(found, "a", 2) == []
    assert letters(found) == [b"paid"] * goes_on
    check(found, {"x": "b"})
    assert committed(found) == goes_on
