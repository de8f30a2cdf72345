"""
Detects messages that no correct raft replica sends, before they change anything.

Rules:
- A message is addressed to this replica and comes from another one.
- A term has one leader.
- Entries follow each other, with terms that do not fall.
- A committed entry is never contradicted.
- A replica acknowledges only what was sent.

A violation is the sender's fault, so it is reported to the caller that passed the message in, and this
replica continues. The shell checks types and sizes. dispatch.py handles the messages that keep the rules.
"""

from typing import Final, assert_never

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
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import (
    EntryKind,
    Index,
    Membership,
    NodeId,
    ProtocolViolation,
    Role,
    Term,
)

TERM_JUMP_MAX: Final = 1 << 32
"""More elections than a group has in decades; a jump to the last number would leave no term for another election."""

_NODE_MAX: Final = (1 << 63) - 1


def check(state: RaftState, message: Message) -> None:
    """Raise ProtocolViolation for a message that breaks the rules; change nothing."""
    if message.target != state.id:
        raise ProtocolViolation(
            f"node {state.id} received a message for node {message.target}; check the addresses "
            "of the group"
        )
    if message.sender == state.id:
        raise ProtocolViolation(
            f"a message in the name of node {state.id}, which is this node; give each replica its "
            "own node id"
        )
    # A replica without a term is joining and does not know how far the raft group has come.
    if state.term and message.term - state.term > TERM_JUMP_MAX:
        raise ProtocolViolation(
            f"node {message.sender} sends term {message.term}, but this node is in term "
            f"{state.term}"
        )
    # Messages of a leader of an earlier term may contradict entries committed since. dispatch.py answers them.
    if message.term >= state.term:
        _check_content(state, message)
    elif isinstance(message, InstallSnapshot):
        _check_membership(message, message.meta.membership)


def _check_content(state: RaftState, message: Message) -> None:
    match message:
        case Append():
            _check_leader(state, message.sender, message.term)
            _check_entries(state, message)
        case Heartbeat():
            _check_leader(state, message.sender, message.term)
        case InstallSnapshot():
            _check_leader(state, message.sender, message.term)
            _check_term_of_log(message, message.meta.term, message.term)
            _check_membership(message, message.meta.membership)
        case AppendResponse() if message.reject:
            pass
        case AppendResponse() | InstallSnapshotResponse():
            _check_acknowledged(state, message, message.index)
        case HeartbeatResponse():
            _check_round(state, message)
        case PreVote() | Vote():
            _check_term_of_log(message, message.last_term, message.term)
        case PreVoteResponse() | VoteResponse() | TimeoutNow():
            pass
        case _:
            assert_never(message)


def _check_leader(state: RaftState, sender: NodeId, term: Term) -> None:
    if term == state.term and state.leader is not None and state.leader != sender:
        raise ProtocolViolation(
            f"node {sender} claims to lead term {term}, but node {state.leader} leads it"
        )


def _check_entries(state: RaftState, message: Append) -> None:
    _check_term_of_log(message, message.prev_term, message.term)
    index, term = message.prev_index, message.prev_term
    for entry in message.entries:
        index = Index(index + 1)
        if entry.index != index:
            raise ProtocolViolation(
                f"node {message.sender} sends entry {entry.index}, but entry {index} is expected"
            )
        if not term <= entry.term <= message.term:
            raise ProtocolViolation(
                f"node {message.sender} sends entry {index} of term {entry.term} after an entry "
                f"of term {term}, in term {message.term}"
            )
        term = entry.term
        if entry.kind == EntryKind.CONFIG:
            _check_membership(message, _decoded(message, entry.data))
    commit = state.log.commit
    if message.prev_index < commit <= index:
        of_leader = message.entries[commit - message.prev_index - 1].term
        if not state.log.matches(commit, of_leader):
            raise ProtocolViolation(
                f"node {message.sender} sends an entry {commit} that differs from the committed one"
            )


def _check_term_of_log(message: Message, term: Term, highest: Term) -> None:
    if term > highest:
        raise ProtocolViolation(
            f"node {message.sender} refers in term {message.term} to an entry of term {term}"
        )


def _decoded(message: Message, data: bytes) -> Membership:
    try:
        return Membership.decode(data)
    except ValueError as error:
        raise ProtocolViolation(
            f"node {message.sender} sends a membership that cannot be read: {error}"
        ) from error


def _check_membership(message: Message, membership: Membership) -> None:
    if not membership.voters or not all(0 < node <= _NODE_MAX for node in membership.members):
        raise ProtocolViolation(
            f"node {message.sender} sends an invalid membership: voters "
            f"{sorted(membership.voters)}, learners {sorted(membership.learners)}"
        )


def _check_round(state: RaftState, message: HeartbeatResponse) -> None:
    if _is_answer_to_me(state, message) and message.context > state.round:
        raise ProtocolViolation(
            f"node {message.sender} answers heartbeat round {message.context}, but the last round "
            f"was {state.round}"
        )


def _is_answer_to_me(state: RaftState, message: Message) -> bool:
    return state.role is Role.LEADER and message.term == state.term


def _check_acknowledged(state: RaftState, message: Message, index: Index) -> None:
    if _is_answer_to_me(state, message) and index > state.log.last_index:
        raise ProtocolViolation(
            f"node {message.sender} acknowledged {index}, which is after the end of the leader's "
            f"log, {state.log.last_index}: two replicas share one id, or a data directory was "
            "swapped"
        )
