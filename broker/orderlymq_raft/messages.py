"""
Messages between the replicas of one raft group.

One small dataclass per message; each carries its sender, its target and the sender's term. Requests and
answers may be lost, repeated, delayed and reordered without harm. election.py, replication.py and follower.py
define who may send which message, and what the receiver does.
"""

from dataclasses import dataclass

from orderlymq_raft.types import NO_INDEX, NO_TERM, Entry, Index, NodeId, SnapshotMeta, Term


@dataclass(frozen=True, slots=True)
class PreVote:
    """Ask "would you vote for me in *term*?"; no replica changes its own term (thesis 9.6)."""

    sender: NodeId
    target: NodeId
    term: Term
    last_index: Index
    last_term: Term
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class PreVoteResponse:
    """Answer a PreVote; *term* is the requested term if granted, the answering replica's own term if not."""

    sender: NodeId
    target: NodeId
    term: Term
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """
    Ask for the vote of *term*.

    *transfer* marks a candidate that its leader asked to run. *recovering* marks a candidate that cannot tell
    a new raft group from a lost disk (`Node.set_recovering`).
    """

    sender: NodeId
    target: NodeId
    term: Term
    last_index: Index
    last_term: Term
    transfer: bool = False
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """Answer a Vote."""

    sender: NodeId
    target: NodeId
    term: Term
    granted: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Add *entries* after the entry (*prev_index*, *prev_term*); *commit* is the leader's commit index."""

    sender: NodeId
    target: NodeId
    term: Term
    prev_index: Index
    prev_term: Term
    commit: Index
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """
    Answer an Append.

    Accepted: the log equals the leader's up to *index*, durably. Rejected: *index* repeats the prev_index
    that did not match, and *hint_index*, an entry of term *hint_term*, is the highest index at which the
    receiver's log can match.
    """

    sender: NodeId
    target: NodeId
    term: Term
    index: Index
    reject: bool = False
    hint_index: Index = NO_INDEX
    hint_term: Term = NO_TERM


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Tell the target that the sender leads; *commit* is never beyond the known end of the target's log."""

    sender: NodeId
    target: NodeId
    term: Term
    commit: Index
    context: int
    """The round of heartbeats, rising within a term; the answer repeats it."""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """Answer a Heartbeat of round *context*: the sender still followed this leader then."""

    sender: NodeId
    target: NodeId
    term: Term
    context: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """
    Replace the log up to *meta.index* by a state that the shells transfer separately.

    The receiving shell passes this to step() only once the complete state is stored next to the present one,
    ready to be swapped in.
    """

    sender: NodeId
    target: NodeId
    term: Term
    meta: SnapshotMeta


@dataclass(frozen=True, slots=True)
class InstallSnapshotResponse:
    """Answer an InstallSnapshot: the receiver has everything up to *index*, durably."""

    sender: NodeId
    target: NodeId
    term: Term
    index: Index


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Ask the target to stand for election immediately: leadership transfer (thesis 3.10)."""

    sender: NodeId
    target: NodeId
    term: Term


Message = (
    Append
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | PreVote
    | PreVoteResponse
    | Vote
    | VoteResponse
    | InstallSnapshot
    | InstallSnapshotResponse
    | TimeoutNow
)
