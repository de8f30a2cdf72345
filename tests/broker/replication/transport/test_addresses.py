"""Addresses of replicas: from the settings first, then from what replicas say of themselves."""

import pytest

from orderlymq_broker.replication.transport.addresses import ADDRESSES_MAX, AddressBook
from orderlymq_broker.settings import Address
from orderlymq_broker.store.kv import Batch
from orderlymq_raft import Membership
from orderlymq_raft.types import NodeId
from tests.broker.store.memory import MemoryStore

ONE, TWO, THREE, FOUR = map(NodeId, (1, 2, 3, 4))
SETTINGS = {1: Address("a", 1), 2: Address("b", 2)}


def test_what_was_learned_survives_a_restart_and_settings_win() -> None:
    """Law: learned addresses survive a restart, but the settings win; a new member's address comes from itself."""
    store = MemoryStore()
    book = AddressBook.load(store, SETTINGS)
    assert book.learn(THREE, Address("c", 3))
    assert book.learn(TWO, Address("old", 2))
    assert not book.learn(THREE, Address("c", 3))
    batch = Batch()
    book.put(batch)
    store.write(batch, sync=True)

    again = AddressBook.load(store, SETTINGS)

    assert [again.get(node) for node in (ONE, TWO, THREE, FOUR)] == [
        Address("a", 1),
        Address("b", 2),
        Address("c", 3),
        None,
    ]


def test_members_call_members_and_newcomers_call_everybody() -> None:
    """Law: members call members; a replica that waits to be added calls all that it knows."""
    book = AddressBook(SETTINGS, {3: Address("c", 3)})
    members = [Membership(frozenset({ONE, TWO}))]

    assert book.reachable(members, ONE, TWO) == {TWO: Address("b", 2)}
    assert book.reachable(members, THREE, TWO) == {ONE: Address("a", 1), TWO: Address("b", 2)}


def test_who_may_need_an_answer_is_called() -> None:
    """Law: a leader is called even if this log does not know it as a member; without a leader all known replicas are."""
    book = AddressBook({**SETTINGS, 4: Address("d", 4)}, {3: Address("c", 3)})
    members = [Membership(frozenset({ONE, TWO}))]

    assert set(book.reachable(members, ONE, THREE)) == {TWO, THREE}
    assert set(book.reachable(members, ONE, None)) == {TWO, THREE, FOUR}


def test_who_is_being_removed_is_called_until_that_is_settled() -> None:
    """Law: a replica whose removal is not settled is still called, because it might elect another leader."""
    book = AddressBook(SETTINGS, {3: Address("c", 3)})
    memberships = [Membership(frozenset({ONE, TWO, THREE})), Membership(frozenset({ONE, TWO}))]

    assert set(book.reachable(memberships, ONE, ONE)) == {TWO, THREE}
    assert set(book.reachable(memberships[1:], ONE, ONE)) == {TWO}


def test_strangers_push_out_strangers_alone() -> None:
    """Law: addresses of strangers that greet are limited and replace only each other; members and the settings stay."""
    book = AddressBook(SETTINGS, {3: Address("c", 3)})
    book.reachable([Membership(frozenset({ONE, TWO, THREE}))], ONE, TWO)

    for node in range(100, 100 + 10 * ADDRESSES_MAX):
        book.learn(NodeId(node), Address("s", node))

    known = [node for node in range(2_000) if book.get(NodeId(node))]
    assert known[:3] == [1, 2, 3]
    assert len(known) == ADDRESSES_MAX
    assert known[-1] == 99 + 10 * ADDRESSES_MAX


@pytest.mark.parametrize(
    ("host", "port"), [("a", 0), ("a", 65_536), ("a", 10**30), ("a", -1), ("", 1), ("h" * 256, 1)]
)
def test_an_address_that_no_start_could_read_is_none(host: str, port: int) -> None:
    """Law: an address that a start could not read is refused, because it would keep the replica from starting."""
    with pytest.raises(ValueError, match=r"host|port"):
        Address(host, port)
