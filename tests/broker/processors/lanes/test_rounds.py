"""Rounds: the plans for members that wait for lanes of one topic at the same moment."""

import pytest

from orderlymq_broker.state.lanes.lane import RUN_MAX, LaneState
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_protocol.body.lanes import LaneReport, LaneReports
from orderlymq_protocol.codes import RequestCode
from tests.broker.processors.driver import ALICE, Shell
from tests.broker.processors.lanes.member import GROUP, TOPIC, Member, join, lanes, lead, produce
from tests.broker.processors.requests import properties, send_ext


def queue_of(shell: Shell) -> LaneQueue:
    return shell.state.lanes.queues_of(GROUP, TOPIC)[0]


def hand_in(shell: Shell, *keys: str) -> None:
    """Send messages that the next turn stores in one entry."""
    for key in keys:
        ext = send_ext(TOPIC, properties(__SHARDINGKEY=key), e=0)
        shell.submit(RequestCode.SEND_MESSAGE_V2, ext, b"paid", peer=ALICE)


# One in four lanes is looked for among new messages first, so a plan of each kind comes first in some turn.
@pytest.mark.parametrize("turn", range(4))
def test_a_key_that_owes_its_index_alone_keeps_its_order(turn: int) -> None:
    """Though one plan of a round finds the next message of the key, and another one would hand the key out."""
    shell = lead()
    join(shell, "c")
    a, b, c = Member(shell), Member(shell, "b"), Member(shell, "c")
    count = RUN_MAX + 2
    produce(shell, *["deep"] * count)
    c.done(*c.fetch(maxPerLane=RUN_MAX // 2))
    (deep,) = c.fetch(maxPerLane=RUN_MAX // 2)
    for _ in range(turn):
        assert c.fetch() == ()
    waiting = [member.wait(maxLanes=1) for member in (a, b)]

    # One entry completes what the lane has in memory, and brings a message of the key and one of a new key.
    report = LaneReport(deep.queue_id, deep.lane, deep.attempt, "done", deep.offsets[-1])
    body = LaneReports((report,)).to_json()
    shell.submit(RequestCode.ORDERLYMQ_COMPLETE_LANES, c.ext(), body, peer=c.peer)
    hand_in(shell, "deep", "new")
    shell.settle()
    shell.state.check_invariants()

    replies = [reply for each in waiting if (reply := shell.reply_to(each)) is not None]
    given = [lane for reply in replies for lane in lanes(reply)]
    assert sorted(each.offsets for each in given) == [(RUN_MAX,), (count + 1,)]
    (held,) = (each for each in given if each.key == "deep")
    hand_in(shell, "deep")
    shell.settle()
    seen: list[int] = []
    for member in (a, b):
        member.done(held)
        while given_now := member.fetch():
            seen += [each.offsets[0] for each in given_now if each.key == "deep"]
            member.done(*given_now)
    assert seen == [RUN_MAX + 1, count, count + 2]
    assert [each.key for each in queue_of(shell).in_state(LaneState.IN_HAND)] == ["new"]
    shell.state.check_invariants()
    shell.replay()


def test_a_lane_that_cannot_be_handed_out_keeps_the_leader_from_nothing() -> None:
    """A hand-out that changed nothing is planned again with the next tick, and others are served meanwhile."""
    shell = lead()
    a, b = Member(shell), Member(shell, "b")
    produce(shell, *["deep"] * (RUN_MAX + 2))
    for _ in range(2):
        a.done(*a.fetch(maxPerLane=RUN_MAX // 2))
    (deep,) = queue_of(shell).lanes.values()
    deep.then -= 1  # not where its index begins: what the leader reads is refused
    waiting = a.wait(maxLanes=1)

    turns = len(shell.log)
    shell.pass_time(1_000)

    assert len(shell.log) - turns <= 2 * 10
    produce(shell, "new")
    assert [each.key for each in b.fetch()] == ["new"]
    assert shell.reply_to(waiting) is None
