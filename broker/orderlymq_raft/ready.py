"""
The output of the core for its shell: the work of one turn, and a report of how things stand.

The order in which a shell works off a Ready is the whole of its duty; see Ready.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orderlymq_raft.messages import Message
from orderlymq_raft.progress import ProgressState
from orderlymq_raft.types import (
    Entry,
    HardState,
    Index,
    Membership,
    NodeId,
    ReadState,
    Role,
    RoleChange,
    SnapshotMeta,
    Term,
)

# Far above what one turn has: only a disk that does not answer lets so many wait.
WAITING_MAX: Final = 1024


def keep_newest(messages: list[Message]) -> None:
    """Forget the oldest of too many that wait: any message may get lost, and the next ones say as much."""
    if len(messages) > WAITING_MAX:
        del messages[: WAITING_MAX // 2]


@dataclass(slots=True, eq=False)
class Ready:
    """
    Hold one turn's work.

    The shell, in this order:

    1. sends *messages_now*, at any time from the first moment;
    2. makes durable, in one batch: *snapshot* (swap the staged state in, drop the log), then
       *entries* (replacing whatever is stored from the first one's index on), then
       *hard_state*; with a sync if *must_sync*. Entries may be left unsynced by who accepts that
       power loss takes them; a Ready that *promises*, a term or a vote, is always synced;
    3. applies *committed*, in order, and reports it with applied_to();
    4. calls advance(), in the order they were handed out, for each Ready that *must_sync*;
    5. sends *messages_after*, once this and every earlier Ready that must was advanced.

    Messages from Node.take_heartbeat_responses() are sent at any time, before or after.

    The next ready() may be asked for before this one is advanced: nothing is handed out twice.
    Identity is what equality means here: each Ready is one turn.
    """

    hard_state: HardState | None
    entries: tuple[Entry, ...]
    snapshot: SnapshotMeta | None
    messages_now: list[Message]
    messages_after: list[Message]
    committed: tuple[Entry, ...]
    read_states: tuple[ReadState, ...]
    role_change: RoleChange | None
    must_sync: bool
    promises: bool


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer as the leader sees it; *is_alive* as `Progress` has it."""

    match: Index
    next: Index
    state: ProgressState
    is_alive: bool


@dataclass(frozen=True, slots=True)
class Status:
    """How a replica stands; *progress* is empty unless it leads, and includes itself."""

    id: NodeId
    role: Role
    term: Term
    leader: NodeId | None
    commit: Index
    applied: Index
    last_index: Index
    membership: Membership
    transferee: NodeId | None
    progress: Mapping[NodeId, PeerStatus]
