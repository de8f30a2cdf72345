"""Refusals that a Go client would take for success."""

from collections.abc import Callable

import pytest

from orderlymq_broker.core.capacity import set_disk
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.codes import LanguageCode, RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE, Shell
from tests.broker.processors.requests import create, heartbeat_body, properties, send

READS_CODES = [LanguageCode.JAVA, LanguageCode.CPP, LanguageCode.PYTHON, LanguageCode.NODE_JS]


def consumer(language: LanguageCode) -> tuple[Shell, Callable[[int], RemotingCommand]]:
    """Return a leader with a member and a message, and a function that makes the member's requests."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing", retry_max_times=16))
    send(shell, props=properties(UNIQ_KEY="U1"))
    shell.call(34, {}, heartbeat_body("192.0.2.1@1"))
    fields = {
        36: {"group": "billing", "offset": "0", "delayLevel": "0"},
        38: {"consumerGroup": "billing"},
    }

    def asked(code: int) -> RemotingCommand:
        return RemotingCommand(code, 9_000 + code, ext=fields[code], language=language)

    return shell, asked


def codes(shell: Shell, request: RemotingCommand) -> list[int]:
    """Return the answer codes of *request*, once nothing is uncommitted."""
    shell.settle()
    reply = shell.reply_to(request.opaque)
    return [] if reply is None else [reply.code]


def refuse_for_disk(shell: Shell, request: RemotingCommand) -> None:
    set_disk(shell.core.context, 0.95)
    shell.run(shell.core.handle(request, ALICE, shell.now))


def lose(shell: Shell, request: RemotingCommand) -> None:
    shell.run(shell.core.handle(request, ALICE, shell.now))
    shell.lose_proposals()


def lose_a_repeat(shell: Shell, request: RemotingCommand) -> None:
    """Let a repeat wait for the first request, stored without the fields that it does not need."""
    shell.submit(36, dict(request.ext))
    lose(shell, request)


def follow(shell: Shell, request: RemotingCommand) -> None:
    shell.follow(leader_known=False)
    shell.run(shell.core.handle(request, ALICE, shell.now))


def forget(shell: Shell, request: RemotingCommand) -> None:
    shell.call(35, {"clientID": "192.0.2.1@1", "consumerGroup": "billing"})
    shell.run(shell.core.handle(request, ALICE, shell.now))


REFUSALS = [
    (RequestCode.CONSUMER_SEND_MSG_BACK, refuse_for_disk),
    (RequestCode.CONSUMER_SEND_MSG_BACK, lose),
    (RequestCode.CONSUMER_SEND_MSG_BACK, lose_a_repeat),
    (RequestCode.CONSUMER_SEND_MSG_BACK, follow),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, follow),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, forget),
]


@pytest.mark.parametrize(("code", "refuse"), REFUSALS)
def test_gos_client_gets_no_answer_that_it_would_take_for_success(
    code: RequestCode, refuse: Callable[[Shell, RemotingCommand], None]
) -> None:
    """Law: a Go client gets no answer to certain refused requests, so that it keeps its message or its queues.

    Go's client reads no code: after any answer it skips the message, or sees no members to share the queues with. It heeds its
    time-out, and its other requests on the connection go on.
    """
    shell, asked = consumer(LanguageCode.GO)

    refuse(shell, asked(code))

    assert (codes(shell, asked(code)), shell.closed) == ([], [])


@pytest.mark.parametrize("language", READS_CODES)
@pytest.mark.parametrize(("code", "refuse"), REFUSALS)
def test_who_reads_codes_gets_every_refusal(
    language: LanguageCode, code: RequestCode, refuse: Callable[[Shell, RemotingCommand], None]
) -> None:
    """Law: a client that reads codes gets every refusal, and need not wait for a time-out."""
    shell, asked = consumer(language)

    refuse(shell, asked(code))

    (answered,) = codes(shell, asked(code))
    assert answered != 0


@pytest.mark.parametrize("code", [36, 38])
def test_gos_client_gets_every_answer_of_success(code: int) -> None:
    """Law: a Go client gets every answer of success."""
    shell, asked = consumer(LanguageCode.GO)

    shell.run(shell.core.handle(asked(code), ALICE, shell.now))

    assert codes(shell, asked(code)) == [0]
