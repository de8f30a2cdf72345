"""Two secrets of an account during a rotation, in virtual time."""

import pytest

from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.processors.admin.rotation import OVERLAP_S_MAX
from orderlymq_broker.settings import AccessSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_broker.state.records import TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.extensions import EXT_OVERLAP
from orderlymq_protocol.sealedsecrets import (
    EXT_SEALED,
    NONCE_SIZE,
    SEALED_LENGTH_MAX,
    SECRET_SIZE_MAX,
    seal,
)
from orderlymq_protocol.signature import Signer
from tests.broker.processors.driver import Shell, settings
from tests.broker.processors.requests import create, send_ext

OPERATOR = ("operator", "operators")
FIRST, SECOND, THIRD = "first-secret", "second-secret", "third-secret"


def guarded(*, signed: bool = False) -> Shell:
    access = AccessSettings(
        enable=True,
        operator_key=OPERATOR[0],
        operator_secret=OPERATOR[1],
        signed_administration=signed,
    )
    shell = Shell(settings(access=access)).lead()
    create(shell, TopicSet("orders", 1, 1), AccountSet("writer", FIRST, default_topic_perm="PUB"))
    return shell


def ask(
    shell: Shell, who: tuple[str, str], code: int, ext: dict[str, str], body: bytes = b""
) -> RemotingCommand:
    fields = {**ext, "AccessKey": who[0]}
    fields["Signature"] = signature(fields, body, who[1])
    return shell.call(code, fields, body)


def set_account(shell: Shell, **ext: str) -> RemotingCommand:
    return ask(shell, OPERATOR, 50, {"accessKey": "writer", **ext})


def rotate(shell: Shell, secret: str, overlap_s: int) -> None:
    assert set_account(shell, secretKey=secret, **{EXT_OVERLAP: str(overlap_s)}).code == 0


def taken(shell: Shell, *others: str) -> list[str]:
    """Return the secrets with which the broker accepts a send."""
    return [
        secret
        for secret in (FIRST, SECOND, THIRD, *others)
        if ask(shell, ("writer", secret), 310, send_ext("orders"), b"paid").code == 0
    ]


def until(shell: Shell) -> int:
    """Return the end of the former secret's validity, as tools see it."""
    reply = ask(shell, OPERATOR, 52, {"orderlymq": "true"})
    (account,) = fastjson.loads(reply.body)["accounts"]
    assert FIRST not in str(account)
    found: int = account["formerSecretUntil"]
    return found


def test_both_secrets_are_valid_until_the_time_ends() -> None:
    """Law: both secrets are valid until the overlap ends; then the former one is removed on every replica."""
    shell = guarded()
    rotate(shell, SECOND, 60)
    assert until(shell) == shell.wall_ms + 60_000

    shell.pass_time(59_000, step=1_000)
    assert taken(shell) == [FIRST, SECOND]
    shell = shell.restart().lead()
    assert taken(shell) == [FIRST, SECOND]
    shell.pass_time(2_500, step=500)

    assert taken(shell) == [SECOND]
    assert until(shell) == 0
    assert shell.state.access.accounts["writer"].former_secret == ""
    assert shell.core.context.counters["previous_secrets_used"] == 1
    shell.replay()


def test_time_ends_it_before_its_record_does() -> None:
    """Law: the former secret ends by the leader's clock, even before the record that removes it."""
    shell = guarded()
    rotate(shell, SECOND, 60)

    shell.wall_ms += 60_000

    assert taken(shell) == [SECOND]


@pytest.mark.parametrize("ext", [{}, {EXT_OVERLAP: "0"}], ids=["RocketMQ's tools", "0"])
def test_without_an_overlap_the_former_ends_with_the_change(ext: dict[str, str]) -> None:
    shell = guarded()

    assert set_account(shell, secretKey=SECOND, **ext).code == 0

    assert taken(shell) == [SECOND]


def test_the_former_ends_on_demand() -> None:
    """Law: an overlap of 0 ends the former secret; other changes of the account do not."""
    shell = guarded()
    rotate(shell, SECOND, 600)
    assert set_account(shell, topicPerms="orders=PUB").code == 0
    assert taken(shell) == [FIRST, SECOND]

    rotate(shell, SECOND, 0)

    assert (taken(shell), until(shell)) == ([SECOND], 0)


def test_a_repeated_change_shortens_the_time_and_never_prolongs_it() -> None:
    """Law: repeating the change may shorten the overlap but never prolongs it."""
    shell = guarded()
    rotate(shell, SECOND, 60)
    first = until(shell)
    shell.pass_time(10_000, step=1_000)

    rotate(shell, SECOND, 60)
    assert until(shell) == first
    rotate(shell, SECOND, 5)

    assert until(shell) == shell.wall_ms + 5_000


def test_two_are_valid_and_never_three() -> None:
    """Law: a second rotation ends the oldest secret, so that at most two are valid."""
    shell = guarded()
    rotate(shell, SECOND, 60)
    shell.pass_time(30_000, step=1_000)
    rotate(shell, THIRD, 60)
    assert taken(shell) == [SECOND, THIRD]

    shell.pass_time(45_000, step=1_000)

    assert taken(shell) == [SECOND, THIRD]


@pytest.mark.parametrize("text", ["-1", "1.5", "soon", str(OVERLAP_S_MAX + 1), "9" * 400, "\u0663"])
def test_an_overlap_that_is_none_is_refused(text: str) -> None:
    shell = guarded()

    reply = set_account(shell, secretKey=SECOND, **{EXT_OVERLAP: text})

    assert (reply.code, EXT_OVERLAP in (reply.remark or "")) == (209, True)
    assert taken(shell) == [FIRST]


def test_signatures_of_version_2_are_taken_with_both() -> None:
    shell = guarded(signed=True)
    boss = AccountSet(
        "boss42", SECOND, True, former_secret=FIRST, former_until_ms=shell.wall_ms + 1
    )
    create(shell, boss)
    change = {"accessKey": "writer", "topicPerms": "orders=PUB"}

    codes = []
    for secret in (FIRST, SECOND, THIRD):
        nonces = iter(("a", "b", "c", "d"))
        signer = Signer(
            "boss42",
            secret.encode(),
            clock_ms=lambda: shell.wall_ms,
            nonce=lambda nonces=nonces, secret=secret: secret + next(nonces),  # type: ignore[misc]
        )
        for _ in range(2):  # The first answer brings the leader's mark.
            fields = signer.sign("b", 50, change, b"")
            reply = shell.call(50, fields)
            if not signer.learn("b", reply, fields):
                break
        codes.append(reply.code)

    assert codes == [0, 0, 1]


def test_a_rotation_under_load_refuses_no_send() -> None:
    """Law: sixteen clients that change their secret at some time within the overlap have no send refused,
    even with a change of leader.
    """
    shell = guarded()
    secrets = [FIRST] * 16
    refused = 0
    for second in range(120):
        if second == 20:
            rotate(shell, SECOND, 60)
        if 20 < second <= 20 + len(secrets):
            secrets[second - 21] = SECOND
        if second == 50:
            shell = shell.restart().lead()  # The leader changes in the middle.
        for secret in secrets:
            reply = ask(shell, ("writer", secret), 310, send_ext("orders"), b"paid")
            refused += reply.code != 0
        shell.pass_time(1_000, step=500)

    assert refused == 0
    assert shell.state.topics.by_name["orders"].queue(0).next_offset == 120 * 16
    assert taken(shell) == [SECOND]


def test_a_sealed_secret_is_taken_like_a_plain_one() -> None:
    """Law: a sealed secret is accepted like a plain one; sealing it again gives another text."""
    shell = guarded()
    sealed = {seal(SECOND, "writer", OPERATOR[1], each * NONCE_SIZE) for each in (b"a", b"b")}

    for text in sorted(sealed):
        ext = {EXT_SEALED: text, EXT_OVERLAP: "0"}
        assert set_account(shell, **ext).code == 0

    assert len(sealed) == 2
    assert SECOND not in "".join(sealed)
    assert taken(shell) == [SECOND]


def test_the_longest_secret_is_taken_and_a_longer_one_is_named() -> None:
    """Law: the longest secret is accepted; a longer one is refused by its length, sealed or plain."""
    shell = guarded()
    longest = "s" * SECRET_SIZE_MAX

    sealed = seal(longest, "writer", OPERATOR[1], bytes(NONCE_SIZE))
    assert len(sealed) <= SEALED_LENGTH_MAX
    assert set_account(shell, **{EXT_SEALED: sealed, EXT_OVERLAP: "0"}).code == 0
    assert taken(shell, longest) == [longest]

    sealed = seal(longest + "s", "writer", OPERATOR[1], bytes(NONCE_SIZE))
    for ext in ({"secretKey": longest + "s"}, {EXT_SEALED: sealed}):
        reply = set_account(shell, **ext)
        assert (reply.code, reply.remark) == (209, "the secretKey has more than 3000 bytes")
    assert taken(shell, longest) == [longest]


@pytest.mark.parametrize(
    "text",
    [
        seal(SECOND, "writer", "another operator", bytes(NONCE_SIZE)),
        seal(SECOND, "another account", OPERATOR[1], bytes(NONCE_SIZE)),
        seal(SECOND, "writer", OPERATOR[1], bytes(NONCE_SIZE))[:-4],
        SECOND,
        "",
        "é",
        "A" * (SEALED_LENGTH_MAX + 4),
    ],
    ids=["other key", "other account", "cut", "not sealed", "empty", "not ASCII", "long"],
)
def test_what_is_not_sealed_for_the_account_changes_nothing(text: str) -> None:
    """Law: a secret sealed for another account, or beside a plain one, is refused and changes nothing."""
    shell = guarded()

    reply = set_account(shell, secretKey=SECOND, **{EXT_SEALED: text})

    assert reply.code == 209
    assert "not sealed for account writer" in (reply.remark or "")
    assert taken(shell) == [FIRST]
