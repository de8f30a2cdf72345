"""A thief knows the client id of a consumer, which the list of members shows to everybody (M5 of the review)."""

import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.settings import AccessSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.body.lanes import BY_KEY
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE, Shell, settings
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    heartbeat_body,
    lock,
    lock_body,
    pull_ext,
    send,
)

THIEF = Caller(7, "198.51.100.66", 50_666)
IN_USE = 20516
VICTIM = "192.0.2.1@4711#1"

# The thief's requests with the victim's id: the request code, its fields, its body.
ATTEMPTS = {
    "heartbeat": (34, {}, heartbeat_body(VICTIM, sub_version=1)),
    "heartbeat of another group": (34, {}, heartbeat_body(VICTIM, "thieves")),
    "good-bye": (35, {"clientID": VICTIM, "consumerGroup": "billing"}, b""),
    "lock": (41, {}, lock_body(VICTIM, 0)),
    "lock in another group": (41, {}, lock_body(VICTIM, 0, group="thieves")),
    "unlock": (42, {}, lock_body(VICTIM, 0)),
    "pull": (11, pull_ext(omqClientId=VICTIM, omqEpoch="1"), b""),
    "commit": (15, {**commit_ext(3), "omqClientId": VICTIM, "omqEpoch": "1"}, b""),
}


def _consuming(shell: Shell) -> Shell:
    """Let the victim hold queue 0 of `orders`, which has three messages."""
    shell.lead()
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"), GroupSet("thieves"))
    for _ in range(3):
        send(shell)
    heartbeat(shell, VICTIM)
    assert lock(shell, VICTIM, 0) == {0: 1}
    return shell


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_another_connection_neither_frees_nor_takes_what_a_client_holds(
    attempt: tuple[int, dict[str, str], bytes],
) -> None:
    shell = _consuming(Shell())
    before = shell.state.digest()

    reply = shell.call(attempt[0], attempt[1], attempt[2], caller=THIEF)

    assert (reply.code, "instance name" in (reply.remark or "")) == (IN_USE, True)
    assert shell.state.digest() == before
    assert shell.core.context.counters["client_ids_refused"] == 1
    assert lock(shell, VICTIM, 0) == {0: 1}


@pytest.mark.parametrize("code", [34, 35, 41, 42])
def test_the_thief_gets_nothing_while_the_victim_is_cut_off_either(code: int) -> None:
    """The victim's connection is lost but its lease still runs, so its listener may still be at work."""
    shell = _consuming(Shell())
    shell.run(shell.core.connection_closed(ALICE.connection))
    bodies = {34: heartbeat_body(VICTIM, sub_version=9), 35: b""}
    ext = {"clientID": VICTIM, "consumerGroup": "billing"}

    reply = shell.call(code, ext, bodies.get(code, lock_body(VICTIM, 0)), caller=THIEF)

    assert reply.code == IN_USE
    found = shell.state.locks.get("billing", "orders", 0)
    assert found is not None
    assert (found.client_id, found.epoch) == (VICTIM, 1)


def test_lanes_are_neither_fetched_nor_completed_for_somebody_else() -> None:
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing", concurrency=BY_KEY))
    send(shell)
    heartbeat(shell, VICTIM)
    fields = {"consumerGroup": "billing", "topic": "orders", "clientId": VICTIM, "maxLanes": "1"}
    fields |= {"sequence": "1", "maxPerLane": "1"}
    completed = b'{"lanes":[]}'

    codes = [
        shell.call(20512, fields, caller=THIEF).code,
        shell.call(20513, fields, completed, caller=THIEF).code,
    ]

    assert codes == [IN_USE, IN_USE]


# -- with access control ---------------------------------------------------------------------------

OPERATOR = ("operator", "operator-secret")
OWNER, OTHER = ("billing-app", "secret-of-billing"), ("reporting", "secret-of-reporting")


def _signed(
    shell: Shell, who: tuple[str, str], code: int, ext: dict[str, str], body: bytes = b""
) -> RemotingCommand:
    fields = {**ext, "AccessKey": who[0]}
    fields["Signature"] = signature(fields, body, who[1])
    return shell.call(code, fields, body)


def _guarded() -> Shell:
    access = AccessSettings(enable=True, operator_key=OPERATOR[0], operator_secret=OPERATOR[1])
    shell = Shell(settings(access=access)).lead()
    accounts = [
        AccountSet(*who, default_topic_perm="PUB|SUB", default_group_perm="SUB")
        for who in (OWNER, OTHER)
    ]
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"), *accounts)
    assert _signed(shell, OWNER, 34, {}, heartbeat_body(VICTIM)).code == 0
    assert _signed(shell, OWNER, 41, {}, lock_body(VICTIM, 0)).code == 0
    return shell


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["same leader", "next leader"])
def test_another_account_is_refused_even_at_the_same_host(is_elsewhere: bool) -> None:
    """Both accounts have SUB on the consumer group; the owner's account is in the log, so the next leader knows it, too."""
    shell = _guarded()
    if is_elsewhere:
        shell = shell.restart().lead()

    for code, body in ((34, heartbeat_body(VICTIM)), (41, lock_body(VICTIM, 0))):
        assert _signed(shell, OTHER, code, {}, body).code == IN_USE
    assert _signed(shell, OTHER, 42, {}, lock_body(VICTIM, 0)).code == IN_USE
    bye = {"clientID": VICTIM, "consumerGroup": "billing"}
    reply = _signed(shell, OTHER, 35, bye)

    assert (reply.code, "another account" in (reply.remark or "")) == (IN_USE, True)
    assert shell.state.locks.get("billing", "orders", 0) is not None
    assert _signed(shell, OWNER, 35, bye).code == 0
    assert shell.state.locks.get("billing", "orders", 0) is None


def test_an_access_key_that_nobody_checked_is_no_account() -> None:
    """Requests from a global white address pass unsigned with any access key, so the key proves no account."""
    shell = _guarded()
    assert _signed(shell, OPERATOR, 53, {"globalWhiteAddrs": ALICE.host}).code == 0

    reply = shell.call(42, {"AccessKey": OWNER[0]}, lock_body(VICTIM, 0))

    assert reply.code == IN_USE
