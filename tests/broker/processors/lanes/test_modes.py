"""Groups by key beside clients that know no lanes, and with what administrators do."""

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
    change,
    committed,
    join,
    keys,
    lanes,
    lead,
    peer_of,
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
    answer = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, peer=TOOL)
    assert answer.code == 0, answer.remark
    return [each["key"] for each in fastjson.loads(answer.body)["parkedKeys"]]


@pytest.mark.parametrize("action", ["skip", "retry"])
def test_a_release_of_what_was_looked_at_touches_nothing_else(action: str) -> None:
    """Two administrators have seen one message and act one after the other: the second one has not seen the next one."""
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
    """A release that names a queue and no message would be taken for one of any message."""
    shell = lead()
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "key": "x", "action": "skip", **said}

    refused = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, peer=TOOL)

    assert (refused.code, "firstOffset is" in (refused.remark or "")) == (1, True)


def test_clients_that_know_no_lanes_learn_what_to_do() -> None:
    """A pull, a lock and a commit are refused with a code and a sentence, and change nothing."""
    shell = lead()
    produce(shell, "x")
    said = [
        shell.call(11, pull_ext(sysFlag=0), peer=peer_of("a")),
        shell.call(41, {}, lock_body("a", 0), peer=peer_of("a")),
        shell.call(15, OFFSET, peer=peer_of("a")),
    ]

    assert {reply.code for reply in said} == {ResponseCode.NO_PERMISSION}
    assert all("concurrency: Key" in (reply.remark or "") for reply in said)
    assert shell.state.offsets.get(GROUP, TOPIC, 0) is None


def test_another_group_reads_the_same_topic_as_ever() -> None:
    """One group's way of consuming does not affect another group."""
    shell = lead()
    produce(shell, "x")

    assert pull(shell, group="tools", peer=ALICE).code == 0


def test_a_change_of_mode_is_refused_while_something_is_in_the_way() -> None:
    """The administrator learns what, and nothing has changed."""
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
    assert shell.call(41, {}, lock_body("a", 0), peer=peer_of("a")).code == 0
    assert change(shell, concurrency="Key").code == 1
    assert committed(shell) == 0


def test_who_waits_while_the_mode_changes_gets_nothing_in_the_other_one() -> None:
    """Neither a pull in a group by key nor a fetch in one by queue: both learn how the group consumes."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1), GroupSet(GROUP))
    join(shell, "a")
    pulling = shell.submit(11, pull_ext(sysFlag=6), peer=peer_of("a"))
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
    """A pull that came before it is held for no topic; neither a rule nor the end of another group answers it."""
    shell = Shell().lead()
    keyed = GroupSet("other", concurrency="Key")
    create(shell, TopicSet(TOPIC, 1, 1), GroupSet(GROUP), keyed)
    join(shell, "a")
    early = shell.submit(11, pull_ext(sysFlag=2, subVersion=2**40), peer=peer_of("a"))
    assert shell.reply_to(early) is None

    create(shell, msgspec.structs.replace(keyed, retry_max_times=3))
    create(shell, GroupDeleted("other", clean_offsets=True))
    shell.pass_time(100)

    assert shell.reply_to(early) is None


def by_queue() -> Shell:
    """Return a leader whose group consumes by queue and holds the key x, of which nobody has the queue any more."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1, order=True), GroupSet(GROUP, on_dead_letter="HoldKey"))
    join(shell, "a")
    produce(shell, "x", "x")
    assert shell.call(41, {}, lock_body("a", 0), peer=peer_of("a")).code == 0
    create(
        shell, KeyParked(GROUP, TOPIC, 0, "x", 0, "id", shell.state.locks.epoch(GROUP, TOPIC, 0))
    )
    shell.call(42, {}, lock_body("a", 0), peer=peer_of("a"))
    assert len(shell.state.parked.of_group(GROUP)) == 1
    return shell


def test_a_group_that_holds_keys_by_queue_changes_once_they_are_released() -> None:
    """Later messages of such a key would overtake those that wait among the dead letters."""
    shell = by_queue()

    refused = change(shell, concurrency="Key")

    assert refused.code == 1
    assert "holds 1 key" in (refused.remark or "")
    assert release(shell, "x") == ["x"]
    assert change(shell, concurrency="Key").code == 0


def test_a_key_that_was_held_by_queue_is_released_by_key_too() -> None:
    """Whatever has let the group change, the hold is no dead end."""
    shell = by_queue()
    present = shell.state.groups.by_name[GROUP]
    create(shell, msgspec.structs.replace(present, concurrency="Key"))

    assert release(shell, "x") == ["x"]
    assert next(blockers(shell.state, shell.state.topics.by_name[TOPIC])).queue_id == 0
    assert shell.state.parked.of_group(GROUP) == []


def test_a_group_with_messages_to_try_again_changes_once_they_are_consumed() -> None:
    """Consumers by key get nothing of the retry topic."""
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
    """It is nowhere near the retry topic before its pause is over."""
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
    """Members that it does not send stay as they are; wrong ones are refused."""
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
    """It is listed among the parked keys, and handed out again from the message that failed."""
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
    """The answer has for each of them what it has for a key."""
    shell = lead()
    produce(shell, "", "")
    a = Member(shell)
    for each in a.fetch():
        a.say("retry", each, delay_millis=60_000)

    ext = {"consumerGroup": GROUP, "topic": TOPIC, "key": ""}
    answer = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, peer=TOOL)

    rows = fastjson.loads(answer.body)["parkedKeys"]
    assert [(each["key"], each["firstOffset"], each["behind"]) for each in rows] == [
        ("", 0, 0),
        ("", 1, 0),
    ]
    assert [each.offsets for each in a.fetch()] == [(0,), (1,)]


def test_a_release_that_names_no_key_is_refused() -> None:
    """Else a forgotten field would make dead letters of all messages without a key."""
    shell = lead()
    produce(shell, "")
    a = Member(shell)
    a.say("retry", *a.fetch(), delay_millis=60_000)

    ext = {"consumerGroup": GROUP, "topic": TOPIC, "action": "skip"}
    answer = shell.call(RequestCode.ORDERLYMQ_RELEASE_KEY, ext, peer=TOOL)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        "a release needs the field key: send it, empty for all messages without a key"
    )
    assert [each.state for each in table(shell).lanes] == ["parked"]


def test_an_administrator_skips_what_failed() -> None:
    """The message becomes a dead letter, the lane goes on behind it; a parked lane as well."""
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
    """By key the committed offset is the first owed one, so a reset to it is a change."""
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    x, y = a.fetch()
    a.say("retry", x, delay_millis=0)
    a.done(y)
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": force}

    reply = shell.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, peer=TOOL)

    assert reply.code == 0
    assert [each.offsets for each in a.fetch()] == again


def test_a_reset_that_is_not_forced_moves_nothing_forward() -> None:
    """Owed messages stay owed when the time lies behind them."""
    shell = lead()
    produce(shell, "x", "y")
    a = Member(shell)
    x, _ = a.fetch()
    a.say("retry", x, delay_millis=0)
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "false"}

    assert shell.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, peer=TOOL).code == 0

    assert [each.offsets for each in a.fetch()] == [x.offsets]


def test_what_is_skipped_is_stored_once_the_disk_has_room() -> None:
    """Until then its lane waits."""
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
    """Figures per queue, and the lanes in trouble before the others."""
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
    """In hand or ready, beyond those that one answer names; a key that is too long is asked for and released as it was sent."""
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
    """Complete messages behind them come again."""
    shell = lead()
    produce(shell, "x", "y", "z")
    a = Member(shell)
    a.done(*a.fetch())
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}

    assert shell.call(222, ext, peer=TOOL).code == 0

    assert committed(shell) == 0
    assert keys(a.fetch()) == ["x", "y", "z"]


@pytest.mark.parametrize("owed", [False, True])
def test_retention_keeps_what_lanes_owe(*, owed: bool) -> None:
    """A message that waits in a parked lane is there when it is handed out; others go when they are old."""
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
    """Its queues are drained when nothing of them is owed."""
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
    """Whatever it says that is not Key means by queue; where brokers create no groups it creates none."""
    shell = Shell().lead()

    shell.call(34, {}, _heartbeat("a", "fresh", said), peer=peer_of("a"))

    assert shell.state.groups.by_name["fresh"].concurrency == concurrency


@pytest.mark.parametrize(("size", "code"), [(122, 0), (123, 1)])
def test_a_group_whose_dead_letters_could_not_be_stored_does_not_consume_by_key(
    size: int, code: int
) -> None:
    """Its lanes would wait for a letter for ever; neither a heartbeat nor an administrator makes such a group."""
    shell, name = Shell().lead(), "g" * size
    wanted = fastjson.dumps({"groupName": name, "concurrency": "Key"})

    beat = shell.call(34, {}, _heartbeat("a", name, "Key"), peer=peer_of("a"))
    assert (beat.code, name in shell.state.groups.by_name) == (code, not code)
    assert shell.call(200, {}, wanted).code == code
    assert shell.call(34, {}, _heartbeat("a", name, "Queue"), peer=peer_of("a")).code == 0


def test_a_heartbeat_changes_no_group_that_exists() -> None:
    """The administrator decides how a group consumes."""
    shell = lead()

    shell.call(34, {}, _heartbeat("c", GROUP, "Queue"), peer=peer_of("c"))

    assert shell.state.groups.by_name[GROUP].concurrency == "Key"


def _heartbeat(client: str, group: str, concurrency: str | None) -> bytes:
    consumer = ConsumerData(group, concurrency=concurrency)

    return HeartbeatData(client, consumer_data_set=(consumer,)).to_json()


def test_a_lane_in_hand_keeps_an_expansion_waiting_though_a_reset_took_its_messages() -> None:
    """A listener is still at work with its key, which has another queue behind the switch."""
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
    """The operator raises no fence for them: it would stand until its limit, again and again."""
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
    """Two messages with one key by the new property are of one lane, also when the fetch came before its record."""
    shell = lead(lane_key_property="city")
    for street in ("first", "second"):
        send(shell, TOPIC, props=properties(city=street, country="x"))
    a = Member(shell)
    body = fastjson.dumps({"groupName": GROUP, "laneKeyProperty": "country"})
    shell.submit(200, {}, body)
    ext = a.ext(sequence=1, maxLanes=10, suspendTimeoutMillis=5_000)

    fetched = shell.submit(RequestCode.ORDERLYMQ_FETCH_LANES, ext, peer=a.peer)
    shell.settle()
    shell.pass_time(100)

    reply = shell.reply_to(fetched)
    assert reply is not None
    assert [(each.key, each.behind) for each in lanes(reply)] == [("x", 1)]
    assert shell.state.groups.by_name[GROUP].lane_key_property == "country"


def test_a_change_that_is_lost_keeps_no_fetch_waiting() -> None:
    """Lanes go on with the key that they have."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    shell.submit(200, {}, fastjson.dumps({"groupName": GROUP, "laneKeyProperty": "country"}))
    shell.lose_proposals()

    assert keys(a.fetch()) == ["x"]
