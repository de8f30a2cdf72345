"""
Raft consensus for one group of replicas, as a pure, synchronous core.

Node takes ticks, messages and proposals, and returns what to persist, send and apply. It never uses a clock,
a socket or a disk. Start reading at node.py.
"""

from orderlymq_raft.config import Config
from orderlymq_raft.log import Compacted, LogStorage, Unavailable
from orderlymq_raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    Message,
    PreVote,
    PreVoteResponse,
    TimeoutNow,
    Vote,
    VoteResponse,
)
from orderlymq_raft.node import Node
from orderlymq_raft.progress import ProgressState
from orderlymq_raft.ready import PeerStatus, Ready, Status
from orderlymq_raft.types import (
    AddLearner,
    AddVoter,
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    MembershipChange,
    NodeId,
    NotLeader,
    PromoteLearner,
    ProposalRefused,
    ProtocolViolation,
    ReadState,
    RemoveNode,
    Role,
    RoleChange,
    SnapshotMeta,
    Term,
)

__all__ = [
    "AddLearner",
    "AddVoter",
    "Append",
    "AppendResponse",
    "Compacted",
    "Config",
    "Entry",
    "EntryKind",
    "HardState",
    "Heartbeat",
    "HeartbeatResponse",
    "Index",
    "InstallSnapshot",
    "InstallSnapshotResponse",
    "LogStorage",
    "Membership",
    "MembershipChange",
    "Message",
    "Node",
    "NodeId",
    "NotLeader",
    "PeerStatus",
    "PreVote",
    "PreVoteResponse",
    "ProgressState",
    "PromoteLearner",
    "ProposalRefused",
    "ProtocolViolation",
    "ReadState",
    "Ready",
    "RemoveNode",
    "Role",
    "RoleChange",
    "SnapshotMeta",
    "Status",
    "Term",
    "TimeoutNow",
    "Unavailable",
    "Vote",
    "VoteResponse",
]
