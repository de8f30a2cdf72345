"""Repeated sends while the first is uncommitted: a limited number waits for the first, and each is answered once."""

import sys
from types import FrameType

import pytest

from orderlymq_broker.core import capacity, repeats
from orderlymq_broker.processors.send.batches import READ_COUNT_MAX
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.codes import ResponseCode
from tests.broker.processors.driver import ALICE, BOB, Shell
from tests.broker.processors.halves import COMMIT, ROLLBACK, begin, end_ext, found
from tests.broker.processors.requests import create, heartbeat, lock_body, send, send_ext
from tests.broker.processors.send.test_batches import many, places
from tests.broker.processors.send.test_sends import ORDERED, stored

BUSY = ResponseCode.SYSTEM_BUSY
AS_BATCH = send_ext("orders", m="true")


def codes(shell: Shell, opaques: list[int]) -> list[int | None]:
    """Return the answer code of each request, or None for no answer yet."""
    replies = [shell.reply_to(opaque) for opaque in opaques]
    return [None if reply is None else reply.code for reply in replies]


def calls_for_a_repeat(count: int) -> int:
    """Return the number of function calls while a batch and its repeat are applied and answered."""
    shell = Shell().lead()
    create(shell, ORDERED)
    opaques = []
    for caller in (ALICE, BOB):
        opaques.append(shell.submit(320, AS_BATCH, many(count), caller=caller))
        while shell.later:
            shell.go_on()
    calls = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        shell.settle()
    finally:
        sys.setprofile(None)
    assert codes(shell, opaques) == [0, 0]
    return calls


def test_a_repeated_batch_costs_what_its_messages_cost() -> None:
    """Law: the work for a repeated batch grows in proportion to its messages, not with their square:
    the leader must not be silent long.
    """
    assert calls_for_a_repeat(2_000) < 6 * calls_for_a_repeat(500)


def test_a_batch_that_is_applied_while_its_repeat_is_read_answers_the_repeat(shell: Shell) -> None:
    """Law: a repeat that finds some of its messages uncommitted and others stored is answered with the first send's
    places.
    """
    create(shell, ORDERED)
    body = many(READ_COUNT_MAX + READ_COUNT_MAX // 2)
    first = shell.submit(320, AS_BATCH, body)
    shell.go_on()
    repeat = shell.submit(320, AS_BATCH, body)

    shell.turn()
    assert codes(shell, [first, repeat]) == [0, None]
    shell.settle()

    at = [places(reply) for each in (first, repeat) if (reply := shell.reply_to(each)) is not None]
    assert len(at) == 2
    assert at[0] == at[1]


def test_repeats_that_become_known_together_are_answered_some_at_a_time(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: repeats are answered some per turn, so that a message sent a hundred thousand times does not block other
    clients.
    """
    create(shell, ORDERED)
    monkeypatch.setattr(repeats, "ANSWERED_MAX", 4)
    ext = send_ext("orders", "UNIQ_KEY\x01U")
    opaques = [shell.submit(310, ext, b"paid") for _ in range(7)]
    batches = [shell.submit(320, AS_BATCH, many(3)) for _ in range(5)]

    answered = []
    shell.go_on()
    shell.turn()
    while shell.later:
        answered.append(len([each for each in codes(shell, [*opaques, *batches]) if each == 0]))
        shell.go_on()

    # Each message of a batch counts; the first send is answered when it is applied.
    assert answered == [2, 6, 9, 11]
    assert codes(shell, [*opaques, *batches]) == [0] * 12
    assert shell.core.context.view.repeats == 0


@pytest.mark.parametrize("single", [True, False])
def test_repeats_of_a_send_are_refused_for_a_while_beyond_a_number(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, *, single: bool
) -> None:
    """Law: beyond a number of waiting repeats, more are refused as busy, so that memory stays bounded;
    other requests keep their room.
    """
    create(shell, ORDERED, GroupSet("billing"))
    heartbeat(shell, "alice")
    monkeypatch.setattr(capacity, "UNCOMMITTED_COUNT_MAX", 7)
    code, ext, body = (
        (310, send_ext("orders", "UNIQ_KEY\x01U"), b"paid") if single else (320, AS_BATCH, many(3))
    )
    opaques = [shell.submit(code, ext, body) for _ in range(9)]

    # A repeat of a batch counts once for each of its messages.
    waiting = 1 + (6 if single else 2)
    assert codes(shell, opaques) == [None] * waiting + [BUSY] * (9 - waiting)
    assert not shell.closed
    lock = shell.submit(41, {}, lock_body("alice", 0))
    assert codes(shell, [lock]) == [None]
    shell.settle()
    assert codes(shell, [*opaques[:waiting], lock]) == [0] * (waiting + 1)
    assert shell.core.context.view.repeats == 0
    assert shell.call(code, ext, body).code == 0
    assert len(stored(shell)) == (1 if single else 3)


def test_messages_handed_back_again_are_refused_for_a_while_beyond_a_number(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: repeated returns of a message (code 36) beyond a number are refused as busy;
    the copy is stored once and all others are answered.
    """
    create(shell, ORDERED, GroupSet("billing"), TopicSet("%RETRY%billing", 1, 1))
    send(shell, props="UNIQ_KEY\x01U")
    monkeypatch.setattr(capacity, "UNCOMMITTED_COUNT_MAX", 2)
    ext = {"offset": "0", "group": "billing", "delayLevel": "1"}

    opaques = [shell.submit(36, ext) for _ in range(3)]

    assert codes(shell, opaques) == [None, None, BUSY]
    shell.settle()
    assert codes(shell, opaques) == [0, 0, BUSY]
    assert shell.core.context.view.repeats == 0


@pytest.mark.parametrize("choice", [COMMIT, ROLLBACK])
def test_ends_of_a_transaction_are_refused_for_a_while_beyond_a_number(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, choice: int
) -> None:
    """Law: repeated ends of a transaction are limited in the same way; one-way requests take no room."""
    create(shell, ORDERED)
    half = begin(shell)
    monkeypatch.setattr(capacity, "UNCOMMITTED_COUNT_MAX", 2)
    for _ in range(5):
        shell.submit(37, end_ext(half, choice), oneway=True)
    opaques = [shell.submit(37, end_ext(half, choice)) for _ in range(2)]

    assert codes(shell, opaques) == [None, BUSY]
    shell.settle()
    assert codes(shell, opaques) == [0, BUSY]
    assert shell.core.context.view.repeats == 0
    assert found(shell) == ([b"paid"] if choice == COMMIT else [])


def test_repeats_that_wait_when_leadership_is_lost_are_refused_with_the_first(
    shell: Shell,
) -> None:
    """Law: when leadership is lost, waiting repeats are refused with the first send and do not count in the next
    leadership.
    """
    create(shell, ORDERED)
    ext = send_ext("orders", "UNIQ_KEY\x01U")
    opaques = [shell.submit(310, ext, b"paid") for _ in range(3)]

    shell.lose_proposals()
    shell.settle()

    assert codes(shell, opaques) == [14, 14, 14]
    assert shell.core.context.view.repeats == 0
    assert shell.call(310, ext, b"paid").code == 0
