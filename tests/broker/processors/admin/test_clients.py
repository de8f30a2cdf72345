"""Administration of clients: which are connected, and requests that the broker passes on to them."""

import pytest

from orderlymq_broker.core.brokertoclient import TOOLS
from orderlymq_broker.core.effects import Caller
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import FLAG_RESPONSE, RemotingCommand
from orderlymq_protocol.message.record import iter_records
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import ALICE, BOB, TOOL
from tests.broker.processors.requests import heartbeat, heartbeat_body, properties, send, send_ext

INFO = {"consumerGroup": "billing", "clientId": "alice", "jstackEnable": "false"}


def asked(admin: AdminShell, code: int) -> list[tuple[int, RemotingCommand]]:
    return [
        (send.connection, send.command)
        for send in admin.sent
        if not send.command.is_response and send.command.code == code
    ]


def respond(
    admin: AdminShell, question: RemotingCommand, caller: Caller, code: int = 0, body: bytes = b""
) -> None:
    response = RemotingCommand(
        code, question.opaque, FLAG_RESPONSE, {"OmqServer": "mine"}, body, "as it is"
    )
    admin.run(admin.core.handle(response, caller, admin.now))


def test_the_members_of_a_group_are_shown_with_their_subscriptions(admin: AdminShell) -> None:
    """Law: 203 shows the connections of a group by client id, and its subscriptions."""
    heartbeat(admin, "bob", caller=BOB)
    heartbeat(admin, "alice", tags="paid || packed")

    body = admin.read(203, consumerGroup="billing")

    assert body["connectionSet"] == [
        {
            "clientAddr": "192.0.2.1:40001",
            "clientId": "alice",
            "language": "PYTHON",
            "version": 409,
        },
        {"clientAddr": "192.0.2.2:40002", "clientId": "bob", "language": "PYTHON", "version": 409},
    ]
    assert sorted(body["subscriptionTable"]) == ["%RETRY%billing", "orders"]
    assert (body["consumeType"], body["messageModel"], body["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    offline = admin.tool(203, consumerGroup="nobody")
    assert (offline.code, offline.remark) == (206, "the consumer group[nobody] not online")


def test_members_are_shown_after_a_change_of_leader(admin: AdminShell) -> None:
    """Law: a new leader shows members before their next heartbeat, because they are in the log."""
    heartbeat(admin, "alice")

    admin.follow()
    assert admin.tool(203, consumerGroup="billing").code == 1
    admin.lead()

    shown = admin.read(203, consumerGroup="billing")["connectionSet"]
    assert [each["clientId"] for each in shown] == ["alice"]


def test_producers_are_shown_by_group(admin: AdminShell) -> None:
    """Law: 204 and 328 show producers by group; a group without producers answers 1."""
    heartbeat(admin, "alice")

    assert admin.read(204, producerGroup="CLIENT_INNER_PRODUCER")["connectionSet"] == [
        {"clientAddr": "192.0.2.1:40001", "clientId": "alice", "language": "PYTHON", "version": 409}
    ]
    assert admin.read(328) == {
        "data": {
            "CLIENT_INNER_PRODUCER": [
                {
                    "clientId": "alice",
                    "language": "PYTHON",
                    "lastUpdateTimestamp": admin.wall_ms,
                    "remoteIP": "/192.0.2.1:40001",
                    "version": 409,
                }
            ]
        }
    }
    assert admin.tool(204, producerGroup="nobody").code == 1


def test_clients_that_share_a_connection_produce_each_for_its_own_groups(admin: AdminShell) -> None:
    """Law: clients on one connection (behind a proxy) have their own producer groups; one's heartbeat removes no other's."""
    for client, groups in (("a", ("shop", "both")), ("b", ("both",)), ("c", ())):
        said = {"clientID": client, "producerDataSet": [{"groupName": group} for group in groups]}
        assert admin.call(34, {}, fastjson.dumps(said)).code == 0

    def producers(group: str) -> list[str]:
        shown = admin.read(204, producerGroup=group)["connectionSet"]
        return [each["clientId"] for each in shown]

    assert (producers("shop"), producers("both")) == (["a"], ["a", "b"])
    admin.call(35, {"clientID": "b", "producerGroup": "both"})
    assert producers("both") == ["a"]


def test_a_client_answers_for_itself_and_its_answer_is_passed_on(admin: AdminShell) -> None:
    """Law: 307 is passed to the client with the same header; code, body and remark of its answer go back to the tool.

    The answer's fields do not: with `OmqServer` a member could tell a signer what to sign with.
    """
    heartbeat(admin, "alice")
    opaque = admin.submit(307, INFO, caller=TOOL)
    ((connection, question),) = asked(admin, 307)
    assert (connection, question.ext, question.is_oneway) == (ALICE.connection, INFO, False)
    assert admin.reply_to(opaque) is None

    respond(admin, question, ALICE, body=b'{"properties":{}}')

    reply = admin.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.ext, reply.body, reply.remark) == (
        0,
        {},
        b'{"properties":{}}',
        "as it is",
    )


def test_only_the_connection_that_was_asked_may_answer(admin: AdminShell) -> None:
    """Law: only the asked connection may answer, and only once; opaques are small numbers that others could guess."""
    heartbeat(admin, "alice")
    opaque = admin.submit(307, INFO, caller=TOOL)
    ((_, question),) = asked(admin, 307)

    respond(admin, question, BOB)
    assert admin.reply_to(opaque) is None
    respond(admin, question, ALICE)
    respond(admin, question, ALICE)

    reply = admin.reply_to(opaque)
    assert reply is not None
    assert reply.code == 0


@pytest.mark.parametrize(
    ("ending", "part"),
    [("time", "in time"), ("connection", "closed"), ("leadership", "leader changed")],
)
def test_a_question_always_ends(admin: AdminShell, ending: str, part: str) -> None:
    """Law: a request to a client ends with 207 and a reason after 10 s of silence,
    a closed connection or a change of leader.
    """
    heartbeat(admin, "alice")
    opaque = admin.submit(307, INFO, caller=TOOL)

    match ending:
        case "time":
            admin.pass_time(9_900)
            assert admin.reply_to(opaque) is None
            admin.pass_time(100)
        case "connection":
            admin.run(admin.core.connection_closed(ALICE.connection))
        case _:
            admin.follow()

    reply = admin.reply_to(opaque)
    assert reply is not None
    assert (reply.code, part in (reply.remark or "")) == (207, True)


def test_a_client_that_is_not_there_or_too_old_is_not_asked(admin: AdminShell) -> None:
    """Law: a client that is not connected or too old gets no request; the tool gets 1 immediately."""
    offline = admin.call(307, INFO, caller=TOOL)
    assert (offline.code, offline.remark) == (1, "The Consumer <billing> <alice> not online")
    admin.call(34, {}, heartbeat_body("alice"), version=61)

    assert "too low" in (admin.call(307, INFO, caller=TOOL).remark or "")
    assert asked(admin, 307) == []


def test_open_questions_are_limited(admin: AdminShell) -> None:
    """Law: unanswered requests per client are limited: more get 2 (busy) for that client only, until some are answered."""
    heartbeat(admin, "alice")
    heartbeat(admin, "bob", caller=BOB)
    for _ in range(TOOLS.of_asked):
        admin.submit(307, INFO, caller=TOOL)

    assert admin.call(307, INFO, caller=TOOL).code == 2
    assert admin.ask(307, {**INFO, "clientId": "bob"}, caller=TOOL) is None
    _, question = asked(admin, 307)[0]
    respond(admin, question, ALICE)

    assert admin.ask(307, INFO, caller=TOOL) is None


def test_who_fills_the_places_for_questions_leaves_some_for_others(admin: AdminShell) -> None:
    """Law: an account whose group's members never answer cannot take all places for such requests; others keep some."""
    heartbeat(admin, "alice")
    members = range(TOOLS.in_all // TOOLS.of_asked)
    for number in members:
        heartbeat(admin, f"silent{number}", caller=Caller(100 + number, "192.0.2.7", 40_000))
    for number in members:
        asker = Caller(1_000 + number, "192.0.2.7", 40_001)
        for _ in range(TOOLS.of_asked):
            admin.submit(307, {**INFO, "clientId": f"silent{number}"}, caller=asker)

    assert len(admin.core.calls) == TOOLS.in_all * 3 // 4
    assert admin.ask(307, INFO, caller=TOOL) is None
    admin.pass_time(10_000, step=10_000)
    assert not len(admin.core.calls)
    assert admin.ask(307, {**INFO, "clientId": "silent0"}, caller=asker) is None


def test_a_client_is_given_one_message_to_consume(admin: AdminShell) -> None:
    """Law: 309 sends a stored message with our broker name to a client and returns its result."""
    create_topic(admin)
    message_id = send(admin, body=b"paid").ext["msgId"]
    heartbeat(admin, "alice")
    ext = {"consumerGroup": "billing", "clientId": "alice", "msgId": message_id}

    opaque = admin.submit(309, ext, caller=TOOL)
    ((connection, question),) = asked(admin, 309)
    respond(admin, question, ALICE, body=b'{"consumeResult":"CR_SUCCESS"}')

    assert connection == ALICE.connection
    assert question.ext == {**ext, "brokerName": "broker-a"}
    assert [message.body for message in iter_records(question.body)] == [b"paid"]
    reply = admin.reply_to(opaque)
    assert reply is not None
    assert reply.body == b'{"consumeResult":"CR_SUCCESS"}'


def test_no_client_is_shown_how_a_request_was_signed(admin: AdminShell) -> None:
    """Law: requests to clients contain no field of the tool's request that their header does not know.

    RocketMQ's signature covers only values, so a member could reuse a signature that it sees.
    """
    create_topic(admin)
    message_id = send(admin, body=b"paid").ext["msgId"]
    heartbeat(admin, "alice")
    secret = dict.fromkeys(
        ("AccessKey", "Signature", "SecurityToken", "OmqKey", "OmqNonce", "OmqSignature"), "secret"
    )
    group = {"consumerGroup": "billing", "group": "billing", "topic": "orders", "timestamp": "0"}
    member = {**group, **secret, "clientId": "alice", "msgId": message_id, "isForce": "true"}
    reply = send_ext("orders", properties(REPLY_TO_CLIENT="alice"))

    for code, ext in ((222, member), (223, member), (307, member), (309, member)):
        admin.submit(code, ext, caller=TOOL)
    admin.submit(325, {**reply, **secret}, b"reply", caller=TOOL)
    admin.settle()

    questions = [each.command for each in admin.sent if not each.command.is_response]
    assert sorted({each.code for each in questions}) == [40, 220, 221, 307, 309, 326]
    assert "secret" not in {value for each in questions for value in each.ext.values()}


@pytest.mark.parametrize("message_id", ["", "zz", "C0000264" + "0" * 24, "F" * 32])
def test_a_message_that_is_not_here_is_not_given_out(admin: AdminShell, message_id: str) -> None:
    """Law: 309 with a wrong, foreign or missing message id answers 1 and says which id to give."""
    heartbeat(admin, "alice")

    reply = admin.tool(309, consumerGroup="billing", clientId="alice", msgId=message_id)

    assert (reply.code, "offset id" in (reply.remark or "")) == (1, True)


def test_any_member_will_do_when_the_tool_names_none(admin: AdminShell) -> None:
    """Law: if 309 names no client, the first member by name is asked, so that a repeat asks the same one."""
    create_topic(admin)
    message_id = send(admin).ext["msgId"]
    heartbeat(admin, "bob", caller=BOB)
    heartbeat(admin, "alice")

    admin.submit(309, {"consumerGroup": "billing", "msgId": message_id}, caller=TOOL)

    ((connection, question),) = asked(admin, 309)
    assert (connection, question.ext["clientId"]) == (ALICE.connection, "alice")


def test_the_topics_and_subscriptions_of_a_group_are_shown(admin: AdminShell) -> None:
    """Law: 343 lists the topics that a group subscribes to or has offsets in, 345 its subscription to one;
    an unknown group answers 26.
    """
    create_topic(admin)
    heartbeat(admin, "alice")

    assert admin.read(343, group="billing")["topicList"] == ["%RETRY%billing", "orders"]
    shown = admin.read(345, group="billing", topic="orders")
    assert (shown["group"], shown["topic"]) == ("billing", "orders")
    assert shown["subscriptionData"]["subString"] == "*"
    assert admin.read(345, group="billing", topic="other")["subscriptionData"] is None
    assert [admin.tool(code, group="nobody", topic="orders").code for code in (343, 345)] == [
        26,
        26,
    ]
