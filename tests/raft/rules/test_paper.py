"""
The rules of raft, one test each, by the section of the paper that states them.

Sections are those of "In Search of an Understandable Consensus Algorithm (Extended Version)".
Memberships, reads, transfers and pre-votes follow the thesis: test_thesis.py. Leases: ../test_leases.py.
"""

import pytest

from orderlymq_raft import (
    Append,
    AppendResponse,
    Heartbeat,
    Index,
    InstallSnapshot,
    InstallSnapshotResponse,
    Membership,
    PreVote,
    PreVoteResponse,
    Role,
    SnapshotMeta,
    Term,
    TimeoutNow,
    VoteResponse,
)
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
    noop,
    say,
    solo,
    vote,
    work,
)

ELECTION_TICKS = 8


class TestTerms:
    """Section 5.1."""

    def test_a_newer_term_ends_a_reign(self) -> None:
        """Law: a leader that sees a newer term becomes a follower in it."""
        replica = solo()
        lead(replica)

        say(replica, AppendResponse(PEER, ME, Term(5), Index(0), reject=True))

        assert (replica.node.role, replica.node.term) == (Role.FOLLOWER, 5)

    def test_a_message_of_an_older_term_changes_nothing_and_is_answered_with_the_term(self) -> None:
        """Law: a message of an older term changes nothing; the answer names the present term."""
        replica = solo(1, 1, term=3)

        answers = say(
            replica,
            append(2, (2, 1), [entry(3, 2)]),
            heartbeat(2),
            vote(2, (9, 2)),
            ack(replica, 9),
        )

        refusal = AppendResponse(ME, PEER, Term(3), Index(0), reject=True)
        assert answers == [refusal, refusal, VoteResponse(ME, PEER, Term(3), granted=False)]
        assert replica.node.last_index == 2
        assert replica.node.leader is None


class TestElection:
    """Section 5.2."""

    def test_a_vote_is_given_once_per_term(self) -> None:
        """Law: a voter votes for the first candidate of a term only; a repeated request gets the same answer."""
        replica = solo(term=1)

        first = say(replica, vote(2, (0, 0)))
        second = say(replica, vote(2, (0, 0), OTHER))
        again = say(replica, vote(2, (0, 0)))

        assert first == again == [VoteResponse(ME, PEER, Term(2), granted=True)]
        assert second == [VoteResponse(ME, OTHER, Term(2), granted=False)]

    def test_a_vote_survives_a_crash(self) -> None:
        """Law: a vote is durable before it is sent."""
        replica = solo(term=1)
        say(replica, vote(2, (0, 0)))

        replica.crash()
        replica.start()

        assert say(replica, vote(2, (0, 0), OTHER)) == [
            VoteResponse(ME, OTHER, Term(2), granted=False)
        ]

    def test_a_vote_leaves_only_after_it_is_durable(self) -> None:
        """Law: a vote is sent only after the hard state of the same Ready is synced."""
        replica = solo(term=1)
        replica.step(vote(2, (0, 0)))

        ready = replica.begin_turn()

        assert ready is not None
        assert ready.messages_now == []
        assert ready.messages_after == [VoteResponse(ME, PEER, Term(2), granted=True)]
        assert ready.must_sync

    def test_a_candidate_counts_its_own_vote_when_that_is_durable(self) -> None:
        """Law: a candidate counts its own vote when it is durable; an earlier turn that becomes durable is not the vote."""
        replica = solo(pre_vote=False)
        replica.step(heartbeat(1))
        replica.begin_turn()
        replica.step(TimeoutNow(PEER, ME, Term(1)))
        replica.begin_turn()
        replica.step(VoteResponse(PEER, ME, Term(2), granted=True))

        replica.end_turn()
        after_the_older_turn = replica.node.role
        replica.end_turn()

        assert after_the_older_turn is Role.CANDIDATE
        assert replica.node.role is Role.LEADER

    def test_a_candidate_yields_to_the_leader_of_its_term(self) -> None:
        """Law: an append of its own term tells a candidate that another replica has won."""
        replica = solo(pre_vote=False)
        replica.node.campaign()
        work(replica)

        say(replica, append(1, (0, 0), [noop(1, 1)]))

        assert (replica.node.role, replica.node.leader) == (Role.FOLLOWER, PEER)

    def test_refused_by_a_majority_a_candidate_gives_up(self) -> None:
        """Law: a candidate that a majority refuses waits for another time-out in the same term."""
        replica = solo(pre_vote=False)
        replica.node.campaign()
        work(replica)

        say(
            replica,
            VoteResponse(PEER, ME, Term(1), granted=False),
            VoteResponse(OTHER, ME, Term(1), granted=False),
        )

        assert (replica.node.role, replica.node.term) == (Role.FOLLOWER, 1)

    @pytest.mark.parametrize("jitter", [0, 3, 8])
    def test_time_outs_are_random_between_one_and_two_election_times(self, jitter: int) -> None:
        """Law: election time-outs are random between one and two election times,
        so that split votes are rare (also section 9.3).
        """
        replica = solo(jitter=jitter)
        ticks = 0
        while replica.node.role is Role.FOLLOWER:
            replica.tick()
            ticks += 1

        assert ticks == ELECTION_TICKS + jitter

    def test_a_leader_heartbeats_all_peers(self) -> None:
        """Law: a leader sends heartbeats to all peers to keep its leadership."""
        replica = solo()
        lead(replica)
        replica.tick()
        replica.tick()

        assert work(replica) == [
            Heartbeat(ME, PEER, Term(1), Index(0), 1),
            Heartbeat(ME, OTHER, Term(1), Index(0), 1),
        ]


class TestReplication:
    """Sections 5.3 and 5.5."""

    def test_the_leader_sends_immediately_and_commits_with_a_majority(self) -> None:
        """Law: the leader sends entries immediately; its own copy counts for the majority only when it is durable."""
        replica = solo()
        lead(replica)
        say(replica, ack(replica, 1), ack(replica, 1, OTHER))
        replica.node.propose(b"x")

        ready = replica.begin_turn()
        assert ready is not None
        replica.step(ack(replica, 2))
        before = replica.node.commit
        replica.end_turn()

        added = (entry(2, 1),)
        assert ready.messages_now == [
            Append(ME, peer, Term(1), Index(1), Term(1), Index(1), added) for peer in (PEER, OTHER)
        ]
        assert (before, replica.node.commit) == (1, 2)

    def test_an_append_that_does_not_meet_the_log_is_refused(self) -> None:
        """Law: an append that does not match the log is refused; the refusal hints at the index and term where it may
        match.
        """
        replica = solo(1, 1, 2)

        beyond = say(replica, append(3, (5, 3)))
        other_term = say(replica, append(3, (3, 3)))
        older_term = say(replica, append(3, (3, 1)))

        def refusal(index: int, hint: tuple[int, int]) -> AppendResponse:
            return AppendResponse(
                ME, PEER, Term(3), Index(index), True, Index(hint[0]), Term(hint[1])
            )

        assert beyond == [refusal(5, (3, 2))]
        assert other_term == [refusal(3, (3, 2))]
        assert older_term == [refusal(3, (2, 1))]

    def test_a_conflict_gives_way_to_the_leader(self) -> None:
        """Law: a follower replaces a conflicting entry, and all that follow it, by the leader's."""
        replica = solo(1, 2, 2, 2)

        answers = say(replica, append(3, (1, 1), [entry(2, 3)]))

        assert answers == [AppendResponse(ME, PEER, Term(3), Index(2))]
        assert replica.storage.entries(Index(1), Index(3), 99) == [entry(1, 1), entry(2, 3)]
        assert replica.node.last_index == 2

    def test_a_late_append_does_not_shorten_the_log(self) -> None:
        """Law: only a conflict truncates the log, because entries behind an old append may be acknowledged already."""
        replica = solo(1)
        say(replica, append(1, (1, 1), [entry(2, 1), entry(3, 1)]))

        answers = say(replica, append(1, (1, 1), [entry(2, 1)]))

        assert answers == [AppendResponse(ME, PEER, Term(1), Index(2))]
        assert replica.node.last_index == 3

    def test_the_same_append_twice_does_no_harm(self) -> None:
        """Law: the same append request twice has the effect of one (section 5.5)."""
        replica = solo(1)
        message = append(1, (1, 1), [entry(2, 1)], commit=2)

        assert say(replica, message) == say(replica, message)
        assert [one.index for one in replica.delivered] == [1, 2]

    def test_an_append_commits_only_what_it_vouches_for(self) -> None:
        """Law: an append commits no entry behind its own last one, which may be another leader's (figure 2)."""
        replica = solo(1, 1, 1)

        say(replica, append(2, (1, 1), commit=3))

        assert replica.node.commit == 1

    def test_an_append_that_reaches_below_the_commit_index_still_adds(self) -> None:
        """Law: an append may begin below the commit index; entries there are not compared and may be compacted."""
        replica = solo(1, 1, 1, commit=2)
        work(replica)
        replica.storage.compact(Index(2))

        answers = say(replica, append(1, (0, 0), [entry(i, 1) for i in range(1, 6)]))

        assert answers == [AppendResponse(ME, PEER, Term(1), Index(5))]
        assert replica.node.last_index == 5

    def test_an_answer_leaves_only_after_the_entries_are_durable(self) -> None:
        """Law: a repeated append is answered only after the turn that stores its entries is durable."""
        replica = solo(1)
        message = append(1, (1, 1), [entry(2, 1)])
        replica.step(message)
        first = replica.begin_turn()
        replica.step(message)
        second = replica.begin_turn()

        assert first is not None
        assert second is not None
        assert (first.messages_now, second.messages_now) == ([], [])
        assert first.entries == (entry(2, 1),)
        assert second.entries == ()

    def test_only_durable_entries_are_applied(self) -> None:
        """Law: a follower applies an entry only when its own disk has it, even if it is committed already."""
        replica = solo(1)
        replica.step(append(1, (1, 1), [entry(2, 1)], commit=2))

        first = replica.begin_turn()
        assert first is not None
        second = replica.node.ready()
        replica.end_turn()
        third = replica.begin_turn()

        assert first.committed == (entry(1, 1),)
        assert second is None
        assert third is not None
        assert third.committed == (entry(2, 1),)


class TestSafety:
    """Section 5.4."""

    @pytest.mark.parametrize(
        ("mine", "last", "granted"),
        [
            ((1, 1), (2, 1), True),
            ((1, 1), (3, 1), True),
            ((1, 1), (1, 1), False),
            ((1, 2), (9, 1), False),
            ((1, 1), (1, 2), True),
        ],
    )
    def test_a_vote_needs_a_log_as_complete_as_ones_own(
        self, mine: tuple[int, ...], last: tuple[int, int], granted: bool
    ) -> None:
        """Law: a voter compares the last terms first, then the lengths of the logs (5.4.1)."""
        replica = solo(*mine, term=5)

        asked = say(replica, PreVote(PEER, ME, Term(6), Index(last[0]), Term(last[1])))
        voted = say(replica, vote(6, last))

        assert asked == [PreVoteResponse(ME, PEER, Term(6 if granted else 5), granted)]
        assert voted == [VoteResponse(ME, PEER, Term(6), granted)]

    def test_entries_of_older_terms_are_not_committed_by_counting(self) -> None:
        """Law: a leader does not commit an older term's entry by counting, because it may still be overwritten (figure 8)."""
        replica = solo(1, 2)
        lead(replica)

        say(replica, ack(replica, 2), ack(replica, 2, OTHER))
        before = replica.node.commit
        say(replica, ack(replica, 3))

        assert (before, replica.node.commit) == (0, 3)

    def test_overwritten_entries_do_not_count_though_they_reach_the_disk(self) -> None:
        """Law: entries that were overwritten before they reached the disk do not count,
        even if a third leader restores them meanwhile.
        """
        replica = solo(1)
        replica.step(append(2, (1, 1), [entry(2, 2)]))
        replica.begin_turn()
        replica.step(append(3, (1, 1), [entry(2, 3)], sender=OTHER))
        replica.begin_turn()
        replica.step(append(4, (1, 1), [entry(2, 2), entry(3, 4)], commit=3))
        replica.begin_turn()

        replica.end_turn()
        replica.end_turn()
        assert replica.node.ready() is None, "nothing of index 2 may be applied yet"
        replica.end_turn()
        replica.begin_turn()

        assert [(one.index, one.term) for one in replica.delivered] == [(1, 1), (2, 2), (3, 4)]


class TestSnapshots:
    """Section 7."""

    META = SnapshotMeta(Index(5), Term(2), Membership(VOTERS))

    def test_a_snapshot_replaces_a_log_that_does_not_reach_it(self) -> None:
        """Law: a snapshot beyond the log replaces the whole log; the answer waits for the disk."""
        replica = solo(1, 1)
        replica.step(InstallSnapshot(PEER, ME, Term(2), self.META))

        ready = replica.begin_turn()
        assert ready is not None
        replica.end_turn()

        assert ready.snapshot == self.META
        assert ready.messages_now == []
        assert ready.messages_after == [InstallSnapshotResponse(ME, PEER, Term(2), Index(5))]
        assert ready.must_sync
        assert (replica.storage.first_index(), replica.node.commit) == (6, 5)

    def test_a_snapshot_of_what_the_log_holds_keeps_what_follows(self) -> None:
        """Law: a snapshot of entries that the log holds keeps the entries behind it."""
        replica = solo(1, 1, 2, 2, 2, 2)

        answers = say(replica, InstallSnapshot(PEER, ME, Term(2), self.META))

        assert answers == [InstallSnapshotResponse(ME, PEER, Term(2), Index(5))]
        assert (replica.node.last_index, replica.node.commit) == (6, 5)
        assert replica.storage.first_index() == 1

    def test_an_old_snapshot_changes_nothing(self) -> None:
        """Law: a snapshot older than the commit index changes nothing."""
        replica = solo(2, 2, 2, 2, 2, 2, commit=6)

        answers = say(replica, InstallSnapshot(PEER, ME, Term(2), self.META))

        assert answers == [InstallSnapshotResponse(ME, PEER, Term(2), Index(6))]
        assert replica.storage.first_index() == 1


class TestClients:
    """Section 8."""

    def test_a_leader_opens_its_term_with_an_empty_entry(self) -> None:
        """Law: a new leader appends an empty entry, so that it learns the commit index without waiting for a proposal."""
        replica = solo(1, 1)

        sent = lead(replica)

        assert sent == [
            Append(ME, peer, Term(2), Index(2), Term(1), Index(0), (noop(3, 2),))
            for peer in (PEER, OTHER)
        ]
