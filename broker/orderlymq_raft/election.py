"""
Leader election: time-outs, pre-votes, votes and leader stickiness.

Rules:
- A replica gives one vote per term, and makes it durable before it sends it (raft paper section 5.2).
- Only a candidate whose log is at least as complete as the voter's gets the vote (5.4.1).
- A candidate raises its term only after a majority would elect it (thesis 9.6).
- A replica that hears a leader does not help to replace it (leader stickiness, thesis 4.2.3).
"""

from typing import Final

from orderlymq_raft.messages import PreVote, PreVoteResponse, TimeoutNow, Vote, VoteResponse
from orderlymq_raft.quorum import VoteResult, has_majority, vote_result
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import NodeId, Role, Term

VOTE_REQUESTS_MAX: Final = 8
"""Requests of one candidacy: at 200 ms it waits for 1.6 to 3.2 s, four round trips of 400 ms."""


def tick(state: RaftState) -> None:
    """Process one tick of a replica that does not lead."""
    state.election_elapsed += 1
    timeout = min(state.election_timeout, state.hurry_ticks or state.election_timeout)
    if state.election_elapsed < timeout or not state.may_run or is_bound(state):
        return
    if _should_ask_again(state):
        # On a slow link the answers are still under way; a new term would make them useless.
        state.election_elapsed = 0
        _ask_for_votes(state, transfer=False)
        return
    if state.role is Role.CANDIDATE:
        state.elections_lost += 1
    campaign(state, transfer=False)


def tick_leader(state: RaftState) -> None:
    """Process one tick of the leader: send heartbeats, and check that a majority still follows."""
    state.heartbeat_elapsed += 1
    if state.heartbeat_elapsed >= state.config.heartbeat_ticks:
        state.heartbeat_elapsed = 0
        state.heartbeat_wanted = True

    state.election_elapsed += 1
    if state.election_elapsed < _answer_ticks(state):
        return
    state.election_elapsed = 0
    if state.lease_revoked:
        # The transfer target was asked to run and may do so at any time, against the stickiness that the lease
        # rests on. Only a new term invalidates that request. Without one this leader could never answer a read
        # again.
        state.become_follower(state.term, None)
        return
    # A target that did not take over within an election time-out will not. Continue to lead.
    state.transferee = None
    state.transfer_sent = False
    if state.config.check_quorum:
        _check_quorum(state)


def campaign(state: RaftState, *, transfer: bool) -> None:
    """Stand for election; skip the pre-vote if the leader asked this replica to run."""
    if state.role is Role.LEADER or not state.may_run:
        return
    if transfer or not state.config.pre_vote:
        _start_election(state, transfer=transfer)
    else:
        _start_pre_election(state)


def leader_gone(state: RaftState, node: NodeId) -> None:
    """
    Stand for election as soon as leader stickiness ends, because the connection to the leader *node* broke.

    A broken connection does not prove that the leader is gone, so stickiness and pre-vote stay in effect. All
    followers notice the break at the same time. They run one after the other, so that the first is elected
    before the second runs.
    """
    if state.role is Role.LEADER or state.leader != node or not state.is_voter:
        return
    rank = sorted(state.membership.voters - {node}).index(state.id)
    # One tick more than stickiness lasts: the others heard the leader at the same time, but their ticks start at
    # other moments. Two ticks are enough for two round trips and a synced vote on a LAN.
    state.hurry_ticks = state.config.election_ticks + 1 + 2 * rank


def in_lease(state: RaftState) -> bool:
    """
    Return whether this replica still sticks to the leader that it heard last.

    A newer term does not end that: the leader may not know of the term, and relies on the answer that it got.
    """
    return state.role is Role.LEADER or state.ticks < state.sticks_until


def is_bound(state: RaftState) -> bool:
    """Return whether a lease may rest on this replica; then it must not run, because its own vote would break its promise."""
    return state.config.lease_reads and in_lease(state)


def handle_pre_vote(state: RaftState, message: PreVote) -> None:
    """Answer whether this replica would grant its vote; store nothing about the request."""
    sticks = (state.config.check_quorum or state.config.pre_vote) and in_lease(state)
    complete = state.log.is_up_to_date(message.last_index, message.last_term)
    trusts = _trusts(state, candidate_is_recovering=message.recovering)
    granted = message.term > state.term and not sticks and complete and trusts
    if not (sticks or complete) and trusts:
        _note_forced_candidate(state)
    # A refusal carries our own term, so that a node that fell behind learns of it.
    term = message.term if granted else state.term
    state.after.append(PreVoteResponse(state.id, message.sender, term, granted))


def handle_vote(state: RaftState, message: Vote) -> None:
    """Grant or refuse the vote of the present term; a voter that still sticks to its leader does not answer this request."""
    free = state.vote == message.sender or (state.vote is None and state.leader is None)
    complete = state.log.is_up_to_date(message.last_index, message.last_term)
    trusts = _trusts(state, candidate_is_recovering=message.recovering)
    granted = free and complete and trusts
    is_new = granted and state.vote is None
    if is_new and state.config.check_quorum and in_lease(state) and not message.transfer:
        # The candidate would count a refusal and lose the term. It repeats its request later.
        return
    if trusts and not complete:
        _note_forced_candidate(state)
    if granted:
        state.vote = message.sender
        state.election_elapsed = 0
    state.after.append(VoteResponse(state.id, message.sender, state.term, granted))


def handle_pre_vote_response(state: RaftState, message: PreVoteResponse) -> None:
    """Count an answer to a pre-vote; a majority starts the real election."""
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
    """Run for election because the leader hands its leadership over (thesis 3.10)."""
    if message.sender == state.leader:
        campaign(state, transfer=True)


def count_vote(state: RaftState, voter: NodeId, *, granted: bool) -> None:
    """Count the answer of *voter*, which may win or lose the election; the candidate's own vote counts once it is durable."""
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
    Return whether the votes of this replica and of the candidate may count in one majority.

    Replicas that know that the raft group has begun elect each other. Replicas that cannot tell do so too, as
    long as their logs hold nothing but elections: a majority of them means that the group is only beginning.
    A mixed majority could leave out committed entries that one of its members has lost.
    """
    if state.recovering:
        return candidate_is_recovering and state.log.is_blank()
    return not candidate_is_recovering


def _note_forced_candidate(state: RaftState) -> None:
    """
    Note that a candidate asked this learner for its vote and cannot get it, because the candidate's log is behind.

    The candidate's log holds a promotion that this replica does not know of, and it may need this very vote.
    If the remaining voters are behind too, only this replica can end the deadlock.
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

    It repeats it while no voter has answered, because the round trip may be longer than its time-out. Once a
    voter has answered, a time-out without a result means that the vote is split.
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
    Return for how many ticks a majority may be silent before this leader steps down.

    An election time-out, plus the round trip on a slow link. The round trip is unknown before the first
    answers arrive: a new leader waits for them as long as a candidate waits for votes.
    """
    longest = VOTE_REQUESTS_MAX * state.config.election_ticks
    if state.round_trip_ticks is None:
        return longest
    return min(state.config.election_ticks + state.round_trip_ticks, longest)


def _check_quorum(state: RaftState) -> None:
    """
    Step down if no majority was heard for an election time-out (thesis 6.2).

    A replica that lost its log does not count while any other voter is silent: the silent one may lead with
    its help.
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
