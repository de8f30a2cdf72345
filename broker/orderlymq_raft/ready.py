"""
The output of the core for its shell: the work of one turn, and a status report.

The shell's whole duty is to process a Ready in the right order; see Ready.
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

# Far more than one turn produces. Only a disk that does not answer makes so many messages wait.
WAITING_MAX: Final = 1024


def keep_newest(messages: list[Message]) -> None:
    """Drop the oldest messages if too many wait: any message may be lost, and later ones carry the same information."""
    if len(messages) > WAITING_MAX:
        del messages[: WAITING_MAX // 2]


@dataclass(slots=True, eq=False)
class Ready:
    """
    The work of one turn.

    The shell, in this order:

    1. sends *messages_now*, at any time from the first moment;
    2. makes durable, in one batch: *snapshot* (swap the staged state in, drop the log), then
       *entries* (replacing what is stored from the first one's index on), then
       *hard_state*; with a sync if *must_sync*. A shell that accepts losing entries in a power loss may
       leave entries unsynced. A Ready that *promises* (a term or a vote) is always synced;
    3. applies *committed*, in order, and reports it with applied_to();
    4. calls advance() for each Ready that *must_sync*, in the order in which they were handed out;
    5. sends *messages_after*, once this and every earlier Ready that *must_sync* was advanced.

    Messages from Node.take_heartbeat_responses() may be sent at any time, before or after.

    The shell may ask for the next ready() before it advances this one: nothing is handed out twice. Two
    Readys are equal only if they are the same object, because each Ready is one turn.
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
    """One peer as the leader sees it; *is_alive* as in `Progress`."""

    match: Index
    next: Index
    state: ProgressState
    is_alive: bool


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a replica; *progress* is empty unless it leads, and includes the replica itself."""

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
