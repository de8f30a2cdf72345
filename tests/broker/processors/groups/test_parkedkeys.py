"""Dead letters of an ordered group: what its policy decides, which keys are parked, who learns of it, who releases them."""

from typing import Any

import pytest

from orderlymq_broker.state.groups.parkedkeys import KEY_BYTES_MAX, PARKED_KEYS_MAX
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    OffsetsReset,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.topics.expansionphases import blockers
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.adminshell import AdminShell
from tests.broker.processors.driver import BOB, Shell
from tests.broker.processors.requests import (
    create,
    lock_body,
    messages,
    properties,
    pull,
    send,
    unlock,
)


def lead(policy: str = "HoldKey") -> Shell:
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4, order=True), TopicSet("bills", 1, 1, order=True))
    create(shell, GroupSet("billing", orderly=True, on_dead_letter=policy))
    return shell


def lock(shell: Shell, client: str, queue: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = fastjson.loads(shell.call(41, {}, lock_body(client, queue)).body)
    return body


def ask(
    shell: Shell, offset: int = 5, key: str = "k", *, epoch: int = 1, **more: Any
) -> RemotingCommand:
    ext = {
        "consumerGroup": "billing",
        "topic": "orders",
        "queueId": "0",
        "offset": str(offset),
        "key": key,
        "messageId": f"M{offset}",
        "omqEpoch": str(epoch),
        **{name: str(value) for name, value in more.items()},
    }
    return shell.call(RequestCode.ORDERLYMQ_HOLD_KEY, ext)


def follow(shell: Shell, offset: int, *, epoch: int = 1) -> str:
    return ask(shell, offset, epoch=epoch, following="true").ext.get("verdict", "refused")


def held(shell: Shell) -> list[tuple[str, str, int, int]]:
    answer = shell.call(RequestCode.ORDERLYMQ_PARKED_KEYS, {"consumerGroup": "billing"})
    return [
        (each["topic"], each["key"], each["firstOffset"], each["behind"])
        for each in fastjson.loads(answer.body)["parkedKeys"]
    ]


def release(shell: Shell, key: str = "k") -> list[str]:
    ext = {"consumerGroup": "billing", "topic": "orders", "key": key}
    answer = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext)
    return [each["key"] for each in fastjson.loads(answer.body)["parkedKeys"]]


def test_a_group_that_holds_keys_cannot_be_declared_concurrent() -> None:
    """Law: a group with parked keys cannot be declared concurrent."""
    shell = lead()
    lock(shell, "a")
    ask(shell)
    unlock(shell, "a", 0)
    wanted = {"groupName": "billing", "consumeMessageOrderly": False, "consumeConcurrently": True}

    refused = shell.call(200, body=fastjson.dumps(wanted))
    assert refused.code == 1
    assert "be declared concurrent while it holds 1 key" in (refused.remark or "")
    release(shell)
    assert shell.call(200, body=fastjson.dumps(wanted)).code == 0


@pytest.mark.parametrize(
    ("policy", "verdict"), [("Continue", "continue"), ("HoldKey", "held"), ("StopQueue", "stop")]
)
def test_the_group_decides_what_becomes_of_a_dead_letter(policy: str, verdict: str) -> None:
    """Law: the group's policy decides at the moment of a dead letter (PRB-08)."""
    shell = lead(policy)
    lock(shell, "one")

    assert ask(shell).ext["verdict"] == verdict
    assert held(shell) == ([("orders", "k", 5, 0)] if policy == "HoldKey" else [])


@pytest.mark.parametrize("policy", ["Continue", "HoldKey"])
def test_a_group_whose_name_is_too_long_for_dead_letters_stops(policy: str) -> None:
    """Law: a group whose name is too long for a dead-letter topic stops its queue,
    because its letters could not be stored.
    """
    shell, group = lead(), "g" * 121
    create(shell, GroupSet(group, orderly=True, on_dead_letter=policy))

    answer = ask(shell, consumerGroup=group)

    assert answer.code == 1
    assert "give the consumer group a shorter name" in (answer.remark or "")
    assert list(shell.state.parked.of_group(group)) == []


def test_a_key_is_held_once_however_often_it_is_asked_and_survives_the_leader() -> None:
    """Law: a key is parked once; a member that asks again gets the same answer, also from the next leader."""
    shell = lead()
    lock(shell, "one")

    first = ask(shell, 5).ext
    again = ask(shell, 5).ext
    later = ask(shell, 9).ext

    assert (
        first
        == again
        == later
        == {
            "verdict": "held",
            "firstOffset": "5",
            "firstMessageId": "M5",
        }
    )
    assert held(shell.restart().lead()) == [("orders", "k", 5, 0)]
    shell.replay()


def test_what_follows_is_counted_once_and_only_while_the_key_is_held() -> None:
    """Law: messages behind a parked key are counted once, and only while it is parked."""
    shell = lead()
    lock(shell, "one")
    ask(shell, 5)

    said = [follow(shell, offset) for offset in (6, 6, 9)]
    counted = held(shell)
    gone = release(shell)

    assert said == ["held", "held", "held"]
    assert counted == [("orders", "k", 5, 2)]
    assert gone == ["k"]
    assert follow(shell, 10) == "released"
    assert held(shell) == []
    assert release(shell) == []


@pytest.mark.parametrize("action", ["skip", "forget"])
def test_a_key_behind_its_dead_letter_has_nothing_to_skip(action: str) -> None:
    """Law: a key whose message is a dead letter already cannot be skipped; the refusal says so."""
    shell = lead()
    lock(shell, "one")
    ask(shell, 5)
    ext = {"consumerGroup": "billing", "topic": "orders", "key": "k", "action": action}

    refused = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext)

    assert refused.code == 1
    assert "is a dead letter already" in (refused.remark or "")
    assert held(shell) == [("orders", "k", 5, 0)]
    assert shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, {**ext, "action": "retry"}).code == 0
    assert held(shell) == []


def test_a_question_that_comes_late_does_not_undo_a_release() -> None:
    """Law: a late question of a released message does not park its key again."""
    shell = lead()
    lock(shell, "one")
    ask(shell, 5)
    follow(shell, 6)
    release(shell)

    late = [ask(shell, offset).ext["verdict"] for offset in (5, 6)]
    restarted = shell.restart().lead()
    late.append(ask(restarted, 5).ext["verdict"])
    held_now = held(restarted)

    assert late == ["continue"] * 3
    assert held_now == []
    assert ask(restarted, 7).ext["verdict"] == "held"
    restarted.replay()


def test_what_fails_again_after_a_release_holds_again() -> None:
    """Law: after a release, a message that fails again parks the key again, for the next holder or after a reset."""
    shell = lead()
    lock(shell, "one")
    ask(shell, 5)
    release(shell)
    create(shell, OffsetsReset((Commit("billing", "orders", 0, 3),)))
    again = ask(shell, 5).ext["verdict"]
    release(shell)
    unlock(shell, "one", 0)
    lock(shell, "two")

    assert (again, ask(shell, 5, epoch=2).ext["verdict"]) == ("held", "held")
    shell.replay()


def test_a_release_of_the_letter_that_was_looked_at_releases_no_later_one() -> None:
    """Law: a release that names the letter it saw does not release a later one of the same key."""
    shell = lead()
    lock(shell, "one")
    ask(shell, 5)
    seen = {"consumerGroup": "billing", "topic": "orders", "key": "k", "queueId": "0"}
    seen["firstOffset"] = "5"

    first = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, seen)
    ask(shell, 7)
    second = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, seen)

    rows = [fastjson.loads(each.body)["parkedKeys"] for each in (first, second)]
    assert [len(each) for each in rows] == [1, 0]
    assert held(shell) == [("orders", "k", 7, 0)]
    shell.replay()


def test_what_came_before_the_dead_letter_is_not_held() -> None:
    """Law: messages before the dead letter are not held, for example after a reset."""
    shell = lead()
    lock(shell, "one")
    ask(shell, 5)

    assert follow(shell, 4) == "released"


def test_who_takes_a_queue_over_learns_its_parked_keys_with_the_lock() -> None:
    """Law: the new holder of a queue gets its parked keys with the lock; holders of other queues do not."""
    shell = lead()
    lock(shell, "one")
    ask(shell, 5)
    unlock(shell, "one", 0)

    assert lock(shell, "two")["parkedKeys"] == [["orders", 0, "k", 5, "M5"]]
    assert "parkedKeys" not in lock(shell, "two", 1)


def test_who_lost_the_queue_holds_nothing() -> None:
    """Law: a former holder parks nothing, because its message may be consumed already."""
    shell = lead()
    lock(shell, "one")
    unlock(shell, "one", 0)
    lock(shell, "two")

    answer = ask(shell, 5, epoch=1)

    assert answer.code == 1
    assert "another holder" in (answer.remark or "")
    assert held(shell) == []
    assert ask(shell, 5, epoch=2).ext["verdict"] == "held"
    assert follow(shell, 6, epoch=1) == "refused"


def test_a_dead_letter_without_a_key_is_alone() -> None:
    """Law: a dead letter without a key parks nothing."""
    shell = lead()
    lock(shell, "one")

    assert ask(shell, 5, key="").ext["verdict"] == "continue"
    assert held(shell) == []


def test_beyond_the_bound_the_queue_stops_instead_of_letting_a_key_pass() -> None:
    """Law: beyond the limit of parked keys the queue stops, with a log line that says what to do."""
    shell = lead()
    lock(shell, "one")
    for number in range(PARKED_KEYS_MAX):
        assert ask(shell, 5, key=f"k{number}").ext["verdict"] == "held"

    full = ask(shell, 5)
    too_long = ask(shell, 5, key="x" * (KEY_BYTES_MAX + 1))

    assert (full.ext["verdict"], too_long.ext["verdict"]) == ("stop", "stop")
    assert "orderlymq group release" in (full.remark or "")
    assert shell.core.context.counters["parked_keys_refused"] == 2
    assert ask(shell, 5, key="k7").ext["verdict"] == "held"
    shell.pass_time(6_000)
    assert any("the largest number allowed" in text for text in shell.core.watch.warnings.take())
    release(shell, "k7")
    assert ask(shell, 5).ext["verdict"] == "held"


def test_a_dead_letter_behind_the_committed_offset_holds_nothing() -> None:
    """Law: a dead letter behind the committed offset parks nothing."""
    shell = lead()
    lock(shell, "one")
    create(shell, OffsetsReset((Commit("billing", "orders", 0, 6),)))

    assert ask(shell, 5).ext["verdict"] == "continue"
    assert held(shell) == []


def test_a_group_or_topic_that_goes_takes_its_parked_keys_along() -> None:
    """Law: a deleted group or topic takes its parked keys with it."""
    for deleted in (GroupDeleted("billing"), TopicDeleted("orders")):
        shell = lead()
        lock(shell, "one")
        ask(shell)
        create(shell, deleted)
        assert held(shell) == []
        shell.replay()


def test_a_key_stays_held_when_the_policy_changes() -> None:
    """Law: a key stays parked when the policy changes; only a release frees it."""
    shell = lead()
    lock(shell, "one")
    ask(shell)
    create(shell, GroupSet("billing", orderly=True, on_dead_letter="StopQueue"))

    assert ask(shell).ext["verdict"] == "held"
    assert follow(shell, 6) == "held"
    assert ask(shell, 7, key="other").ext["verdict"] == "stop"


# -- clients that do not ask -----------------------------------------------------------------------------


def hand_over(shell: Shell, key: str = "k") -> RemotingCommand:
    text = properties(UNIQ_KEY="U", RETRY_TOPIC="orders", __SHARDINGKEY=key)
    return send(shell, "%RETRY%billing", b"poison", text, j=2, l=2, caller=BOB)


def test_a_client_of_rocketmq_under_hold_key_goes_on_and_the_log_says_so_once() -> None:
    """Law: under HoldKey, RocketMQ's clients (which do not ask) go on after a dead letter, and the log says so once."""
    shell = lead()

    assert [hand_over(shell).code for _ in range(2)] == [0, 0]
    shell.pass_time(6_000)

    said = [text for text in shell.core.watch.warnings.take() if "without holding" in text]
    assert len(said) == 1
    assert shell.state.topics.by_name["%DLQ%billing"].queues[0].next_offset == 1


@pytest.mark.parametrize("cure", ["StopQueue", "deleted", "another client"])
def test_the_log_is_silent_when_the_group_holds_keys_or_wants_it_no_more(cure: str) -> None:
    """Law: that warning stops when the group parks keys or has another policy."""
    shell = lead()
    hand_over(shell)
    shell.pass_time(6_000)
    assert shell.core.group_status()["watch"]["notHolding"] == [{"group": "billing"}]
    shell.core.watch.warnings.take()
    if cure == "StopQueue":
        create(shell, GroupSet("billing", orderly=True, on_dead_letter="StopQueue"))
    elif cure == "deleted":
        create(shell, GroupDeleted("billing"))

    shell.pass_time(6_000 if cure != "another client" else 600_000, step=5_000)

    assert shell.core.group_status()["watch"]["notHolding"] == []
    shell.pass_time(600_000, step=5_000)
    assert not [text for text in shell.core.watch.warnings.take() if "without holding" in text]


def test_a_group_whose_clients_go_on_handing_over_is_warned_of_again() -> None:
    """Law: the warning is repeated every ten minutes while such clients go on."""
    shell = lead()
    for number in range(3):
        text = properties(UNIQ_KEY=f"U{number}", RETRY_TOPIC="orders", __SHARDINGKEY="k")
        assert send(shell, "%RETRY%billing", b"poison", text, j=2, l=2, caller=BOB).code == 0
        shell.pass_time(400_000, step=5_000)

    said = [text for text in shell.core.watch.warnings.take() if "without holding" in text]
    assert len(said) == 2


def test_a_hand_over_of_a_parked_key_is_no_news() -> None:
    """Law: a dead letter of a parked key causes no warning, because the SDK asked first."""
    shell = lead()
    lock(shell, "one")
    ask(shell)

    assert hand_over(shell).code == 0
    shell.pass_time(6_000)

    assert not [text for text in shell.core.watch.warnings.take() if "without holding" in text]


def test_stop_queue_refuses_dead_letters_of_every_client() -> None:
    """Law: under StopQueue dead letters of any client are refused with 13, so that it tries again; unordered groups are not affected.

    After 1, 14, 16 and 17 Java would send again immediately without the count of tries.
    """
    shell = lead("StopQueue")

    refused = hand_over(shell)
    create(shell, GroupSet("billing", on_dead_letter="StopQueue"))

    assert (refused.code, "StopQueue" in (refused.remark or "")) == (13, True)
    assert hand_over(shell).code == 0
    assert shell.state.topics.by_name["%DLQ%billing"].queues[0].next_offset == 1


def second_try(shell: Shell) -> RemotingCommand:
    """Send as Java does after a failed first try, without the count of tries and its maximum."""
    text = properties(UNIQ_KEY="U", RETRY_TOPIC="orders", DELAY="5", __SHARDINGKEY="k")
    return send(shell, "%RETRY%billing", b"poison", text, caller=BOB)


def waiting(shell: Shell) -> int:
    """Return how many delayed messages are stored."""
    delayed = shell.state.topics.by_name["SCHEDULE_TOPIC_XXXX"]
    return sum(queue.next_offset for queue in delayed.queues.values())


@pytest.mark.parametrize("declared", [True, False])
def test_a_hand_over_that_has_lost_its_count_of_tries_is_refused_under_stop_queue(
    *, declared: bool
) -> None:
    """Law: under StopQueue such a second try is refused; stored as a retry,
    the message would come behind later ones of its key.
    """
    shell = lead("StopQueue")
    if not declared:
        create(shell, GroupSet("billing", on_dead_letter="StopQueue"))
        lock(shell, "one")

    assert (second_try(shell).code, waiting(shell)) == (13, 0)


def test_a_hand_over_that_has_lost_its_count_of_tries_is_the_same_dead_letter() -> None:
    """Law: under Continue such a second try is the same dead letter as the first, and its tries count."""
    shell, alone = lead("Continue"), lead("Continue")

    first = hand_over(shell)
    again = second_try(shell)
    second_try(alone)

    assert (first.code, again.code) == (0, 0)
    assert again.ext["msgId"] == first.ext["msgId"]
    assert (waiting(shell), waiting(alone)) == (0, 0)
    for each in (shell, alone):
        (letter,) = messages(pull(each, topic="%DLQ%billing", group="repair"))
        assert (letter.body, letter.reconsume_times) == (b"poison", 2)


# -- configuration ---------------------------------------------------------------------------------------


def configure(admin: AdminShell, **more: Any) -> RemotingCommand:
    return admin.tool(200, fastjson.dumps({"groupName": "billing", **more}))


def test_a_tool_that_does_not_know_the_policy_leaves_it(admin: AdminShell) -> None:
    """Law: RocketMQ's updateSubGroup, which does not know the policy, leaves it unchanged."""
    assert configure(admin, onDeadLetter="HoldKey").code == 0

    assert configure(admin, retryMaxTimes=3).code == 0

    config = admin.state.groups.get("billing")
    assert config is not None
    assert (config.on_dead_letter, config.retry_max_times) == ("HoldKey", 3)
    answer = admin.call(352, {"group": "billing"})
    assert fastjson.loads(answer.body)["onDeadLetter"] == "HoldKey"


def test_an_unknown_policy_is_refused_with_those_there_are(admin: AdminShell) -> None:
    """Law: an unknown policy is refused with the names of the known ones."""
    answer = configure(admin, onDeadLetter="Explode")

    assert answer.code == 1
    assert "Continue, HoldKey, StopQueue" in (answer.remark or "")


@pytest.mark.parametrize("field", ["queueId", "offset", "omqEpoch"])
def test_numbers_that_are_none_are_refused(field: str) -> None:
    """Law: a wrong number is refused by its field's name."""
    shell = lead()

    wrong: dict[str, Any] = {field: "-1"}
    answer = ask(shell, **wrong)

    assert answer.code == 1
    assert field in (answer.remark or "")


def test_a_topic_does_not_grow_while_a_key_of_it_is_held() -> None:
    """Law: a topic does not expand while one of its keys is parked; the key's new queue would not know of it."""
    shell = lead()
    create(shell, OffsetsReset((Commit("billing", "orders", 0, 0),)))
    lock(shell, "one")
    ask(shell)
    topic = shell.state.topics.by_name["orders"]

    (found,) = blockers(shell.state, topic)
    release(shell)

    assert "group billing holds 1 key" in found.reason
    assert not list(blockers(shell.state, topic))
