"""The table of the requests and bytes that addresses and accounts use."""

import pytest

from orderlymq_broker.core.effects import Caller, Now
from orderlymq_broker.core.quotas import IDLE_MAX, REFUSED_MAX, Quotas
from orderlymq_broker.state.admin.accessrecords import Quota
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.hosts import network_of

SEND, HEARTBEAT = 310, 34


def request(code: int = SEND, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand(code, 1, 0, {}, body)


def at(ms: int) -> Now:
    return Now(0, ms)


def caller(connection: int, host: str = "192.0.2.1", account: str = "") -> Caller:
    return Caller(connection, host, 40_000, account)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address:", "no address:"),
    ],
)
def test_an_address_counts_for_what_one_machine_has(host: str, network: str) -> None:
    assert network_of(host) == network


def test_the_table_of_addresses_is_bounded() -> None:
    """Law: many addresses of a stranger cost bounded memory, and connected addresses stay counted."""
    quotas = Quotas(Quota(requests_per_s=1))
    held = caller(0, "192.0.2.1")
    assert quotas.of_address(request(), held, at(0)) == ""

    for number in range(1, IDLE_MAX + 500):
        stranger = caller(number, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        quotas.of_address(request(), stranger, at(0))
        quotas.close(number)

    assert len(quotas) == IDLE_MAX + 1
    assert quotas.of_address(request(), held, at(0)) != ""


def test_a_new_connection_is_no_new_quota() -> None:
    quotas = Quotas(Quota(requests_per_s=2))

    refused = []
    for number in range(4):
        refused.append(quotas.of_address(request(), caller(number), at(0)) != "")
        quotas.close(number)

    assert refused == [False, False, True, True]


def test_connections_are_counted_until_they_close() -> None:
    quotas = Quotas(Quota(connections=2))

    assert [quotas.of_address(request(), caller(n), at(0)) != "" for n in (1, 2, 3, 1)] == [
        False,
        False,
        True,
        False,
    ]
    quotas.close(1)
    assert quotas.of_address(request(), caller(3), at(0)) == ""
    quotas.close(3)
    quotas.close(2)
    quotas.close(99)
    assert (
        "connections (2) of address 192.0.2.1"
        in [quotas.of_address(request(), caller(number), at(0)) for number in (4, 5, 6)][-1]
    )


def test_bytes_count_that_come_and_that_are_handed_out() -> None:
    """Law: received and delivered bytes count.

    A message larger than one second's rate passes, but the next must wait for it.
    """
    quotas = Quotas(Quota())
    quota = Quota(bytes_per_s=1_000)
    shop = caller(1, account="shop")

    assert quotas.of_account(quota, request(body=b"x" * 3_000), shop, at(0)) == ""
    assert "bytesPerSecond (1000) of account shop" in quotas.of_account(
        quota, request(), shop, at(1_900)
    )
    assert quotas.of_account(quota, request(), shop, at(2_100)) == ""
    quotas.handed_out(shop, 1_000)
    quotas.handed_out(caller(1, account="another"), 1_000_000)
    assert quotas.of_account(quota, request(), shop, at(2_900)) != ""
    assert quotas.of_account(quota, request(), shop, at(3_100)) == ""


def test_a_debt_of_bytes_costs_no_heartbeat() -> None:
    quotas = Quotas(Quota())
    quota = Quota(bytes_per_s=10)
    shop = caller(1, account="shop")
    quotas.of_account(quota, request(body=b"x" * 100_000), shop, at(0))

    assert quotas.of_account(quota, request(HEARTBEAT), shop, at(0)) == ""
    assert quotas.of_account(quota, request(SEND), shop, at(0)) != ""


def test_requests_that_keep_a_client_alive_have_one_more_second() -> None:
    """Law: heartbeats have one more second of quota than other requests, and no more."""
    quotas = Quotas(Quota(requests_per_s=10))

    sends = [quotas.of_address(request(SEND), caller(1), at(0)) == "" for _ in range(12)]
    beats = [quotas.of_address(request(HEARTBEAT), caller(1), at(0)) == "" for _ in range(12)]

    assert (sum(sends), sum(beats)) == (10, 10)


def test_a_changed_quota_counts_from_the_next_request_on() -> None:
    quotas = Quotas(Quota())
    shop = caller(1, account="shop")
    tight, wide = Quota(requests_per_s=1), Quota(requests_per_s=100, connections=5)
    assert quotas.of_account(tight, request(), shop, at(0)) == ""
    assert quotas.of_account(tight, request(), shop, at(0)) != ""

    assert quotas.of_account(wide, request(), shop, at(0)) == ""
    assert quotas.of_account(Quota(), request(), shop, at(0)) == ""

    assert len(quotas) == 0
    quotas.close(1)


def test_refusals_are_counted_by_account_with_a_bound() -> None:
    quotas = Quotas(Quota())
    tight = Quota(requests_per_s=1)

    for number in range(REFUSED_MAX + 5):
        shop = caller(number, account=f"account-{number}")
        quotas.of_account(tight, request(), shop, at(0))
        quotas.of_account(tight, request(), shop, at(0))

    assert len(quotas.refused) == REFUSED_MAX + 1
    assert quotas.refused["requestsPerSecond", "account-7"] == 1
    assert quotas.refused["requestsPerSecond", ""] == 5
