"""Uncommitted requests while a group changes its mode, or a topic expands."""

import pytest

from orderlymq_broker.processors.topics import pendingretries
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.lanes import LaneReport, LaneReports
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.names import dlq_topic, retry_topic
from tests.broker.processors.driver import TOOL, Shell
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    caller_of,
    change,
    committed,
    join,
    lanes,
    lead,
    produce,
)
from tests.broker.processors.requests import create, properties, send, send_ext

RETRIES = retry_topic(GROUP)
BACK = {"group": GROUP, "offset": "0", "originTopic": TOPIC, "delayLevel": "1"}
BY_KEY = fastjson.dumps({"groupName": GROUP, "concurrency": "Key"})
BY_QUEUE = fastjson.dumps({"groupName": GROUP, "concurrency": "Queue"})


def by_queue() -> Shell:
    """Return a leader whose group consumes by queue, with one message."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1, order=True), GroupSet(GROUP), TopicSet(RETRIES, 1, 1))
    produce(shell, "x")
    return shell


def retry(shell: Shell, way: str) -> int:
    """Return a message (36), or send it to the retry topic as Java does after a failure; apply nothing."""
    if way == "back":
        return shell.submit(36, BACK)
    props = properties(RETRY_TOPIC=TOPIC, DELAY="3") if way == "delayed" else ""
    return shell.submit(310, send_ext(RETRIES, props, j=1), b"paid")


WAYS = pytest.mark.parametrize("way", ["back", "delayed", "immediate"])


@WAYS
def test_a_retry_that_is_under_way_is_waited_for(way: str) -> None:
    """Law: a change to keys is refused while a retry is uncommitted, because consumers by key would not get it."""
    shell = by_queue()
    handed_back = retry(shell, way)

    changed = shell.submit(200, {}, BY_KEY)
    shell.settle()

    replies = [shell.reply_to(each) for each in (handed_back, changed)]
    assert [None if each is None else each.code for each in replies] == [0, 1]
    assert not shell.state.groups.by_name[GROUP].by_key


@WAYS
def test_no_retry_is_stored_behind_a_change_that_is_under_way(way: str) -> None:
    """Law: a retry behind an uncommitted change to keys is refused, and its client keeps the message."""
    shell = by_queue()
    changed = shell.submit(200, {}, BY_KEY)

    handed_back = retry(shell, way)
    shell.settle()

    replies = [shell.reply_to(each) for each in (handed_back, changed)]
    assert [None if each is None else each.code for each in replies] == [1, 0]
    shell.pass_time(60_000)
    assert not shell.state.topics.by_name[RETRIES].queues


@WAYS
def test_a_retry_that_is_lost_keeps_no_change_waiting(way: str) -> None:
    """Law: a retry that was lost does not delay the change."""
    shell = by_queue()
    retry(shell, way)
    shell.lose_proposals()

    assert change(shell, concurrency="Key").code == 0


def test_no_delayed_messages_of_others_keep_a_change_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: the change looks at the delayed messages in steps; messages of others do not delay it for long."""
    monkeypatch.setattr(pendingretries, "STEP_MAX", 2)
    shell = by_queue()

    def delay(count: int) -> None:
        for _ in range(count):
            send(shell, TOPIC, props=properties(DELAY="18"))

    delay(12)
    refused = change(shell, concurrency="Key")
    shell.pass_time(1_000)
    delay(12)
    shell.pass_time(1_000)

    assert (refused.code, "checked 10 messages" in (refused.remark or "")) == (1, True)
    assert change(shell, concurrency="Key").code == 0


def test_lanes_begin_at_what_was_committed_a_moment_before_the_change() -> None:
    """Law: commits gathered just before the change are stored before it, so that lanes begin there."""
    shell = by_queue()
    join(shell, "a")
    offset = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
    shell.submit(15, offset, caller=caller_of("a"), oneway=True)

    assert change(shell, concurrency="Key").code == 0

    shell.pass_time(1_000)
    assert committed(shell) == 1
    assert Member(shell).fetch() == ()


def test_a_letter_that_is_not_stored_yet_is_waited_for() -> None:
    """Law: a change to queues waits for dead letters that are not stored yet;
    else the message would come again without a letter.
    """
    shell = lead(retry_max_times=1)
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    assert a.say("retry", x).verdict == "dead"

    refused = change(shell, concurrency="Queue")
    shell.pass_time(1_000)

    assert refused.code == 1
    assert "1 dead letter" in (refused.remark or "")
    assert change(shell, concurrency="Queue").code == 0
    assert committed(shell) == 1
    assert shell.state.topics.by_name[dlq_topic(GROUP)].queue(0).next_offset == 1


@pytest.mark.parametrize("way", ["failed", "skipped"])
def test_a_letter_that_comes_about_before_the_change_is_waited_for(way: str) -> None:
    """Law: it also waits for dead letters whose cause is uncommitted."""
    policy = "HoldKey" if way == "skipped" else "Continue"
    shell = lead(retry_max_times=1, on_dead_letter=policy)
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    report = LaneReports((LaneReport(x.queue_id, x.lane, x.attempt, "retry"),)).to_json()
    if way == "failed":
        told = shell.submit(RequestCode.ORDERLYMQ_COMPLETE_LANES, a.ext(), report, caller=a.caller)
    else:
        a.say("retry", x)
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "key": "x", "action": "skip"}
        told = shell.submit(RequestCode.ORDERLYMQ_RELEASE_KEY, ext)

    changed = shell.submit(200, {}, BY_QUEUE)
    shell.settle()

    replies = [shell.reply_to(each) for each in (told, changed)]
    assert [None if each is None else each.code for each in replies] == [0, 1]
    shell.pass_time(1_000)
    assert shell.state.topics.by_name[dlq_topic(GROUP)].queue(0).next_offset == 1
    assert change(shell, concurrency="Queue").code == 0


def test_a_group_by_key_gets_nothing_by_its_retry_topic() -> None:
    """Law: a send to the retry topic of a group by key is refused, because nobody would consume it."""
    shell = lead()

    answer = send(shell, RETRIES, props=properties(RETRY_TOPIC=TOPIC), j=1)

    assert answer.code == ResponseCode.NO_PERMISSION
    assert "concurrency: Key" in (answer.remark or "")
    assert not shell.state.topics.by_name[RETRIES].queues


def test_a_retry_that_is_under_way_keeps_an_expansion_waiting() -> None:
    """Law: an expansion's switch is refused while a retry is uncommitted; later messages of its key would overtake it."""
    shell = by_queue()
    create(shell, GroupSet(GROUP, orderly=True))
    shell.call(15, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"})
    shell.pass_time(6_000)
    step = {"topic": TOPIC, "attempt": "1", "total": "2", "queues": "2", "limitMillis": "60000"}
    code = RequestCode.ORDERLYMQ_CHANGE_QUEUES
    assert shell.call(code, {"action": "fence", **step}).code == 0
    retry(shell, "back")

    switched = shell.submit(code, {"action": "switch", **step})
    shell.settle()

    refused = shell.reply_to(switched)
    assert refused is not None
    assert (refused.code, "to retry" in (refused.remark or "")) == (1, True), refused.remark


def test_a_lane_that_is_being_handed_out_keeps_an_expansion_waiting() -> None:
    """Law: a switch is refused while a lane is being handed out, even if a reset took its message."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    step = {"topic": TOPIC, "attempt": "1", "total": "2", "queues": "2", "limitMillis": "60000"}
    code = RequestCode.ORDERLYMQ_CHANGE_QUEUES
    assert shell.call(code, {"action": "fence", **step}).code == 0
    fetched = a.submit()
    to_the_end = {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "true"}
    assert shell.reply_to(shell.submit(222, to_the_end, caller=TOOL)) is None

    switched = shell.submit(code, {"action": "switch", **step}, caller=TOOL)
    shell.settle()

    refused, reply = shell.reply_to(switched), shell.reply_to(fetched)
    assert refused is not None
    assert reply is not None
    assert (refused.code, refused.remark) == (
        1,
        "group billing is getting lanes of topic[orders]; send the request again",
    )
    assert shell.call(code, {"action": "switch", **step}, caller=TOOL).code == 1
    a.say("done", *lanes(reply), offset=0)
    assert shell.call(code, {"action": "switch", **step}, caller=TOOL).code == 0
