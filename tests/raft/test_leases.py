"""
Leases, and the stickiness of voters on which they rest (thesis 6.4.1, 4.2.3).

A voter that sticks to its leader elects no other one for a time. The thesis is "Consensus: Bridging Theory and Practice";
its other rules: rules/test_thesis.py.
"""

import pytest

from orderlymq_raft import (
    Heartbeat,
    HeartbeatResponse,
    Index,
    PreVote,
    PreVoteResponse,
    RemoveNode,
    Role,
    Term,
    VoteResponse,
)
from tests.raft.harness.solo import ME, OTHER, PEER, ack, heartbeat, lead, say, solo, vote, work

ELECTION_TICKS = 8


class TestLease:
    """How long a leader answers reads without asking its voters."""

    def test_a_lease_lasts_less_than_the_stickiness_it_rests_on(self) -> None:
        """Law: a lease begins when the heartbeat is sent, not when it is answered,
        and ends before the voters' stickiness (6.4.1).
        """
        replica = solo(lease_reads=True)
        lead(replica)
        say(replica, ack(replica, 1))
        replica.tick()
        replica.tick()
        work(replica)
        replica.tick()
        before = replica.node.lease_valid
        say(replica, HeartbeatResponse(PEER, ME, Term(1), 1))

        ticks = 1
        while replica.node.lease_valid:
            replica.tick()
            ticks += 1

        assert not before
        assert ticks == ELECTION_TICKS - 2

    @pytest.mark.parametrize(("peer", "other", "ticks"), [(5, 20, 3), (20, 5, 6), (None, 20, 0)])
    def test_a_lease_lasts_no_longer_than_those_who_answered_stick(
        self, peer: int | None, other: int, ticks: int
    ) -> None:
        """Law: a lease ends with the shortest stickiness of the voters that answered; while a setting is rolled out,
        it may be shorter than the leader's.
        """
        replica = solo(lease_reads=True)
        replica.node.note_stickiness(OTHER, other)
        replica.node.note_stickiness(PEER, peer or 0)
        lead(replica)
        say(replica, ack(replica, 1))
        replica.tick()
        replica.tick()
        work(replica)
        say(replica, HeartbeatResponse(PEER, ME, Term(1), 1))

        lasted = 0
        while replica.node.lease_valid:
            replica.tick()
            lasted += 1

        assert lasted == ticks

    @pytest.mark.parametrize("election_ticks", [3, 8, 99, 100, 199, 200, 20_000])
    def test_a_lease_ends_in_time_where_clocks_differ_by_a_hundredth(
        self, election_ticks: int
    ) -> None:
        """Law: a lease ends early enough if a voter's clock is 1 % fast and the voter heard the leader at the end of its
        tick.
        """
        replica = solo(lease_reads=True, election_ticks=election_ticks, heartbeat_ticks=1)
        lead(replica)
        say(replica, ack(replica, 1))
        replica.tick()
        replica.tick()
        work(replica)
        say(replica, HeartbeatResponse(PEER, ME, Term(1), 1))

        lasted = 0
        while replica.node.lease_valid:
            replica.tick()
            lasted += 1

        assert 1.01 * lasted <= election_ticks - 1
        assert lasted >= 0.98 * election_ticks - 2

    def test_a_lease_rests_on_the_voters_of_the_present_membership(self) -> None:
        """Law: a membership change ends the lease; the next one rests on answers of the new voters and on their
        stickiness.
        """
        replica = solo(lease_reads=True, election_ticks=5 * ELECTION_TICKS)
        replica.node.note_stickiness(PEER, 5 * ELECTION_TICKS)
        replica.node.note_stickiness(OTHER, ELECTION_TICKS)
        lead(replica)
        say(replica, ack(replica, 1), ack(replica, 1, OTHER))
        replica.tick()
        replica.tick()
        work(replica)
        say(replica, HeartbeatResponse(PEER, ME, Term(1), 1))
        before = replica.node.lease_valid

        replica.node.propose_membership(RemoveNode(PEER))
        work(replica)
        during = replica.node.lease_valid
        replica.tick()
        replica.tick()
        work(replica)
        say(replica, HeartbeatResponse(OTHER, ME, Term(1), 2))
        lasted = 0
        while replica.node.lease_valid:
            replica.tick()
            lasted += 1

        assert (before, during) == (True, False)
        assert lasted == ELECTION_TICKS - 2

    def test_a_lease_rests_on_a_majority_that_sticks(self) -> None:
        """Law: a lease needs a majority of voters that stick; one voter with unknown or shorter stickiness does not
        prevent it.
        """
        replica = solo(lease_reads=True)
        replica.node.note_stickiness(PEER, 0)
        lead(replica)
        say(replica, ack(replica, 1))
        replica.tick()
        replica.tick()
        work(replica)
        say(replica, HeartbeatResponse(PEER, ME, Term(1), 1))
        alone = replica.node.lease_valid
        replica.tick()
        replica.tick()
        work(replica)

        say(replica, *(HeartbeatResponse(each, ME, Term(1), 2) for each in (OTHER, PEER)))

        assert (alone, replica.node.lease_valid) == (False, True)

    def test_a_lease_ends_for_good_when_a_transfer_is_under_way(self) -> None:
        """Law: a leadership transfer ends the lease for good, because from then on voters listen to the target (6.4.1)."""
        replica = solo(lease_reads=True)
        lead(replica)
        say(replica, ack(replica, 1), ack(replica, 1, OTHER))
        replica.tick()
        replica.tick()
        work(replica)
        say(replica, HeartbeatResponse(PEER, ME, Term(1), 1))
        before = replica.node.lease_valid

        replica.node.transfer_leadership(PEER)
        during = replica.node.lease_valid
        for _ in range(18):
            replica.tick()
            beats = [each for each in work(replica) if isinstance(each, Heartbeat)]
            say(replica, *(HeartbeatResponse(PEER, ME, Term(1), each.context) for each in beats))

        assert (before, during, replica.node.lease_valid) == (True, False, False)


class TestStickiness:
    """How long a voter refuses to elect another leader."""

    def test_a_voter_that_restarts_still_sticks_to_its_leader(self) -> None:
        """Law: a voter sticks after a restart too, because it may have extended a lease right before it stopped."""
        replica = solo(term=1, lease_reads=True)

        first = say(replica, vote(2, (9, 1)))
        for _ in range(ELECTION_TICKS):
            replica.tick()
        later = say(replica, vote(2, (9, 1)))

        assert first == []
        assert VoteResponse(ME, PEER, Term(2), granted=True) in later

    def test_a_newer_term_does_not_end_the_stickiness_that_a_lease_rests_on(self) -> None:
        """Law: a newer term, which a refused pre-vote brings, does not end the stickiness on which a lease rests."""
        replica = solo(term=1, lease_reads=True, jitter=1)
        say(replica, heartbeat(1))
        say(replica, PreVoteResponse(OTHER, ME, Term(2), granted=False))

        for _ in range(ELECTION_TICKS - 1):
            replica.tick()
        question = PreVote(OTHER, ME, Term(3), Index(9), Term(1))
        early = say(replica, question, vote(2, (9, 1), OTHER), vote(3, (9, 1), OTHER))
        term = replica.node.term
        replica.tick()
        late = say(replica, vote(2, (9, 1), OTHER))

        assert early == [PreVoteResponse(ME, OTHER, Term(2), granted=False)]
        assert term == 2
        assert late == [VoteResponse(ME, OTHER, Term(2), granted=True)]

    def test_a_voter_that_restarts_sticks_in_its_own_term_too(self) -> None:
        """Law: after a restart a voter refuses candidates of its own term, too, until its stickiness ends."""
        replica = solo(term=1, lease_reads=True, jitter=1)

        first = say(replica, vote(1, (9, 1)))
        for _ in range(ELECTION_TICKS):
            replica.tick()
        later = say(replica, vote(1, (9, 1)))

        assert (first, later) == ([], [VoteResponse(ME, PEER, Term(1), granted=True)])

    def test_the_target_of_a_transfer_is_elected_in_a_term_that_is_known_already(self) -> None:
        """Law: the target of a transfer is elected despite stickiness, because its leader has given up the lease."""
        replica = solo(term=1, lease_reads=True)
        say(replica, heartbeat(1))
        say(replica, PreVoteResponse(OTHER, ME, Term(2), granted=False))

        assert say(replica, vote(2, (9, 1), OTHER, transfer=True)) == [
            VoteResponse(ME, OTHER, Term(2), granted=True)
        ]

    def test_a_voter_that_restarts_sticks_as_long_as_it_has_promised_before(self) -> None:
        """Law: after a restart a voter sticks as long as it promised before, even if its setting is shorter now."""
        promised = 3 * ELECTION_TICKS
        replica = solo(term=1, lease_reads=True, promised_ticks=promised)
        say(replica, heartbeat(1))

        for _ in range(promised - 1):
            replica.tick()
        work(replica)
        early = say(replica, vote(9, (9, 1)))
        replica.tick()
        late = say(replica, vote(9, (9, 1)))

        assert early == []
        assert VoteResponse(ME, PEER, Term(9), granted=True) in late

    def test_a_voter_does_not_run_against_the_leader_it_hears(self) -> None:
        """Law: a voter does not campaign against a leader that it hears, because its own vote would break its promise."""
        replica = solo(term=1, lease_reads=True)
        for _ in range(ELECTION_TICKS - 1):
            replica.tick()
        say(replica, heartbeat(1))

        replica.node.campaign()

        assert replica.node.role is Role.FOLLOWER

    def test_a_voter_that_restarts_does_not_run_before_its_promise_ends(self) -> None:
        """Law: after a restart a voter does not campaign before its old promise ends, even if its setting is shorter now."""
        promised = 5 * ELECTION_TICKS
        replica = solo(term=1, lease_reads=True, promised_ticks=promised)

        for _ in range(promised - 1):
            replica.tick()
        early = work(replica), replica.node.role
        for _ in range(2 * ELECTION_TICKS):
            replica.tick()
        late = work(replica)

        assert early == ([], Role.FOLLOWER)
        assert {type(each) for each in late} == {PreVote}
