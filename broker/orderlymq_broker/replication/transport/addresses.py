"""
The addresses at which the replicas of a group reach each other.

The rule: who belongs to the group is decided in the raft log, where a member is reached is not:
every replica sends its address in each greeting, and each replica keeps the addresses that it got beside its
store. Settings give the first addresses, an administrator's "add-learner" gives a new member's,
and a member that moves announces itself. A node that is no member may be one soon, or elsewhere already, so it is
noted as well, up to a limit.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from orderlymq_broker.settings import Address
from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import META_PEERS
from orderlymq_raft import Membership
from orderlymq_raft.types import NodeId

# A group has 14 members at most. The rest is for those that join, and for strangers who say that they do.
ADDRESSES_MAX: Final = 64


class AddressBook:
    """Addresses by node id; learned addresses win over the settings until the next restart.

    Attributes:
        learned: what this process was told, which a store that takes the place of another does not have.
    """

    def __init__(self, settings: Mapping[int, Address], learned: Mapping[int, Address]) -> None:
        # Settings win at a start: they are what a person has corrected last.
        self._addresses = {NodeId(node): address for node, address in learned.items()}
        self._addresses |= {NodeId(node): address for node, address in settings.items()}
        self._kept = frozenset(map(NodeId, settings))
        self._members: frozenset[NodeId] = frozenset()
        self.learned: dict[NodeId, Address] = {}

    @classmethod
    def load(cls, reader: Reader, settings: Mapping[int, Address]) -> "AddressBook":
        """Read the addresses that were learned before."""
        stored = reader.get(Family.META, META_PEERS)
        learned = {} if stored is None else msgspec.msgpack.decode(stored, type=dict[int, Address])
        return cls(settings, learned)

    def get(self, node: NodeId) -> Address | None:
        """Return where *node* is called."""
        return self._addresses.get(node)

    def learn(self, node: NodeId, address: Address) -> bool:
        """Note where *node* is called; return whether that is news."""
        if self._addresses.get(node) == address:
            return False
        if node not in self._addresses and len(self._addresses) >= ADDRESSES_MAX:
            needed = self._kept | self._members
            oldest = next((each for each in self._addresses if each not in needed), None)
            if oldest is None:
                return False
            del self._addresses[oldest]
            self.learned.pop(oldest, None)
        self._addresses[node] = self.learned[node] = address
        return True

    def put(self, batch: Batch) -> None:
        """Add the book to *batch*."""
        batch.put(Family.META, META_PEERS, msgspec.msgpack.encode(self._addresses))

    def reachable(
        self, memberships: Sequence[Membership], own: NodeId, leader: NodeId | None
    ) -> dict[NodeId, Address]:
        """Return whom to keep a link to: all members and the leader; everybody without one, or for one that is no member.

        *memberships* are the settled one and those that follow in the log: who is removed by one of these is asked
        until it is settled, too. A leader or a candidate may have been added by an entry that this replica does not have
        yet, or removed by one that will be lost, and needs its answer.
        """
        self._members = frozenset[NodeId]().union(*(each.members for each in memberships))
        everybody = leader is None or own not in memberships[-1].members
        return {
            node: address
            for node, address in self._addresses.items()
            if node != own and (everybody or node == leader or node in self._members)
        }
