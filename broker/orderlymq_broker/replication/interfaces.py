"""
The parts of a replication loop and its environment as interfaces, so that tests can replace them.

The loop itself is ``loop.py``; ``app.py`` provides all parts in the process.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from orderlymq_broker.core.effects import Now
from orderlymq_broker.processors.dispatch import BrokerCore
from orderlymq_broker.replication.writer import Writer
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Outcome
from orderlymq_broker.store.entry import EntryParts
from orderlymq_broker.store.kv import Batch, KeyValueStore
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_raft import InstallSnapshot, Membership, Message, Node, RoleChange, SnapshotMeta
from orderlymq_raft.types import Entry, HardState
from orderlymq_runtime.wallclock import machine_ms, monotonic_ms


class Clock(Protocol):
    """The clocks of this process."""

    def now(self) -> Now:
        """Return wall and monotonic time in ms."""

    def seconds(self) -> float:
        """Return monotonic seconds, which advance while the machine sleeps, if possible."""


class Outbound(Protocol):
    """The outlet for messages to peers."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send each message to its target, or drop it."""

    def send_snapshot(self, message: InstallSnapshot) -> None:
        """Transfer the state that *message* names to its target."""


class ClientPort(Protocol):
    """The outlet for effects on clients."""

    def send(self, connection: int, command: RemotingCommand) -> None:
        """Write a command to a connection, if it is still open."""

    def close(self, connection: int, reason: str) -> None:
        """Close a connection, if it is still open."""


class Host(Protocol):
    """Gets the loop's events; called between iterations, never re-entered."""

    def role_changed(self, change: RoleChange) -> None:
        """Note that the role, the leader or the term has changed."""

    def serving_began(self) -> None:
        """Begin to serve: this replica leads and has applied all entries of earlier leaders."""

    def serving_ended(self) -> None:
        """Stop serving; pending requests are answered when their outcome is known."""

    def lease_changed(self) -> None:
        """Note that the result of `may_answer` may have changed."""

    def membership_changed(self, index: int, membership: Membership) -> None:
        """Note that the membership of entry *index* was applied."""

    def topics_changed(self) -> None:
        """Note that the table of topics has a new version."""

    def snapshot_ready(self, meta: SnapshotMeta, hard_state: HardState) -> None:
        """Swap a received snapshot in; the loop has stopped for good."""

    def failed(self, error: Exception) -> None:
        """Stop this process, because a rule is broken or the store cannot be read."""


class LogWriter(Protocol):
    """The log, `RaftLogStore`, as the loop writes it; the node reads it."""

    def append(
        self, batch: Batch, entries: Sequence[Entry], hard_state: HardState | None = None
    ) -> None:
        """Stage entries, after truncating the log where they begin, and the hard state of the replica."""

    def set_membership(self, batch: Batch, membership: Membership) -> None:
        """Stage the membership that was applied."""

    def physical_end(self) -> int:
        """Return the physical offset of the next message."""


class Applier(Protocol):
    """The state machine, `StateMachine`: committed entries go in, in order."""

    state: BrokerState

    @property
    def changes(self) -> int:
        """How many changes were applied that take time."""

    def apply(self, index: int, term: int, parts: EntryParts, batch: Batch) -> list[Outcome]:
        """Apply an entry with records and messages; return the outcome of each record."""

    def apply_noop(self, index: int, term: int, batch: Batch) -> None:
        """Note an entry that changes nothing here."""


@dataclass(slots=True)
class LoopFigures:
    """Counters and last values for metrics; plain fields, because they are updated often."""

    iterations: int = 0
    entries_proposed: int = 0
    proposals: int = 0
    bytes_proposed: int = 0
    tickets: int = 0
    entries_applied: int = 0
    proposals_lost: int = 0
    disk_stalls: int = 0
    on_commit: Callable[[float, int], None] = field(default=lambda seconds, proposals: None)
    on_sync: Callable[[float], None] = field(default=lambda seconds: None)

    def on_proposed(self, proposals: int, size: int) -> None:
        """Count an entry with this many proposals and bytes of messages."""
        self.entries_proposed += 1
        self.proposals += proposals
        self.bytes_proposed += size


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """The parts of one opened replica; made again when a snapshot replaces it."""

    node: Node
    log: LogWriter
    store: KeyValueStore
    machine: Applier
    core: BrokerCore


@dataclass(frozen=True, slots=True)
class LoopPorts:
    """The environment of the loop."""

    writer: Writer
    outbound: Outbound
    clients: ClientPort
    host: Host
    clock: Clock
    call_soon: Callable[[Callable[[], None]], object]
    call_later: Callable[[float, Callable[[], None]], object]


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """The settings of the loop."""

    tick_s: float
    sync_writes: bool  # False: only promises (votes, terms) are synced, by the ASYNC_FLUSH setting


# CLOCK_BOOTTIME advances while a laptop sleeps, so that a leader that slept does not trust its lease.
_MONOTONIC: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clocks of the machine."""

    def now(self) -> Now:
        """Return wall and monotonic time in ms."""
        return Now(machine_ms(), monotonic_ms())

    def seconds(self) -> float:
        """Return monotonic seconds, which advance while the machine sleeps."""
        return time.clock_gettime(_MONOTONIC)
