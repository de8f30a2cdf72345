"""A voter that may have lost its log (it is "recovering"): whom it elects, who elects it, and when it counts."""

from collections.abc import Sequence

import pytest

from orderlymq_raft import (
    AddLearner,
    Append,
    AppendResponse,
    Config,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Index,
    Membership,
    Message,
    NodeId,
    ProposalRefused,
    RemoveNode,
    Term,
    Vote,
    VoteResponse,
)
from tests.raft.harness.replica import Replica
from tests.raft.harness.solo import ME, OTHER, PEER, ack, entry, lead, noop, say, solo, work

FOURTH, FIFTH = NodeId(4), NodeId(5)
FIVE = frozenset({ME, PEER, OTHER, FOURTH, FIFTH})
OPENING = noop(1, 1)


def asked(replica: Replica, *, recovering: bool, last: tuple[int, int] = (9, 9)) -> bool:
    """Return whether *replica* votes for a candidate whose log ends at *last*: index and term."""
    index, term = last
    vote = Vote(PEER, ME, Term(9), Index(index), Term(term), recovering=recovering)
    (answer,) = [each for each in say(replica, vote) if isinstance(each, VoteResponse)]
    return answer.granted


@pytest.mark.parametrize("is_recovering", [False, True])
@pytest.mark.parametrize("candidate_is_recovering", [False, True])
def test_only_the_like_elect_each_other(is_recovering: bool, candidate_is_recovering: bool) -> None:
    """Law: a recovering candidate gets votes from recovering replicas only, any other candidate from the others only."""
    replica = solo()
    replica.node.set_recovering(recovering=is_recovering)

    assert asked(replica, recovering=candidate_is_recovering) == (
        is_recovering == candidate_is_recovering
    )


def test_who_forgot_and_has_a_part_again_votes_for_nobody_and_does_not_stand() -> None:
    """Law: a recovering replica with more than opening entries in its log neither votes nor campaigns,
    because its raft group has begun already.
    """
    replica = solo(1, 1)
    replica.node.set_recovering(recovering=True)

    assert not asked(replica, recovering=True)
    assert not asked(solo_recovering(entry(1, 1)), recovering=True)
    assert asked(solo_recovering(OPENING), recovering=True)
    replica.node.campaign()
    assert not work(replica)


def solo_recovering(*entries: Entry) -> Replica:
    """Start a replica that may have lost its log, and was sent *entries* before it crashed."""
    replica = solo(term=1)
    replica.crash()
    replica.storage.append(entries)
    replica.start()
    replica.node.set_recovering(recovering=True)
    return replica


def test_the_first_leader_names_no_commit_index_until_it_founds_the_group() -> None:
    """Law: the first leader sends no commit index until it ends recovery,
    because a commit index tells peers that the raft group has begun.
    """
    replica = solo()
    replica.node.set_recovering(recovering=True)
    lead(replica)
    say(replica, ack(replica, 1))
    replica.node.tick()
    assert replica.node.commit == 1
    assert commits_sent(work(replica)) <= {0}

    replica.node.set_recovering(recovering=False)
    assert 1 in commits_sent(work(replica))


def test_a_group_that_has_not_begun_changes_no_membership() -> None:
    """Law: no membership change before the raft group has begun: with more than opening entries,
    a restarted replica would never vote.
    """
    replica = solo()
    replica.node.set_recovering(recovering=True)
    lead(replica)
    say(replica, ack(replica, 1))
    assert replica.node.commit == 1

    with pytest.raises(ProposalRefused, match="has not started"):
        replica.node.propose_membership(AddLearner(FOURTH))

    replica.node.set_recovering(recovering=False)
    replica.node.propose_membership(AddLearner(FOURTH))


def test_a_leader_names_no_commit_index_before_it_has_committed_of_its_own() -> None:
    """Law: a new leader sends no commit index before it has committed an entry of its term.

    A peer that lost its log would believe that it has everything.
    """
    replica = solo(1, 1, 1, commit=1)
    told = commits_sent([m for m in lead(replica) if isinstance(m, Append)])
    assert told == {0}

    say(replica, ack(replica, 4, OTHER), ack(replica, 4, PEER))
    assert replica.node.commit == 4
    for _ in range(replica.config.heartbeat_ticks):
        replica.node.tick()
    context = max(m.context for m in work(replica) if isinstance(m, Heartbeat))
    sent = say(replica, HeartbeatResponse(PEER, ME, replica.node.term, context))

    assert commits_sent([m for m in sent if isinstance(m, Append)]) == {4}


def test_who_lost_its_log_counts_when_the_others_confirm_the_leader() -> None:
    """Law: the commit, the lease and entries exclude a peer that lost its log until a majority of the other voters has
    confirmed the leader.
    """
    replica = solo(voters=FIVE)
    lead(replica, (PEER, OTHER))
    term = replica.node.term
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    assert replica.node.commit == 1

    replica.node.report_wiped(PEER)
    rounds = [m.context for m in work(replica) if isinstance(m, Heartbeat)]
    replica.node.propose(b"x")
    assert PEER not in {m.target for m in work(replica) if isinstance(m, Append)}
    say(replica, ack(replica, 2), ack(replica, 2, OTHER))
    assert replica.node.commit == 1

    def told(node: NodeId) -> list[Append]:
        """Return the appends that PEER receives after *node* has answered."""
        sent = say(replica, HeartbeatResponse(node, ME, term, max(rounds)))
        return [m for m in sent if isinstance(m, Append) and m.target == PEER and m.commit]

    assert not told(PEER) + told(OTHER)
    assert told(FOURTH)
    say(replica, AppendResponse(PEER, ME, term, Index(2)))
    assert replica.node.commit == 2


def test_who_counts_again_is_sent_what_was_proposed_meanwhile() -> None:
    """Law: a peer that counts again is immediately sent the entries proposed meanwhile, before it says where its log ends."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1))
    replica.node.report_wiped(PEER)
    context = max(m.context for m in work(replica) if isinstance(m, Heartbeat))
    replica.node.propose(b"x")
    work(replica)
    say(replica, ack(replica, 2, OTHER))

    sent = say(replica, HeartbeatResponse(OTHER, ME, replica.node.term, context))

    to_peer = [m.entries for m in sent if isinstance(m, Append) and m.target == PEER]
    assert to_peer == [(), (entry(2, 1),)]


def test_a_leader_that_is_the_majority_needs_nobody_to_confirm_it() -> None:
    """Law: if the leader alone is the majority, a learner that lost its log is sent an append in the same turn."""
    replica = Replica(Config(ME), Membership(frozenset({ME}), frozenset({PEER})), lambda _: 0)
    replica.start()
    lead(replica, ())

    replica.node.report_wiped(PEER)

    assert [m.target for m in work(replica) if isinstance(m, Append)] == [PEER]


def test_where_most_have_lost_their_logs_all_must_answer() -> None:
    """Law: if most voters lost their logs, all must answer the leader; then no other leader can exist,
    and the remaining log is copied.
    """
    replica = solo()
    lead(replica)
    term = replica.node.term
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.report_wiped(PEER)
    replica.node.report_wiped(OTHER)
    context = max(m.context for m in work(replica) if isinstance(m, Heartbeat))

    assert commits_sent(say(replica, HeartbeatResponse(PEER, ME, term, context))) == {0}
    told = say(replica, HeartbeatResponse(OTHER, ME, term, context))
    assert {m.target for m in told if isinstance(m, Append) and m.commit} == {PEER, OTHER}


def test_a_leader_whom_all_answer_leads_on_though_most_have_lost_their_logs() -> None:
    """Law: a leader that hears all voters goes on leading even if most lost their logs.

    It steps down if one is silent, which may follow another leader.
    """
    replica = solo(check_quorum=True, election_ticks=5)
    lead(replica)
    term = replica.node.term
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.report_wiped(PEER)
    replica.node.report_wiped(OTHER)

    def pass_time(*nodes: NodeId) -> None:
        for _ in range(11):
            replica.tick()
            work(replica)
            # The answers belong to a round before the loss, so that no peer counts again.
            say(replica, *(HeartbeatResponse(node, ME, term, 0) for node in nodes))

    pass_time(PEER, OTHER)
    assert replica.node.is_leader
    pass_time(PEER)
    assert not replica.node.is_leader


def test_a_membership_that_is_not_committed_leaves_out_nobody_who_may_lead() -> None:
    """Law: a voter whose removal is not committed must still answer,
    because the peer that lost its log may have elected it.
    """
    replica = solo()
    lead(replica)
    term = replica.node.term
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.propose_membership(RemoveNode(PEER))
    replica.node.report_wiped(OTHER)
    context = max(m.context for m in work(replica) if isinstance(m, Heartbeat))

    told = say(replica, HeartbeatResponse(OTHER, ME, term, context))
    say(replica, AppendResponse(OTHER, ME, term, Index(2)))

    assert not [m for m in told if isinstance(m, Append) and m.commit]
    assert replica.node.commit == 1


@pytest.mark.parametrize("is_lost_with_its_disk", [False, True])
def test_who_is_being_removed_says_that_it_followed_nobody_else(
    is_lost_with_its_disk: bool,
) -> None:
    """Law: until its removal is committed, a voter is asked whether it follows this leader, but is sent no entries:
    it might elect another leader.
    """
    replica = solo()
    lead(replica)
    term = replica.node.term
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.propose_membership(RemoveNode(PEER))
    sent = work(replica)
    for lost in (OTHER, PEER) if is_lost_with_its_disk else (OTHER,):
        replica.node.report_wiped(lost)
    sent += work(replica)
    context = max(m.context for m in sent if isinstance(m, Heartbeat) and m.target == PEER)

    sent += say(replica, *(HeartbeatResponse(each, ME, term, context) for each in (OTHER, PEER)))
    sent += say(replica, AppendResponse(OTHER, ME, term, Index(2)))
    replica.tick()
    replica.tick()

    assert replica.node.commit == 2
    assert not [m for m in sent if isinstance(m, Append) and m.target == PEER]
    assert {m.target for m in work(replica) if isinstance(m, Heartbeat)} == {OTHER}


def test_a_new_leader_asks_who_is_being_removed_too() -> None:
    """Law: a new leader also asks a voter whose removal is in its log, because it does not know whether that is committed."""
    replica = solo()
    removal = Entry(
        Term(1), Index(1), Membership(frozenset({ME, OTHER})).encode(), EntryKind.CONFIG
    )
    say(replica, Append(OTHER, ME, Term(1), Index(0), Term(0), Index(0), (removal,)))
    replica.node.leader_gone(OTHER)
    for _ in range(3 * replica.config.election_ticks):
        replica.tick()
    lead(replica, (OTHER,))

    replica.node.report_wiped(OTHER)

    assert {m.target for m in work(replica) if isinstance(m, Heartbeat)} == {OTHER, PEER}


def test_a_leader_that_is_being_removed_answers_itself() -> None:
    """Law: a leader that removes itself counts as an answer, so the removal is committed when the others have answered."""
    replica = solo()
    lead(replica)
    term = replica.node.term
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.propose_membership(RemoveNode(ME))
    replica.node.report_wiped(OTHER)
    context = max(m.context for m in work(replica) if isinstance(m, Heartbeat))
    say(replica, AppendResponse(PEER, ME, term, Index(2)))

    say(replica, *(HeartbeatResponse(each, ME, term, context) for each in (PEER, OTHER)))
    say(replica, AppendResponse(OTHER, ME, term, Index(2)))

    assert replica.node.commit == 2


def test_nobody_is_removed_while_most_who_would_stay_are_away() -> None:
    """Law: a removal is refused while most remaining voters are away; it could not be committed,
    and never would be if one of them lost its log.
    """
    replica = Replica(
        Config(ME, election_ticks=5, check_quorum=True),
        Membership(frozenset({ME, PEER, OTHER})),
        lambda _: 0,
    )
    replica.start()
    lead(replica)
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))

    def pass_time() -> None:
        for _ in range(11):
            replica.node.tick()
            for each in [m for m in work(replica) if isinstance(m, Heartbeat) and m.target == PEER]:
                say(replica, HeartbeatResponse(PEER, ME, replica.node.term, each.context))

    pass_time()
    for node in (ME, PEER):
        with pytest.raises(ProposalRefused, match="voters that would remain are unreachable"):
            replica.node.propose_membership(RemoveNode(node))
    replica.node.propose_membership(RemoveNode(OTHER))


def test_the_membership_does_not_change_while_who_lost_its_log_does_not_count() -> None:
    """Law: no voter is removed while one that lost its log does not count,
    because the leader needs the others to confirm it.
    """
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.report_wiped(OTHER)
    context = max(m.context for m in work(replica) if isinstance(m, Heartbeat))

    with pytest.raises(ProposalRefused, match="lost its log"):
        replica.node.propose_membership(RemoveNode(OTHER))

    say(replica, HeartbeatResponse(PEER, ME, replica.node.term, context))
    replica.node.propose_membership(RemoveNode(OTHER))


def test_nobody_is_removed_while_who_would_stay_copies_the_log_again() -> None:
    """Law: no voter is removed while a remaining one copies its log again.

    It cannot vote yet, so a restarted leader would find no majority.
    """
    replica = solo()
    lead(replica)
    term = replica.node.term
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.report_wiped(OTHER)
    context = max(m.context for m in work(replica) if isinstance(m, Heartbeat))
    say(replica, *(HeartbeatResponse(each, ME, term, context) for each in (OTHER, PEER)))

    with pytest.raises(ProposalRefused, match="have not caught up"):
        replica.node.propose_membership(RemoveNode(PEER))

    say(replica, AppendResponse(OTHER, ME, term, Index(1)))
    replica.node.propose_membership(RemoveNode(PEER))


def test_a_candidate_whose_voter_forgets_begins_again() -> None:
    """Law: a vote that was on its way when its voter lost its disk does not count; the candidate starts over."""
    replica = solo(1)
    replica.node.campaign()
    work(replica)
    term = replica.node.term

    replica.node.report_wiped(PEER)
    say(replica, VoteResponse(PEER, ME, term, granted=True))

    assert not replica.node.is_leader


def test_a_newcomer_disturbs_no_leader() -> None:
    """Law: a report that a node without membership has no log changes nothing."""
    replica = solo()
    lead(replica)

    replica.node.report_wiped(FOURTH)

    assert replica.node.is_leader


def commits_sent(messages: Sequence[Message]) -> set[int]:
    return {int(each.commit) for each in messages if isinstance(each, Append | Heartbeat)}
