"""An attacker asks brokers for operations of the operator: locks, leadership, membership, queues."""

import dataclasses
from itertools import count
from typing import Any

import pytest

from orderlymq_broker.core.requestcontext import RequestRefused
from orderlymq_broker.processors.admin.access import ADMIN_CODES, OPERATOR_CODES, signature
from orderlymq_broker.settings import AccessSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet, WhiteAddressesSet
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.signature import Signer
from tests.broker.processors.driver import ALICE, Shell, settings
from tests.broker.processors.requests import create

OPERATOR, SECRET = "orderlymq-operator", "the operator's secret"
DEAD = {"clientId": "client-1", "proof": "gone", "operatorToken": "1"}


class Attacked:
    """A leading broker with an operator's account."""

    def __init__(self, **access: Any) -> None:
        found = AccessSettings(operator_key=OPERATOR, operator_secret=SECRET, **access)
        self.shell = Shell(settings(access=found))
        self.shell.lead()
        self._numbers = count()

    def signer(self, key: str = OPERATOR, secret: str = SECRET) -> Signer:
        return Signer(
            key,
            secret.encode(),
            clock_ms=lambda: self.shell.now.wall_ms,
            nonce=lambda: str(next(self._numbers)),
        )

    def judge(self, command: RemotingCommand) -> RequestRefused | None:
        """Return the refusal of a request by access control."""
        try:
            self.shell.core.access.admit(command, ALICE, self.shell.now)
        except RequestRefused as refused:
            return refused
        return None

    def judge_signed(
        self, signer: Signer, code: int, ext: dict[str, str] | None = None
    ) -> RequestRefused | None:
        """Sign the request, and sign it again with the mark that a refusal names, as our clients do."""
        command = request(code, signer.sign("b", code, ext or {}, b""))
        refused = self.judge(command)
        if refused is not None:
            answer = command.reply(refused.code, ext=refused.ext)
            if signer.learn("b", answer, command.ext):
                return self.judge(request(code, signer.sign("b", code, ext or {}, b"")))
        return refused


def _as_rocketmq(code: int, key: str, secret: str) -> RemotingCommand:
    ext = {"AccessKey": key}
    return request(code, {**ext, "Signature": signature(ext, b"", secret)})


@pytest.mark.parametrize("code", sorted(OPERATOR_CODES))
@pytest.mark.parametrize("acl", [False, True])
def test_a_stranger_may_do_nothing_of_an_operator(code: int, acl: bool) -> None:
    """H4: refused are no signature, a guessed one, and a right one in RocketMQ's form, with and without access control."""
    attacked = Attacked(enable=acl)

    assert attacked.judge(request(code, {})) is not None
    assert attacked.judge(_as_rocketmq(code, OPERATOR, SECRET)) is not None
    assert attacked.judge_signed(attacked.signer(secret="guessed"), code) is not None
    assert attacked.judge_signed(attacked.signer("nobody"), code) is not None
    assert attacked.judge_signed(attacked.signer(), code) is None


def test_a_stranger_frees_no_locks_and_locks_no_operator_out() -> None:
    """H4: one unsigned request with a large token fenced out all operators; now it is refused before it is read."""
    attacked = Attacked()

    reply = attacked.shell.call(20502, {**DEAD, "operatorToken": str(2**62)})

    assert reply.code == 1
    assert "signature of version 2" in str(reply.remark)
    assert reply.ext["OmqServer"]


def test_an_address_is_no_proof() -> None:
    """Neither a white address nor loopback permits operations of the operator."""
    attacked = Attacked(enable=True)
    create(attacked.shell, WhiteAddressesSet(("*",)))

    assert attacked.judge(request(20502, DEAD)) is not None


def test_an_administrator_may_do_it_and_another_account_not() -> None:
    """An administrator's account counts only with access control; without it no account counts."""
    boss = AccountSet("boss42", "boss-secret", admin=True)
    reader = AccountSet("reader", "reader-secret", default_group_perm="SUB")
    guarded, open_ = Attacked(enable=True), Attacked()
    for attacked in (guarded, open_):
        create(attacked.shell, boss, reader)

    assert guarded.judge_signed(guarded.signer("boss42", "boss-secret"), 20502) is None
    refused = guarded.judge_signed(guarded.signer("reader", "reader-secret"), 20502)
    assert "Need admin permission" in str(refused)
    assert open_.judge_signed(open_.signer("boss42", "boss-secret"), 20502) is not None


def test_who_may_not_ask_takes_no_room_of_those_who_may() -> None:
    """Law: the server remembers only the nonces of requests that it serves.

    An account without rights could fill the memory with requests that are dated later; all others were refused then.
    """
    attacked = Attacked(enable=True)
    create(attacked.shell, AccountSet("reader", "reader-secret", default_group_perm="SUB"))
    signer = attacked.signer("reader", "reader-secret")
    attacked.judge_signed(signer, 20502, DEAD)
    seen = request(20502, signer.sign("b", 20502, DEAD, b""))

    for _ in range(2):
        assert "Need admin permission" in str(attacked.judge(seen))


def test_a_signed_look_is_no_signed_deletion() -> None:
    """H5: a signature for one code, name or value is wrong for any other."""
    attacked = Attacked()
    signer = attacked.signer()
    assert attacked.judge_signed(signer, 20511, {"topic": "a"}) is None
    seen = request(20511, signer.sign("b", 20511, {"topic": "a"}, b""))

    for forged in (
        dataclasses.replace(seen, code=20502),
        dataclasses.replace(seen, ext={**seen.ext, "topic": "b"}),
        dataclasses.replace(seen, ext={**seen.ext, "group": "a"}),
        dataclasses.replace(seen, body=b"more"),
    ):
        assert "wrong" in str(attacked.judge(forged))
    assert attacked.judge(seen) is None


def test_a_copy_is_taken_neither_now_nor_by_the_next_leader() -> None:
    """H5: a signature used to be valid for ever."""
    attacked = Attacked()
    signer = attacked.signer()
    assert attacked.judge_signed(signer, 20502, DEAD) is None
    seen = request(20502, signer.sign("b", 20502, DEAD, b""))
    assert attacked.judge(seen) is None

    assert "accepted before" in str(attacked.judge(seen))
    attacked.shell.follow()
    attacked.shell.lead()
    assert "before this server started" in str(attacked.judge(seen))
    assert attacked.judge_signed(signer, 20502, DEAD) is None


def test_who_does_not_lead_takes_nothing() -> None:
    """A follower refuses signed requests, because it does not know the leader's nonces; so does a leader until it serves."""
    attacked = Attacked()
    attacked.shell.follow()

    refused = attacked.judge_signed(attacked.signer(), 20504)

    assert refused is not None
    assert refused.code == 14


def test_signed_administration_refuses_tools_of_rocketmq() -> None:
    """The setting prevents replays of RocketMQ's own codes; without the setting they are served as before."""
    strict, usual = Attacked(enable=True, signed_administration=True), Attacked(enable=True)

    for code in sorted(ADMIN_CODES - OPERATOR_CODES):
        assert "signature of version 2" in str(strict.judge(_as_rocketmq(code, OPERATOR, SECRET)))
        assert strict.judge_signed(strict.signer(), code) is None
        assert usual.judge(_as_rocketmq(code, OPERATOR, SECRET)) is None


def test_signed_administration_counts_without_access_control() -> None:
    """Only the operator changes topics, consumer groups and accounts then; clients need no account."""
    attacked = Attacked(signed_administration=True)

    assert attacked.judge(request(17)) is not None
    assert attacked.judge_signed(attacked.signer(), 17) is None
    assert attacked.judge(request(10)) is None


@pytest.mark.parametrize("code", [50, 51, 53])
def test_nobody_plants_an_account_before_access_control_is_on(code: int) -> None:
    """Law: only the operator sets accounts and white addresses, even while access control is off.

    They are kept in the log, and would get all their rights when access control is switched on.
    """
    attacked = Attacked()

    assert "signature of version 2" in str(attacked.judge(request(code)))
    assert attacked.judge(_as_rocketmq(code, OPERATOR, SECRET)) is not None
    assert attacked.judge_signed(attacked.signer(), code) is None


def test_accounts_are_shown_to_the_operator_before_access_control_is_on() -> None:
    """Law: only administrators see fingerprints of secrets; everybody may see the version of the accounts."""
    attacked = Attacked()
    shown = {"orderlymq": "true"}

    assert "signature of version 2" in str(attacked.judge(request(52, shown)))
    assert attacked.judge_signed(attacked.signer(), 52, shown) is None
    assert attacked.judge(request(52)) is None
