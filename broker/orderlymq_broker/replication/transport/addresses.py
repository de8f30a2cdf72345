"""
The addresses at which the replicas of a raft group reach each other.

The rule: the raft log decides who is a member, but not where a member is reached. Every replica sends its
address in each greeting, and each replica stores the addresses that it got in its store. Settings give the
first addresses, an administrator's "add-learner" gives the address of a new member, and a member that moves
announces itself. A node that is not a member may soon be one, or may have moved, so its address is stored as
well, up to a limit.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from orderlymq_broker.settings import Address
from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import META_PEERS
from orderlymq_raft import Membership
from orderlymq_raft.types import NodeId

# A raft group has at most 14 members. The rest is for nodes that join, and for strangers that claim to.
ADDRESSES_MAX: Final = 64


class AddressBook:
    """Addresses by node id; learned addresses take precedence over the settings until the next restart.

    Attributes:
        learned: addresses that this process has learned; a store that replaces the present one does not have them.
    """

    def __init__(self, settings: Mapping[int, Address], learned: Mapping[int, Address]) -> None:
        # At a start the settings take precedence, because a person corrected them last.
        self._addresses = {NodeId(node): address for node, address in learned.items()}
        self._addresses |= {NodeId(node): address for node, address in settings.items()}
        self._kept = frozenset(map(NodeId, settings))
        self._members: frozenset[NodeId] = frozenset()
        self.learned: dict[NodeId, Address] = {}

    @classmethod
    def load(cls, reader: Reader, settings: Mapping[int, Address]) -> "AddressBook":
        """Read the addresses that were learned earlier."""
        stored = reader.get(Family.META, META_PEERS)
        learned = {} if stored is None else msgspec.msgpack.decode(stored, type=dict[int, Address])
        return cls(settings, learned)

    def get(self, node: NodeId) -> Address | None:
        """Return the address of *node*."""
        return self._addresses.get(node)

    def learn(self, node: NodeId, address: Address) -> bool:
        """Store the address of *node*; return whether it changed."""
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
        """Add the address book to *batch*."""
        batch.put(Family.META, META_PEERS, msgspec.msgpack.encode(self._addresses))

    def reachable(
        self, memberships: Sequence[Membership], own: NodeId, leader: NodeId | None
    ) -> dict[NodeId, Address]:
        """Return the nodes to keep a link to: members and leader; all if there is no leader or this replica is no member.

        *memberships* are the settled one and those that follow in the log. A node that one of these removes
        keeps its link until that is settled. A leader or candidate needs the answer of this replica. It may
        have been added by an entry that this replica does not have yet, or removed by one that will be lost.
        """
        self._members = frozenset[NodeId]().union(*(each.members for each in memberships))
        everybody = leader is None or own not in memberships[-1].members
        return {
            node: address
            for node, address in self._addresses.items()
            if node != own and (everybody or node == leader or node in self._members)
        }
