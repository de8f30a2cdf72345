"""Links between the replicas of a raft group: every peer that needs an answer is called."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from orderlymq_broker.replication.groupclock import GroupClock
from orderlymq_broker.replication.replicainstance import Instance
from orderlymq_broker.replication.snapshots import SnapshotReceiver, SnapshotSender
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.server.forwarder import Inbox, Outbox
from orderlymq_broker.server.peers import HEARD_S, INSTALL_MAX_S, SAID_S, Peers
from orderlymq_broker.settings import Address
from orderlymq_raft import (
    AddLearner,
    InstallSnapshot,
    Membership,
    MembershipChange,
    Message,
    PromoteLearner,
    RemoveNode,
    SnapshotMeta,
)
from orderlymq_raft.types import Index, NodeId, Term
from tests.broker.replication.simulation import Replica, SimulatedGroup

# Does not send or receive anything.
NOWHERE = Path("nowhere")


class Links:
    """The nodes to which a replica's transport sends, and their addresses."""

    def __init__(self) -> None:
        self.nodes: Mapping[NodeId, Address] = {}

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        self.nodes = dict(peers)

    def tick(self, wall_ms: int, takes_in: int) -> None:
        pass


class Sender:
    """Records the snapshots that a replica begins to send."""

    def __init__(self) -> None:
        self.index_needed: int | None = None
        self.sent: list[InstallSnapshot] = []

    def send(self, message: InstallSnapshot, address: Address) -> None:
        self.sent.append(message)


class LinkedGroup(SimulatedGroup):
    """A raft group in which a message is sent only over a link of its sender, as in `Transport.send`."""

    def __init__(self, replicas: int = 3) -> None:
        super().__init__(replicas)
        self.links: dict[int, Links] = {}
        self.peers: dict[int, Peers] = {}
        self.senders: dict[int, Sender] = {}
        for replica in self.replicas.values():
            self.connect(replica)

    def connect(self, replica: Replica) -> None:
        """Let *replica* update its links."""
        peers = Peers(
            self.settings(replica.id),
            GroupClock(replica.clock),
            cast("Inbox", None),
            cast("Outbox", None),
        )
        links = Links()
        receiver = SnapshotReceiver(replica.id, NOWHERE, lambda message, directory: False)
        peers.connect(cast("Transport", links), receiver)
        self.senders[replica.id] = sender = Sender()
        peers.watch(cast("Instance", replica), cast("SnapshotSender", sender))
        replica.on_membership = peers.call
        self.links[replica.id], self.peers[replica.id] = links, peers

    def join(self, node: int) -> Replica:
        replica = super().join(node)
        self.connect(replica)
        for peers in self.peers.values():
            peers.peer_greeted(replica.id, Address("127.0.0.1", 7000 + node))
        return replica

    def pass_seconds(self, seconds: int) -> None:
        """Let time pass for raft and for the work of each second."""
        for _ in range(seconds):
            self.pass_time(1.0)
            for peers in self.peers.values():
                peers.tick()

    def change(self, leader: Replica, change: MembershipChange) -> None:
        """Change the members as a broker does: it updates its links immediately."""
        leader.loop.change_membership(change)
        self.peers[leader.id].call()
        self.pass_seconds(2)

    def serving(self) -> list[int]:
        return [
            each.id
            for each in self.replicas.values()
            if each.loop.serving and each.id not in self.cut
        ]

    def _deliver(self, message: Message) -> None:
        if message.target in self.links[message.sender].nodes:
            super()._deliver(message)


def members(replica: Replica) -> set[int]:
    return set(replica.node.status().membership.members)


@pytest.mark.parametrize("position", [0, 1])
def test_a_removal_that_is_lost_leaves_no_link_cut(position: int) -> None:
    """Law: if a removal is lost, the links to that replica are restored, because it may lead or be needed for a majority."""
    group = LinkedGroup()
    former = group.elect()
    others = [each for each in group.replicas.values() if each is not former]
    group.cut = {former.id}
    group.change(former, RemoveNode(others[position].id))
    group.pass_seconds(2)
    assert group.serving()
    group.cut = set()
    group.pass_seconds(3)
    assert members(former) == {1, 2, 3}

    group.cut = set(group.serving())
    group.pass_seconds(5)

    assert group.serving()


def test_a_leader_that_was_added_meanwhile_is_answered() -> None:
    """Law: a replica that was away answers a leader that it does not know as a member."""
    group = LinkedGroup()
    leader = group.elect()
    away = next(each for each in group.replicas.values() if each is not leader)
    added = group.join(4)
    group.cut = {away.id}
    group.change(leader, AddLearner(added.id))
    group.change(leader, PromoteLearner(added.id))
    leader.loop.transfer(added.id)
    group.pass_seconds(2)
    assert group.serving() == [added.id]

    group.cut = set()
    group.pass_seconds(3)

    assert group.serving() == [added.id]
    assert members(away) == {1, 2, 3, 4}


def test_a_candidate_that_was_added_meanwhile_gets_the_vote_of_one_that_was_away() -> None:
    """Law: a replica that was away votes for a candidate that it does not know as a member."""
    group = LinkedGroup(4)
    leader = group.elect()
    other, late, away = (each for each in group.replicas.values() if each is not leader)
    added = group.join(5)
    group.cut = {away.id}
    group.change(leader, AddLearner(added.id))
    group.cut |= {late.id}
    group.change(leader, PromoteLearner(added.id))

    group.cut = {leader.id, other.id}
    group.pass_seconds(5)

    assert group.serving() == [added.id]


def test_a_member_that_left_is_not_called_while_a_leader_is_heard() -> None:
    """Law: while a leader is heard, a member that left is not called, although its address is still known."""
    group = LinkedGroup()
    leader = group.elect()
    gone = next(each for each in group.replicas.values() if each is not leader)

    group.change(leader, RemoveNode(gone.id))

    assert not any(gone.id in group.links[each].nodes for each in group.nodes)


def test_what_follows_a_state_that_a_member_takes_in_stays_at_every_replica() -> None:
    """Law: every replica keeps the log after a snapshot that a member installs,
    so that the next leader can go on with entries.
    """
    group = LinkedGroup()
    one, two, away = sorted(group.replicas)
    stranger = NodeId(9)
    peers, clock = group.peers[one], group.replicas[one].clock
    peers.snapshot_shown(stranger, 10)
    free = peers.index_needed

    peers.snapshot_shown(NodeId(two), 50)
    peers.snapshot_shown(NodeId(away), 40)
    taking_in = peers.index_needed
    clock.at_s += INSTALL_MAX_S - 1
    for _ in range(3):
        peers.snapshot_shown(NodeId(two), 50)
    still = peers.index_needed
    clock.at_s += 1

    assert (free, taking_in, still, peers.index_needed) == (None, 40, 40, 50)


def test_a_peer_that_has_moved_is_answered_after_a_snapshot_too() -> None:
    """Law: a peer that has moved is answered at its new address, also after a snapshot replaced the state."""
    group = LinkedGroup()
    peers, links = group.peers[1], group.links[1]
    moved = Address("127.0.0.1", 9999)
    peers.peer_greeted(NodeId(2), moved)

    for _ in range(2):
        peers.watch(cast("Instance", group.replicas[1]), cast("SnapshotSender", group.senders[1]))

        assert links.nodes[NodeId(2)] == moved


def test_what_follows_a_state_stays_until_its_receiver_was_heard() -> None:
    """Law: the log after a snapshot is kept until the receiver was heard again,
    because it reports the end a moment earlier.
    """
    group = LinkedGroup()
    peers, clock = group.peers[1], group.replicas[1].clock
    peers.snapshot_shown(NodeId(2), 50)
    peers.snapshot_shown(NodeId(2), 0)
    clock.at_s += HEARD_S - 1
    peers.snapshot_shown(NodeId(2), 0)
    before = peers.index_needed
    clock.at_s += 1

    assert (before, peers.index_needed) == (50, None)


@pytest.mark.parametrize("end", ["said", "silence"])
def test_a_state_that_a_former_leader_sends_is_not_sent_again(end: str) -> None:
    """Law: a new leader waits for a former leader's snapshot, and sends its own only if that one failed."""
    group = LinkedGroup()
    peers, clock, sender = group.peers[1], group.replicas[1].clock, group.senders[1]
    meta = SnapshotMeta(Index(70), Term(1), Membership())
    offer = InstallSnapshot(NodeId(1), NodeId(2), Term(2), meta)

    peers.snapshot_shown(NodeId(2), 50)
    peers.send_snapshot(offer)
    meanwhile = list(sender.sent)
    if end == "said":
        peers.snapshot_shown(NodeId(2), 0)
    else:
        clock.at_s += SAID_S
    peers.send_snapshot(offer)

    assert (meanwhile, sender.sent) == ([], [offer])
