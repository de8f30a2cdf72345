"""Lists of lanes are written some queues at a time; one that exceeds a frame is refused with a text."""

import pytest

from orderlymq_broker.core import listings
from orderlymq_broker.processors.lanes import overview
from orderlymq_broker.processors.lanes.overview import SHOWN_MAX
from orderlymq_broker.state.records import TopicDeleted
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.stats import ConsumeStats
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import GROUP, TOPIC, Member, lead, produce, table
from tests.broker.processors.requests import create

STEP = 16
QUEUES = 3 * STEP
LISTS = {
    RequestCode.ORDERLYMQ_LANES: "queues",
    RequestCode.ORDERLYMQ_PARKED_KEYS: "parkedKeys",
}


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step write few rows."""
    monkeypatch.setattr(listings, "STEP_WORK_MAX", STEP)


def holding(queues: int, *keys: str) -> Shell:
    """Return a leader whose group has parked these keys in each queue."""
    shell = lead(queues=queues, on_dead_letter="HoldKey")
    for queue in range(queues):
        produce(shell, *keys, queue=queue)
    member = Member(shell)
    for lane in member.fetch(maxLanes=queues * len(keys)):
        assert member.say("retry", lane, tries_max=1).verdict == "held"
    return shell


@pytest.mark.parametrize("code", LISTS)
def test_a_list_of_lanes_is_written_some_queues_at_a_time(code: RequestCode) -> None:
    """Law: a list of lanes is written in steps, because a group may have a hundred thousand queues."""
    shell = holding(QUEUES, "x")

    asked, steps = shell.submit(code, {"consumerGroup": GROUP}), 0
    while shell.later:
        assert shell.reply_to(asked) is None
        shell.go_on()
        steps += 1

    reply = shell.reply_to(asked)
    assert reply is not None
    assert len(fastjson.loads(reply.body)[LISTS[code]]) == QUEUES
    assert steps >= QUEUES // STEP


@pytest.mark.parametrize("code", LISTS)
def test_a_list_of_lanes_outlives_what_is_in_it(code: RequestCode) -> None:
    """Law: lanes and queues deleted during the writing may be in the list or not; it is still answered."""
    shell = holding(QUEUES, "x")

    asked = shell.submit(code, {"consumerGroup": GROUP})
    create(shell, TopicDeleted(TOPIC))

    reply = shell.reply_to(asked)
    assert reply is not None
    assert reply.code == 0
    assert len(fastjson.loads(reply.body)[LISTS[code]]) <= QUEUES


def test_the_lanes_that_are_named_are_the_oldest_of_all_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: the lanes named are the oldest of all queues, also if the last queue has the oldest."""
    monkeypatch.setattr(overview, "_KEPT_MAX", 2 * SHOWN_MAX)
    count = SHOWN_MAX
    shell = lead(queues=4)
    produce(shell, "oldest", queue=3)
    member = Member(shell)
    (oldest,) = member.fetch()
    shell.pass_time(1_000)
    for queue in range(3):
        produce(shell, *[f"key-{number}" for number in range(count)], queue=queue)
    for lane in (oldest, *member.fetch(maxLanes=512), *member.fetch(maxLanes=512)):
        member.say("retry", lane, delay_millis=60_000)
        if lane is oldest:
            shell.pass_time(1_000)

    found = table(shell)

    assert [each.parked for each in found.queues] == [count] * 3 + [1]
    assert len(found.lanes) == SHOWN_MAX
    assert found.lanes[0].key == "oldest"


def test_a_list_that_no_frame_takes_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a list that exceeds a frame is refused with the advice to ask for single items."""
    shell = holding(1, *[letter * 1_000 for letter in "abcdefgh"])
    monkeypatch.setattr(listings, "BODY_SIZE_MAX", 4_000)

    reply = shell.call(RequestCode.ORDERLYMQ_PARKED_KEYS, {"consumerGroup": GROUP})

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "request single items" in (reply.remark or "")


@pytest.mark.parametrize("whole", ["true", "false"])
def test_our_tools_learn_how_much_a_group_by_key_has_not_consumed(whole: str) -> None:
    """Law: our tools get the real lag of a group by key; RocketMQ's tools get the two offsets only."""
    shell = lead(queues=2, on_dead_letter="HoldKey", retry_max_times=1)
    produce(shell, "x", "x", *"abcd")
    member = Member(shell)
    x, *others = member.fetch(maxLanes=3)
    member.say("retry", x)
    member.done(*others)
    code, ext = RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP}

    foreign = shell.call(code, ext).body
    ours = ConsumeStats.from_json(shell.call(code, ext | {"orderlymq": whole}).body)

    assert b"backlog" not in foreign
    found = {queue.queue_id: each for queue, each in ours.offset_table.items()}
    assert (found[0].consumer_offset, found[0].broker_offset) == (0, 6)
    assert {queue_id: each.lag for queue_id, each in found.items()} == {0: 4, 1: 0}
