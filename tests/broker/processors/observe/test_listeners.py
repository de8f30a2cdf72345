"""For a queue that stands still, the broker asks its consumer about the listener and shows the answer with care."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.processors.observe.listeners import (
    ASKED_MAX,
    ERROR_LENGTH_MAX,
    TIMEOUT_MS,
    UNKNOWN,
    in_words,
    read_running_info,
)
from orderlymq_broker.processors.observe.watch import ASKED_MS, BLOCKED_MS, LOOK_MS
from orderlymq_broker.state.records import GroupSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import LanguageCode
from orderlymq_protocol.frame.command import FLAG_RESPONSE, RemotingCommand
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import ALICE, BOB, START_MS
from tests.broker.processors.requests import (
    BROKER,
    create,
    heartbeat,
    heartbeat_body,
    lock,
    lock_body,
    send,
)

QUEUE = MessageQueue("orders", BROKER, 0)
CALLED_MS = START_MS - 1_000


@pytest.fixture
def still(admin: AdminShell) -> AdminShell:
    """An ordered group whose member holds a queue with a message that it does not complete."""
    create_topic(admin, order=True)
    create(admin, GroupSet("billing", orderly=True))
    heartbeat(admin, "alice")
    lock(admin, "alice", 0)
    send(admin, props="UNIQ_KEY\x01ID0", e=0)

    return admin


def questions(admin: AdminShell, caller: Caller = ALICE) -> list[RemotingCommand]:
    """Return the requests sent over a connection, and forget them."""
    asked = [s for s in admin.sent if s.connection == caller.connection and s.command.code == 307]
    admin.sent = [s for s in admin.sent if s not in asked]

    return [s.command for s in asked if not s.command.is_response]


def first_question(admin: AdminShell) -> RemotingCommand:
    """Let time pass until the holder is asked."""
    for _ in range(BLOCKED_MS // 500):
        admin.pass_time(500)
        for question in questions(admin):
            return question
    raise AssertionError("nobody was asked before the queue is called blocked")


def say(admin: AdminShell, question: RemotingCommand, body: bytes, caller: Caller = ALICE) -> None:
    response = RemotingCommand(0, question.opaque, FLAG_RESPONSE, {}, body)
    admin.run(admin.core.handle(response, caller, admin.now))


def info(**values: Any) -> bytes:
    return fastjson.dumps({"mqTable": {QUEUE: values}, "properties": {}})


def blocked(admin: AdminShell) -> dict[str, Any]:
    """Let a look pass and return the one queue that stands still."""
    admin.pass_time(LOOK_MS, step=500)
    (row,) = admin.core.group_status()["watch"]["blocked"]
    found: dict[str, Any] = row

    return found


def test_the_first_warning_shows_tries_and_error(still: AdminShell) -> None:
    """Law: the holder is asked before its queue counts as blocked; row and log show its answer."""
    question = first_question(still)
    assert question.ext == {
        "consumerGroup": "billing",
        "clientId": "alice",
        "jstackEnable": "false",
    }
    say(
        still,
        question,
        info(
            omqTries=12,
            omqLastError="ValueError: no such order",
            lastConsumeTimestamp=CALLED_MS,
            cachedMsgCount=3,
        ),
    )
    still.pass_time(BLOCKED_MS - ASKED_MS, step=500)

    row = blocked(still)

    assert {name: row[name] for name in UNKNOWN} == {
        "listenerTries": 12,
        "listenerError": "ValueError: no such order",
        "listenerCalled": CALLED_MS,
        "cached": 3,
        "listenerSuspended": None,
        "listenerRunning": None,
    }
    (text,) = still.core.watch.warnings.take()
    assert "failed 12 times, last with ValueError: no such order" in text


def test_rocketmqs_clients_report_what_they_have(still: AdminShell) -> None:
    """Law: RocketMQ's clients report the listener's last call and the cached messages, but no tries or errors."""
    question = first_question(still)

    say(still, question, info(lastConsumeTimestamp=CALLED_MS, cachedMsgCount=7, locked=True))

    still.pass_time(BLOCKED_MS - ASKED_MS, step=500)
    row = blocked(still)
    assert (row["listenerTries"], row["listenerError"]) == (None, None)
    assert (row["listenerCalled"], row["cached"]) == (CALLED_MS, 7)
    assert row["listener"] == "its consumer has 7 messages of it and reports no errors"


def test_who_is_silent_is_asked_again_and_one_question_at_a_time(still: AdminShell) -> None:
    """Law: a silent client gets one request per time-out, and the row says that nothing is known."""
    first_question(still)

    still.pass_time(BLOCKED_MS, step=500)

    assert 1 <= len(questions(still)) <= BLOCKED_MS // TIMEOUT_MS
    assert blocked(still)["listener"] == "its consumer reports nothing about its listener"


def test_a_late_answer_and_one_over_another_connection_count_for_nothing(still: AdminShell) -> None:
    """Law: late answers, and answers over another connection, do not count."""
    question = first_question(still)

    say(still, question, info(omqTries=1, omqLastError="a lie"), caller=BOB)
    still.pass_time(TIMEOUT_MS + 500, step=500)
    say(still, question, info(omqTries=1, omqLastError="too late"))
    still.pass_time(BLOCKED_MS - ASKED_MS, step=500)

    assert blocked(still)["listenerError"] is None


def test_clients_that_may_not_know_the_question_are_not_asked(admin: AdminShell) -> None:
    """Law: only clients that know the request are asked: Java from 3.1.8 on, C++, Go and our SDK."""
    create_topic(admin, order=True)
    create(admin, GroupSet("billing", orderly=True))
    for version, language in ((409, LanguageCode.NODE_JS), (61, LanguageCode.JAVA)):
        beat = RemotingCommand(34, 1_001, 0, {}, heartbeat_body("alice"), None, language, version)
        admin.run(admin.core.handle(beat, ALICE, admin.now))
        admin.settle()
        ask = RemotingCommand(41, 1_002, 0, {}, lock_body("alice", 0), None, language, version)
        admin.run(admin.core.handle(ask, ALICE, admin.now))
        admin.settle()
        send(admin, e=0)
        admin.pass_time(BLOCKED_MS, step=500)

        assert questions(admin) == []


def test_without_locks_every_member_is_asked_a_few_at_a_time(admin: AdminShell) -> None:
    """Law: without locks all members are asked, a few at a time."""
    create_topic(admin)
    create(admin, GroupSet("billing"))
    callers = [Caller(100 + number, "192.0.2.3", number) for number in range(ASKED_MAX + 4)]
    for caller in callers:
        heartbeat(admin, f"client-{caller.connection}", caller=caller)
    send(admin, e=0)

    admin.pass_time(BLOCKED_MS - LOOK_MS, step=500)
    counts = [len(questions(admin, caller)) for caller in callers]

    assert sum(counts) == ASKED_MAX
    assert max(counts) == 1


def test_what_was_said_is_forgotten_with_the_leadership_and_when_it_goes_on(
    still: AdminShell,
) -> None:
    """Law: an answer is forgotten when the queue moves or the leadership ends."""
    question = first_question(still)
    say(still, question, info(omqTries=5, omqLastError="of the last term"))

    still.follow()
    still.lead()
    heartbeat(still, "alice")
    lock(still, "alice", 0)
    still.pass_time(BLOCKED_MS, step=500)

    assert blocked(still)["listenerError"] is None


@given(
    st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"mqTable":[]}', b'{"mqTable":7}'])
)
def test_an_invalid_answer_proves_nothing(body: bytes) -> None:
    """Law: an invalid answer is ignored."""
    assert read_running_info(body) == {}


def test_values_of_other_types_are_left_out_and_long_errors_cut() -> None:
    """Law: only whole numbers from 0 on and texts of an answer are shown; long errors are cut."""
    body = info(
        omqTries="many", lastConsumeTimestamp=-1, cachedMsgCount=True, omqLastError="x" * 999
    )

    assert read_running_info(body) == {
        ("orders", 0): {**UNKNOWN, "listenerError": "x" * ERROR_LENGTH_MAX}
    }


def test_a_listener_that_hangs_is_distinguished_from_one_that_fails() -> None:
    """Law: the text distinguishes a listener that hangs from one that fails, if the client reports both."""
    hangs = in_words({**UNKNOWN, "listenerTries": 0, "listenerRunning": True})
    waits = in_words({**UNKNOWN, "listenerTries": 0, "listenerRunning": False})
    unsaid = in_words({**UNKNOWN, "listenerTries": 0})
    assert hangs == "its listener was called and has not returned"
    assert waits == "its listener was not called with it"
    assert unsaid == "its listener has not failed on it"
    suspended = in_words({**UNKNOWN, "listenerTries": 0, "listenerSuspended": True})
    assert suspended == "its program has suspended the consumer"
    assert in_words(UNKNOWN) == ""
