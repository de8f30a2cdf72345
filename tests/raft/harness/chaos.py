"""
A small cluster under random faults, checked against the safety properties of the raft paper.

One seed decides everything: which replica ticks or crashes, which message arrives, is lost, doubled or overtaken,
which disk is slow, and what is proposed. After the faults the network heals and the raft group must make progress.
The properties are those of figure 3 of the paper, and linearizable reads.
"""

import random
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass

from orderlymq_raft import (
    AddLearner,
    AddVoter,
    Compacted,
    Config,
    Entry,
    EntryKind,
    Index,
    InstallSnapshot,
    Membership,
    MembershipChange,
    Message,
    NodeId,
    NotLeader,
    PromoteLearner,
    ProposalRefused,
    RemoveNode,
    Role,
    Term,
)
from tests.raft.harness.replica import Replica

TURNS_MAX = 2
MESSAGES_MAX = 80
WEATHER_STEPS = 200
HEALING_ROUNDS_MAX = 200


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults during one period; the first five are probabilities per step or message."""

    loss: float
    doubling: float
    overtaking: float
    crashes: float
    haste: float
    slow_disks: Set[NodeId]


class Chaos:
    """One run; run() raises AssertionError if a property is broken."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        # These are not drawn, so that recorded seeds keep their meaning.
        self.inflight_bytes_max = (10_000, 30, 1)[seed % 3]
        self.lease_reads = rng.random() < 0.4
        self.check_quorum = self.lease_reads or rng.random() < 0.8
        self.pre_vote = rng.random() < 0.8
        # Without both settings a removed node may disturb the others for ever; they exist to prevent that.
        self.changes = self.check_quorum and self.pre_vote and rng.random() < 0.6
        voters = frozenset(NodeId(i) for i in range(1, rng.choice([1, 3, 3, 3, 5]) + 1))
        self.replicas: dict[NodeId, Replica] = {}
        for i in range(1, len(voters) + (3 if self.changes else 1)):
            node = NodeId(i)
            membership = Membership(voters) if node in voters else Membership()
            self.replicas[node] = Replica(self._config(node), membership, rng.randrange)
            self.replicas[node].start()
        self.weather = Weather(0.0, 0.0, 0.0, 0.0, 0.1, set())
        self.messages: list[Message] = []
        self.blocked: set[tuple[NodeId, NodeId]] = set()
        self.leaders: dict[Term, NodeId] = {}
        self.committed: dict[Index, Entry] = {}
        self.commit_max = Index(0)
        self.reads: dict[int, Index] = {}
        self.proposals = 0

    def run(self, steps: int) -> None:
        for step in range(steps):
            if step % WEATHER_STEPS == 0:
                self._change_weather()
            self._step()
        self._check_log_matching()
        self._heal()
        self._check_log_matching()

    def _change_weather(self) -> None:
        """Choose the next faults: links, disks, processes, or none."""
        rng = self.rng
        self.weather = Weather(
            loss=rng.choice([0.0, 0.0, 0.05, 0.3]),
            doubling=rng.choice([0.0, 0.0, 0.2]),
            overtaking=rng.choice([0.0, 0.1, 0.8]),
            crashes=rng.choice([0.0, 0.0, 0.0, 0.02]),
            haste=rng.choice([0.05, 0.12, 0.25]),
            slow_disks={node for node in self.replicas if rng.random() < rng.choice([0.0, 0.4])},
        )
        for replica in self.replicas.values():
            if not replica.is_up and rng.random() < 0.7:
                replica.start()
        if rng.random() < 0.5:
            self.blocked.clear()
        else:
            self._part()

    def _part(self) -> None:
        """Cut the network in two parts, sometimes around a leader, sometimes in one direction only."""
        rng = self.rng
        side = {node for node in self.replicas if rng.random() < 0.5}
        leader = self._some_leader()
        if leader is not None and rng.random() < 0.5:
            side = {leader.id}
        both_ways = rng.random() < 0.7
        self.blocked = {
            (one, other)
            for one in self.replicas
            for other in self.replicas
            if (one in side and other not in side)
            or (both_ways and one not in side and other in side)
        }

    def _config(self, node: NodeId) -> Config:
        rng = self.rng
        return Config(
            id=node,
            election_ticks=6,
            heartbeat_ticks=2,
            pre_vote=self.pre_vote,
            check_quorum=self.check_quorum,
            lease_reads=self.lease_reads,
            entries_per_append_bytes_max=rng.choice([1, 30, 10_000]),
            inflight_appends_max=rng.choice([1, 2, 8]),
            inflight_bytes_max=self.inflight_bytes_max,
            uncommitted_bytes_max=200,
            committed_bytes_max=rng.choice([1, 40, 10_000]),
            eager_commit=rng.random() < 0.3,
        )

    def _step(self) -> None:
        dice = self.rng.random()
        haste = self.weather.haste
        if dice < haste:
            self._tick_all() if self.lease_reads else self._tick_one()
        elif dice < haste + 0.40:
            for _ in range(self.rng.randrange(1, 5)):
                self._deliver_one()
        elif dice < 0.90:
            for _ in range(2):
                self._work(self._someone())
        elif dice < 0.95:
            self._propose()
        elif dice < 0.965:
            self._read()
        elif dice < 0.97:
            self._compact()
        elif dice < 0.98:
            self._administer()
        else:
            self._revive()
        if self.rng.random() < self.weather.crashes:
            self._crash(self._someone())

    def _someone(self) -> Replica:
        return self.replicas[self.rng.choice(list(self.replicas))]

    def _tick_one(self) -> None:
        replica = self._someone()
        if replica.is_up:
            replica.tick()
            self._judge(replica)

    def _tick_all(self) -> None:
        """Advance the time of all replicas equally, because a lease holds only if clocks run equally fast."""
        for replica in self.replicas.values():
            if replica.is_up:
                replica.tick()
                self._judge(replica)

    def _work(self, replica: Replica) -> None:
        if not replica.is_up:
            return
        slow = replica.id in self.weather.slow_disks
        if replica.turns and self.rng.random() < (0.05 if slow else 0.6):
            self.messages.extend(replica.end_turn().messages_after)
        elif len(replica.turns) < TURNS_MAX:
            ready = replica.begin_turn()
            if ready is not None:
                self.messages.extend(ready.messages_now)
        self._judge(replica)

    def _deliver_one(self) -> None:
        messages = self.messages
        if not messages:
            return
        rng, weather = self.rng, self.weather
        position = rng.randrange(len(messages)) if rng.random() < weather.overtaking else 0
        message = messages.pop(position)
        if rng.random() < weather.doubling:
            messages.append(message)
        lost = rng.random() < weather.loss or len(messages) > MESSAGES_MAX
        if lost or (message.sender, message.target) in self.blocked:
            self._lose(message)
            return
        self._deliver(message)

    def _deliver(self, message: Message) -> None:
        replica = self.replicas[message.target]
        if not replica.is_up:
            self._lose(message)
            return
        replica.step(message)
        self._judge(replica)
        sender = self.replicas[message.sender]
        if isinstance(message, InstallSnapshot) and sender.is_up:
            # A delivered snapshot need not be installed: the receiver may crash before it is durable.
            sender.node.report_snapshot(message.target, ok=True)

    def _lose(self, message: Message) -> None:
        sender = self.replicas[message.sender]
        if not sender.is_up:
            return
        if isinstance(message, InstallSnapshot):
            sender.node.report_snapshot(message.target, ok=False)
        elif self.rng.random() < 0.3:
            sender.node.report_unreachable(message.target)
        sender.node.check()

    def _propose(self) -> None:
        replica = self._some_leader() or self._someone()
        if not replica.is_up:
            return
        self.proposals += 1
        with suppress(NotLeader, ProposalRefused):
            replica.node.propose(b"%d" % self.proposals * self.rng.choice([1, 1, 10]))
        replica.node.check()

    def _read(self) -> None:
        replica = self._some_leader() or self._someone()
        if not replica.is_up:
            return
        context = len(self.reads)
        try:
            replica.node.read_index(context)
        except NotLeader:
            return
        self.reads[context] = self.commit_max

    def _compact(self) -> None:
        replica = self._someone()
        if replica.is_up:
            bound = replica.storage.applied
            if self.rng.random() < 0.5:
                bound = min(bound, replica.node.compact(bound))
            replica.storage.compact(bound)
            replica.node.check()

    def _administer(self) -> None:
        replica = self._some_leader() or self._someone()
        if not replica.is_up:
            return
        node = self.rng.choice(list(self.replicas))
        kinds: list[Callable[[NodeId], MembershipChange]] = [
            AddLearner,
            AddVoter,
            PromoteLearner,
            RemoveNode,
        ]
        try:
            if self.changes and self.rng.random() < 0.8:
                replica.node.propose_membership(self.rng.choice(kinds)(node))
            elif self.rng.random() < 0.5:
                replica.node.transfer_leadership(node)
            else:
                replica.node.campaign()
        except (NotLeader, ProposalRefused):
            pass
        self._judge(replica)

    def _crash(self, replica: Replica) -> None:
        if not replica.is_up:
            return
        # Some of the pending writes may have reached the disk before the power failed.
        for ready in list(replica.turns)[: self.rng.randrange(TURNS_MAX + 1)]:
            replica.persist(ready)
        replica.crash()
        if self.rng.random() < 0.5:
            replica.start()

    def _revive(self) -> None:
        replica = self._someone()
        if not replica.is_up:
            replica.start()

    def _heal(self) -> None:
        """Repair everything and require that the raft group commits and agrees."""
        self.blocked.clear()
        for replica in self.replicas.values():
            if not replica.is_up:
                replica.start()
        goal: tuple[Term, Index] | None = None
        for _ in range(HEALING_ROUNDS_MAX):
            self._tick_all()
            self._settle()
            leader = self._leader()
            if leader is None:
                continue
            entry = self.committed.get(goal[1]) if goal is not None else None
            if goal is None or goal[0] != leader.node.term:
                try:
                    goal = leader.node.propose(b"healed")
                except ProposalRefused:
                    continue
            elif entry is not None and self._agreed(leader, goal[1]):
                return
        statuses = [replica.node.status() for replica in self.replicas.values()]
        raise AssertionError(f"no progress after the faults: {statuses}")

    def _settle(self) -> None:
        for _ in range(1000):
            for replica in self.replicas.values():
                while replica.turns:
                    self.messages.extend(replica.end_turn().messages_after)
                ready = replica.begin_turn()
                if ready is not None:
                    self.messages.extend(ready.messages_now)
                self._judge(replica)
            if not self.messages and not any(replica.turns for replica in self.replicas.values()):
                return
            messages, self.messages = self.messages, []
            for message in messages:
                self._deliver(message)
        raise AssertionError("replicas talk without end though nothing happens")

    def _leader(self) -> Replica | None:
        """Return the leader with the highest term."""
        return max(self._leaders(), key=lambda one: one.node.term, default=None)

    def _some_leader(self) -> Replica | None:
        """Return a random replica that believes that it leads, even if it no longer does."""
        leaders = self._leaders()
        return self.rng.choice(leaders) if leaders else None

    def _leaders(self) -> list[Replica]:
        return [one for one in self.replicas.values() if one.is_up and one.node.is_leader]

    def _agreed(self, leader: Replica, index: Index) -> bool:
        members = leader.node.status().membership.members
        return all(self.replicas[node].storage.applied >= index for node in members)

    def _judge(self, replica: Replica) -> None:
        """Check the state of one replica against all that the replicas have shown before."""
        node = replica.node
        if node.role is Role.LEADER:
            self._check_leader(replica)
        for entry in replica.delivered:
            # State machine safety: at each index all replicas apply the same entry.
            assert self.committed.setdefault(entry.index, entry) == entry, "histories differ"
        replica.delivered.clear()
        for read in replica.read_states:
            assert read.index >= self.reads[read.context], "a read misses an earlier commit"
        replica.read_states.clear()
        self.commit_max = max(self.commit_max, node.commit)
        if node.lease_valid:
            assert node.commit >= self.commit_max, "a lease outlived its leader"

    def _check_leader(self, replica: Replica) -> None:
        term = replica.node.term
        first = term not in self.leaders
        # Election safety: one leader per term.
        assert self.leaders.setdefault(term, replica.id) == replica.id, f"two leaders in {term}"
        if first:
            # Leader completeness: the log of a leader holds every entry that was committed before.
            for index, entry in self.committed.items():
                assert _term(replica, index) in (None, entry.term) or entry.term > term, (
                    f"the leader of {term} lacks entry {index} of {entry.term}"
                )
                if entry.term < term:
                    assert replica.node.last_index >= index, f"the leader of {term} lacks {index}"

    def _check_log_matching(self) -> None:
        """Check that two logs with the same entry at some index are equal up to that index."""
        logs = [_log(replica) for replica in self.replicas.values() if replica.is_up]
        for position, one in enumerate(logs):
            for other in logs[position + 1 :]:
                common = sorted(one.keys() & other.keys(), reverse=True)
                agreed = False
                for index in common:
                    agreed = agreed or one[index].term == other[index].term
                    assert not agreed or one[index] == other[index], f"logs differ at {index}"


def _term(replica: Replica, index: Index) -> Term | None:
    log = replica.node._state.log  # no public method shows entries that are not durable yet
    try:
        return log.term(index) if index <= log.last_index else Term(-1)
    except Compacted:
        return None


def _log(replica: Replica) -> dict[Index, Entry]:
    log = replica.node._state.log  # no public method shows entries that are not durable yet
    found: dict[Index, Entry] = {}
    index = log.first_index()
    while index <= log.last_index:
        for entry in log.entries(index, 1 << 30):
            assert entry.kind in EntryKind, "kinds survive"
            found[entry.index] = entry
        index = Index(max(found) + 1)
    return found
