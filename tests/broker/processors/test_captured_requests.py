"""Captured requests of real clients, sent to the core."""

import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_protocol.frame.codec import FrameDecoder
from orderlymq_protocol.header.catalogue import REQUEST_HEADERS
from tests.broker.processors.driver import ALICE, Shell
from tests.protocol.golden import GoldenFrame, frames

# Refusals that are right for requests made to another broker, whose topics, groups and messages
# do not exist here.
REFUSALS = (
    "not exist",
    "not latest",
    "look message by offset failed",
    "can not find message",
    "no consumer for this group",
    "SQL92",
    "find prepared transaction message failed",
    "is not a half message",
    "has no queue",
    "illegal",
    "not online",
    "[reset-offset]",
)


def captured() -> list[GoldenFrame]:
    served = Shell().lead().core.codes
    return [
        frame
        for frame in frames()
        if frame.is_request and frame.server in ("broker", "variant") and frame.code in served
    ]


def test_every_captured_request_is_understood() -> None:
    """Law: requests of Java 4.3, 4.9 and 5.3 and their tools are served, or refused for data that does not exist here."""
    shell = Shell().lead()
    requests = captured()
    assert len(requests) > 60

    for number, frame in enumerate(requests):
        (command,) = FrameDecoder().receive_data(frame.wire)
        command.opaque = number
        shell.run(shell.core.handle(command, ALICE, shell.now))
        shell.settle()
        reply = shell.reply_to(number)
        if command.is_oneway:
            assert reply is None
        elif reply is not None and reply.code not in (0, 19, 20, 21):
            assert any(text in (reply.remark or "") for text in REFUSALS), (frame.line, reply)

    shell.replay()


@pytest.mark.parametrize("leads", [True, False])
def test_no_answer_to_a_further_listener_has_the_inner_address(leads: bool) -> None:
    """Law: no answer to a client of a further listener contains the inner address. Message ids are no addresses to call."""
    shell = Shell().lead()
    if not leads:
        shell.follow()
    outside = Caller(1, ALICE.host, ALICE.port, listener="outside")
    inner = str(shell.settings.address.host)

    for number, frame in enumerate(captured()):
        (command,) = FrameDecoder().receive_data(frame.wire)
        command.opaque = number
        shell.run(shell.core.handle(command, outside, shell.now))
        shell.settle()
        reply = shell.reply_to(number)
        if reply is not None:
            told = f"{reply.remark} {reply.ext} {reply.body!r}"
            assert inner not in told, (frame.line, reply)


@pytest.mark.parametrize(
    "code",
    # RocketMQ requires no field of 317 either and answers for all topics.
    sorted({frame.code for frame in captured() if frame.code in REQUEST_HEADERS} - {317}),
)
def test_a_captured_request_without_its_header_is_refused(code: int) -> None:
    """Law: a request without its required fields names the missing one; an offset query is closed,
    because its sender would misread a code.
    """
    shell = Shell().lead()
    reply = shell.ask(code)

    if reply is None:
        assert (code, "<" in shell.closed[0].reason) == (14, True)
        return
    assert reply.code == 1
    # RocketMQ requires no field of 321; the missing topic is refused.
    assert ("is not exist!" if code == 321 else "<") in (reply.remark or "")
