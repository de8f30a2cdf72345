"""Expansion of an ordered topic in one broker group: who may send when, what blocks a switch, which operator may ask."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.state.records import (
    Commit,
    GroupSet,
    OffsetsReset,
    QueueFloor,
    RetentionAdvanced,
    TopicSet,
)
from orderlymq_broker.state.topics.expansionrecords import ExpansionPhase, ExpansionSwitched
from orderlymq_broker.state.topics.expansiontable import Expansion
from orderlymq_broker.state.transactions.halfrecords import HalfEnded, HalfGivenUp
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.operatortoken import token_max_at
from tests.broker.processors.driver import ALICE, BOB, Shell
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    offset_of,
    properties,
    send,
    send_ext,
    unlock,
)

CHANGE = RequestCode.ORDERLYMQ_CHANGE_QUEUES
EXPANSION = RequestCode.ORDERLYMQ_QUEUE_EXPANSION


def change(shell: Shell, action: str, *, token: int | None = 1, **ext: Any) -> RemotingCommand:
    fields = {"topic": "orders", "attempt": 1, "total": 8, "queues": 8, "limitMillis": 10_000}
    fields |= {"settleMillis": 5_000, **ext}
    texts = {name: str(value) for name, value in fields.items()}
    if token is not None:
        texts["operatorToken"] = str(token)
    return shell.call(CHANGE, {"action": action, **texts})


def expansion(shell: Shell) -> dict[str, Any]:
    (found,) = fastjson.loads(shell.call(EXPANSION, {"topics": "orders"}).body)["topics"]
    assert isinstance(found, dict)
    return found


def phase(shell: Shell) -> str:
    return str(expansion(shell)["phase"])


def send_chosen(shell: Shell, total: int, **letters: Any) -> RemotingCommand:
    """Send as our SDK does, with the number of queues from which the sender chose."""
    return shell.call(310, {**send_ext("orders", **letters), "omqQueueTotal": str(total)}, b"paid")


def commit(shell: Shell, offset: int, queue: int = 0) -> None:
    reply = shell.call(15, commit_ext(offset, queue))
    assert reply.code == 0, reply.remark


def test_an_expansion_goes_from_fence_to_switch_to_settling_to_open(topic: Shell) -> None:
    """Law: between fence and switch nobody may send; then senders with the new list may; at last all may."""
    send(topic, e=2)
    assert change(topic, "fence").code == 0
    refused = send(topic, e=2)
    assert (refused.code, refused.ext) == (ResponseCode.SERVICE_NOT_AVAILABLE, {})
    assert send_chosen(topic, 4).code == ResponseCode.ORDERLYMQ_QUEUES_CHANGED
    assert expansion(topic)["barriers"] == [[0, 0], [1, 0], [2, 1], [3, 0]]
    assert topic.state.topics.by_name["orders"].config.read_queues == 8

    assert change(topic, "switch").code == 1, "one message is not consumed"
    commit(topic, 1, queue=2)
    assert change(topic, "switch").code == 0
    assert send_chosen(topic, 4, e=2).code == ResponseCode.ORDERLYMQ_QUEUES_CHANGED
    assert send_chosen(topic, 8, e=7).code == 0
    assert send(topic, e=2).code == ResponseCode.SERVICE_NOT_AVAILABLE

    assert change(topic, "publish").code == 0
    topic.pass_time(4_000)
    assert send(topic, e=2).code == ResponseCode.SERVICE_NOT_AVAILABLE
    topic.pass_time(2_000)
    assert phase(topic) == "open"
    assert send(topic, e=2).code == 0
    assert send_chosen(topic, 4, e=2).code == ResponseCode.ORDERLYMQ_QUEUES_CHANGED
    topic.replay()


def test_what_was_stored_before_the_fence_is_answered_as_stored_during_it(topic: Shell) -> None:
    """Law: during the fence a repeat of a stored send gets the first answer, because a refusal would mean "not stored"."""
    props = properties(UNIQ_KEY="C0A80001000118B4AAC2")
    first = send(topic, props=props, e=1)
    change(topic, "fence")

    again = send(topic, props=props, e=1)

    assert (again.code, again.ext["queueOffset"]) == (0, first.ext["queueOffset"])
    fresh = properties(UNIQ_KEY="C0A80001000118B4AAC3")
    assert send(topic, props=fresh, e=1).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_nothing_gets_between_the_proposal_of_a_fence_and_its_barriers(topic: Shell) -> None:
    """Law: sends proposed before the fence are below its barriers; later ones are refused immediately."""
    before = topic.submit(310, send_ext("orders", e=0), b"a")
    fence = topic.submit(
        CHANGE,
        {
            "action": "fence",
            "topic": "orders",
            "attempt": "1",
            "total": "8",
            "queues": "8",
            "limitMillis": "1000",
            "operatorToken": "1",
        },
    )
    after = topic.submit(310, send_ext("orders", e=0), b"b")
    topic.settle()

    codes = [reply.code for each in (before, fence, after) if (reply := topic.reply_to(each))]
    assert codes == [0, 0, ResponseCode.SERVICE_NOT_AVAILABLE]
    assert expansion(topic)["barriers"][0] == [0, 1]


def test_a_fence_that_was_lost_with_its_leader_refuses_nobody(topic: Shell) -> None:
    """Law: a fence lost with its leader refuses no sends."""
    topic.submit(
        CHANGE,
        {
            "action": "fence",
            "topic": "orders",
            "attempt": "1",
            "total": "8",
            "queues": "8",
            "limitMillis": "1000",
            "operatorToken": "1",
        },
    )
    topic.lose_proposals()

    assert send(topic, e=0).code == 0
    assert phase(topic) == "open"


def test_a_fence_that_does_not_go_on_is_lifted_by_the_leader_and_says_who_was_in_the_way(
    topic: Shell,
) -> None:
    """Law: the leader lifts a fence at its limit, and the reason names what blocked the switch."""
    send(topic, e=3)
    change(topic, "fence", limitMillis=3_000)

    topic.pass_time(3_500)

    assert phase(topic) == "open"
    assert (
        "billing has 1 message of queue 3 left to consume, 1 member" in expansion(topic)["reason"]
    )
    assert send(topic, e=3).code == 0
    assert topic.state.topics.by_name["orders"].config.read_queues == 4
    assert change(topic, "switch").code == 1
    assert change(topic, "fence").code == 1, "an attempt that was given up does not come back"
    assert change(topic, "fence", attempt=2).code == 0


def test_a_new_leader_goes_on_where_the_old_one_was(topic: Shell) -> None:
    """Law: a new leader goes on with the fence, and its limit starts again."""
    send(topic, e=0)
    change(topic, "fence", limitMillis=3_000)
    topic.pass_time(2_000)

    successor = topic.restart().lead()

    assert send(successor, e=0).code == ResponseCode.SERVICE_NOT_AVAILABLE
    successor.pass_time(2_000)
    assert phase(successor) == "fenced"
    successor.pass_time(2_000)
    assert phase(successor) == "open"


def test_a_topic_that_is_created_again_is_another_one(topic: Shell) -> None:
    """Law: a topic created again has another topicId, because its offsets begin again."""
    before = expansion(topic)["topicId"]
    create(topic, TopicSet("orders", 8, 8, order=True))
    assert expansion(topic)["topicId"] == before

    topic.call(215, {"topic": "orders"})
    create(topic, TopicSet("orders", 4, 4, order=True))

    assert expansion(topic)["topicId"] != before


def test_since_when_a_list_is_valid_is_reported_whatever_is_given_up_later(topic: Shell) -> None:
    """Law: grownMillis says since when the list is valid, whatever is aborted later, for readers that must not mix lists."""
    found = expansion(topic)
    assert (found["grownMillis"], found["grownBarriers"]) == (0, None)
    send(topic, e=1)
    commit(topic, 1, queue=1)
    for step in ("fence", "switch"):
        assert change(topic, step).code == 0
    grown = expansion(topic)["grownMillis"]
    assert grown == expansion(topic)["sinceMillis"] > 0
    topic.pass_time(60)
    change(topic, "publish")
    topic.pass_time(6_000)
    assert expansion(topic)["sinceMillis"] > grown

    topic.pass_time(60_000)
    change(topic, "fence", attempt=2, total=16, queues=16)
    change(topic, "abort", attempt=2)

    found = expansion(topic)
    assert (found["phase"], found["grownMillis"]) == ("open", grown)
    assert found["grownBarriers"] == [[0, 0], [1, 1], [2, 0], [3, 0]]
    assert found["sinceMillis"] > grown


@pytest.mark.parametrize("step", ["fence", "switch", "publish"])
def test_every_step_may_be_asked_for_again(topic: Shell, step: str) -> None:
    """Law: each step may be repeated, after an operator's crash for example, and changes nothing then."""
    steps = ["fence", "switch", "publish"]
    for each in steps[: steps.index(step) + 1]:
        assert change(topic, each).code == 0
    before = topic.state.expansions.by_topic["orders"]

    assert change(topic, step).code == 0

    assert topic.state.expansions.by_topic["orders"] == before


def test_a_retry_that_waits_is_not_past_the_barrier(topic: Shell) -> None:
    """Law: a returned message in a delay level or the retry topic blocks the switch."""
    sent = send(topic, e=0)
    commit(topic, 1)
    back = {"offset": str(topic.state.physical_end - 0), "group": "billing", "delayLevel": "1"}
    back["offset"] = str(int(sent.ext["msgId"][16:], 16))
    assert topic.call(36, {**back, "originTopic": "orders"}).code == 0
    change(topic, "fence", limitMillis=60_000)

    waiting = change(topic, "switch")
    assert (waiting.code, "1 message to retry; topic" in (waiting.remark or "")) == (1, True)
    topic.pass_time(2_000)
    ready = change(topic, "switch")
    assert (ready.code, "message to retry" in (ready.remark or "")) == (1, True)
    create(topic, OffsetsReset((Commit("billing", "%RETRY%billing", 0, 1),)))

    assert change(topic, "switch").code == 0


def test_an_open_transaction_is_in_the_way_and_may_still_end(topic: Shell) -> None:
    """Law: an open transaction blocks the switch and may still end; new half messages are refused."""
    props = properties(UNIQ_KEY="C0A80001000118B4AAC4", TRAN_MSG="true", PGROUP="p")
    half = topic.call(310, send_ext("orders", props, f=4), b"half")
    assert half.code == 0
    change(topic, "fence", limitMillis=60_000)

    assert "1 transaction of topic[orders] may still be committed" in (
        change(topic, "switch").remark or ""
    )
    again = properties(UNIQ_KEY="C0A80001000118B4AAC5", TRAN_MSG="true", PGROUP="p")
    assert topic.call(310, send_ext("orders", again, f=4), b"half").code == 14
    end = {
        "producerGroup": "p",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": str(int(half.ext["msgId"][16:], 16)),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": "C0A80001000118B4AAC4",
        "transactionId": "C0A80001000118B4AAC4",
    }
    assert topic.call(37, end).code == 0
    assert "has 1 message" in (change(topic, "switch").remark or "")
    commit(topic, 1)

    assert change(topic, "switch").code == 0


def test_only_ordered_groups_are_waited_for(topic: Shell) -> None:
    """Law: a switch waits for ordered groups only, not for unordered ones or broadcasting members."""
    create(topic, GroupSet("search"))
    heartbeat(topic, "two@2", caller=BOB, group="search")
    heartbeat(topic, "three@3", caller=BOB, group="cache", model="BROADCASTING")
    send(topic, e=0)
    send(topic, e=0)
    commit(topic, 2)
    create(topic, OffsetsReset((Commit("search", "orders", 0, 1),)))
    change(topic, "fence")

    assert expansion(topic)["blockers"] == []
    assert expansion(topic)["readers"] == ["billing", "cache", "search"]
    assert change(topic, "switch").code == 0


def test_one_member_that_broadcasts_excuses_no_other_one(topic: Shell) -> None:
    """Law: one broadcasting member does not excuse the others of its group."""
    heartbeat(topic, "two@2", caller=BOB, model="BROADCASTING")
    send(topic, e=0)
    change(topic, "fence")

    refused = change(topic, "switch")

    assert (refused.code, "billing has 1 message of queue 0" in (refused.remark or "")) == (
        1,
        True,
    )
    assert [each["queue_id"] for each in expansion(topic)["blockers"]] == [0]
    assert not any(type(record) is ExpansionSwitched for record in topic.proposed)
    commit(topic, 1)
    assert change(topic, "switch").code == 0


def test_a_group_that_has_only_just_come_is_waited_for(topic: Shell) -> None:
    """Law: a group that has just come is waited for, because its first lock would be too late."""
    create(topic, GroupSet("search"))
    heartbeat(topic, "two@2", caller=BOB, group="search")
    send(topic, e=0)
    commit(topic, 1)
    change(topic, "fence")

    assert "group search has 1 message" in (change(topic, "switch").remark or "")
    create(topic, OffsetsReset((Commit("search", "orders", 0, 1),)))
    assert change(topic, "switch").code == 0


def test_a_transaction_that_was_given_up_is_in_the_way_until_it_ends(topic: Shell) -> None:
    """Law: a transaction that was given up blocks the switch until it ends, because a late commit would use the old queue."""
    props = properties(UNIQ_KEY="C0A80001000118B4AAC4", TRAN_MSG="true", PGROUP="p")
    half = topic.call(310, send_ext("orders", props, f=4), b"half")
    offset = int(half.ext["queueOffset"])
    topic.run([Propose([HalfGivenUp(offset)])])
    topic.settle()
    # Only a person can end it, so the operator raises no fence.
    reasons = [each["reason"] for each in expansion(topic)["blockers"]]
    assert any(
        "transaction was given up: ask again with orderlymq message check-transaction" in each
        for each in reasons
    )
    change(topic, "fence", limitMillis=60_000)

    assert "may still be committed" in (change(topic, "switch").remark or "")
    topic.run([Propose([HalfEnded(offset, committed=False)])])
    topic.settle()

    assert change(topic, "switch").code == 0


def test_a_group_that_left_before_its_first_commit_is_in_the_way_too(topic: Shell) -> None:
    """Law: a group whose member left before its first commit blocks the switch; the simulator found this."""
    send(topic, e=0)
    unlock(topic, "one@1", 0, 1, 2, 3)
    topic.call(35, {"clientID": "one@1", "consumerGroup": "billing"})
    change(topic, "fence")

    assert expansion(topic)["readers"] == ["billing"]
    assert "of queue 0 left to consume, nobody online" in (change(topic, "switch").remark or "")


def test_what_a_holder_may_have_at_hand_is_not_consumed_because_retention_took_it(
    topic: Shell,
) -> None:
    """Law: messages that retention took still count for a holder, which may have pulled but not delivered them."""
    send(topic, e=2)
    send(topic, e=2)
    commit(topic, 1, queue=2)
    floor = QueueFloor(topic.state.topics.by_name["orders"].id, 2, 2)
    topic.run([Propose([RetentionAdvanced((floor,))])])
    topic.settle()
    change(topic, "fence")

    assert change(topic, "switch").code == 1
    unlock(topic, "one@1", 2)
    assert change(topic, "switch").code == 0, "who comes now begins where the queue does"


def test_a_group_without_members_is_in_the_way_too(topic: Shell) -> None:
    """Law: a group without members blocks the switch, because a returning member must read the old queues first."""
    send(topic, e=0)
    unlock(topic, "one@1", 0, 1, 2, 3)
    topic.call(35, {"clientID": "one@1", "consumerGroup": "billing"})
    create(topic, OffsetsReset((Commit("billing", "orders", 0, 0),)))
    change(topic, "fence")

    assert "of queue 0 left to consume, nobody online" in (change(topic, "switch").remark or "")


def test_readers_begin_new_queues_at_their_first_message(topic: Shell) -> None:
    """Law: readers begin new queues at offset 0, also groups that otherwise begin at the end."""
    change(topic, "fence")
    body = fastjson.dumps({"groups": ["archive"]})
    ext = {"action": "switch", "topic": "orders", "attempt": "1", "total": "8", "queues": "8"}
    assert topic.call(CHANGE, {**ext, "operatorToken": "1"}, body).code == 0

    for group in ("billing", "archive"):
        assert [offset_of(topic, queue, group) for queue in range(4, 8)] == [0, 0, 0, 0]


def test_a_raft_group_that_had_no_queue_gets_the_topic_with_the_switch() -> None:
    """Law: a broker group that had no queue creates the topic at the switch, ordered and closed to senders with an old list."""
    shell = Shell().lead()
    assert change(shell, "switch", queues=2).code == 0

    topic = shell.state.topics.by_name["orders"]
    assert (topic.config.write_queues, topic.config.order) == (2, True)
    assert send(shell, e=1).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert send_chosen(shell, 8, e=1).code == 0


@pytest.mark.parametrize(
    ("ext", "part"),
    [
        ({"total": 4, "queues": 3}, "cannot shrink"),
        ({"topic": "nobody"}, "not an ordered topic"),
        ({"attempt": "x"}, "attempt is 'x'"),
        ({"limitMillis": 10**9}, "limitMillis"),
        ({"action": "explode"}, "fence, abort, switch or publish"),
    ],
)
def test_an_expansion_that_makes_no_sense_is_refused(
    topic: Shell, ext: dict[str, Any], part: str
) -> None:
    """Law: a senseless expansion is refused with the reason and changes nothing."""
    before = topic.state.expansions.by_topic.copy()
    reply = change(topic, str(ext.pop("action", "fence")), **ext)

    assert (reply.code, part in (reply.remark or "")) == (1, True), reply.remark
    assert topic.state.expansions.by_topic == before


def test_a_topic_gets_attributes_while_its_new_list_waits_to_be_published(topic: Shell) -> None:
    """Law: attributes of the topic may be changed before the new list is published; the expansion goes on."""
    assert change(topic, "fence").code == 0
    assert change(topic, "switch").code == 0

    config = {"topic": "orders", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
    config |= {"readQueueNums": "8", "writeQueueNums": "8", "perm": "6", "topicSysFlag": "0"}
    changes = {"order": "true", "attributes": "+duplicate.window=true,+message.type=FIFO"}
    assert topic.call(17, {**config, **changes}).code == 0

    assert phase(topic) == "switched"
    assert change(topic, "publish").code == 0
    found = topic.state.topics.by_name["orders"].config
    assert (found.write_queues, found.attributes["duplicate.window"]) == (8, "true")


def test_members_are_asked_to_look_again_when_the_list_changes(topic: Shell) -> None:
    """Law: fence and switch notify (40) the readers' members, so that they share the new queues."""
    topic.notified()
    change(topic, "fence")
    assert topic.notified() == [ALICE.connection]
    change(topic, "switch")
    assert topic.notified() == [ALICE.connection]


def test_an_operator_that_was_followed_is_refused_for_good(topic: Shell) -> None:
    """Law: after a greater operator token, requests with a smaller one are refused, also by the next leader."""
    assert change(topic, "fence", token=7).code == 0

    late = change(topic, "abort", token=6)
    assert late.code == 1
    assert "operatorToken 6 is smaller than 7" in (late.remark or "")
    dead = topic.call(20502, {"clientId": "one@1", "proof": "pod gone", "operatorToken": "6"})
    assert (dead.code, topic.state.locks.get("billing", "orders", 0) is not None) == (1, True)
    assert topic.call(20502, {"clientId": "one@1", "proof": "nobody"}).code == 1

    successor = topic.restart().lead()
    assert change(successor, "abort", token=6).code == 1
    assert phase(successor) == "fenced"
    assert change(successor, "abort", token=8).code == 0
    assert successor.state.operator_token == 8


@pytest.mark.parametrize("code", [20502, 20505, 20507])
@pytest.mark.parametrize("ahead", [1, 1 << 31, 1 << 61])
def test_a_token_that_no_operator_can_have_locks_nobody_out(
    topic: Shell, code: int, ahead: int
) -> None:
    """Law: an impossible token, far above the seconds since 2026, is refused and locks nobody out."""
    greatest = token_max_at(topic.wall_ms)
    ext = {"topic": "orders", "clientId": "one@1", "proof": "p", "consumerGroup": "billing"}
    fence = {"action": "fence", "attempt": "1", "total": "8", "queues": "8", "limitMillis": "9"}

    refused = topic.call(code, {**ext, **fence, "operatorToken": str(greatest + ahead)}, b"[]")

    assert (refused.code, topic.state.operator_token) == (1, 0)
    assert "compare the clocks" in (refused.remark or "")
    assert change(topic, "fence", token=greatest).code == 0


def test_the_numbers_of_expansions_cannot_be_used_up(topic: Shell) -> None:
    """Law: an attempt number that is far too great is refused, because nothing could follow it."""
    refused = change(topic, "fence", attempt=(1 << 62) - 1)

    assert (refused.code, topic.state.expansions.by_topic) == (1, {})
    assert change(topic, "fence", attempt=2).code == 0


def test_digits_without_end_are_no_number(topic: Shell) -> None:
    """Law: a number with endless digits is refused, and the remark repeats only its begin."""
    refused = change(topic, "fence", token=None, attempt="9" * 5_000)

    assert refused.code == 1
    assert len(refused.remark or "") < 200


def test_of_two_operators_in_one_turn_the_older_one_loses(topic: Shell) -> None:
    """Law: of two operators in one turn the one with the smaller token loses, because tokens are compared when applied."""
    heartbeat(topic, "two@2", caller=BOB)
    newer = topic.submit(20502, {"clientId": "two@2", "proof": "p", "operatorToken": "9"})
    older = topic.submit(20502, {"clientId": "one@1", "proof": "p", "operatorToken": "8"})
    topic.settle()

    codes = [reply.code for each in (newer, older) if (reply := topic.reply_to(each))]
    assert codes == [0, 1]
    assert topic.state.locks.get("billing", "orders", 0) is not None
    topic.replay()


def test_a_new_operator_ends_its_predecessor_though_nobody_is_to_be_buried(topic: Shell) -> None:
    """Law: a token is stored even if the client to be removed is unknown."""
    assert topic.call(20502, {"clientId": "no@1", "proof": "p", "operatorToken": "5"}).code == 0
    assert topic.state.operator_token == 5


def test_the_broker_itself_needs_no_token_to_bury_a_client(topic: Shell) -> None:
    """Law: the broker removes a client whose process is dead without a token."""
    change(topic, "fence", token=7)
    topic.run(topic.core.client_dead("one@1", "process 1 is gone"))
    topic.settle()

    assert topic.state.locks.get("billing", "orders", 0) is None


def test_a_deleted_topic_takes_its_expansion_with_it(topic: Shell) -> None:
    """Law: a deleted topic takes its expansion with it."""
    from orderlymq_broker.state.records import TopicDeleted  # noqa: PLC0415

    change(topic, "fence")
    create(topic, TopicDeleted("orders"), TopicSet("orders", 2, 2, order=True))

    assert phase(topic) == ExpansionPhase.OPEN.value
    assert send(topic, e=1).code == 0


def test_the_state_of_many_topics_is_written_in_steps_and_reads_each_group_once(
    topic: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the state of many topics is written in steps and reads each group once, not once per topic."""
    count = 60
    names = [f"topic-{number}" for number in range(count)]
    create(topic, *(TopicSet(name, 4, 4, order=True) for name in names))
    groups = [f"group-{number}" for number in range(count)]
    create(topic, *(GroupSet(group, orderly=True) for group in groups))
    for group in groups:
        create(topic, OffsetsReset(tuple(Commit(group, name, 0, 0) for name in names)))
    topic.call(310, send_ext("topic-7", e=0), b"paid")
    of_group = Mock(wraps=topic.state.offsets.of_group)
    monkeypatch.setattr(topic.state.offsets, "of_group", of_group)

    opaque = topic.submit(EXPANSION, {"topics": ",".join([*names, "nobody", "orders"])})

    assert topic.reply_to(opaque) is None
    assert topic.later, "other requests are served between"
    topic.settle()
    reply = topic.reply_to(opaque)
    assert reply is not None
    readers = count * count + len(["billing"])
    # Once for what it reads, and once in each of its topics for its progress.
    assert of_group.call_count <= count + 1 + 2 * readers
    found = {each["topic"]: each for each in fastjson.loads(reply.body)["topics"]}
    assert list(found) == sorted([*names, "orders"])
    assert found["topic-3"]["readers"] == sorted(groups)
    assert found["topic-3"]["blockers"] == []
    assert [each["group"] for each in found["topic-7"]["blockers"]] == sorted(groups)


def test_a_tick_does_not_look_at_topics_that_are_open(topic: Shell) -> None:
    """Law: a tick looks only at topics that are being expanded."""

    class Rows(dict[str, Expansion]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all rows are looked at")

        items = __iter__  # type: ignore[assignment]

    change(topic, "fence", limitMillis=3_000)
    expansions = topic.state.expansions
    assert list(expansions.under_way) == ["orders"]
    expansions.by_topic = Rows(expansions.by_topic)

    topic.pass_time(3_500)

    assert phase(topic) == "open"
    assert not expansions.under_way
