"""The table of accounts: what changes it, the outcome of each change, and what replicas compare."""

from orderlymq_broker.state.admin.accessrecords import (
    AccessChanged,
    AccountDeleted,
    AccountSet,
    WhiteAddressesSet,
)
from orderlymq_broker.state.records import Record
from tests.broker.state.entries import WALL_MS, Replica

ALICE = AccountSet("alice", "secret", True, "DENY", "SUB", {"t": "PUB"}, {"g": "SUB"}, "10.0.0.*")
BOB = AccountSet("bob", "secret")


def test_accounts_and_addresses_change_once_and_move_the_version_by_one(replica: Replica) -> None:
    """Law: each change of accounts or addresses raises the version by one; a change without effect does not.

    The outcome says which.
    """
    script: list[tuple[Record, bool, int]] = [
        (BOB, True, 1),
        (BOB, False, 1),
        (ALICE, True, 2),
        (AccountSet("bob", "other"), True, 3),
        (WhiteAddressesSet(("10.0.0.1",)), True, 4),
        (WhiteAddressesSet(("10.0.0.1",)), False, 4),
        (AccountDeleted("nobody"), False, 4),
        (AccountDeleted("alice"), True, 5),
        (AccountDeleted("alice"), False, 5),
        (WhiteAddressesSet(()), True, 6),
    ]

    for record, changed, version in script:
        assert replica.take(record) == [AccessChanged(changed)]

        for each in (replica, replica.restarted()):
            assert each.state.access.version.row() == (version, WALL_MS)
    assert replica.state.access.accounts == {"bob": AccountSet("bob", "other")}
    assert replica.state.access.white_addresses == ()


def test_a_restarted_replica_knows_accounts_addresses_and_version(replica: Replica) -> None:
    """Law: a restarted replica has accounts, addresses and version, so that it admits the same clients as its leader."""
    replica.take(BOB, ALICE, WhiteAddressesSet(("10.0.0.1", "10.0.1.*")))

    again = replica.restarted().state.access

    assert again.accounts == {"alice": ALICE, "bob": BOB}
    assert again.white_addresses == ("10.0.0.1", "10.0.1.*")
    assert again.version.row() == (3, WALL_MS)


def test_replicas_compare_everything_about_accounts_in_the_order_of_their_keys(
    replica: Replica,
) -> None:
    """Law: replicas compare accounts in the order of their keys, independent of the order of arrival."""
    assert list(replica.state.access.rows()) == [(0, 0, ())]

    replica.take(BOB, ALICE, WhiteAddressesSet(("10.0.0.1",)))

    assert list(replica.state.access.rows()) == [(3, WALL_MS, ("10.0.0.1",)), (ALICE,), (BOB,)]
