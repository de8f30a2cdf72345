"""Replicas with ASYNC_FLUSH whose machines lose power one at a time, so that unsynced data may be gone."""

import random

import pytest

from orderlymq_raft.types import NodeId
from tests.broker.replication.simulation import (
    TICK_S,
    Proposal,
    Replica,
    SimulatedGroup,
    outcomes,
)

FAULTS = 8
SETTLED_WITHIN_S = 10.0


class Load:
    """Proposals to the serving leader, and power losses that leave acknowledged entries on the other disks."""

    def __init__(self, seed: int) -> None:
        self.group = SimulatedGroup(3, seed=seed, sync_writes=False)
        self.proposals: list[Proposal] = []
        self._chance = random.Random(seed)

    def run(self) -> None:
        """Cut off a replica, often the leader; when it is back, or a moment later, take the power of it or of another one."""
        leader, chance = self.group.elect(), self._chance
        for _ in range(FAULTS):
            victim = leader.id if chance.random() < 0.6 else chance.choice(self.group.nodes)
            self.group.cut = {victim}
            self._propose_for(chance.randrange(1, 40))
            self.group.cut = set()
            self._propose_for(chance.randrange(0, 12) if chance.random() < 0.5 else 0)
            self.group.pass_time(chance.randrange(0, 30) * TICK_S)
            self._lose_power(victim)
            leader = self._settle()
            self._lose_power(chance.choice(self.group.nodes))
            leader = self._settle()

    def _propose_for(self, ticks: int) -> None:
        for _ in range(ticks):
            for replica in self.group.replicas.values():
                if replica.loop.serving and self._chance.random() < 0.6:
                    self.proposals.append(Proposal(f"topic-{len(self.proposals)}"))
                    replica.loop.submit([self.proposals[-1].effect])
            self.group.pass_time(TICK_S)

    def _lose_power(self, node: int) -> None:
        """Restart a replica with all synced data and a prefix of the rest; its connections break."""
        at_risk = self.group[node].store.at_risk
        self.group.restart(node, kept=self._chance.choice([0, self._chance.randint(0, at_risk)]))
        for other in self.group.replicas.values():
            if other.id != node:
                other.loop.unreachable(NodeId(node))

    def _settle(self) -> Replica:
        """Let time pass until all replicas have applied a leader's whole log; return that leader."""
        for _ in range(round(SETTLED_WITHIN_S / TICK_S)):
            self.group.pass_time(TICK_S)
            for leader in self.group.replicas.values():
                end = leader.node.last_index
                if leader.loop.serving and all(
                    (each.node.last_index, each.state.applied_index) == (end, end)
                    for each in self.group.replicas.values()
                ):
                    self.group.check()
                    return leader
        raise AssertionError("the replicas do not come to one state")


@pytest.mark.parametrize("seed", range(6))
def test_power_losses_one_at_a_time_leave_equal_replicas(seed: int) -> None:
    """Law: after a power loss a replica gets again what it forgot and applies nothing else;
    acknowledged entries are not lost.
    """
    load = Load(seed)

    load.run()

    stored = load.group[1].state.topics.by_name
    acknowledged = [each for each in load.proposals if outcomes([each]) == ["applied"]]
    assert acknowledged
    assert [each.name for each in acknowledged if each.name not in stored] == []
