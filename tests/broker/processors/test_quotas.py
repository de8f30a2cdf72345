"""Quotas as clients see them, in virtual time."""

import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.settings import AccessSettings, AddressQuotas
from orderlymq_broker.state.admin.accessrecords import AccountSet, Quota
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE, BOB, Shell, settings
from tests.broker.processors.requests import (
    create,
    heartbeat,
    lock,
    properties,
    pull,
    send,
    send_ext,
)

OPERATOR = ("operator", "operators")
BUSY = 2
# Another connection from the same address.
ALICE_AGAIN = Caller(99, ALICE.host, 40_099)


def limited(**quotas: int) -> Shell:
    shell = Shell(settings(address_quotas=AddressQuotas(**quotas))).lead()
    create(shell, TopicSet("orders", 1, 1, order=True), GroupSet("billing"))
    return shell


def guarded(quota: Quota) -> Shell:
    access = AccessSettings(enable=True, operator_key=OPERATOR[0], operator_secret=OPERATOR[1])
    shell = Shell(settings(access=access)).lead()
    create(
        shell,
        TopicSet("orders", 1, 1),
        AccountSet("shop-a", "secret-a", default_topic_perm="PUB|SUB", quota=quota),
        AccountSet("shop-b", "secret-b", default_topic_perm="PUB|SUB"),
    )
    return shell


def ask(
    shell: Shell,
    who: tuple[str, str],
    code: int,
    ext: dict[str, str],
    body: bytes = b"",
    **more: object,
) -> RemotingCommand:
    fields = {**ext, "AccessKey": who[0]}
    fields["Signature"] = signature(fields, body, who[1])
    return shell.call(code, fields, body, **more)


def send_as(shell: Shell, who: str, body: bytes = b"paid") -> RemotingCommand:
    return ask(shell, (f"shop-{who}", f"secret-{who}"), 310, send_ext("orders"), body)


def test_without_quotas_nothing_is_counted() -> None:
    shell = limited()

    assert [send(shell).code for _ in range(500)] == [0] * 500
    assert len(shell.core.context.quotas) == 0


def test_a_connection_beyond_those_of_its_address_is_no_client() -> None:
    """Law: a connection beyond its address's limit does not count as a client,
    so that it gives way when all places are taken.
    """
    shell = limited(connections=1)

    codes = [send(shell, caller=each).code for each in (ALICE, ALICE_AGAIN)]

    assert codes == [0, BUSY]
    assert [shell.core.is_client(each.connection) for each in (ALICE, ALICE_AGAIN)] == [True, False]


def test_an_address_over_its_quota_learns_which_and_what_to_do() -> None:
    """Law: a request over an address's quota is refused with the limit and advice; others are not affected,
    and it may go on a second later.
    """
    shell = limited(requests_per_s=5)
    codes = [send(shell).code for _ in range(7)]

    refused = send(shell)

    assert codes == [0] * 5 + [BUSY] * 2
    assert refused.remark == (
        "the quota requestsPerSecond (5) of address 192.0.2.1 is used up; send less, try again in 1 ms, "
        "or raise spec.addressQuotas of the Cluster"
    )
    assert send(shell, caller=BOB).code == 0
    shell.pass_time(1_000)
    assert [send(shell).code for _ in range(6)] == [0] * 5 + [BUSY]
    assert shell.core.context.counters["quota_refusals"] == 4
    assert shell.state.topics.by_name["orders"].queue(0).next_offset == 11


def test_a_consumer_that_sends_too_much_keeps_its_queues() -> None:
    shell = limited(requests_per_s=5)
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    for _ in range(10):
        send(shell)

    assert heartbeat(shell, "alice").code == 0
    assert lock(shell, "alice", 0) == {0: 1}
    assert pull(shell).code == BUSY


def test_an_account_has_its_quota_over_all_its_connections() -> None:
    shell = guarded(Quota(requests_per_s=4))

    codes = [
        ask(shell, ("shop-a", "secret-a"), 310, send_ext("orders"), b"paid", caller=caller).code
        for caller in (ALICE, BOB) * 3
    ]

    assert codes == [0] * 4 + [BUSY] * 2
    assert [send_as(shell, "b").code for _ in range(20)] == [0] * 20


def test_what_is_not_signed_costs_an_account_nothing() -> None:
    """Law: a request with a wrong signature does not use an account's quota."""
    shell = guarded(Quota(requests_per_s=4))

    for _ in range(20):
        assert ask(shell, ("shop-a", "guessed"), 310, send_ext("orders"), b"paid").code == 1

    assert send_as(shell, "a").code == 0


def test_the_quota_of_an_account_is_replicated_and_shown() -> None:
    """Law: an account's quota is replicated: request 50 changes it, 52 returns it, and the next leader enforces it."""
    shell = guarded(Quota())
    change = {"accessKey": "shop-a", "omqRequestsPerSecond": "3", "omqConnections": "7"}
    assert ask(shell, OPERATOR, 50, change).code == 0
    assert ask(shell, OPERATOR, 50, {"accessKey": "shop-a", "omqBytesPerSecond": "999"}).code == 0

    shown = ask(shell, OPERATOR, 52, {"orderlymq": "true"})
    successor = shell.restart().lead()

    account = fastjson.loads(shown.body)["accounts"][0]
    assert [account[name] for name in ("requestsPerSecond", "bytesPerSecond", "connections")] == [
        3,
        999,
        7,
    ]
    assert [send_as(successor, "a", b"").code for _ in range(4)] == [0, 0, 0, BUSY]
    assert (
        ask(successor, OPERATOR, 50, {"accessKey": "shop-a", "omqRequestsPerSecond": "0"}).code == 0
    )
    assert send_as(successor, "a", b"").code == 0


@pytest.mark.parametrize("text", ["-1", "many", "1e3", "9" * 30, "\u0663"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    shell = guarded(Quota())

    reply = ask(shell, OPERATOR, 50, {"accessKey": "shop-a", "omqBytesPerSecond": text})

    assert (reply.code, "omqBytesPerSecond" in (reply.remark or "")) == (209, True)
    assert shell.state.access.accounts["shop-a"].quota == Quota()


def test_messages_that_are_fetched_count() -> None:
    shell = limited(bytes_per_s=2_000)
    send(shell, body=b"x" * 5_000, caller=BOB)

    assert pull(shell).code == 0
    assert pull(shell).code == BUSY
    shell.pass_time(5_000)
    assert pull(shell).code == 0


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (33, {"offset": "0"}),
        (
            12,
            {
                "topic": "orders",
                "key": "k",
                "maxNum": "64",
                "beginTimestamp": "0",
                "endTimestamp": str(1 << 62),
            },
        ),
    ],
)
def test_messages_that_are_looked_up_count(code: int, ext: dict[str, str]) -> None:
    """Law: looked-up messages count for the quota, because one query may return 8 MiB."""
    shell = limited(bytes_per_s=2_000)
    send(shell, body=b"x" * 5_000, props=properties(KEYS="k"), caller=BOB)

    codes = [shell.call(code, ext).code for _ in range(2)]
    shell.pass_time(5_000)

    assert codes == [0, BUSY]
    assert shell.call(code, ext).code == 0


def test_a_connection_beyond_the_quota_is_served_when_another_one_closes() -> None:
    shell = limited(connections=1)
    second = ALICE.__class__(21, ALICE.host, 50_021)
    assert send(shell).code == 0
    refused = send(shell, caller=second)

    shell.run(shell.core.connection_closed(ALICE.connection))

    assert (refused.code, "close some" in (refused.remark or "")) == (BUSY, True)
    assert send(shell, caller=second).code == 0


def test_a_quota_never_answers_where_a_consumer_begins() -> None:
    """Law: an offset query over the quota closes the connection, because Java up to 4.9 would take a code for "never
    committed" and skip messages.
    """
    shell = limited(requests_per_s=5)
    for _ in range(20):
        send(shell)

    query = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}
    opaques = [shell.submit(14, query) for _ in range(10)]
    shell.settle()

    answered = [shell.reply_to(each) for each in opaques]
    assert all(each is None or each.code in (0, 22) for each in answered)
    assert answered[-1] is None
    assert {close.connection for close in shell.closed} == {ALICE.connection}
