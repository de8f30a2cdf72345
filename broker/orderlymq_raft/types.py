"""
The types that every part of the raft core uses.

Identifiers, log entries, the durable state of a replica, the membership, and the errors with which the core
refuses a request or a message. Nothing here has behaviour beyond encoding a membership. Messages between
replicas are in messages.py; the rules are in node.py and the modules that it calls.
"""

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NewType

NodeId = NewType("NodeId", int)
"""The number of one replica of a group: positive, and never reused for another data directory."""

Term = NewType("Term", int)
"""The number of a leadership; 0 before the first election."""

Index = NewType("Index", int)
"""The number of a log entry, from 1; 0 is the empty log."""

NO_TERM = Term(0)
"""The term before the first election."""

NO_INDEX = Index(0)
"""The position before the first entry."""

VOTERS_MAX = 7
"""With more than seven voters, each commit would wait for more machines than any failure budget requires."""

LEARNERS_MAX = 7
"""Learners cost the leader as much network as voters; a whole group may be replaced in one change."""

_MEMBERSHIP_VERSION = 1
_MEMBERSHIP_HEADER = struct.Struct(">BBB")


class Role(Enum):
    """The present role of a replica."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class EntryKind(IntEnum):
    """The meaning of an entry's data; the number is stored, so it never changes."""

    NORMAL = 0
    """Data of the state machine."""
    NOOP = 1
    """Empty; each leader opens its term with one (raft paper section 8)."""
    CONFIG = 2
    """Data is the encoded Membership that is effective from this entry on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One position of the replicated log; index and term together identify it for ever."""

    term: Term
    index: Index
    data: bytes
    kind: EntryKind = EntryKind.NORMAL


@dataclass(frozen=True, slots=True)
class HardState:
    """State that a replica must keep durable to hold its promises; only *commit* may be out of date on disk."""

    term: Term = NO_TERM
    vote: NodeId | None = None
    commit: Index = NO_INDEX


@dataclass(frozen=True, slots=True)
class Membership:
    """
    Members of the raft group: voters count for majorities, learners only receive the log.

    Raises ValueError if a node is both, or if there are more than VOTERS_MAX voters or LEARNERS_MAX learners.
    """

    voters: frozenset[NodeId] = frozenset()
    learners: frozenset[NodeId] = frozenset()

    def __post_init__(self) -> None:
        if self.voters & self.learners:
            both = sorted(self.voters & self.learners)
            raise ValueError(f"nodes {both} are both voters and learners; name each node once")
        if len(self.voters) > VOTERS_MAX:
            raise ValueError(
                f"{len(self.voters)} voters are too many; a group has at most {VOTERS_MAX}"
            )
        if len(self.learners) > LEARNERS_MAX:
            raise ValueError(
                f"{len(self.learners)} learners are too many; a group has at most {LEARNERS_MAX}"
            )

    @property
    def members(self) -> frozenset[NodeId]:
        """Return all nodes that receive the log."""
        return self.voters | self.learners

    def encode(self) -> bytes:
        """Return version, two counts, then voters and learners as sorted unsigned 64-bit ids."""
        ids = sorted(self.voters) + sorted(self.learners)
        header = _MEMBERSHIP_HEADER.pack(_MEMBERSHIP_VERSION, len(self.voters), len(self.learners))
        return header + struct.pack(f">{len(ids)}Q", *ids)

    @classmethod
    def decode(cls, data: bytes) -> "Membership":
        """Decode the output of encode(); raises ValueError for anything else."""
        if len(data) < _MEMBERSHIP_HEADER.size:
            raise ValueError("the membership is cut short; the log entry is damaged")
        version, voter_count, learner_count = _MEMBERSHIP_HEADER.unpack_from(data)
        if version != _MEMBERSHIP_VERSION:
            raise ValueError(
                f"membership version {version} is unknown; run the release that wrote it"
            )
        count = voter_count + learner_count
        if len(data) != _MEMBERSHIP_HEADER.size + 8 * count:
            raise ValueError("the membership has the wrong length; the log entry is damaged")
        ids = struct.unpack_from(f">{count}Q", data, _MEMBERSHIP_HEADER.size)
        return cls(
            voters=frozenset(NodeId(node) for node in ids[:voter_count]),
            learners=frozenset(NodeId(node) for node in ids[voter_count:]),
        )


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """Identifies a state: everything up to *index* is applied, and *membership* was effective there."""

    index: Index
    term: Term
    membership: Membership


@dataclass(frozen=True, slots=True)
class AddVoter:
    """Make the new *node* a voter: it counts immediately, but votes only once it has caught up."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Send the log to the new *node* without counting it."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Remove *node*, voter or learner, from the raft group."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class PromoteLearner:
    """Make the learner *node* a voter; refused until it has caught up."""

    node: NodeId


MembershipChange = AddVoter | AddLearner | RemoveNode | PromoteLearner


@dataclass(frozen=True, slots=True)
class ReadState:
    """
    The answer to read_index(context).

    A read is linearizable once the state machine has applied *index*.
    """

    context: int
    index: Index


@dataclass(frozen=True, slots=True)
class RoleChange:
    """
    Tells the shell that the role, the known leader or the term has changed.

    Reads requested from a replica that no longer leads are never answered: the shell fails them when it gets
    this.
    """

    role: Role
    leader: NodeId | None
    term: Term


class ProtocolViolation(ValueError):  # noqa: N818 - named by the fact that the caller acts upon
    """A message breaks raft's rules and has changed nothing: close the connection that it came on."""


class NotLeader(Exception):  # noqa: N818 - named by the fact that the caller acts upon
    """The request needs the leader: ask *leader*, or retry later if that is None."""

    def __init__(self, leader: NodeId | None) -> None:
        where = "retry when one is elected" if leader is None else f"ask node {leader}"
        super().__init__(f"this node does not lead the group; {where}")
        self.leader = leader


class ProposalRefused(Exception):  # noqa: N818 - named by the fact that the caller acts upon
    """Nothing was appended, and nothing will be later; *reason* says when to retry."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
