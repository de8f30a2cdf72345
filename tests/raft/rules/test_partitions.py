"""Cuts of single directions between three replicas: if two replicas hear each other, the group keeps serving."""

import itertools
import random
from collections.abc import Iterable
from typing import Final

import pytest

from orderlymq_raft import Config, Membership, Message, NodeId, NotLeader
from tests.raft.harness.replica import Replica

NODES: Final = [NodeId(number) for number in (1, 2, 3)]
LEADER: Final = NODES[0]
Direction = tuple[NodeId, NodeId]
DIRECTIONS: Final = list(itertools.permutations(NODES, 2))
# In ticks of 25 ms: the end of the old leader and an election whose vote is split once.
GAP_TICKS_MAX: Final = 80
TICKS: Final = 240


def _cuts(count: int) -> list[tuple[Direction, ...]]:
    """Return every set of *count* directions whose loss leaves two replicas that hear each other."""
    pairs = list(itertools.combinations(NODES, 2))
    return [
        cut
        for cut in itertools.combinations(DIRECTIONS, count)
        if any((one, other) not in cut and (other, one) not in cut for one, other in pairs)
    ]


class Network:
    """Three replicas; a message arrives in the same tick, unless its direction is cut."""

    def __init__(self, seed: int) -> None:
        self.cut: set[Direction] = set()
        self._random = random.Random(seed)
        voters = Membership(frozenset(NODES))
        self._replicas = {
            node: Replica(Config(node, lease_reads=True), voters, self._random.randrange)
            for node in NODES
        }
        for replica in self._replicas.values():
            replica.start()

    def leaders(self) -> list[Replica]:
        """Return the replicas that lead or believe that they lead, the newest term first."""
        found = [each for each in self._replicas.values() if each.node.is_leader]
        return sorted(found, key=lambda each: -each.node.term)

    def committed(self) -> int:
        return max(each.node.commit for each in self._replicas.values())

    def tick(self) -> None:
        """Let a tick pass at every replica in random order; each leader proposes an entry."""
        for replica in self._random.sample(list(self._replicas.values()), len(NODES)):
            replica.tick()
            self._bring(self._work(replica))
        for leader in self.leaders():
            try:
                leader.node.propose(b"x")
            except NotLeader:
                continue
            self._bring(self._work(leader))

    def lead(self, node: NodeId) -> None:
        """Have *node* lead the group."""
        while not (leaders := self.leaders()):
            self.tick()
        if leaders[0].id != node:
            leaders[0].node.transfer_leadership(node)
        while not self._replicas[node].node.is_leader:
            self.tick()

    def _bring(self, messages: Iterable[Message]) -> None:
        waiting = list(messages)
        while waiting:
            message = waiting.pop(0)
            if (message.sender, message.target) in self.cut:
                continue
            target = self._replicas[message.target]
            target.step(message)
            waiting += self._work(target)

    @staticmethod
    def _work(replica: Replica) -> list[Message]:
        sent: list[Message] = []
        while (ready := replica.begin_turn()) is not None:
            sent += [*ready.messages_now, *replica.end_turn().messages_after]
        return sent


@pytest.mark.parametrize("count", range(1, len(DIRECTIONS) - 1))
def test_who_has_a_majority_serves_whatever_else_is_cut(count: int) -> None:
    """Law: if two replicas hear each other, the group serves whatever else is cut, and leaders do not alternate."""
    for cut in _cuts(count):
        network = Network(seed=count)
        network.lead(LEADER)
        network.cut = set(cut)
        served_at, before, led = 0, network.committed(), [LEADER]
        for tick in range(1, TICKS + 1):
            network.tick()
            if network.committed() > before:
                served_at, before = tick, network.committed()
            assert tick - served_at <= GAP_TICKS_MAX, f"nobody serves when {cut} are cut"
            leaders = network.leaders()
            if leaders and leaders[0].id != led[-1]:
                led.append(leaders[0].id)
        assert len(led) <= 3, f"{led} led one after the other when {cut} were cut"
