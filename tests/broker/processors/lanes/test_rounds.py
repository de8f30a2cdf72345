"""Rounds: the plans for members that wait for lanes of one topic at the same time."""

import pytest

from orderlymq_broker.processors.lanes import planner
from orderlymq_broker.processors.lanes.planner import Round
from orderlymq_broker.processors.lanes.scan import SCAN_SIZE_MAX
from orderlymq_broker.state.lanes.lane import RUN_MAX, LaneState
from orderlymq_broker.state.lanes.lanerecords import LanesFetched
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_protocol.body.lanes import LaneReport, LaneReports
from orderlymq_protocol.codes import RequestCode
from tests.broker.calls import calls_in
from tests.broker.processors.driver import ALICE, Shell
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    join,
    keys,
    lanes,
    lead,
    produce,
)
from tests.broker.processors.lanes.test_interruptions import kill
from tests.broker.processors.requests import properties, send_ext


def queue_of(shell: Shell) -> LaneQueue:
    return shell.state.lanes.queues_of(GROUP, TOPIC)[0]


def hand_in(shell: Shell, *keys: str) -> None:
    """Send messages that the next turn stores in one entry."""
    for key in keys:
        ext = send_ext(TOPIC, properties(__SHARDINGKEY=key), e=0)
        shell.submit(RequestCode.SEND_MESSAGE_V2, ext, b"paid", caller=ALICE)


# One in four lanes is first searched among new messages, so each kind of plan comes first in some turn.
@pytest.mark.parametrize("turn", range(4))
def test_a_key_that_owes_its_index_alone_keeps_its_order(turn: int) -> None:
    """Law: a key with its backlog in the index only keeps its order, even if two plans of a round concern it."""
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

    # One entry completes the lane's messages in memory, and brings one message of the key and one of a new key.
    report = LaneReport(deep.queue_id, deep.lane, deep.attempt, "done", deep.offsets[-1])
    body = LaneReports((report,)).to_json()
    shell.submit(RequestCode.ORDERLYMQ_COMPLETE_LANES, c.ext(), body, caller=c.caller)
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
    """Law: a hand-out that changed nothing is planned again with the next tick, and others are served meanwhile."""
    shell = lead()
    a, b = Member(shell), Member(shell, "b")
    produce(shell, *["deep"] * (RUN_MAX + 2))
    for _ in range(2):
        a.done(*a.fetch(maxPerLane=RUN_MAX // 2))
    (deep,) = queue_of(shell).lanes.values()
    deep.then -= 1  # The index does not begin there, so the leader's read is refused.
    waiting = a.wait(maxLanes=1)

    turns = len(shell.log)
    shell.pass_time(1_000)

    assert len(shell.log) - turns <= 2 * 10
    produce(shell, "new")
    assert [each.key for each in b.fetch()] == ["new"]
    assert shell.reply_to(waiting) is None


def lists_made_in_a_pump(shell: Shell) -> int:
    """Return how often a queue's ready lanes are listed while the waiting fetches are served."""
    fetcher = shell.core.lanes.fetcher
    return calls_in(
        lambda: shell.run(fetcher.pump((GROUP, TOPIC), shell.now)), Round._ready_of.__code__
    )


def test_the_ready_lanes_of_a_queue_are_looked_for_once_for_all_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a queue's ready lanes are listed once for all waiting fetches, also when the lane limit gives them nothing."""
    monkeypatch.setattr(planner, "LANES_OF_GROUP_MAX", 8)
    shell = lead(queues=2)
    members = [Member(shell, client) for client in "abcdefgh"]
    for member in members:
        join(shell, member.client)
    produce(shell, *[f"key-{number}" for number in range(8)])
    for lane in members[0].fetch():
        assert members[0].say("retry", lane, delay_millis=60_000).verdict == "parked"
    waiting = [member.wait(maxLanes=1, suspendTimeoutMillis=5_000) for member in members]
    produce(shell, "new", queue=0)
    produce(shell, "new", queue=1)

    assert lists_made_in_a_pump(shell) == 2  # Once for each queue.
    shell.pass_time(5_200)

    replies = [shell.reply_to(each) for each in waiting]
    assert [each.remark if each else None for each in replies] == [planner.LANES_FULL] * 8


def test_members_that_wait_share_the_ready_lanes_of_a_round() -> None:
    """Law: waiting members share the ready lanes; each lane goes to one member, the oldest to the first that asked."""
    shell = lead(queues=2)
    members = [Member(shell, client) for client in "abcd"]
    for member in members:
        join(shell, member.client)
    for queue in (0, 1):
        produce(shell, "x", "y", "x", "y", queue=queue)
    given = members[0].fetch()
    reports = tuple(
        LaneReport(each.queue_id, each.lane, each.attempt, "done", each.offsets[-1])
        for each in given
    )
    waiting = [member.wait(maxLanes=1) for member in members]

    body = LaneReports(reports).to_json()
    member = members[0]
    shell.submit(RequestCode.ORDERLYMQ_COMPLETE_LANES, member.ext(), body, caller=member.caller)
    shell.turn()
    assert lists_made_in_a_pump(shell) == 0  # A proposal is uncommitted.
    assert len(shell.pending) == 1
    shell.settle()

    replies = [reply for each in waiting if (reply := shell.reply_to(each)) is not None]
    found = [(lane.queue_id, lane.key) for reply in replies for lane in lanes(reply)]
    assert sorted(found) == [(0, "x"), (0, "y"), (1, "x"), (1, "y")]
    assert sorted(key for _, key in found[:2]) == ["x", "x"]


def test_a_suspect_that_one_member_may_not_have_goes_to_the_next_in_the_round() -> None:
    """Law: a suspect lane that one member may not have goes to the next one in the round."""
    shell = lead()
    a, b = Member(shell), Member(shell, "b")
    produce(shell, "x", "y")
    for _ in range(2):
        assert sorted(keys(a.fetch())) == ["x", "y"]
        kill(shell)
    waiting = [member.wait(maxLanes=2, suspendTimeoutMillis=30_000) for member in (a, b)]
    shell.pass_time(5_000)

    replies = [reply for each in waiting if (reply := shell.reply_to(each)) is not None]
    assert [len(lanes(reply)) for reply in replies] == [1, 1]
    rounds = [
        len(each.records) for each in shell.proposals if isinstance(each.records[0], LanesFetched)
    ]
    assert rounds[-1] == 2


def test_a_step_hands_out_so_much_and_no_more() -> None:
    """Law: a step hands out a bounded number of ready lanes; new messages are scanned between steps."""
    shell = lead()
    members = [Member(shell, client) for client in "abcdefg"]
    for member in members:
        join(shell, member.client)
    a = members[0]
    large, names = bytes(1 << 20), [f"key-{number}" for number in range(6)]
    produce(shell, *names, *names, body=large)
    produce(shell, "new")
    given = [lane for _ in names for lane in a.fetch(maxLanes=1)]
    waiting = [member.wait(maxLanes=1) for member in members[1:]]
    waiting.append(a.wait(maxLanes=1))
    reports = tuple(
        LaneReport(each.queue_id, each.lane, each.attempt, "done", each.offsets[-1])
        for each in given
    )

    body = LaneReports(reports).to_json()
    shell.submit(RequestCode.ORDERLYMQ_COMPLETE_LANES, a.ext(), body, caller=a.caller)
    shell.turn()
    (step,) = shell.pending
    records = [each for each in step.records if isinstance(each, LanesFetched)]
    handed = sum(len(part.hand_outs) for each in records for part in each.queues)
    assert 0 < handed * len(large) <= SCAN_SIZE_MAX
    shell.settle()

    replies = [reply for each in waiting if (reply := shell.reply_to(each)) is not None]
    found = [lane.key for reply in replies for lane in lanes(reply)]
    assert len(found) == len(set(found)) == len(names) + 1
