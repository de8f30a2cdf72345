"""The outcome of a send after its tries, and the messages that may be sent."""

import ast
import inspect
from datetime import datetime
from enum import IntEnum
from math import inf, nan
from typing import Any

import pytest

from orderlymq import Producer
from orderlymq.errors import SendRefused, SendUnknown, SettingError, TopicNotFound
from orderlymq.message import Message
from orderlymq.producer import sendoutcome
from orderlymq.producer.requests import batch_entry
from orderlymq.producer.sendoutcome import (
    Attempts,
    QueuesChanged,
    as_message,
    check_batch,
    check_batch_size,
    check_choice,
    check_message,
    leading_message,
    split_batch,
)
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.batch import encode_batch
from orderlymq_runtime.remoting.client import ConnectFailed, ConnectionLost

MIB = 1024 * 1024


def _answer(code: int, remark: str = "no") -> RemotingCommand:
    return RemotingCommand(code, remark=remark)


def test_a_send_whose_every_try_was_refused_is_refused() -> None:
    """Law: a send whose tries were all refused is refused, with code, broker and "stored: no" (SND-11)."""
    attempts = Attempts(3.0, "T")
    attempts.note_refusal("b:1", _answer(14, "disk full"))

    error = attempts.error()

    assert isinstance(error, SendRefused)
    assert (error.code, error.address, error.stored) == (14, "b:1", "no")
    assert "disk full" in str(error)
    assert "stored: no" in str(error)


def test_a_refusal_after_a_lost_answer_is_still_unknown() -> None:
    """Law: a refusal after a lost answer is unknown, because the first try may be stored."""
    attempts = Attempts(3.0, "T")
    attempts.note_failure("b:1", ConnectionLost("reset", address="b:1", maybe_sent=True))
    attempts.note_refusal("b:1", _answer(14))

    assert isinstance(attempts.error(), SendUnknown)


def test_a_fence_after_a_lost_answer_leaves_the_send_unknown() -> None:
    """Law: a fence after a lost answer leaves the send unknown, because an aborted expansion may still accept the first
    try (seed 3511).
    """
    attempts = Attempts(3.0, "T")
    attempts.note_failure("b:1", ConnectionLost("reset", address="b:1", maybe_sent=True))
    attempts.note_refusal("b:1", _answer(ResponseCode.ORDERLYMQ_QUEUES_CHANGED))

    with pytest.raises(QueuesChanged) as caught:
        attempts.raise_if_final()

    assert caught.value.maybe_stored


def test_a_send_that_never_left_is_refused() -> None:
    """Law: a send that never left (no connection, no leader) is refused."""
    attempts = Attempts(3.0, "T")
    attempts.note_failure("b:1", ConnectFailed("refused", address="b:1", maybe_sent=False))
    attempts.note_no_address("broker-a")

    error = attempts.error()

    assert isinstance(error, SendRefused)
    assert "no leader's address" in str(error)
    assert "2 tries" in str(error)


@pytest.mark.parametrize("code", [2, 14, 215, 501, 1500])
def test_answers_that_mean_later_are_tried_again_on_the_same_queue(code: int) -> None:
    """Law: codes that mean "later" are tried again on the same queue (wire 4.9)."""
    attempts = Attempts(3.0, "T")
    attempts.note_refusal("b:1", _answer(code))

    attempts.raise_if_final()


def test_a_busy_broker_behind_code_1_is_tried_again() -> None:
    """Law: code 1 with "broker busy" is tried again (FLW-07)."""
    attempts = Attempts(3.0, "T")
    attempts.note_refusal("b:1", _answer(1, "[PC_SYNCHRONIZED]broker busy, start flow control"))

    attempts.raise_if_final()


@pytest.mark.parametrize("code", [1, 13, 16])
def test_other_answers_are_final_for_a_fixed_queue(code: int) -> None:
    """Law: other codes are final for a fixed queue."""
    attempts = Attempts(3.0, "T")
    attempts.note_refusal("b:1", _answer(code))

    with pytest.raises(SendRefused):
        attempts.raise_if_final()


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
def test_a_plain_send_tries_these_elsewhere(code: int) -> None:
    """Law: a plain send tries RocketMQ's list of codes, and 5.x's code 2, elsewhere (SND-06)."""
    attempts = Attempts(3.0, "T")
    attempts.note_refusal("b:1", _answer(code))

    attempts.raise_if_final(plain=True)
    illegal = Attempts(3.0, "T")
    illegal.note_refusal("b:1", _answer(13))
    with pytest.raises(SendRefused):
        illegal.raise_if_final(plain=True)


def test_a_try_is_early_when_it_surely_stored_nothing_and_another_may_be_taken() -> None:
    """Law: a try is early if it surely stored nothing and another may be accepted (no connection, no leader, busy)."""
    attempts = Attempts(3.0, "T")
    found: list[bool] = []
    for maybe_sent in (True, False):
        attempts.note_failure("b:1", ConnectionLost("r", address="b:1", maybe_sent=maybe_sent))
        found.append(attempts.is_early)
    for code in (1, 14, 16):
        attempts.note_refusal("b:1", _answer(code))
        found.append(attempts.is_early)
    attempts.note_no_address("broker-a")

    assert found == [False, True, False, True, False]
    assert attempts.is_early


def test_a_missing_topic_is_named_with_the_cure() -> None:
    """Law: a missing topic's error names the command that creates it (PRO-08)."""
    attempts = Attempts(3.0, "T")
    attempts.note_refusal("b:1", _answer(17, "topic[T] not exist"))

    assert isinstance(attempts.error(), TopicNotFound)
    assert "orderlymq topic create T" in str(attempts.error())


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message(topic="", body=b"x"), "topic name is empty"),
        (Message(topic="a/b", body=b"x"), "characters outside"),
        (Message(topic="t" * 128, body=b"x"), "limit is 127"),
        (Message(topic="SCHEDULE_TOPIC_XXXX", body=b"x"), "belongs to the broker"),
        (Message(topic="T", body=b""), "body is empty"),
        (Message(topic="T", body=b"x" * (4 * MIB + 1)), "limit is 4194304"),
        (Message(topic="T", body=b"x", delay_level=19), "in [0, 18]"),
        (Message(topic="T", body=b"x", key=""), "the key is empty"),
        (Message(topic="T", body=b"x", key=1.5), "text or an integer, not float"),  # type: ignore[arg-type]  # as users err
        (Message(topic="T", body=b"x", flag=2**31), "32 bits"),
        (Message(topic=b"T", body=b"x"), "which is not a text"),  # type: ignore[arg-type]  # these too
        (Message(topic="T", body=b"x", tags=5), "the property 'tags' is 5"),  # type: ignore[arg-type]
        (Message(topic="T", body=b"x", properties={"a": 1}), "the property 'a' is 1"),  # type: ignore[dict-item]
        (Message(topic="T", body=b"x", properties={1: "a"}), "both must be texts"),  # type: ignore[dict-item]
        (Message(topic="T", body=b"x", keys=(1, 2)), "a text or several texts"),  # type: ignore[arg-type]
        (Message(topic="T", body=b"x", keys=b"k"), "a text or several texts"),  # type: ignore[arg-type]
        (Message(topic="T", body=b"x", delay_level="3"), "delay_level is '3'"),  # type: ignore[arg-type]
        (Message(topic="T", body=b"x", flag=1.5), "flag is 1.5"),  # type: ignore[arg-type]
        (Message(topic="T", body=b"x", properties={"a\x01b": "c"}), "separator"),
        (Message(topic="T", body=b"x", properties={"a": "c" * 33_000}), "limit is 32767"),
    ],
)
def test_what_a_broker_would_refuse_is_refused_before(message: Message, text: str) -> None:
    """Law: what a broker would refuse is refused before, with the limit in the text (PRO-04, PRO-11)."""
    with pytest.raises(SettingError) as caught:
        check_message(message, 4 * MIB)

    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"body": {"a": 1}}, "bytes or text, not dict"),
        ({"body": None}, "bytes or text, not NoneType"),
        ({"body": "\ud800"}, "cannot be encoded as UTF-8"),
        ({"properties": [("a", "b")]}, "a mapping of texts, not list"),
        ({"deliver_at": "2030-01-01"}, "must be a datetime"),
        ({"deliver_at": datetime.min}, "that has a timestamp"),  # noqa: DTZ901 - the first one has none
        ({"delay": nan}, "not a time span"),
        ({"delay": inf}, "is infinite"),
        ({"delay": 10**400}, "not a time span"),
    ],
)
def test_a_message_is_made_of_what_can_be_sent(given: dict[str, Any], text: str) -> None:
    """Law: a message's constructor refuses what would fail in the connection."""
    with pytest.raises(SettingError, match=text):
        Message(**{"topic": "T", "body": b"x", **given})


def test_a_body_that_is_set_later_is_checked_when_it_is_sent() -> None:
    """Law: a body set later is checked when it is sent."""
    message = Message(topic="T", body=b"x")
    message.body = {"a": 1}  # type: ignore[assignment]  # as users err

    with pytest.raises(SettingError, match="bytes or text, not dict"):
        check_message(message, MIB)


def test_the_constructor_that_type_checkers_read_is_that_of_the_fields() -> None:
    """Law: the constructor declared for type checkers has the real one's fields, and takes text as a body."""
    (declared,) = (
        node
        for node in ast.walk(ast.parse(inspect.getsource(Message)))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    real = inspect.signature(Message).parameters

    assert [each.arg for each in declared.args.kwonlyargs] == list(real)
    assert [each is None for each in declared.args.kw_defaults] == [
        each.default is inspect.Parameter.empty for each in real.values()
    ]
    assert Message(topic="T", body="text").body == b"text"


def test_a_buffer_may_be_filled_again_while_its_message_is_on_its_way() -> None:
    """Law: a message copies a mutable buffer, so that a repeat has the same body."""
    buffer = bytearray(b"one")
    messages = [Message(topic="T", body=body) for body in (buffer, memoryview(buffer))]
    buffer[:] = b"two"

    assert [message.body for message in messages] == [b"one", b"one"]


@pytest.mark.parametrize("linger", [-1, inf, 61, nan])
def test_a_linger_has_an_end(linger: float) -> None:
    """Law: linger has a maximum; a send without company would wait for ever."""
    with pytest.raises(SettingError, match=r"linger is|not a time span"):
        Producer("P", linger=linger)


def test_the_largest_message_passes() -> None:
    """Law: a message of exactly 4 MiB is accepted (PRO-11)."""
    check_message(Message(topic="T", body=b"x" * 4 * MIB), 4 * MIB)


@pytest.mark.parametrize("name", ["KEYS", "OMQ_BODY_CRC", "OMQ_HELD_BEHIND"])
def test_reserved_property_names_are_refused(name: str) -> None:
    """Law: reserved property names are refused, those of 4.x clients and our own (wire 2.2)."""
    with pytest.raises(SettingError, match=f"{name} is reserved"):
        Message(topic="T", body=b"x", properties={name: "a"})


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "the batch is empty"),
        (Message(topic="A", body=b"x"), "give a list of Message"),
        (iter([Message(topic="A", body=b"x")]), "give a list of Message"),
        ([b"x"], "give a list of Message"),
        ([Message(topic="A", body=b"x"), Message(topic="B", body=b"x")], "must have one topic"),
        (
            [Message(topic="A", body=b"x", delay_level=2)],
            "delay level is not supported for batching",
        ),
        ([Message(topic="%RETRY%g", body=b"x")], "retry topic cannot be batched"),
        (
            [Message(topic="A", body=b"x"), Message(topic="A", body=b"x", wait_store_ok=False)],
            "agree in wait_store_ok",
        ),
        ([Message(topic="A", body=b"x")] * 20_001, "cut it with split_batch"),
    ],
)
def test_batches_that_cannot_be_one_append_are_refused(messages: Any, text: str) -> None:
    """Law: a batch that cannot be stored together is refused with the reason (BAT-03, BAT-04)."""
    with pytest.raises(SettingError) as caught:
        check_batch(messages, 4 * MIB)

    assert text in str(caught.value)


def test_the_splitter_keeps_order_and_every_part_fits() -> None:
    """Law: split_batch keeps the order, and every part fits (BAT-04)."""
    messages = [Message(topic="A", body=bytes([n]) * 300_000) for n in range(40)]

    parts = list(split_batch(messages))

    assert [each for part in parts for each in part] == messages
    assert len(parts) > 1
    assert list(split_batch([])) == []


@pytest.mark.parametrize("size", [1, 10, 200, 1000])
@pytest.mark.parametrize(
    "key", [None, "k", "customer-7f3c1f0e-6f0b-4a55-8a62-0d5f6a2f9a11", "ü" * 40]
)
@pytest.mark.parametrize("traced", [True, False])
def test_every_part_fits_with_what_it_gets_when_it_is_sent(
    monkeypatch: pytest.MonkeyPatch, size: int, key: str | None, traced: bool
) -> None:
    """Law: every part also fits with what a send adds: a key, unique keys, trace properties."""
    monkeypatch.setattr(sendoutcome, "installed", [object()] if traced else [])
    messages = [Message(topic="A", body=b"x" * size)] * 20_001

    # The next parts are cut like this one, which is full.
    part = next(split_batch(messages, key=key))
    assert len(part) < len(messages)
    check_batch(part, 4 * MIB)
    messages[0].key = key
    messages[0].unique_key = "U" * 56
    if traced:
        messages[0].properties = {"traceparent": "t" * 55, "tracestate": "s" * 512}
    check_batch_size(len(encode_batch([batch_entry(messages[0])] * len(part))), 4 * MIB)


class Level(IntEnum):
    """Delay levels as a program may name them."""

    TEN_SECONDS = 3


def test_a_level_may_be_a_member_of_an_enum() -> None:
    """Law: a delay level may be a member of an enum and is stored as its number."""
    message = Message(topic="T", body=b"x", delay_level=Level.TEN_SECONDS)

    check_message(message, 1_000)

    assert b"DELAY\x013\x02" in batch_entry(message).properties


BESIDE = {"body": b"x", "tags": "A", "keys": "k", "properties": {"a": "b"}, "delay_level": 3}


@pytest.mark.parametrize("name", BESIDE)
def test_what_a_message_says_itself_cannot_be_said_beside_it(name: str) -> None:
    """Law: an argument that a Message has itself is refused next to it."""
    nothing = {"body": b"", "tags": "", "keys": "", "properties": None, "delay_level": 0}
    given = {**nothing, name: BESIDE[name]}

    with pytest.raises(SettingError, match=f"{name} cannot be given together with a Message"):
        as_message(Message(topic="T", body=b"y"), **given, key=None)  # type: ignore[arg-type]  # one of many types


def test_a_message_has_one_key() -> None:
    """Law: two different keys for one message are refused; the same key may be named twice."""
    nothing = {"body": b"", "tags": "", "keys": "", "properties": None, "delay_level": 0}
    with pytest.raises(SettingError, match="has the key 'k', and the argument key is 'other'"):
        as_message(Message(topic="T", body=b"y", key="k"), **nothing, key="other")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="the property __SHARDINGKEY is 'z'; give one of them"):
        Message(topic="T", body=b"y", key="k", properties={"__SHARDINGKEY": "z"})

    same = Message(topic="T", body=b"y", key=7, properties={"__SHARDINGKEY": "7"})
    assert as_message(same, **nothing, key="7").stored_key == "7"  # type: ignore[arg-type]


def test_a_message_cannot_be_delayed_into_the_past() -> None:
    """Law: a negative delay is refused, as on the command line."""
    with pytest.raises(SettingError, match=r"delay is -5; it must not be negative"):
        Message(topic="T", body=b"y", delay=-5)


def test_only_one_argument_chooses_the_queue() -> None:
    """Law: two arguments that choose the queue, or one without its selector, are refused."""
    with pytest.raises(SettingError, match="key or queue, not both"):
        check_choice(0, key="")
    with pytest.raises(SettingError, match="queue or selector, not both"):
        check_choice(0, object(), None)
    with pytest.raises(SettingError, match="argument is for a selector"):
        check_choice(0, None, "x")
    for wrong in ("0", 1.0, True):
        with pytest.raises(SettingError, match="give a MessageQueue, or its number"):
            check_choice(wrong)
    check_choice(None, object(), "x")


def test_the_key_of_a_batch_is_that_of_all_its_messages() -> None:
    """Law: a batch has one key; messages with different keys are refused."""
    plain, one, other = (Message(topic="T", body=b"x", key=key) for key in (None, "a", "b"))

    assert leading_message([plain, plain]) is plain
    assert leading_message([plain, one, one]) is one
    with pytest.raises(SettingError, match="the keys 'a' and 'b'"):
        leading_message([one, plain, other])
