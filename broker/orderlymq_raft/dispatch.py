"""
Routes each message: first the rules about terms, then one handler for each kind.

Rules:
- A replica enters a newer term before it looks at anything else in the message, and answers an older term with
  its own (raft paper section 5.1).
- A candidate cannot force a newer term on a replica that hears a leader, regardless of the leader's term
  (thesis 4.2.3).

violations.py rejects messages that break raft's rules before they come here. Handlers: election.py,
replication.py, follower.py.
"""

from typing import assert_never

from orderlymq_raft import election, replication
from orderlymq_raft import follower as following
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
from orderlymq_raft.types import NO_INDEX, NodeId, Role


def route(state: RaftState, message: Message) -> None:
    """Handle *message*, which is addressed to this replica."""
    if message.term != state.term:
        if message.term < state.term:
            _answer_older(state, message)
            return
        if not _meet_newer(state, message):
            return
    _dispatch(state, message)


def _dispatch(state: RaftState, message: Message) -> None:  # noqa: C901, PLR0912 - one branch per message
    leads = state.role is Role.LEADER
    match message:
        case Append():
            following.handle_append(state, message)
        case AppendResponse():
            if leads:
                replication.handle_append_response(state, message)
        case Heartbeat():
            following.handle_heartbeat(state, message)
        case HeartbeatResponse():
            if leads:
                replication.handle_heartbeat_response(state, message)
        case PreVote():
            election.handle_pre_vote(state, message)
        case PreVoteResponse():
            election.handle_pre_vote_response(state, message)
        case Vote():
            election.handle_vote(state, message)
        case VoteResponse():
            election.handle_vote_response(state, message)
        case InstallSnapshot():
            following.handle_install_snapshot(state, message)
        case InstallSnapshotResponse():
            if leads:
                replication.handle_install_snapshot_response(state, message)
        case TimeoutNow():
            election.handle_timeout_now(state, message)
        case _:
            assert_never(message)


def is_unknown(state: RaftState, sender: NodeId) -> bool:
    """
    Return whether *sender* is in no membership of the log, so that its messages may be ignored.

    While a replica hears a leader, the leader tells it which members were added. Without a leader, a member
    that this log does not have yet may be the only one that can lead (thesis 4.1), so no sender is unknown.
    To a replica that is joining, no sender is unknown, either.
    """
    if not (state.config.check_quorum and election.in_lease(state)):
        return False
    members = [membership.members for _, membership in state.configs]
    joins = not any(state.id in each for each in members)
    return not (joins or sender == state.leader or any(sender in each for each in members))


def _meet_newer(state: RaftState, message: Message) -> bool:
    """Enter the newer term of *message* unless the message may not force it; return whether to handle the message."""
    match message:
        case PreVote():
            return True
        case PreVoteResponse() if message.granted:
            return True
        case _ if is_unknown(state, message.sender):
            return False
        case Vote() if not message.transfer:
            # A node that hears a leader does not help to replace it, and keeps its term: a server that was cut
            # off or removed must not disturb the raft group (thesis 4.2.3).
            if state.config.check_quorum and election.in_lease(state):
                return False
            state.become_follower(message.term, None)
        case Append() | Heartbeat() | InstallSnapshot():
            state.become_follower(message.term, message.sender)
        case _:
            state.become_follower(message.term, None)
    return True


def _answer_older(state: RaftState, message: Message) -> None:
    """Answer a message of an older term with the present term (5.1); use a snapshot regardless of its term."""
    me, sender, term = state.id, message.sender, state.term
    if isinstance(message, InstallSnapshot):
        following.adopt_former(state, message.meta)
    match message:
        case Append() | Heartbeat() | InstallSnapshot():
            state.after.append(AppendResponse(me, sender, term, NO_INDEX, reject=True))
        case PreVote():
            state.after.append(PreVoteResponse(me, sender, term, granted=False))
        case Vote():
            state.after.append(VoteResponse(me, sender, term, granted=False))
        case _:
            # Answers to requests of an older term are obsolete.
            pass
