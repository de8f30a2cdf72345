"""
How a leader is chosen: time-outs, pre-votes, votes, and leader stickiness.

Rules kept: one vote per term, durable before it is sent (raft paper section 5.2); only a log
at least as complete as the voter's gets it (5.4.1); nobody raises its term before a majority
would elect it (thesis 9.6); who hears a leader does not help to replace it (thesis 4.2.3).
"""

from typing import Final

from orderlymq_raft.messages import PreVote, PreVoteResponse, TimeoutNow, Vote, VoteResponse
from orderlymq_raft.quorum import VoteResult, has_majority, vote_result
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import NodeId, Role, Term

VOTE_REQUESTS_MAX: Final = 8
"""Requests of one candidacy: at 200 ms it waits for 1.6 to 3.2 s, four round trips of 400 ms."""


def tick(state: RaftState) -> None:
    """Let one tick pass for a replica that does not lead."""
    state.election_elapsed += 1
    timeout = min(state.election_timeout, state.hurry_ticks or state.election_timeout)
    if state.election_elapsed < timeout or not state.may_run or is_bound(state):
        return
    if _should_ask_again(state):
        # On a slow link the answers are still under way; a new term would make them void.
        state.election_elapsed = 0
        _ask_for_votes(state, transfer=False)
        return
    if state.role is Role.CANDIDATE:
        state.elections_lost += 1
    campaign(state, transfer=False)


def tick_leader(state: RaftState) -> None:
    """Let one tick pass for the leader: heartbeats, and whether anyone still follows."""
    state.heartbeat_elapsed += 1
    if state.heartbeat_elapsed >= state.config.heartbeat_ticks:
        state.heartbeat_elapsed = 0
        state.heartbeat_wanted = True

    state.election_elapsed += 1
    if state.election_elapsed < _answer_ticks(state):
        return
    state.election_elapsed = 0
    if state.lease_revoked:
        # The target was asked to run and may do so at any time, against the stickiness that the
        # lease rests on. Only a new term makes that request void; without one this leader could
        # never answer a read again.
        state.become_follower(state.term, None)
        return
    # A target that did not take over within an election time-out will not; go on leading.
    state.transferee = None
    state.transfer_sent = False
    if state.config.check_quorum:
        _check_quorum(state)


def campaign(state: RaftState, *, transfer: bool) -> None:
    """Stand for election; a candidate that the leader asked to run skips the pre-vote."""
    if state.role is Role.LEADER or not state.may_run:
        return
    if transfer or not state.config.pre_vote:
        _start_election(state, transfer=transfer)
    else:
        _start_pre_election(state)


def leader_gone(state: RaftState, node: NodeId) -> None:
    """
    Stand for election as soon as leader stickiness ends, for *node* led and its connection has broken.

    That is a reason, no proof: stickiness and pre-vote stay as they are. Those who notice it notice
    it together; they go one after the other, so that the first is elected before the second runs.
    """
    if state.role is Role.LEADER or state.leader != node or not state.is_voter:
        return
    rank = sorted(state.membership.voters - {node}).index(state.id)
    # One tick more than stickiness lasts: the others heard the leader at the same time, but their
    # ticks fall elsewhere. Two ticks are enough for two round trips and a synced vote on a LAN.
    state.hurry_ticks = state.config.election_ticks + 1 + 2 * rank


def in_lease(state: RaftState) -> bool:
    """
    Return whether this replica still sticks to the leader that it heard last.

    A newer term does not end that: the leader may not know of it, and counts on the answer that it got.
    """
    return state.role is Role.LEADER or state.ticks < state.sticks_until


def is_bound(state: RaftState) -> bool:
    """Return whether a lease may rest on this replica, so that it does not run, for its own vote would break its promise."""
    return state.config.lease_reads and in_lease(state)


def handle_pre_vote(state: RaftState, message: PreVote) -> None:
    """Say whether a vote would be granted; nothing of it is remembered."""
    sticks = (state.config.check_quorum or state.config.pre_vote) and in_lease(state)
    complete = state.log.is_up_to_date(message.last_index, message.last_term)
    trusts = _trusts(state, candidate_is_recovering=message.recovering)
    granted = message.term > state.term and not sticks and complete and trusts
    if not (sticks or complete) and trusts:
        _note_forced_candidate(state)
    # A refusal carries our own term, so that a node that was left behind learns of it.
    term = message.term if granted else state.term
    state.after.append(PreVoteResponse(state.id, message.sender, term, granted))


def handle_vote(state: RaftState, message: Vote) -> None:
    """Grant or refuse the vote of the present term; a voter that sticks leaves the answer to the next request."""
    free = state.vote == message.sender or (state.vote is None and state.leader is None)
    complete = state.log.is_up_to_date(message.last_index, message.last_term)
    trusts = _trusts(state, candidate_is_recovering=message.recovering)
    granted = free and complete and trusts
    is_new = granted and state.vote is None
    if is_new and state.config.check_quorum and in_lease(state) and not message.transfer:
        # A refusal would be counted, and the term be lost for this candidate.
        return
    if trusts and not complete:
        _note_forced_candidate(state)
    if granted:
        state.vote = message.sender
        state.election_elapsed = 0
    state.after.append(VoteResponse(state.id, message.sender, state.term, granted))


def handle_pre_vote_response(state: RaftState, message: PreVoteResponse) -> None:
    """Count an answer to a pre-vote; with a majority the real election starts."""
    if state.role is not Role.PRE_CANDIDATE:
        return
    if message.granted and message.term != state.term + 1:
        return
    state.votes.setdefault(message.sender, message.granted)
    match vote_result(state.membership.voters, state.votes):
        case VoteResult.WON:
            _start_election(state, transfer=False)
        case VoteResult.LOST:
            state.become_follower(state.term, None)
        case VoteResult.PENDING:
            pass


def handle_vote_response(state: RaftState, message: VoteResponse) -> None:
    """Count an answer to a vote."""
    if state.role is Role.CANDIDATE:
        count_vote(state, message.sender, granted=message.granted)


def handle_timeout_now(state: RaftState, message: TimeoutNow) -> None:
    """Run for election on behalf of the leader that is leaving (thesis 3.10)."""
    if message.sender == state.leader:
        campaign(state, transfer=True)


def count_vote(state: RaftState, voter: NodeId, *, granted: bool) -> None:
    """Note the vote of *voter*, oneself included once it is durable; maybe win or lose."""
    state.votes.setdefault(voter, granted)
    match vote_result(state.membership.voters, state.votes):
        case VoteResult.WON:
            state.become_leader()
        case VoteResult.LOST:
            state.elections_lost += 1
            state.become_follower(state.term, None)
        case VoteResult.PENDING:
            pass


def _trusts(state: RaftState, *, candidate_is_recovering: bool) -> bool:
    """
    Return whether the votes of this replica and of the candidate may make one majority.

    Those who know that the group has begun elect each other. Those who cannot tell do so too, as
    long as they have seen nothing but elections: a majority of them is a group that begins. A
    mixture could leave out what one of them has forgotten.
    """
    if state.recovering:
        return candidate_is_recovering and state.log.is_blank()
    return not candidate_is_recovering


def _note_forced_candidate(state: RaftState) -> None:
    """
    Note that a candidate counts on this learner and cannot have its vote, for its log is behind.

    The candidate holds a promotion of which nothing is known here, and may need this very vote:
    if the voters that are left are behind too, only this replica can end the deadlock.
    """
    state.forced_candidate = state.id in state.membership.learners


def _start_pre_election(state: RaftState) -> None:
    state.become_pre_candidate()
    state.votes[state.id] = True
    voters = state.membership.voters
    if vote_result(voters, state.votes) is VoteResult.WON:
        _start_election(state, transfer=False)
        return
    log = state.log
    term = Term(state.term + 1)
    for voter in sorted(voters):
        if voter != state.id:
            state.after.append(
                PreVote(state.id, voter, term, log.last_index, log.last_term, state.recovering)
            )


def _start_election(state: RaftState, *, transfer: bool) -> None:
    state.become_candidate()
    _ask_for_votes(state, transfer=transfer)


def _should_ask_again(state: RaftState) -> bool:
    """
    Return whether this candidate repeats its request in the same term instead of opening a new one.

    It does while nobody has answered: the round trip may be longer than its time-out. Once somebody
    has, a time-out without a result means that the vote is split.
    """
    nobody_answered = not (state.votes.keys() & state.membership.voters) - {state.id}
    return (
        state.role is Role.CANDIDATE and nobody_answered and state.votes_asked < VOTE_REQUESTS_MAX
    )


def _ask_for_votes(state: RaftState, *, transfer: bool) -> None:
    state.votes_asked += 1
    log = state.log
    for voter in sorted(state.membership.voters):
        if voter != state.id:
            state.after.append(
                Vote(
                    state.id,
                    voter,
                    state.term,
                    log.last_index,
                    log.last_term,
                    transfer,
                    state.recovering,
                )
            )


def _answer_ticks(state: RaftState) -> int:
    """
    Return how long a majority may be silent before this leader steps down.

    An election time-out, and on a slow link the time that answers need. That time is unknown before
    the first answers: a new leader waits as long for them as the candidate that it was.
    """
    longest = VOTE_REQUESTS_MAX * state.config.election_ticks
    if state.round_trip_ticks is None:
        return longest
    return min(state.config.election_ticks + state.round_trip_ticks, longest)


def _check_quorum(state: RaftState) -> None:
    """
    Step down when no majority was heard for an election time-out (section 6.2 of the thesis).

    A replica that lost its log does not count while any other is silent: the silent one may lead with its help.
    """
    active = {peer for peer, progress in state.progress.items() if progress.recently_active}
    active.add(state.id)
    certain = {
        peer for peer in active if peer == state.id or not state.progress[peer].counts_from_round
    }
    for peer, progress in state.progress.items():
        progress.active_before = progress.recently_active
        progress.recently_active = peer == state.id
    voters = state.membership.voters
    if not (has_majority(voters, certain) or voters <= active):
        state.become_follower(state.term, None)
