"""A group of replication loops without sockets, threads or clocks.

The loops, raft, state machines and stores are the real ones; time moves, disks finish and messages
arrive only when a test says so.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orderlymq_broker.core.effects import Effect, Now, Propose, Refusal
from orderlymq_broker.processors.dispatch import BrokerCore
from orderlymq_broker.replication.interfaces import LoopLimits, LoopPorts, ReplicaParts
from orderlymq_broker.replication.loop import ReplicationLoop
from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.replication.writer import Done
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Outcome, TopicSet
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.store.kv import Batch, StoreError, WriteTicket
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_raft import (
    Config,
    InstallSnapshot,
    Membership,
    Message,
    Node,
    RoleChange,
    SnapshotMeta,
)
from orderlymq_raft.types import HardState, Index, NodeId
from tests.broker.store.memory import MemoryStore

ELECTION_S = 0.4

TICK_S = 0.025
START_WALL_MS = 1_700_000_000_000


@dataclass(slots=True)
class Clock:
    """Virtual time of one replica."""

    at_s: float = 1.0

    def now(self) -> Now:
        return Now(START_WALL_MS + int(self.at_s * 1000), int(self.at_s * 1000))

    def seconds(self) -> float:
        return self.at_s


@dataclass(slots=True)
class Disk:
    """A writer whose writes end when a test says so, or immediately if *is_fast*."""

    store: MemoryStore
    call_soon: Callable[[Callable[[], None]], object]
    is_fast: bool = True
    waiting: deque[tuple[WriteTicket, bool, Done]] = field(default_factory=deque)
    synced: list[bool] = field(default_factory=list)

    def submit(self, ticket: WriteTicket, *, sync: bool, done: Done) -> None:
        self.waiting.append((ticket, sync, done))
        if self.is_fast:
            self.call_soon(self.finish)

    def finish(self) -> None:
        """Finish the oldest write, if there is one."""
        if self.waiting:
            ticket, sync, done = self.waiting.popleft()
            self.store.commit(ticket, sync=sync)
            self.synced.append(sync)
            done(0.001)


class Replica:
    """One loop with its store, disk and state; `restart` it after a crash."""

    def __init__(self, group: "SimulatedGroup", node: int, store: MemoryStore) -> None:
        self.group = group
        self.id = NodeId(node)
        self.clock = Clock(group.at_s)
        self.store = store
        self.events: list[str] = []
        self.answers: list[tuple[int, RemotingCommand]] = []
        self.on_role: Callable[[RoleChange], None] = lambda change: None
        self.on_membership: Callable[[], None] = lambda: None
        self.log = RaftLogStore(store, 1 << 20)
        if not self.log.initial_state()[1].members:
            batch = Batch()
            if node in group.nodes:  # A replica that joins learns the membership from the log.
                self.log.set_membership(batch, Membership(frozenset(map(NodeId, group.nodes))))
            if len(group.nodes) > 1:
                Recovery.begin(batch)
            store.write(batch, sync=True)
        self.state = BrokerState(store)
        self.core = BrokerCore(group.settings(node), self.state, store)
        self.node = Node(
            Config(id=self.id, lease_reads=True, election_ticks=group.election_ticks(node)),
            self.log,
            applied=Index(self.state.applied_index),
            random_below=group.dice(node),
        )
        self.disk = Disk(store, group.call_soon)
        parts = ReplicaParts(self.node, self.log, store, StateMachine(self.state), self.core)
        ports = LoopPorts(
            self.disk, self, self, self, self.clock, group.call_soon, group.call_later
        )
        limits = LoopLimits(tick_s=TICK_S, sync_writes=group.sync_writes)
        self.loop = ReplicationLoop(parts, ports, limits)
        for each in group.nodes:
            sticks_ms = round(1000 * TICK_S) * (group.election_ticks(each) - 1)
            self.loop.note_stickiness(NodeId(each), sticks_ms)
        self.loop.start()

    # The ports through which the loop acts.

    def send(self, first: Any, command: RemotingCommand | None = None) -> None:
        """Take messages for peers (one argument) or an answer for a client (two arguments)."""
        if command is not None:
            self.answers.append((first, command))
            return
        messages: Sequence[Message] = first
        self.group.sent.extend(messages)

    def send_snapshot(self, message: InstallSnapshot) -> None:
        self.events.append(f"snapshot for {message.target}")

    def close(self, connection: int, reason: str) -> None:
        self.events.append(f"close {connection}: {reason}")

    def role_changed(self, change: RoleChange) -> None:
        self.events.append(f"{change.role.value} {change.term}")
        self.on_role(change)

    def serving_began(self) -> None:
        self.events.append("serving")

    def serving_ended(self) -> None:
        self.events.append("not serving")

    def lease_changed(self) -> None:
        pass

    def membership_changed(self, index: int, membership: Membership) -> None:
        self.events.append(f"voters {sorted(membership.voters)}")
        self.on_membership()

    def topics_changed(self) -> None:
        self.events.append("topics")

    def snapshot_ready(self, meta: SnapshotMeta, hard_state: HardState) -> None:
        self.events.append(f"snapshot {meta.index}")

    def failed(self, error: Exception) -> None:
        if not isinstance(error, StoreError):
            raise error
        self.events.append(f"failed: {error}")


class SimulatedGroup:
    """Replicas, the messages between them, and one queue of callbacks.

    Attributes:
        election_ticks: the setting of each node.
        way_s: how long a message is on its way from one node to another.
        after_callback: is called after each callback of `run`, that is, after each turn of a loop.
    """

    def __init__(
        self,
        replicas: int = 3,
        *,
        seed: int | None = None,
        sync_writes: bool = True,
        election_ticks: Callable[[int], int] = lambda node: 8,
    ) -> None:
        self.election_ticks = election_ticks
        self.at_s = 1.0
        self.sync_writes = sync_writes
        self.way_s: Callable[[int, int], float] = lambda sender, target: 0.0
        self.after_callback: Callable[[], None] = lambda: None
        self._chance = None if seed is None else random.Random(seed)
        self._travelling: list[tuple[float, int, Message]] = []
        self._sent_count = 0
        self.nodes = list(range(1, replicas + 1))
        self.sent: list[Message] = []
        self.delivered: list[Message] = []
        self.cut: set[int] = set()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.replicas: dict[int, Replica] = {}
        for node in self.nodes:
            self.replicas[node] = Replica(self, node, MemoryStore())

    def __getitem__(self, node: int) -> Replica:
        return self.replicas[node]

    def settings(self, node: int) -> BrokerSettings:
        return BrokerSettings(
            cluster="C",
            group="g",
            node_id=node,
            peers={each: Address("127.0.0.1", 7000 + each) for each in self.nodes},
            address=Address("127.0.0.1", 10911),
            http=Address("127.0.0.1", 8000),
            data_dir=Path("unused"),
        )

    def dice(self, node: int) -> Callable[[int], int]:
        """Return the random draws of a node's time-outs: fixed, so that the lowest id is first, or random."""
        if self._chance is not None:
            return self._chance.randrange
        return lambda bound: min(2 * (node - 1), bound - 1)

    def call_soon(self, call: Callable[[], None]) -> None:
        self._callbacks.append(call)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append((self.at_s + seconds, call))

    def step(self) -> None:
        """Run the callbacks that are due now, but not those that they add: one iteration of an event loop."""
        for _ in range(len(self._callbacks)):
            self._callbacks.popleft()()

    def run(self) -> None:
        """Run callbacks and deliver messages until nothing happens any more."""
        while self._callbacks or self.sent:
            while self._callbacks:
                self._callbacks.popleft()()
                self.after_callback()
            sent, self.sent = self.sent, []
            for message in sent:
                due_s = self.at_s + self.way_s(message.sender, message.target)
                if due_s > self.at_s:
                    self._sent_count += 1
                    heapq.heappush(self._travelling, (due_s, self._sent_count, message))
                else:
                    self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if message.sender not in self.cut and message.target not in self.cut:
            self.delivered.append(message)
            self.replicas[message.target].loop.receive([message])

    def pass_time(self, seconds: float, *, paused: Sequence[int] = ()) -> None:
        """Let time pass in ticks for all replicas except the *paused* ones, whose clocks go on."""
        for _ in range(round(seconds / TICK_S)):
            self.at_s += TICK_S
            while self._travelling and self._travelling[0][0] <= self.at_s:
                self._deliver(heapq.heappop(self._travelling)[2])
            for node, replica in self.replicas.items():
                replica.clock.at_s = self.at_s
                if node not in paused:
                    # A little more than a tick, as with real timers.
                    replica.clock.at_s += 0.0001
                    replica.loop.tick()
            due = [call for at_s, call in self._timers if at_s <= self.at_s]
            self._timers = [timer for timer in self._timers if timer[0] > self.at_s]
            for call in due:
                call()
            self.run()

    def elect(self, *, within_s: float = 80 * TICK_S) -> Replica:
        """Let time pass until a leader serves; return it."""
        for _ in range(round(within_s / TICK_S)):
            self.pass_time(TICK_S)
            serving = [replica for replica in self.replicas.values() if replica.loop.serving]
            if serving:
                leader = max(serving, key=lambda replica: replica.node.term)
                self.pass_time(4 * TICK_S)
                return leader
        raise AssertionError("nobody was elected")

    def restart(self, node: int, *, kept: int = 0) -> Replica:
        """Crash a replica and start it again with the part of its data that its disk kept."""
        former = self.replicas[node]
        former.loop.stop()
        self.replicas[node] = Replica(self, node, former.store.crash(kept))
        return self.replicas[node]

    def join(self, node: int) -> Replica:
        """Start a replica that waits to be added to the group."""
        self.replicas[node] = Replica(self, node, MemoryStore())
        return self.replicas[node]

    def wipe(self, node: int) -> Replica:
        """Start a replica again with an empty disk."""
        self.replicas[node].loop.stop()
        self.replicas[node] = Replica(self, node, MemoryStore())
        return self.replicas[node]

    def greet(self, node: int) -> None:
        """Let a replica report that it was wiped, as its greeting to peers does."""
        for other in self.replicas.values():
            if other.id != node and self.replicas[node].loop.is_recovering:
                other.loop.report_wiped(NodeId(node))

    def check(self) -> None:
        """Check the invariants, and that replicas with the same applied index have the same state."""
        digests: dict[int, str] = {}
        for replica in self.replicas.values():
            replica.node.check()
            replica.state.check_invariants()
            digest = replica.state.digest()
            assert digests.setdefault(replica.state.applied_index, digest) == digest


class Proposal:
    """A topic to create, and its outcome."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fate = "unknown"

    @property
    def effect(self) -> Propose:
        def applied(outcomes: Sequence[Outcome], now: Now) -> list[Effect]:
            assert self.fate == "unknown"
            assert [getattr(outcome, "name", None) for outcome in outcomes] == [self.name]
            self.fate = "applied"
            return []

        def lost(_: Refusal | None) -> list[Effect]:
            assert self.fate == "unknown"
            self.fate = "lost"
            return []

        record = TopicSet(self.name, read_queues=1, write_queues=1)
        return Propose([record], applied=applied, lost=lost)


def propose(replica: Replica, *names: str) -> list[Proposal]:
    proposals = [Proposal(name) for name in names]
    replica.loop.submit([proposal.effect for proposal in proposals])
    return proposals


def outcomes(proposals: list[Proposal]) -> list[str]:
    return [proposal.fate for proposal in proposals]


def others(group: SimulatedGroup, replica: Replica) -> list[Replica]:
    return [each for each in group.replicas.values() if each is not replica]
