"""Large requests with wrong signatures: each address may have only a limited number checked."""

import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.core.quotas import IDLE_MAX
from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.processors.admin.wrongsignatures import BYTES_PER_S
from orderlymq_broker.settings import AccessSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_broker.state.records import TopicSet
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import Shell, settings
from tests.broker.processors.requests import create, send_ext

SECRET = "12345678"
LARGE = b"x" * (1 << 20)
WRONG, BUSY = "Check signature failed", "had wrong signatures"
ADDRESS = "192.0.2.1"


@pytest.fixture
def guarded() -> Shell:
    """A broker with access control and an account that may send."""
    shell = Shell(settings(access=AccessSettings(enable=True))).lead()
    create(
        shell, TopicSet("orders", 1, 1), AccountSet("writer", SECRET, topic_perms={"orders": "PUB"})
    )
    return shell


def send(
    shell: Shell,
    body: bytes,
    secret: str,
    connection: int = 1,
    *,
    host: str = ADDRESS,
    code: int = RequestCode.SEND_MESSAGE_V2,
) -> tuple[int, str]:
    """Send a message; return code and remark of the answer."""
    fields = {**send_ext("orders"), "AccessKey": "writer"}
    fields["Signature"] = signature(fields, body, secret)
    reply = shell.call(code, fields, body, caller=Caller(connection, host, 40_000 + connection))
    return reply.code, reply.remark or ""


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.ORDERLYMQ_APPEND_COPIES])
def test_strangers_have_no_more_judged_than_their_rate(guarded: Shell, code: int) -> None:
    """Law: over any time and any connections, an address has no more bytes checked than its rate,
    one second's worth and one body.
    """
    seconds, judged = 8, 0

    for tick in range(seconds * 10):
        for each in range(5):
            _, remark = send(guarded, LARGE, "guessed", 100 + 5 * tick + each, code=code)
            assert (WRONG in remark) != (BUSY in remark)
            judged += len(LARGE) * (WRONG in remark)
        guarded.wall_ms += 100

    assert judged <= (seconds + 1) * BYTES_PER_S + len(LARGE)
    assert judged >= (seconds - 1) * BYTES_PER_S


def test_who_shows_a_right_signature_is_served_beside_a_stranger(guarded: Shell) -> None:
    """Law: at the same address, connections that have shown a right signature are served."""
    assert send(guarded, LARGE, SECRET, 1)[0] == 0
    remarks = [send(guarded, LARGE, "guessed", 2)[1] for _ in range(20)]
    assert BUSY in remarks[-1]

    assert send(guarded, LARGE, SECRET, 1)[0] == 0
    assert BUSY in send(guarded, LARGE, SECRET, 3)[1]
    assert send(guarded, b"small", SECRET, 3)[0] == 0
    assert send(guarded, LARGE, SECRET, 3)[0] == 0
    assert send(guarded, LARGE, SECRET, 4, host="192.0.2.77")[0] == 0
    assert WRONG in send(guarded, b"small", "guessed", 2)[1]
    guarded.wall_ms += 10_000
    assert send(guarded, LARGE, SECRET, 5)[0] == 0


def test_a_right_signature_vouches_for_no_wrong_ones(guarded: Shell) -> None:
    """Law: a connection's right signature does not exempt its later wrong ones from the limit."""
    assert send(guarded, b"small", SECRET, 2)[0] == 0
    remarks = [send(guarded, LARGE, "guessed", 2)[1] for _ in range(20)]

    assert sum(WRONG in remark for remark in remarks) <= BYTES_PER_S // len(LARGE) + 1
    assert BUSY in remarks[-1]


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.ORDERLYMQ_CLIENT_DEAD])
def test_a_large_header_is_no_way_around(code: int) -> None:
    """Law: the limit covers large headers too, with both forms of signatures."""
    access = AccessSettings(enable=True, operator_key="operator", operator_secret="operators")
    shell = Shell(settings(access=access)).lead()
    size = 256 << 10
    ext = {"AccessKey": "operator", "Signature": "guessed", "more": "x" * size}
    ext |= {"OmqKey": "operator", "OmqSignature": "guessed", "OmqTime": "1", "OmqNonce": "1"}

    remarks = [
        shell.call(code, ext, caller=Caller(100 + each, ADDRESS, 40_000)).remark or ""
        for each in range(40)
    ]

    assert sum(BUSY not in remark for remark in remarks) == BYTES_PER_S // size
    assert BUSY in remarks[-1]


def test_a_message_that_nobody_may_send_is_not_judged(guarded: Shell) -> None:
    """Law: a message that is too large is refused without a check of its signature, as with a right one."""
    body = b"x" * (guarded.settings.storage.body_size_max + 1)

    refusal = send(guarded, body, "guessed", 1)

    assert refusal[0] == 13
    assert refusal == send(guarded, body, SECRET, 2)
    assert send(guarded, b"small", SECRET, 3)[0] == 0
    assert refusal == send(guarded, body, SECRET, 3)


def test_the_addresses_are_bounded(guarded: Shell) -> None:
    """Law: the table of addresses is bounded."""
    wrong = guarded.core.access._wrong
    request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext={}, body=LARGE)

    for each in range(IDLE_MAX + 500):
        wrong.count(request, Caller(each, f"10.{each >> 16}.{each >> 8 & 255}.{each & 255}", 1), 0)

    assert len(wrong) == IDLE_MAX
