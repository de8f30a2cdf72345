"""Replies of request-reply calls: they are pushed to the asking client and stored."""

from collections.abc import Iterator
from sys import getrefcount

import pytest

from orderlymq_broker.core.brokertoclient import REPLIES, TOOLS
from orderlymq_broker.core.effects import Caller
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import FLAG_RESPONSE, RemotingCommand
from orderlymq_protocol.message.properties import decode_properties
from tests.broker.processors.driver import ALICE, BOB, TOOL, Shell
from tests.broker.processors.requests import bodies, heartbeat, properties, pull, send_ext

REPLY_TOPIC = "shop_REPLY_TOPIC"


@pytest.fixture
def replier() -> Iterator[Shell]:
    """A leader that serves replies."""
    shell = Shell()
    shell.lead()
    yield shell
    shell.settle()
    shell.replay()
    shell.restart()


def ask_for(
    shell: Shell, client: str = "asker", group: str = "PGREQ", caller: Caller = ALICE
) -> None:
    """Let a producer send its heartbeat, over Alice's connection by default."""
    body = {"clientID": client, "consumerDataSet": [], "producerDataSet": [{"groupName": group}]}
    assert shell.call(34, {}, fastjson.dumps(body), caller=caller).code == 0


def reply_properties(client: str = "asker") -> str:
    return properties(
        MSG_TYPE="reply", REPLY_TO_CLIENT=client, UNIQ_KEY="R1", TTL="8000", CORRELATION_ID="c-1"
    )


def submit(shell: Shell, props: str, *, code: int = 325) -> int:
    number = shell.submit(code, send_ext(REPLY_TOPIC, props, a="PGREP", g=17), b"pong", caller=BOB)
    shell.settle()
    return number


def pushes(shell: Shell) -> list[RemotingCommand]:
    return [s.command for s in shell.sent if s.connection == ALICE.connection and s.command.body]


def say(shell: Shell, push: RemotingCommand, code: int = 0) -> None:
    """Let the asking client answer a push."""
    response = RemotingCommand(code, push.opaque, FLAG_RESPONSE, {})
    shell.run(shell.core.handle(response, ALICE, shell.now))


def stored(shell: Shell) -> list[bytes]:
    reply = pull(shell, topic=REPLY_TOPIC)
    return bodies(reply) if reply.body else []


def test_a_reply_is_pushed_to_the_asking_client_and_stored(replier: Shell) -> None:
    """Law: a reply is pushed to the asking client and stored; the replier is answered when both are done."""
    ask_for(replier)

    number = submit(replier, reply_properties())

    (push,) = pushes(replier)
    assert (push.code, push.body, push.is_oneway) == (326, b"pong", False)
    pushed = dict(push.ext)
    assert decode_properties(pushed.pop("properties").encode()) == {
        "MSG_TYPE": "reply",
        "REPLY_TO_CLIENT": "asker",
        "UNIQ_KEY": "R1",
        "TTL": "8000",
        "CORRELATION_ID": "c-1",
        "PUSH_REPLY_TIME": str(replier.wall_ms),
    }
    assert pushed == {
        "producerGroup": "PGREP",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "17",
        "flag": "0",
        "bornHost": "192.0.2.2:40002",
        "storeHost": "192.0.2.100:10911",
        "storeTimestamp": str(replier.wall_ms),
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    assert replier.reply_to(number) is None

    say(replier, push)

    answer = replier.reply_to(number)
    assert answer is not None
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
    assert stored(replier) == [b"pong"]


def test_the_long_form_of_the_header_is_served_too(replier: Shell) -> None:
    """Law: the long form of the header (324) is served too."""
    ask_for(replier)
    ext = {
        "producerGroup": "PGREP",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "17",
        "flag": "0",
        "properties": reply_properties(),
    }

    replier.submit(324, ext, b"pong", caller=BOB)
    replier.settle()

    assert [push.body for push in pushes(replier)] == [b"pong"]


def test_a_reply_that_does_not_say_whom_it_is_for_is_stored_and_refused(replier: Shell) -> None:
    """Law: a reply without REPLY_TO_CLIENT is stored, and answered with 1 and RocketMQ's remark."""
    number = submit(replier, properties(MSG_TYPE="reply", UNIQ_KEY="R1"))

    answer = replier.reply_to(number)
    assert answer is not None
    assert (answer.code, answer.remark) == (
        1,
        "reply message properties[REPLY_TO_CLIENT] is null",
    )
    assert answer.ext["queueOffset"] == "0"
    assert stored(replier) == [b"pong"]


def test_a_reply_to_a_client_that_is_gone_is_stored_and_refused(replier: Shell) -> None:
    """Law: a reply to a client that never came or is gone is stored and answered with 1."""
    ask_for(replier)
    replier.run(replier.core.connection_closed(ALICE.connection))

    answers = [
        replier.reply_to(submit(replier, reply_properties(client))) for client in ("asker", "other")
    ]

    assert [(answer.code, answer.remark) for answer in answers if answer is not None] == [
        (1, "push reply message fail, channel of <asker> not found."),
        (1, "push reply message fail, channel of <other> not found."),
    ]
    assert stored(replier) == [b"pong"] * 2


def test_a_reply_finds_its_client_among_others_of_its_connection(replier: Shell) -> None:
    """Law: a reply finds its client even if another client sent a heartbeat over the same connection since."""
    ask_for(replier)
    heartbeat_of_nothing = {"clientID": "other", "producerDataSet": []}
    assert replier.call(34, {}, fastjson.dumps(heartbeat_of_nothing)).code == 0

    submit(replier, reply_properties())

    assert [push.body for push in pushes(replier)] == [b"pong"]


@pytest.mark.parametrize("how", ["refuses", "is silent", "goes away", "new leader"])
def test_a_reply_that_does_not_arrive_is_reported(replier: Shell, how: str) -> None:
    """Law: the replier gets 1 if the asking client refuses, is silent for 3 s or lost, or if the leader changes."""
    ask_for(replier)
    number = submit(replier, reply_properties())
    (push,) = pushes(replier)

    match how:
        case "refuses":
            say(replier, push, code=1)
        case "is silent":
            replier.pass_time(3_100)
        case "goes away":
            replier.run(replier.core.connection_closed(ALICE.connection))
        case _:
            replier.follow()

    answer = replier.reply_to(number)
    assert answer is not None
    assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")


def test_the_push_does_not_wait_for_the_log_and_the_answer_does(replier: Shell) -> None:
    """Law: the push does not wait for the log; the answer to the replier does."""
    ask_for(replier)

    number = replier.submit(325, send_ext(REPLY_TOPIC, reply_properties()), b"pong", caller=BOB)
    (push,) = pushes(replier)
    say(replier, push)
    assert replier.reply_to(number) is None
    replier.settle()

    answer = replier.reply_to(number)
    assert answer is not None
    assert answer.code == 0


def test_a_reply_to_a_topic_that_may_not_be_written_is_refused(replier: Shell) -> None:
    """Law: a reply to a topic without write permission is refused."""
    reply = replier.call(325, send_ext("SCHEDULE_TOPIC_XXXX", reply_properties()), b"pong")

    assert reply.code == 16


def test_who_is_asked_and_does_not_answer_keeps_no_reply_away(replier: Shell) -> None:
    """Law: requests to clients and replies have separate places, and each client has its own,
    so that a silent client delays no reply.
    """
    ask_for(replier)
    heartbeat(replier, "silent", caller=TOOL)
    info = {"consumerGroup": "billing", "clientId": "silent", "jstackEnable": "false"}
    for _ in range(TOOLS.in_all):
        replier.submit(307, info, caller=TOOL)

    number = submit(replier, reply_properties())
    (push,) = pushes(replier)
    say(replier, push)

    answer = replier.reply_to(number)
    assert answer is not None
    assert answer.code == 0


def test_an_asking_client_that_takes_no_reply_keeps_none_from_others(replier: Shell) -> None:
    """Law: replies that a client does not take are limited per client; further ones are stored and answered with busy."""
    ask_for(replier)
    ask_for(replier, "silent", "PGSILENT", TOOL)
    ext = send_ext(REPLY_TOPIC, reply_properties("silent"))
    taken = [replier.submit(325, ext, b"pong", caller=BOB) for _ in range(REPLIES.of_asked)]

    refused = replier.reply_to(submit(replier, reply_properties("silent")))
    submit(replier, reply_properties())

    assert refused is not None
    assert (refused.code, "to this client" in (refused.remark or "")) == (2, True)
    assert [replier.reply_to(number) for number in taken] == [None] * len(taken)
    assert len(pushes(replier)) == 1


def test_a_reply_under_way_keeps_no_body(replier: Shell) -> None:
    """Law: a reply that waits for the client keeps no copy of its body."""
    ask_for(replier)
    body = b"pong" * 1_000
    before = getrefcount(body)

    replier.submit(325, send_ext(REPLY_TOPIC, reply_properties()), body, caller=BOB)
    replier.settle()
    assert [push.body for push in pushes(replier)] == [body]
    replier.sent.clear()
    replier.proposals.clear()

    assert len(replier.core.calls) == 1
    assert getrefcount(body) == before
