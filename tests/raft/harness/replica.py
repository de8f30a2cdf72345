"""
A replica as a shell runs it, without its own clock, disk or socket.

It keeps the order that Ready demands, several turns may wait for the disk at the same time, and it can crash
at any moment. A crash loses data that was not persisted; persisted data stays, even if the core does not know of it yet.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from orderlymq_raft import (
    Config,
    Entry,
    EntryKind,
    Membership,
    Message,
    Node,
    NodeId,
    ReadState,
    Ready,
)
from tests.raft.harness.memory import MemoryLogStorage

# More nodes than any test has; all nodes have the settings of the one that is started.
NODES_MAX = 9


class Replica:
    """One replica; *node* is None while it is down. Every operation checks the invariants."""

    def __init__(
        self,
        config: Config,
        membership: Membership,
        random_below: Callable[[int], int],
    ) -> None:
        self.config = config
        self.id = config.id
        self.founding = membership
        self.storage = MemoryLogStorage(membership)
        self.turns: deque[Ready] = deque()
        self.delivered: list[Entry] = []
        self.read_states: list[ReadState] = []
        self._random_below = random_below
        self._node: Node | None = None

    @property
    def is_up(self) -> bool:
        return self._node is not None

    @property
    def node(self) -> Node:
        assert self._node is not None, f"node {self.id} is down"
        return self._node

    def start(self) -> None:
        assert self._node is None, f"node {self.id} runs already"
        self._node = Node(
            self.config,
            self.storage,
            applied=self.storage.applied,
            random_below=self._random_below,
        )
        for peer in range(1, NODES_MAX + 1):
            self._node.note_stickiness(NodeId(peer), self.config.election_ticks)
        self._node.check()

    def crash(self) -> None:
        """Crash: lose all that is not on disk, and the commit index, which need not be synced."""
        self._node = None
        self.turns.clear()
        self.read_states.clear()
        hard_state, _ = self.storage.initial_state()
        self.storage.set_hard_state(replace(hard_state, commit=self.storage.applied))

    def step(self, message: Message) -> None:
        self.node.step(message)
        self.node.check()

    def tick(self) -> None:
        self.node.tick()
        self.node.check()

    def begin_turn(self) -> Ready | None:
        """Take the next Ready; the caller sends its messages_now."""
        ready = self.node.ready()
        self.node.check()
        if ready is None:
            return None
        self.turns.append(ready)
        self._apply(ready)
        self.read_states.extend(ready.read_states)
        return ready

    def persist(self, ready: Ready) -> None:
        """Persist all of *ready* in one batch, as the disk would."""
        storage = self.storage
        if ready.snapshot is not None:
            storage.apply_snapshot(ready.snapshot)
        storage.append(ready.entries)
        if ready.hard_state is not None:
            storage.set_hard_state(ready.hard_state)
        for entry in ready.committed:
            membership = Membership.decode(entry.data) if entry.kind is EntryKind.CONFIG else None
            storage.set_applied(entry.index, membership)

    def end_turn(self) -> Ready:
        """Persist the oldest pending Ready; the caller sends its messages_after."""
        ready = self.turns.popleft()
        self.persist(ready)
        if ready.must_sync:
            self.node.advance(ready)
        self.node.check()
        return ready

    def _apply(self, ready: Ready) -> None:
        for entry in ready.committed:
            # Ready.committed promises that an entry is on this disk before it is applied here.
            assert self.storage.term(entry.index) == entry.term, "applied before it was durable"
            self.delivered.append(entry)
        if ready.committed:
            self.node.applied_to(ready.committed[-1].index)
