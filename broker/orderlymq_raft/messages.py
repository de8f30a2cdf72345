"""
Messages between replicas of one group.

One small dataclass per message; each carries its sender, its target and the sender's term.
Requests and answers may be lost, repeated, delayed and reordered without harm. Who may send
which, and what the receiver does: election.py, replication.py and follower.py.
"""

from dataclasses import dataclass

from orderlymq_raft.types import NO_INDEX, NO_TERM, Entry, Index, NodeId, SnapshotMeta, Term


@dataclass(frozen=True, slots=True)
class PreVote:
    """Ask "would you vote for me in *term*?"; nobody changes its own term (thesis 9.6)."""

    sender: NodeId
    target: NodeId
    term: Term
    last_index: Index
    last_term: Term
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class PreVoteResponse:
    """Answer a PreVote; *term* is the asked one when granted, the answerer's own when not."""

    sender: NodeId
    target: NodeId
    term: Term
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """
    Ask for the vote of *term*.

    *transfer* marks a candidate that its leader asked to run, *recovering* one that cannot tell a
    group that begins from a disk that was lost (`Node.set_recovering`).
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
    """Add *entries* behind the entry (*prev_index*, *prev_term*); *commit* is the leader's."""

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

    Accepted: the log equals the leader's up to *index*, durably. Rejected: *index* repeats the
    prev_index that did not match, and the receiver's log can match at *hint_index*, which has
    *hint_term*, at the highest.
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
    """Say "I lead"; *commit* is never beyond the known end of the target's log."""

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
    Replace the log up to *meta.index* by a state that the shells carry on their own way.

    The receiving shell hands this to step() only once the state lies complete beside the
    present one, ready to be swapped in.
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
