"""Groups by key together with clients that know no lanes, and with administrators' requests."""

import msgspec
import pytest

from orderlymq_broker.processors.lanes.overview import SHOWN_MAX
from orderlymq_broker.state.groups.parkedkeyrecords import KeyParked
from orderlymq_broker.state.lanes.lane import KEY_BYTES_MAX
from orderlymq_broker.state.records import Commit, GroupDeleted, GroupSet, OffsetsReset, TopicSet
from orderlymq_broker.state.topics.expansionphases import blockers
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.clients import ConsumerData, HeartbeatData
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.names import retry_topic
from tests.broker.processors.driver import ALICE, TOOL, Shell
from tests.broker.processors.lanes.member import (
    GROUP,
    TOPIC,
    Member,
    caller_of,
    change,
    committed,
    join,
    keys,
    lanes,
    lead,
    produce,
    table,
)
from tests.broker.processors.requests import (
    create,
    lock_body,
    properties,
    pull,
    pull_ext,
    send,
    send_ext,
)

OFFSET = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}


def release(shell: Shell, key: str, action: str = "", **more: int) -> list[str]:
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "key": key, "action": action}
    ext |= {name: str(value) for name, value in more.items()}
    answer = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, caller=TOOL)
    assert answer.code == 0, answer.remark
    return [each["key"] for each in fastjson.loads(answer.body)["parkedKeys"]]


@pytest.mark.parametrize("action", ["skip", "retry"])
def test_a_release_of_what_was_looked_at_touches_nothing_else(action: str) -> None:
    """Law: a release that names the message which the administrator saw releases no later one."""
    shell = lead(queues=2, on_dead_letter="HoldKey", retry_max_times=1)
    for queue in (0, 1):
        produce(shell, "x", "x", queue=queue)
    a = Member(shell)
    for lane in a.fetch():
        a.say("retry", lane)
    seen = {"queueId": 0, "firstOffset": 0}

    assert release(shell, "x", "skip", **seen) == ["x"]
    shell.pass_time(300)
    (x,) = a.fetch()
    a.say("retry", x)

    assert release(shell, "x", action, **seen) == []
    stands = {(each.queue_id, each.offset, each.state) for each in table(shell).lanes}
    assert stands == {(0, 1, "held"), (1, 0, "held")}
    shell.replay()


@pytest.mark.parametrize("said", [{"queueId": "0"}, {"queueId": "0", "firstOffset": "-1"}])
def test_half_of_what_was_looked_at_is_refused(said: dict[str, str]) -> None:
    """Law: a release that names a queue needs the message too, and the reverse."""
    shell = lead()
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "key": "x", "action": "skip", **said}

    refused = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, caller=TOOL)

    assert (refused.code, "firstOffset is" in (refused.remark or "")) == (1, True)


def test_clients_that_know_no_lanes_learn_what_to_do() -> None:
    """Law: a pull, lock or commit in a group by key is refused with a text that says what to do."""
    shell = lead()
    produce(shell, "x")
    said = [
        shell.call(11, pull_ext(sysFlag=0), caller=caller_of("a")),
        shell.call(41, {}, lock_body("a", 0), caller=caller_of("a")),
        shell.call(15, OFFSET, caller=caller_of("a")),
    ]

    assert {reply.code for reply in said} == {ResponseCode.NO_PERMISSION}
    assert all("concurrency: Key" in (reply.remark or "") for reply in said)
    assert shell.state.offsets.get(GROUP, TOPIC, 0) is None


def test_another_group_reads_the_same_topic_as_ever() -> None:
    """Law: other groups read the topic as usual."""
    shell = lead()
    produce(shell, "x")

    assert pull(shell, group="tools", caller=ALICE).code == 0


def test_a_change_of_mode_is_refused_while_something_is_in_the_way() -> None:
    """Law: a change of mode is refused with what prevents it, and changes nothing."""
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    x, y = a.fetch()
    assert a.done(y) == ["done"]

    refused = change(shell, concurrency="Queue")
    other_key = change(shell, laneKeyProperty="KEYS")

    assert (refused.code, other_key.code) == (1, 1)
    assert "in hand" in (refused.remark or "")
    assert shell.state.groups.by_name[GROUP].by_key
    a.say("release", x)
    assert change(shell, concurrency="Queue").code == 0
    assert shell.call(41, {}, lock_body("a", 0), caller=caller_of("a")).code == 0
    assert change(shell, concurrency="Key").code == 1
    assert committed(shell) == 0


def test_who_waits_while_the_mode_changes_gets_nothing_in_the_other_one() -> None:
    """Law: a pull or fetch that waits while the mode changes is answered with the group's mode."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1), GroupSet(GROUP))
    join(shell, "a")
    pulling = shell.submit(11, pull_ext(sysFlag=6), caller=caller_of("a"))
    assert change(shell, concurrency="Key").code == 0
    shell.pass_time(500)
    pulled = shell.reply_to(pulling)

    fetching = Member(shell).wait()
    assert change(shell, concurrency="Queue").code == 0
    shell.pass_time(500)
    fetched = shell.reply_to(fetching)

    assert pulled is not None
    assert fetched is not None
    assert pulled.code == ResponseCode.NO_PERMISSION
    assert fetched.code == ResponseCode.ORDERLYMQ_NOT_BY_KEY


def test_no_change_of_another_group_ends_the_wait_for_a_heartbeat() -> None:
    """Law: changes of another group do not end a pull's wait for its heartbeat."""
    shell = Shell().lead()
    keyed = GroupSet("other", concurrency="Key")
    create(shell, TopicSet(TOPIC, 1, 1), GroupSet(GROUP), keyed)
    join(shell, "a")
    early = shell.submit(11, pull_ext(sysFlag=2, subVersion=2**40), caller=caller_of("a"))
    assert shell.reply_to(early) is None

    create(shell, msgspec.structs.replace(keyed, retry_max_times=3))
    create(shell, GroupDeleted("other", clean_offsets=True))
    shell.pass_time(100)

    assert shell.reply_to(early) is None


def by_queue() -> Shell:
    """Return a leader whose group by queue has the parked key x in a queue that nobody holds."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1, order=True), GroupSet(GROUP, on_dead_letter="HoldKey"))
    join(shell, "a")
    produce(shell, "x", "x")
    assert shell.call(41, {}, lock_body("a", 0), caller=caller_of("a")).code == 0
    create(
        shell, KeyParked(GROUP, TOPIC, 0, "x", 0, "id", shell.state.locks.epoch(GROUP, TOPIC, 0))
    )
    shell.call(42, {}, lock_body("a", 0), caller=caller_of("a"))
    assert len(shell.state.parked.of_group(GROUP)) == 1
    return shell


def test_a_group_that_holds_keys_by_queue_changes_once_they_are_released() -> None:
    """Law: a group with parked keys cannot change to keys until they are released, because later messages would overtake."""
    shell = by_queue()

    refused = change(shell, concurrency="Key")

    assert refused.code == 1
    assert "holds 1 key" in (refused.remark or "")
    assert release(shell, "x") == ["x"]
    assert change(shell, concurrency="Key").code == 0


def test_a_key_that_was_held_by_queue_is_released_by_key_too() -> None:
    """Law: a key parked by queue can be released after the group has changed to keys."""
    shell = by_queue()
    present = shell.state.groups.by_name[GROUP]
    create(shell, msgspec.structs.replace(present, concurrency="Key"))

    assert release(shell, "x") == ["x"]
    assert next(blockers(shell.state, shell.state.topics.by_name[TOPIC])).queue_id == 0
    assert shell.state.parked.of_group(GROUP) == []


def test_a_group_with_messages_to_try_again_changes_once_they_are_consumed() -> None:
    """Law: a group changes to keys only when its retry topic is consumed; consumers by key get no retries."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1, order=True))
    assert shell.call(200, {}, fastjson.dumps({"groupName": GROUP})).code == 0
    retries = retry_topic(GROUP)
    send(shell, retries)

    refused = change(shell, concurrency="Key")

    assert refused.code == 1
    assert "1 message must be retried" in (refused.remark or "")
    assert change(shell, retryMaxTimes=3).code == 0
    create(shell, OffsetsReset((Commit(GROUP, retries, 0, 1),)))
    assert change(shell, concurrency="Key").code == 0
    send(shell, retries)
    assert change(shell, retryMaxTimes=4).code == 0


def test_a_message_that_was_handed_back_is_waited_for() -> None:
    """Law: it also waits for returned messages whose pause is not over."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1, order=True), GroupSet(GROUP))
    produce(shell, "x")
    back = {"group": GROUP, "offset": "0", "originTopic": TOPIC, "delayLevel": "1"}
    assert shell.call(36, back).code == 0

    assert change(shell, concurrency="Key").code == 1
    shell.pass_time(1_500)
    assert change(shell, concurrency="Key").code == 1
    create(shell, OffsetsReset((Commit(GROUP, retry_topic(GROUP), 0, 1),)))
    assert change(shell, concurrency="Key").code == 0


def test_a_tool_that_knows_no_lanes_changes_nothing_of_them() -> None:
    """Law: a tool that sends no lane settings leaves them unchanged; wrong ones are refused."""
    shell = lead(lane_key_property="KEYS")
    tool = fastjson.dumps({"groupName": GROUP, "retryMaxTimes": 3})

    assert shell.call(200, {}, tool).code == 0
    config = shell.state.groups.by_name[GROUP]
    assert (config.by_key, config.lane_key_property, config.retry_max_times) == (True, "KEYS", 3)
    shown = fastjson.loads(shell.call(352, {"group": GROUP}).body)
    assert (shown["concurrency"], shown["laneKeyProperty"]) == ("Key", "KEYS")
    assert change(shell, concurrency="Both").code == 1
    for name in ("", "a\x01b", "k" * 200):
        assert change(shell, laneKeyProperty=name).code == 1


def test_an_administrator_releases_a_held_lane_with_all_its_tries() -> None:
    """Law: a held lane is listed among the parked keys; a release hands it out again with all its tries."""
    shell = lead(on_dead_letter="HoldKey")
    produce(shell, "x", "x")
    a = Member(shell)
    (x,) = a.fetch()
    a.say("retry", x, tries_max=1)
    listed = shell.call(RequestCode.ORDERLYMQ_PARKED_KEYS, {"consumerGroup": GROUP})

    assert [
        (each["key"], each["behind"]) for each in fastjson.loads(listed.body)["parkedKeys"]
    ] == [("x", 1)]
    assert release(shell, "y") == []
    assert release(shell, "x") == ["x"]
    assert [(each.offsets, each.tries) for each in a.fetch()] == [((0,), 0)]


def test_messages_without_a_key_are_released_under_an_empty_one() -> None:
    """Law: messages without a key are released under the empty key, and the answer lists each."""
    shell = lead()
    produce(shell, "", "")
    a = Member(shell)
    for each in a.fetch():
        a.say("retry", each, delay_millis=60_000)

    ext = {"consumerGroup": GROUP, "topic": TOPIC, "key": ""}
    answer = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, caller=TOOL)

    rows = fastjson.loads(answer.body)["parkedKeys"]
    assert [(each["key"], each["firstOffset"], each["behind"]) for each in rows] == [
        ("", 0, 0),
        ("", 1, 0),
    ]
    assert [each.offsets for each in a.fetch()] == [(0,), (1,)]


def test_a_release_that_names_no_key_is_refused() -> None:
    """Law: a release without the field key is refused; else a forgotten field would release all messages without a key."""
    shell = lead()
    produce(shell, "")
    a = Member(shell)
    a.say("retry", *a.fetch(), delay_millis=60_000)

    ext = {"consumerGroup": GROUP, "topic": TOPIC, "action": "skip"}
    answer = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, caller=TOOL)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        "a release needs the field key: send it, empty for all messages without a key"
    )
    assert [each.state for each in table(shell).lanes] == ["parked"]


def test_an_administrator_skips_what_failed() -> None:
    """Law: a skip makes a failed message a dead letter, and its lane goes on; this works for parked lanes too."""
    shell = lead(on_dead_letter="HoldKey")
    produce(shell, "x", "x", "y", "y")
    a = Member(shell)
    x, y = a.fetch()
    a.say("retry", x, tries_max=1)
    a.say("retry", y, delay_millis=900_000)

    assert release(shell, "x", "skip") == ["x"]
    assert release(shell, "y", "skip") == ["y"]
    shell.pass_time(500)

    assert [each.offsets for each in a.fetch()] == [(1,), (3,)]
    assert shell.state.topics.by_name[f"%DLQ%{GROUP}"].queue(0).next_offset == 2
    wrong = {"consumerGroup": GROUP, "topic": TOPIC, "key": "x", "action": "burn"}
    assert shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, wrong).code == 1


@pytest.mark.parametrize(("force", "again"), [("false", [(0,), (1,)]), ("true", [(0,), (1,)])])
def test_a_reset_to_the_committed_offset_brings_what_was_complete_behind_it(
    force: str, again: list[tuple[int, ...]]
) -> None:
    """Law: a reset to the committed offset hands out again what was completed behind it."""
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    x, y = a.fetch()
    a.say("retry", x, delay_millis=0)
    a.done(y)
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": force}

    reply = shell.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, caller=TOOL)

    assert reply.code == 0
    assert [each.offsets for each in a.fetch()] == again


def test_a_reset_that_is_not_forced_moves_nothing_forward() -> None:
    """Law: a reset without force does not skip owed messages."""
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    x, _ = a.fetch()
    a.say("retry", x, delay_millis=0)
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "false"}

    assert shell.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, caller=TOOL).code == 0

    assert [each.offsets for each in a.fetch()] == [x.offsets]


def test_what_is_skipped_is_stored_once_the_disk_has_room() -> None:
    """Law: on a full disk a skipped message's lane waits until its letter is stored."""
    shell = lead()
    produce(shell, "x", "x")
    a = Member(shell)
    (x,) = a.fetch()
    a.say("retry", x, tries_max=1)
    shell.core.context.disk_full = True
    shell.pass_time(1_000)
    assert a.fetch() == ()

    shell.core.context.disk_full = False
    shell.pass_time(500)

    assert [each.offsets for each in a.fetch()] == [(1,)]


def test_the_table_of_lanes_counts_what_it_does_not_name() -> None:
    """Law: the lane table counts all lanes per queue and names those in trouble first."""
    shell = lead(on_dead_letter="HoldKey")
    produce(shell, "x", "y", "z", "z")
    a = Member(shell)
    x, y, _ = a.fetch()
    a.say("retry", x, tries_max=1, reason="no")
    a.say("retry", y, delay_millis=60_000)

    shown = table(shell)

    (queue,) = shown.queues
    assert (queue.scanned, queue.committed, queue.owed) == (4, 0, 4)
    assert (queue.in_hand, queue.ready, queue.parked, queue.held) == (1, 0, 1, 1)
    assert [(each.key, each.state, each.reason) for each in shown.lanes] == [
        ("x", "held", "no"),
        ("y", "parked", ""),
        ("z", "inHand", ""),
    ]
    assert shell.call(RequestCode.ORDERLYMQ_LANES, {"consumerGroup": "billig"}).code == 26
    assert dict(shell.core.watch.series()["lanes"].rows) == {
        (GROUP, "held"): 1,
        (GROUP, "parked"): 1,
        (GROUP, "inHand"): 1,
    }


def test_the_lane_of_a_key_is_named_however_many_others_there_are() -> None:
    """Law: the lane of a given key is shown among any number of others; a too long key may be given as it was sent."""
    shell = lead()
    long = "k" * (KEY_BYTES_MAX + 1)
    produce(shell, *[f"other-{number}" for number in range(SHOWN_MAX)], "x", long)
    a = Member(shell)
    given = [*a.fetch(maxLanes=SHOWN_MAX), *a.fetch()]
    a.say("release", given[-2])
    a.say("retry", given[-1], delay_millis=60_000)

    asked = [table(shell, topic=TOPIC, key=key).lanes for key in ("other-7", "x", long, "idle")]
    elsewhere = table(shell, topic="elsewhere", key="x").lanes

    assert [[each.state for each in lanes] for lanes in asked] == [
        ["inHand"],
        ["ready"],
        ["parked"],
        [],
    ]
    assert (asked[0][0].key, asked[0][0].holder, elsewhere) == ("other-7", "a", ())
    assert release(shell, long) == [asked[2][0].key]


def test_offsets_that_an_administrator_sets_are_where_the_lanes_begin() -> None:
    """Law: after an administrator sets the offset, the lanes begin there, also with completed messages."""
    shell = lead()
    produce(shell, "x", "y", "z")
    a = Member(shell)
    a.done(*a.fetch())
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}

    assert shell.call(222, ext, caller=TOOL).code == 0

    assert committed(shell) == 0
    assert keys(a.fetch()) == ["x", "y", "z"]


@pytest.mark.parametrize("owed", [False, True])
def test_retention_keeps_what_lanes_owe(*, owed: bool) -> None:
    """Law: retention keeps messages that lanes owe and deletes other old ones."""
    shell = lead()
    produce(shell, "x", body=b"m" * (2 << 20))
    a = Member(shell)
    (x,) = a.fetch()
    if owed:
        a.say("retry", x, delay_millis=20 * 3_600_000)
    else:
        a.done(x)

    shell.wall_ms += shell.settings.storage.retention_ms + 1
    produce(shell, "y")
    shell.pass_time(20_000, step=1_000)

    assert (shell.state.floor == 0) == owed


def test_a_group_with_lanes_holds_the_growth_of_a_topic_up() -> None:
    """Law: owed messages block an expansion of the topic."""
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    x, y = a.fetch()
    topic = shell.state.topics.by_name[TOPIC]
    a.done(y)
    assert [each.group for each in blockers(shell.state, topic)] == [GROUP]

    a.done(x)

    assert not list(blockers(shell.state, topic))


@pytest.mark.parametrize(
    ("said", "concurrency"),
    [("Key", "Key"), ("Queue", "Queue"), ("Both", "Queue"), (None, "Queue")],
)
def test_a_heartbeat_says_how_a_group_that_it_creates_consumes(
    said: str | None, concurrency: str
) -> None:
    """Law: a heartbeat that creates a group sets its mode: "Key" means by key, anything else by queue."""
    shell = Shell().lead()

    shell.call(34, {}, _heartbeat("a", "fresh", said), caller=caller_of("a"))

    assert shell.state.groups.by_name["fresh"].concurrency == concurrency


@pytest.mark.parametrize(("size", "code"), [(122, 0), (123, 1)])
def test_a_group_whose_dead_letters_could_not_be_stored_does_not_consume_by_key(
    size: int, code: int
) -> None:
    """Law: a group whose name is too long for a dead-letter topic cannot be by key,
    because a lane could wait for its letter for ever.
    """
    shell, name = Shell().lead(), "g" * size
    wanted = fastjson.dumps({"groupName": name, "concurrency": "Key"})

    beat = shell.call(34, {}, _heartbeat("a", name, "Key"), caller=caller_of("a"))
    assert (beat.code, name in shell.state.groups.by_name) == (code, not code)
    assert shell.call(200, {}, wanted).code == code
    assert shell.call(34, {}, _heartbeat("a", name, "Queue"), caller=caller_of("a")).code == 0


def test_a_heartbeat_changes_no_group_that_exists() -> None:
    """Law: a heartbeat does not change the mode of an existing group."""
    shell = lead()

    shell.call(34, {}, _heartbeat("c", GROUP, "Queue"), caller=caller_of("c"))

    assert shell.state.groups.by_name[GROUP].concurrency == "Key"


def _heartbeat(client: str, group: str, concurrency: str | None) -> bytes:
    consumer = ConsumerData(group, concurrency=concurrency)

    return HeartbeatData(client, consumer_data_set=(consumer,)).to_json()


def test_a_lane_in_hand_keeps_an_expansion_waiting_though_a_reset_took_its_messages() -> None:
    """Law: a lane in hand blocks a switch even if a reset took its messages, because a listener still works on the key."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    step = {"topic": TOPIC, "attempt": "1", "total": "2", "queues": "2", "limitMillis": "60000"}
    step |= {"settleMillis": "5000", "operatorToken": "1"}
    code = RequestCode.ORDERLYMQ_CHANGE_QUEUES
    assert shell.call(code, {"action": "fence", **step}).code == 0
    create(shell, OffsetsReset((Commit(GROUP, TOPIC, 0, 1),)))

    refused = shell.call(code, {"action": "switch", **step})
    shown = shell.call(RequestCode.ORDERLYMQ_QUEUE_EXPANSION, {"topics": TOPIC}).body

    assert refused.code == 1
    assert "has 1 lane in hand; topic" in (refused.remark or "")
    (topic,) = fastjson.loads(shown)["topics"]
    assert [(each["group"], each["messages"]) for each in topic["blockers"]] == [(GROUP, 1)]
    a.say("done", x, offset=0)
    assert shell.call(code, {"action": "switch", **step}).code == 0
    shell.call(310, {**send_ext(TOPIC), "omqQueueTotal": "2"}, b"paid")
    assert len(a.fetch()) == 1
    assert shell.call(code, {"action": "switch", **step}).code == 0


def test_an_expansion_names_the_lanes_that_only_an_administrator_releases() -> None:
    """Law: a blocker names lanes that only an administrator can release, so that the operator does not fence in vain."""
    shell = lead(on_dead_letter="HoldKey", retry_max_times=1)
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch()
    a.say("retry", x)

    shown = shell.call(RequestCode.ORDERLYMQ_QUEUE_EXPANSION, {"topics": TOPIC}).body

    (topic,) = fastjson.loads(shown)["topics"]
    reasons = [each["reason"] for each in topic["blockers"]]
    assert f"group {GROUP} holds 1 lane: release with orderlymq group release" in reasons


def test_no_plan_is_made_with_the_key_of_before_a_change_that_is_under_way() -> None:
    """Law: while a change of the key property is uncommitted, no lanes are planned with the old one."""
    shell = lead(lane_key_property="city")
    for street in ("first", "second"):
        send(shell, TOPIC, props=properties(city=street, country="x"))
    a = Member(shell)
    body = fastjson.dumps({"groupName": GROUP, "laneKeyProperty": "country"})
    shell.submit(200, {}, body)
    ext = a.ext(sequence=1, maxLanes=10, suspendTimeoutMillis=5_000)

    fetched = shell.submit(RequestCode.ORDERLYMQ_FETCH_LANES, ext, caller=a.caller)
    shell.settle()
    shell.pass_time(100)

    reply = shell.reply_to(fetched)
    assert reply is not None
    assert [(each.key, each.behind) for each in lanes(reply)] == [("x", 1)]
    assert shell.state.groups.by_name[GROUP].lane_key_property == "country"


def test_a_change_that_is_lost_keeps_no_fetch_waiting() -> None:
    """Law: a lost change does not delay fetches."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    shell.submit(200, {}, fastjson.dumps({"groupName": GROUP, "laneKeyProperty": "country"}))
    shell.lose_proposals()

    assert keys(a.fetch()) == ["x"]
