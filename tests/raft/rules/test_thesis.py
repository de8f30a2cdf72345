"""
The rules that raft's author added in his thesis, one test each, by section.

The thesis is "Consensus: Bridging Theory and Practice". The rules of the paper: test_paper.py.
"""

import pytest

from orderlymq_raft import (
    AddLearner,
    AddVoter,
    Config,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Index,
    Membership,
    NodeId,
    NotLeader,
    PreVote,
    PreVoteResponse,
    PromoteLearner,
    ProposalRefused,
    ReadState,
    RemoveNode,
    Role,
    Term,
    TimeoutNow,
    Vote,
    VoteResponse,
)
from orderlymq_raft.election import VOTE_REQUESTS_MAX
from tests.raft.harness.replica import Replica
from tests.raft.harness.solo import (
    ME,
    OTHER,
    PEER,
    VOTERS,
    ack,
    append,
    entry,
    heartbeat,
    lead,
    say,
    solo,
    vote,
    work,
)

ELECTION_TICKS = 8


class TestMembership:
    """Section 6 and thesis chapter 4."""

    def test_a_change_is_in_force_when_it_is_appended(self) -> None:
        """Law: a membership counts from when it is appended, not when it is committed;
        else two disjoint majorities could count (4.1).
        """
        replica = solo(voters=frozenset({ME}))
        replica.node.campaign()
        work(replica)

        replica.node.propose_membership(AddVoter(PEER))
        work(replica)

        assert replica.node.status().membership == Membership(frozenset({ME, PEER}))
        assert (replica.node.last_index, replica.node.commit) == (2, 1)

    def test_a_truncated_change_is_out_of_force(self) -> None:
        """Law: when its entry is truncated, a follower returns to the membership before (4.1)."""
        replica = solo(1)
        grown = Membership(VOTERS | {NodeId(4)})
        config = Entry(Term(1), Index(2), grown.encode(), EntryKind.CONFIG)
        say(replica, append(1, (1, 1), [config]))
        during = replica.node.status().membership

        say(replica, append(2, (1, 1), [entry(2, 2)], sender=OTHER))

        assert during == grown
        assert replica.node.status().membership == Membership(VOTERS)

    def test_a_change_that_was_appended_is_in_force_after_a_restart(self) -> None:
        """Law: after a restart, a membership that was appended but not applied still counts."""
        replica = solo(1)
        grown = Membership(VOTERS | {NodeId(4)})
        say(
            replica,
            append(1, (1, 1), [Entry(Term(1), Index(2), grown.encode(), EntryKind.CONFIG)]),
        )

        replica.crash()
        replica.start()

        assert replica.node.status().membership == grown

    def test_a_new_leader_commits_before_it_changes_the_membership(self) -> None:
        """Law: a new leader commits an entry of its term before it changes the membership.

        Otherwise an older change could return (correction to 4.1).
        """
        replica = solo()
        lead(replica)

        with pytest.raises(ProposalRefused, match="committed nothing yet"):
            replica.node.propose_membership(AddLearner(NodeId(4)))
        say(replica, ack(replica, 1))

        assert replica.node.propose_membership(AddLearner(NodeId(4))) == (1, 2)

    def test_one_change_at_a_time(self) -> None:
        """Law: a second change waits for the first; else two majorities need not share a voter (4.1)."""
        replica = solo()
        lead(replica)
        say(replica, ack(replica, 1))
        replica.node.propose_membership(AddLearner(NodeId(4)))

        with pytest.raises(ProposalRefused, match="not committed yet"):
            replica.node.propose_membership(RemoveNode(OTHER))

    def test_a_learner_that_lags_is_not_promoted(self) -> None:
        """Law: a learner that lags is not promoted, because commits would wait for it (4.2.1)."""
        replica = solo(promotion_lag_entries_max=2)
        learner = NodeId(4)
        lead(replica)
        say(replica, ack(replica, 1))
        replica.node.propose_membership(AddLearner(learner))
        say(replica, ack(replica, 2), ack(replica, 1, learner))
        for _ in range(3):
            replica.node.propose(b"x")

        with pytest.raises(ProposalRefused, match="lacks 4 entries"):
            replica.node.propose_membership(PromoteLearner(learner))
        say(replica, ack(replica, 3, learner))

        assert replica.node.propose_membership(PromoteLearner(learner)) == (1, 6)

    def test_a_removed_leader_does_not_count_itself_and_leaves(self) -> None:
        """Law: a leader that removes itself does not count its own log, and stays until the removal is committed (4.2.2)."""
        replica = solo()
        lead(replica)
        say(replica, ack(replica, 1), ack(replica, 1, OTHER))
        replica.node.propose_membership(RemoveNode(ME))

        say(replica, ack(replica, 2))
        with_one = (replica.node.role, replica.node.commit)
        farewell = say(replica, ack(replica, 2, OTHER))

        assert with_one == (Role.LEADER, 1)
        assert (replica.node.role, replica.node.commit) == (Role.FOLLOWER, 2)
        assert farewell[-1] == TimeoutNow(ME, PEER, Term(1))

    def test_who_hears_a_leader_ignores_candidates(self) -> None:
        """Law: a replica that hears a leader ignores candidates and their terms,
        so that a removed server cannot disturb (4.2.3).
        """
        replica = solo(term=1)
        say(replica, heartbeat(1))
        for _ in range(ELECTION_TICKS - 1):
            replica.tick()

        ignored = say(replica, vote(9, (9, 9), OTHER))
        term = replica.node.term
        replica.tick()
        heard = say(replica, vote(9, (9, 9), OTHER))

        assert (ignored, term) == ([], 1)
        assert VoteResponse(ME, OTHER, Term(9), granted=True) in heard

    def test_a_candidate_sent_by_the_leader_is_heard_immediately(self) -> None:
        """Law: voters answer a candidate that the leader chose (transfer) despite stickiness (4.2.3)."""
        replica = solo(term=1)
        say(replica, heartbeat(1))

        assert say(replica, vote(2, (0, 0), OTHER, transfer=True)) == [
            VoteResponse(ME, OTHER, Term(2), granted=True)
        ]


class TestReads:
    """Thesis 6.4."""

    def test_a_read_waits_until_the_leader_knows_what_is_committed(self) -> None:
        """Law: a new leader answers reads only after it has committed an entry of its term,
        because it may not know its predecessor's commits.
        """
        replica = solo(1)
        lead(replica)
        replica.node.read_index(7)
        silent = work(replica)
        replica.tick()
        replica.tick()
        work(replica)
        say(replica, HeartbeatResponse(PEER, ME, Term(2), 1))
        early = list(replica.read_states)

        asked = say(replica, ack(replica, 2))
        say(replica, HeartbeatResponse(PEER, ME, Term(2), 2))

        assert (silent, early) == ([], [])
        assert asked == [
            Heartbeat(ME, PEER, Term(2), Index(2), 2),
            Heartbeat(ME, OTHER, Term(2), Index(0), 2),
        ]
        assert replica.read_states == [ReadState(7, Index(2))]

    def test_an_answer_to_an_earlier_heartbeat_confirms_no_read(self) -> None:
        """Law: only answers to later heartbeats confirm a read; an earlier one may precede another leader's election."""
        replica = solo()
        lead(replica)
        say(replica, ack(replica, 1))
        replica.tick()
        replica.tick()
        work(replica)
        replica.node.read_index(7)
        work(replica)

        say(replica, HeartbeatResponse(PEER, ME, Term(1), 1))
        early = list(replica.read_states)
        say(replica, HeartbeatResponse(PEER, ME, Term(1), 2))

        assert early == []
        assert replica.read_states == [ReadState(7, Index(1))]

    def test_only_a_leader_answers_reads(self) -> None:
        """Law: only the leader answers reads; other replicas name the leader that they know."""
        replica = solo(term=1)
        say(replica, heartbeat(1))

        with pytest.raises(NotLeader) as caught:
            replica.node.read_index(7)

        assert caught.value.leader == PEER


class TestTransfer:
    """Thesis 3.10."""

    def test_the_target_runs_when_its_log_is_complete(self) -> None:
        """Law: the target is asked to campaign when its log is complete; before that it could not win."""
        replica = solo()
        lead(replica)
        say(replica, ack(replica, 1))
        replica.node.propose(b"x")
        work(replica)

        replica.node.transfer_leadership(PEER)
        early = work(replica)
        late = say(replica, ack(replica, 2))

        assert TimeoutNow(ME, PEER, Term(1)) not in early
        assert late == [TimeoutNow(ME, PEER, Term(1))]

    def test_the_target_skips_the_pre_vote(self) -> None:
        """Law: the target of a transfer campaigns without a pre-vote, which voters would refuse out of stickiness."""
        replica = solo(term=1)
        say(replica, heartbeat(1))

        sent = say(replica, TimeoutNow(PEER, ME, Term(1)))

        assert sent == [
            Vote(ME, peer, Term(2), Index(0), Term(0), transfer=True) for peer in (PEER, OTHER)
        ]

    def test_a_leader_whose_successor_does_not_run_makes_room_for_an_election(self) -> None:
        """Law: if the target does not campaign, the leader steps down: its lease is gone,
        and only a new term lets reads be answered again.
        """
        replica = solo(lease_reads=True)
        lead(replica)
        say(replica, ack(replica, 1), ack(replica, 1, OTHER))
        replica.node.transfer_leadership(PEER)

        for _ in range(ELECTION_TICKS):
            replica.tick()
            beats = [each for each in work(replica) if isinstance(each, Heartbeat)]
            say(
                replica,
                *(HeartbeatResponse(each.target, ME, Term(1), each.context) for each in beats),
            )

        assert (replica.node.is_leader, replica.node.leader) == (False, None)

    def test_a_transfer_is_given_up_after_an_election_time_out(self) -> None:
        """Law: a transfer ends after an election time-out, so that a lost target does not stop the raft group."""
        replica = solo(check_quorum=False)
        lead(replica)
        say(replica, ack(replica, 1))
        replica.node.transfer_leadership(OTHER)

        with pytest.raises(ProposalRefused, match="transferred"):
            replica.node.propose(b"x")
        for _ in range(ELECTION_TICKS):
            replica.tick()

        assert replica.node.propose(b"x") == (1, 2)


class TestPreVote:
    """Thesis 9.6."""

    def test_a_pre_vote_changes_nothing(self) -> None:
        """Law: a pre-vote changes neither term nor vote nor role of the replica that is asked."""
        replica = solo(term=1)
        for _ in range(ELECTION_TICKS - 1):
            replica.tick()

        answers = say(replica, PreVote(PEER, ME, Term(7), Index(0), Term(0)))

        assert answers == [PreVoteResponse(ME, PEER, Term(7), granted=True)]
        assert replica.storage.initial_state()[0].term == 1
        assert replica.storage.initial_state()[0].vote is None

    def test_who_hears_a_leader_grants_no_pre_vote(self) -> None:
        """Law: a replica that hears a leader grants no pre-vote; nor does the leader itself."""
        follower = solo(term=1)
        say(follower, heartbeat(1))
        leader = solo()
        lead(leader)
        question = PreVote(OTHER, ME, Term(9), Index(9), Term(9))

        assert say(follower, question) == say(leader, question)
        assert follower.node.leader == PEER
        assert leader.node.is_leader

    @pytest.mark.parametrize(("node", "ticks"), [(1, 1), (3, 3)])
    def test_who_knows_that_its_leader_is_gone_runs_when_its_stickiness_ends(
        self, node: int, ticks: int
    ) -> None:
        """Law: a replica that knows that its leader is gone campaigns as soon as its stickiness ends,
        in the order of ids: sooner and without a split vote.
        """
        me = NodeId(node)
        config = Config(me, election_ticks=ELECTION_TICKS)
        replica = Replica(config, Membership(VOTERS), lambda below: below - 1)
        replica.start()
        say(replica, Heartbeat(PEER, me, Term(1), Index(0), 1))

        replica.node.leader_gone(NodeId(7))  # For another node than the leader nothing changes.
        replica.node.leader_gone(PEER)
        waited = 0
        while replica.node.role is Role.FOLLOWER:
            replica.tick()
            waited += 1

        assert waited == ELECTION_TICKS + ticks
        assert replica.node.term == 1, "it only asks whether it would be elected"

    def test_a_leader_that_is_heard_again_is_gone_no_more(self) -> None:
        """Law: if the leader is heard again after its connection broke, the follower draws a random time-out again."""
        replica = solo(1, jitter=ELECTION_TICKS, election_ticks=ELECTION_TICKS)
        say(replica, heartbeat(1))
        replica.node.leader_gone(PEER)
        say(replica, heartbeat(1, round_=2))

        for _ in range(2 * ELECTION_TICKS - 1):
            replica.tick()

        assert replica.node.role is Role.FOLLOWER

    def test_the_term_rises_only_after_a_majority_would_elect(self) -> None:
        """Law: the term rises only after a majority has granted the pre-vote."""
        replica = solo(3, term=3)
        replica.node.campaign()
        asked = work(replica)
        term_while_asking = replica.node.term

        sent = say(replica, PreVoteResponse(PEER, ME, Term(4), granted=True))

        assert asked == [PreVote(ME, peer, Term(4), Index(1), Term(3)) for peer in (PEER, OTHER)]
        assert term_while_asking == 3
        assert sent == [Vote(ME, peer, Term(4), Index(1), Term(3)) for peer in (PEER, OTHER)]


class TestCheckQuorum:
    """Thesis 6.2."""

    def test_a_leader_without_a_majority_steps_down(self) -> None:
        """Law: a leader without a majority steps down, so that clients do not wait for commits that cannot come."""
        replica = solo()
        lead(replica)
        say(replica, ack(replica, 1))

        for _ in range(2 * ELECTION_TICKS):
            replica.tick()

        assert (replica.node.role, replica.node.leader) == (Role.FOLLOWER, None)


class TestSlowLinks:
    """Links whose round trip is longer than the election time-out."""

    def test_a_candidate_asks_again_in_the_same_term_while_nobody_answers(self) -> None:
        """Law: a candidate that gets no answer asks again in the same term; a new term would make late answers void."""
        replica = solo(pre_vote=False)
        replica.node.campaign()
        asked = work(replica)

        for _ in range(ELECTION_TICKS):
            replica.tick()

        assert work(replica) == asked
        say(replica, VoteResponse(PEER, ME, Term(1), granted=True))
        assert replica.node.is_leader

    def test_a_split_vote_opens_the_next_term(self) -> None:
        """Law: a candidate that got an answer but no majority before its time-out has a rival, and opens the next term."""
        replica = solo(pre_vote=False, voters=VOTERS | {NodeId(4), NodeId(5)})
        replica.node.campaign()
        work(replica)
        say(replica, VoteResponse(PEER, ME, Term(1), granted=False))

        for _ in range(ELECTION_TICKS):
            replica.tick()

        assert (replica.node.role, replica.node.term) == (Role.CANDIDATE, 2)

    def test_a_candidate_gives_up_in_the_end(self) -> None:
        """Law: a candidate without answers gives up in the end and asks for pre-votes: another may have won,
        or all may be away.
        """
        replica = solo()
        replica.node.campaign()
        work(replica)
        say(replica, PreVoteResponse(PEER, ME, Term(1), granted=True))
        assert replica.node.role is Role.CANDIDATE

        for _ in range(VOTE_REQUESTS_MAX * ELECTION_TICKS):
            replica.tick()

        assert (replica.node.role, replica.node.term) == (Role.PRE_CANDIDATE, 1)

    def test_a_leader_sticks_to_itself_however_long_it_waits_for_answers(self) -> None:
        """Law: a leader helps no other candidate while it waits for its own followers' slow answers."""
        replica = solo()
        lead(replica)
        for _ in range(2 * ELECTION_TICKS):
            replica.tick()
        assert replica.node.is_leader

        say(replica, vote(2, (9, 1), OTHER))

        assert replica.node.is_leader

    def test_a_new_leader_that_nobody_answers_steps_down(self) -> None:
        """Law: a new leader that gets no answer steps down, but later than one that knows its round trip."""
        replica = solo()
        lead(replica)

        for _ in range(2 * VOTE_REQUESTS_MAX * ELECTION_TICKS):
            replica.tick()

        assert (replica.node.role, replica.node.leader) == (Role.FOLLOWER, None)
