"""Administration of offsets: resets by time, the members' own offsets, copies."""

from typing import Any

import pytest

from orderlymq_broker.core.bodylimits import ANSWER_SIZE_MAX
from orderlymq_broker.core.brokertoclient import TOOLS
from orderlymq_broker.core.effects import Caller
from orderlymq_broker.processors.admin.offsets import CLONED_MAX, KEPT_SIZE_MAX
from orderlymq_broker.state.records import Commit as OffsetCommit
from orderlymq_broker.state.records import GroupSet, OffsetsReset
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import OffsetTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import LanguageCode
from orderlymq_protocol.frame.command import FLAG_RESPONSE, RemotingCommand
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import ALICE, BOB, START_MS, TOOL
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    heartbeat_body,
    lock,
    offset_of,
    pull,
    send,
    unlock,
)


def queue(number: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", number)


def commit(admin: AdminShell, *offsets: int, group: str = "billing") -> None:
    """Set the committed offsets of the first queues."""
    create(
        admin,
        OffsetsReset(
            tuple(OffsetCommit(group, "orders", number, at) for number, at in enumerate(offsets))
        ),
    )


def history(admin: AdminShell) -> None:
    """Two queues: queue 0 has messages at 0 s, 1 s and 2 s, queue 1 has one at 2 s."""
    create_topic(admin, queues=2)
    send(admin, e=0)
    admin.pass_time(1_000)
    send(admin, e=0)
    admin.pass_time(1_000)
    send(admin, e=0)
    send(admin, e=1)


def reset(admin: AdminShell, timestamp: int, *, force: bool = True, **more: Any) -> RemotingCommand:
    return admin.tool(
        222, topic="orders", group="billing", timestamp=timestamp, isForce=force, **more
    )


def pushed(admin: AdminShell, code: int) -> list[tuple[int, RemotingCommand]]:
    return [
        (send.connection, send.command)
        for send in admin.sent
        if not send.command.is_response and send.command.code == code
    ]


def reply(
    admin: AdminShell, asked: RemotingCommand, caller: Caller, body: bytes, code: int = 0
) -> None:
    """Answer a request that the broker has sent to a client."""
    response = RemotingCommand(code, asked.opaque, FLAG_RESPONSE, body=body)
    admin.run(admin.core.handle(response, caller, admin.now))


def test_a_reset_stores_the_offsets_and_notifies_every_member(admin: AdminShell) -> None:
    """Law: 222 stores the offset of the first message at or after the time in each queue, and sends 220 to each member."""
    history(admin)
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB)
    commit(admin, 3, 1)

    answer = reset(admin, START_MS + 1_000)

    table = {queue(0): 1, queue(1): 0}
    assert fastjson.loads(answer.body) == {"offsetTable": table}
    assert [offset_of(admin, number) for number in (0, 1)] == [1, 0]
    commands = pushed(admin, 220)
    assert [connection for connection, _ in commands] == [ALICE.connection, BOB.connection]
    for _, command in commands:
        assert command.is_oneway
        assert command.ext == {
            "topic": "orders",
            "group": "billing",
            "timestamp": str(START_MS + 1_000),
            "isForce": "false",
        }
        assert fastjson.loads(command.body) == {"offsetTable": table}


def test_minus_one_skips_to_the_end(admin: AdminShell) -> None:
    """Law: timestamp -1 (skipAccumulatedMessage) sets the offsets to the end."""
    history(admin)
    heartbeat(admin, "alice")
    commit(admin, 0, 0)

    answer = reset(admin, -1)

    assert fastjson.loads(answer.body) == {"offsetTable": {queue(0): 3, queue(1): 1}}
    assert offset_of(admin, 0) == 3


def test_without_force_a_group_is_never_moved_forward(admin: AdminShell) -> None:
    """Law: without isForce, a lower offset stays as it is."""
    history(admin)
    heartbeat(admin, "alice")
    commit(admin, 0, 1)

    answer = reset(admin, START_MS + 2_000, force=False)

    assert fastjson.loads(answer.body) == {"offsetTable": {queue(0): 0, queue(1): 0}}
    assert [offset_of(admin, number) for number in (0, 1)] == [0, 0]


def test_an_offline_group_answers_206(admin: AdminShell) -> None:
    """Law: without members 222 answers 206 and changes nothing; tools then set the offsets one by one."""
    history(admin)
    commit(admin, 3, 1)

    answer = reset(admin, 0)

    assert (answer.code, offset_of(admin)) == (206, 3)
    assert pushed(admin, 220) == []
    assert admin.tool(222, topic="no", group="g", timestamp=0, isForce=True).code == 1


def test_one_queue_may_be_set_to_an_offset(admin: AdminShell) -> None:
    """Law: 222 of 5.x may name a queue and an offset; -1 means all queues by time."""
    history(admin)
    heartbeat(admin, "alice")
    commit(admin, 3, 1)

    one = reset(admin, 0, queueId=0, offset=2)
    assert fastjson.loads(one.body) == {"offsetTable": {queue(0): 2}}
    assert [offset_of(admin, number) for number in (0, 1)] == [2, 1]
    every = reset(admin, 0, queueId=-1, offset=-1)
    assert fastjson.loads(every.body) == {"offsetTable": {queue(0): 0, queue(1): 0}}

    assert reset(admin, 0, queueId=2).code == 1


def test_one_queue_of_an_offline_group_is_set_too(admin: AdminShell) -> None:
    """Law: 222 for one queue works without members too, because mqadmin resetOffsetByTime -b -q takes 206 for a failure."""
    history(admin)
    commit(admin, 1, 1)

    answer = reset(admin, 0, force=False, queueId=0, offset=3)

    assert (answer.code, fastjson.loads(answer.body)) == (0, {"offsetTable": {queue(0): 3}})
    assert [offset_of(admin, number) for number in (0, 1)] == [3, 1]


@pytest.mark.parametrize("offset", [0, 3])
def test_a_tool_resets_a_queue_that_a_member_holds_by_15(admin: AdminShell, offset: int) -> None:
    """Law: a tool's 15 resets a queue that a member holds, as 222 does; the member's own commits stay fenced."""
    history(admin)
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB)
    lock(admin, "alice", 0)
    commit(admin, 2, 1)

    assert admin.call(15, commit_ext(offset), caller=BOB).code == 1
    assert admin.call(15, commit_ext(-1), caller=TOOL).code == 1
    assert (offset_of(admin), pushed(admin, 220)) == (2, [])
    assert admin.call(15, commit_ext(offset), caller=TOOL).code == 0

    assert [offset_of(admin, number) for number in (0, 1)] == [offset, 1]
    told = pushed(admin, 220)
    assert [connection for connection, _ in told] == [ALICE.connection, BOB.connection]
    assert fastjson.loads(told[0][1].body) == {"offsetTable": {queue(0): offset}}
    assert reset(admin, 0, force=False, queueId=0, offset=offset).code == 0


@pytest.mark.parametrize("stored", [2, 0])
@pytest.mark.parametrize("hears", [True, False])
def test_a_holder_asks_for_its_lock_again_after_a_reset_before_it_moves_the_offset(
    admin: AdminShell, hears: bool, stored: int
) -> None:
    """Law: after a reset, a holder must lock again before its commits count, so that the reset offset stays."""
    history(admin)
    heartbeat(admin, "alice")
    lock(admin, "alice", 0)
    commit(admin, stored, 1)

    def commits(offset: int, epoch: int) -> int:
        ext = commit_ext(offset, omqClientId="alice", omqEpoch=str(epoch))
        return admin.call(15, ext).code

    assert reset(admin, 0).code == 0
    if hears:
        assert commits(0, 1) == 0
    assert (commits(3, 1), pull(admin, offset=3, omqClientId="alice", omqEpoch="1").code) == (1, 1)
    assert offset_of(admin) == 0

    assert lock(admin, "alice", 0) == {0: 2}
    assert (commits(1, 2), offset_of(admin)) == (0, 1)


def test_a_reset_that_leaves_an_offset_as_it_is_leaves_its_holder_alone(admin: AdminShell) -> None:
    """Law: a reset that changes no offset leaves the lock alone."""
    history(admin)
    heartbeat(admin, "alice")
    lock(admin, "alice", 0)
    commit(admin, 0, 1)

    assert reset(admin, START_MS + 2_000, force=False).code == 0

    assert lock(admin, "alice", 0) == {0: 1}


def test_who_gave_a_queue_back_does_not_undo_a_reset(admin: AdminShell) -> None:
    """Law: a commit of a client that unlocked before the reset does not undo it; Java unlocks before it commits."""
    history(admin)
    heartbeat(admin, "alice")
    lock(admin, "alice", 0)
    commit(admin, 2, 1)
    unlock(admin, "alice", 0)

    assert reset(admin, 0).code == 0
    admin.ask(15, commit_ext(3), oneway=True)
    admin.pass_time(200)

    assert offset_of(admin) == 0
    assert lock(admin, "alice", 0) == {0: 3}


def test_a_member_that_repeats_the_reset_is_heard_and_a_late_commit_is_not_final(
    admin: AdminShell,
) -> None:
    """Law: a late commit may move the offset forward again, but the member's repeat of the reset sets it back."""
    history(admin)
    heartbeat(admin, "alice")
    commit(admin, 2)
    reset(admin, 0)

    admin.ask(15, commit_ext(3), oneway=True)
    admin.pass_time(200)
    admin.ask(15, commit_ext(0), oneway=True)
    admin.pass_time(200)

    assert offset_of(admin) == 0


def test_the_cpp_client_gets_a_list(admin: AdminShell) -> None:
    """Law: the C++ client gets the table of 220 as a list, because it cannot read a map with queues as keys."""
    history(admin)
    command = RemotingCommand(34, 77, body=heartbeat_body("cpp"), language=LanguageCode.CPP)
    admin.run(admin.core.handle(command, ALICE, admin.now))
    admin.settle()
    commit(admin, 3, 1)

    reset(admin, 0)

    ((_, told),) = pushed(admin, 220)
    assert fastjson.loads(told.body) == {
        "offsetTable": [
            {"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "orders"},
            {"brokerName": "broker-a", "offset": 0, "queueId": 1, "topic": "orders"},
        ]
    }


def test_the_members_view_is_gathered_from_all_of_them(admin: AdminShell) -> None:
    """Law: 223 asks each member with 221 and answers when all have answered."""
    create_topic(admin)
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB)
    opaque = admin.submit(223, {"topic": "orders", "group": "billing"}, caller=TOOL)
    (_, to_alice), (_, to_bob) = pushed(admin, 221)

    def view(number: int) -> bytes:
        return fastjson.dumps({"messageQueueTable": {queue(number): 7}})

    reply(admin, to_alice, ALICE, view(0))
    assert admin.reply_to(opaque) is None
    reply(admin, to_bob, BOB, view(1))

    gathered = admin.reply_to(opaque)
    assert gathered is not None
    assert fastjson.loads(gathered.body) == {
        "consumerTable": {"alice": {queue(0): 7}, "bob": {queue(1): 7}},
        "messageQueueTable": {},
    }


def test_a_member_that_is_silent_or_talks_nonsense_hides_nobody(admin: AdminShell) -> None:
    """Law: after 3 s, 223 answers with what was readable; a silent member hides no other."""
    create_topic(admin)
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB)
    opaque = admin.submit(223, {"topic": "orders", "group": "billing"}, caller=TOOL)
    (_, to_alice), _ = pushed(admin, 221)
    reply(admin, to_alice, ALICE, b"nonsense")

    admin.pass_time(3_000)

    gathered = admin.reply_to(opaque)
    assert gathered is not None
    assert fastjson.loads(gathered.body) == {"consumerTable": {}, "messageQueueTable": {}}


def test_what_members_say_at_length_is_kept_up_to_a_bound(admin: AdminShell) -> None:
    """Law: the answers to 221 that are kept are limited in bytes, so that a thousand long ones do not fill a leader's
    memory.
    """
    callers = {
        20 + number: Caller(20 + number, "192.0.2.20", 50_000 + number) for number in range(90)
    }
    for connection, caller in callers.items():
        heartbeat(admin, f"c{connection}", caller=caller)
    rows = ",".join(f"{fastjson.dumps(queue(each)).decode()}:{each}" for each in range(900))
    body = f'{{"messageQueueTable":{{{rows}}}}}'.encode()
    assert KEPT_SIZE_MAX < len(callers) * len(body) < len(callers) * ANSWER_SIZE_MAX

    def gathered(**more: str) -> bytes:
        admin.sent.clear()
        asked = {"topic": "orders", "group": "billing", **more}
        opaque = admin.submit(223, asked, caller=TOOL)
        for connection, question in pushed(admin, 221):
            reply(admin, question, callers[connection], body)
        found = admin.reply_to(opaque)
        assert found is not None
        return found.body

    whole = gathered()
    assert KEPT_SIZE_MAX - ANSWER_SIZE_MAX < len(whole) < KEPT_SIZE_MAX + 1_000
    assert fastjson.loads(whole)["consumerTable"]["c20"][queue(899)] == 899
    # The next request has the whole limit again.
    assert list(fastjson.loads(gathered(clientAddr="c109"))["consumerTable"]) == ["c109"]


def test_one_member_may_be_asked_and_an_empty_group_answers_1(admin: AdminShell) -> None:
    """Law: clientAddr in 223 is a client id, as in RocketMQ; a group without members answers 1."""
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB)

    admin.submit(223, {"topic": "t", "group": "billing", "clientAddr": "bob"}, caller=TOOL)

    assert [connection for connection, _ in pushed(admin, 221)] == [BOB.connection]
    assert admin.tool(223, topic="t", group="nobody").code == 1


def test_a_group_with_more_members_than_are_asked_takes_no_places(admin: AdminShell) -> None:
    """Law: 223 for a group with too many members is refused at once and takes no places of other requests."""
    for number in range(TOOLS.of_asker + 1):
        heartbeat(admin, f"c{number}", caller=Caller(20 + number, "192.0.2.20", 50_000 + number))

    refused = admin.tool(223, topic="t", group="billing")

    assert (refused.code, "name one as clientAddr" in (refused.remark or "")) == (1, True)
    assert len(admin.core.calls) == 0
    admin.submit(223, {"topic": "t", "group": "billing", "clientAddr": "c1"}, caller=TOOL)
    assert len(admin.core.calls) == 1


def test_a_question_that_is_refused_midway_asks_nobody(admin: AdminShell) -> None:
    """Law: if 223 is refused midway, no member is asked and no place stays taken."""
    create_topic(admin)
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB)
    one = {"topic": "t", "group": "billing", "clientAddr": "bob"}
    for _ in range(TOOLS.of_asked):
        admin.submit(223, one, caller=TOOL)

    refused = admin.tool(223, topic="t", group="billing")

    assert refused.code == 2
    assert len(pushed(admin, 221)) == len(admin.core.calls) == TOOLS.of_asked
    admin.pass_time(3_100)
    admin.submit(223, {"topic": "t", "group": "billing"}, caller=TOOL)
    assert len(admin.core.calls) == 2


def test_a_group_gets_a_copy_of_anothers_offsets(admin: AdminShell) -> None:
    """Law: 314 copies offsets to a group without members; members would overwrite the copy."""
    history(admin)
    commit(admin, 2, 1)

    assert admin.tool(314, srcGroup="billing", destGroup="audit", offline=False).code == 0
    assert dict(admin.state.offsets.of_group("audit")["orders"]) == {0: 2, 1: 1}
    heartbeat(admin, "alice", group="live")

    refused = admin.tool(314, srcGroup="billing", destGroup="live", topic="orders")
    assert (refused.code, "stop its consumers" in (refused.remark or "")) == (1, True)
    assert admin.tool(314, srcGroup="billing", destGroup="x", topic="no").code == 17


def test_all_offsets_are_listed_by_topic_and_group(admin: AdminShell) -> None:
    """Law: 43 lists all offsets by topic and group, 45 the offsets of delayed messages."""
    history(admin)
    commit(admin, 2, 1)

    assert admin.read(43) == {"offsetTable": {"orders@billing": {"0": 2, "1": 1}}}
    assert admin.read(45) == {"offsetTable": {}}


@pytest.mark.parametrize("code", [222, 314])
def test_a_typo_in_a_group_is_reported_and_changes_nothing(admin: AdminShell, code: int) -> None:
    """Law: an unknown group in a reset or copy answers 26 with the nearest name, and no offsets are created."""
    create_topic(admin)
    create(admin, GroupSet("billing"))
    before = admin.state.digest()

    reply = admin.tool(
        code,
        topic="orders",
        group="biling",
        timestamp=0,
        isForce=True,
        srcGroup="biling",
        destGroup="copy",
        offline=False,
    )

    assert (reply.code, "did you mean billing?" in (reply.remark or "")) == (26, True)
    assert admin.state.digest() == before


def exactly(admin: AdminShell, table: dict[MessageQueue, int]) -> RemotingCommand:
    ext = {"topic": "orders", "group": "billing", "isForce": True}
    return admin.tool(222, OffsetTable(table).to_json(), **ext)


def test_a_body_names_exactly_the_offsets_of_some_queues(admin: AdminShell) -> None:
    """Law: with a body of exact offsets (our own form), only those queues are set, and members get just these."""
    history(admin)
    heartbeat(admin, "alice")
    commit(admin, 0, 0)

    answer = exactly(admin, {queue(0): 2})

    assert fastjson.loads(answer.body) == {"offsetTable": {queue(0): 2}}
    assert [offset_of(admin, number) for number in (0, 1)] == [2, 0]
    ((_, command),) = pushed(admin, 220)
    assert fastjson.loads(command.body) == {"offsetTable": {queue(0): 2}}


@pytest.mark.parametrize(
    "table",
    [
        {queue(0): 2, queue(1): 2},
        {queue(0): 2, queue(1): -1},
        {queue(0): 2, queue(7): 0},
        {queue(0): 2, MessageQueue("refunds", "broker-a", 0): 0},
        {queue(0): 2, MessageQueue("orders", "broker-b", 0): 0},
    ],
)
def test_a_body_that_names_what_is_not_there_changes_nothing(
    admin: AdminShell, table: dict[MessageQueue, int]
) -> None:
    """Law: if the body names a queue that does not exist, nothing is changed."""
    history(admin)
    heartbeat(admin, "alice")
    commit(admin, 0, 0)

    assert exactly(admin, table).code == 1
    assert (offset_of(admin), pushed(admin, 220)) == (0, [])


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 256, "a b"])
def test_no_offsets_are_copied_to_what_is_no_group(admin: AdminShell, name: str) -> None:
    """Law: offsets are not copied to an invalid group name, which would be stored once per offset."""
    create_topic(admin, "orders")
    create(admin, GroupSet("billing"))
    commit(admin, 0)

    reply = admin.call(314, {"srcGroup": "billing", "destGroup": name, "offline": "true"})

    assert reply.code == 1
    assert not admin.state.offsets.of_group(name)


def test_copied_offsets_make_their_group(admin: AdminShell) -> None:
    """Law: copying offsets creates the target group, so that they are deleted with it."""
    create_topic(admin, "orders")
    create(admin, GroupSet("billing"))
    commit(admin, 0)

    assert (
        admin.call(314, {"srcGroup": "billing", "destGroup": "fresh", "offline": "true"}).code == 0
    )

    assert "fresh" in admin.state.groups.by_name
    assert offset_of(admin, group="fresh") == 0


def test_one_request_copies_so_many_offsets_at_most(admin: AdminShell) -> None:
    """Law: one request copies a limited number of offsets, because they form one record."""
    create_topic(admin, "orders")
    create(admin, GroupSet("billing"))
    commits = tuple(
        OffsetCommit("billing", "orders", number, 0) for number in range(CLONED_MAX + 1)
    )
    create(admin, OffsetsReset(commits))

    reply = admin.call(314, {"srcGroup": "billing", "destGroup": "fresh", "offline": "true"})

    assert reply.code == 1
    assert reply.remark is not None
    assert "name a topic" in reply.remark
