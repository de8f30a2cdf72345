"""Elections: who campaigns, who gets votes, and when a leader sends heartbeats."""

import pytest

from orderlymq_raft import (
    Config,
    Heartbeat,
    Index,
    Membership,
    Message,
    NodeId,
    PreVote,
    PreVoteResponse,
    Role,
    Term,
    TimeoutNow,
    Vote,
    VoteResponse,
)
from orderlymq_raft.election import VOTE_REQUESTS_MAX
from orderlymq_raft.state import SPREAD_DOUBLINGS_MAX
from tests.raft.harness.replica import Replica
from tests.raft.harness.solo import (
    ME,
    OTHER,
    PEER,
    VOTERS,
    ack,
    entry,
    heartbeat,
    lead,
    say,
    solo,
    work,
)

TICKS = 8
"""The shortest election time-out."""


def learner(*, recovering: bool = False) -> Replica:
    """Start node 1 as a learner with a log of one entry, of term 1."""
    membership = Membership(frozenset({PEER, OTHER}), frozenset({ME}))
    replica = Replica(Config(ME, election_ticks=TICKS), membership, lambda _: 0)
    replica.storage.append([entry(1, 1)])
    replica.start()
    replica.node.set_recovering(recovering=recovering)
    return replica


def asks(kind: type[PreVote] | type[Vote], last: tuple[int, int], term: int = 2) -> Message:
    """Return the request of a candidate whose log ends at *last*: index and term."""
    return kind(PEER, ME, Term(term), Index(last[0]), Term(last[1]))


def ticks_until(replica: Replica, role: Role) -> int:
    """Return the ticks that pass until *replica* has *role*."""
    for waited in range(1, 64 * TICKS):
        replica.tick()
        if replica.node.role is role:
            return waited
    raise AssertionError(f"{replica.node.role} for ever")


@pytest.mark.parametrize("kind", [PreVote, Vote])
@pytest.mark.parametrize(
    ("last", "recovering", "runs"),
    [((0, 0), False, True), ((1, 1), False, False), ((0, 0), True, False)],
    ids=["candidate is behind", "candidate is complete", "nobody may trust this replica"],
)
def test_a_learner_runs_only_when_a_candidate_lacks_what_it_has(
    kind: type[PreVote] | type[Vote], last: tuple[int, int], recovering: bool, runs: bool
) -> None:
    """Law: a learner campaigns only if a candidate lacks entries that the learner has and the learner may be trusted;
    this ends a deadlock.
    """
    replica = learner(recovering=recovering)
    say(replica, asks(kind, last))

    replica.node.set_recovering(recovering=False)
    for _ in range(2 * TICKS):
        replica.tick()

    assert (replica.node.role is Role.PRE_CANDIDATE) == runs


def test_a_learner_that_hears_a_leader_is_not_called_upon() -> None:
    """Law: a learner that hears a leader does not campaign; the candidate is the one that is cut off."""
    replica = learner()
    say(replica, Heartbeat(OTHER, ME, Term(1), Index(0), 1), asks(PreVote, (0, 0)))

    for _ in range(3 * TICKS):
        replica.tick()

    assert replica.node.role is Role.FOLLOWER


def test_a_learner_whose_leader_is_gone_waits_for_the_next_one() -> None:
    """Law: a broken connection to its leader does not make a learner campaign."""
    replica = learner()
    say(replica, heartbeat(1))

    replica.node.leader_gone(PEER)
    for _ in range(3 * TICKS):
        replica.tick()

    assert (replica.node.role, replica.node.leader) == (Role.FOLLOWER, PEER)


def test_only_a_pre_vote_for_a_later_term_is_granted() -> None:
    """Law: a pre-vote is granted for a later term only, because an election of the present term may be decided."""
    replica = solo(1, term=3)

    answers = [say(replica, asks(PreVote, (9, 3), term)) for term in (3, 4)]

    assert answers == [
        [PreVoteResponse(ME, PEER, Term(3), granted=False)],
        [PreVoteResponse(ME, PEER, Term(4), granted=True)],
    ]


@pytest.mark.parametrize(
    ("check_quorum", "pre_vote", "granted"),
    [(True, True, False), (True, False, False), (False, True, False), (False, False, True)],
)
def test_who_hears_a_leader_grants_no_pre_vote_where_stickiness_is_set(
    check_quorum: bool, pre_vote: bool, granted: bool
) -> None:
    """Law: with check_quorum or pre_vote, a replica that hears a leader grants no pre-vote."""
    replica = solo(1, check_quorum=check_quorum, pre_vote=pre_vote)
    say(replica, heartbeat(1))

    assert say(replica, asks(PreVote, (9, 1))) == [
        PreVoteResponse(ME, PEER, Term(2 if granted else 1), granted)
    ]


def test_without_check_quorum_a_leader_goes_on_alone() -> None:
    """Law: without check_quorum, a leader without followers goes on leading; it cannot commit."""
    replica = solo(check_quorum=False)
    lead(replica)

    for _ in range(20 * TICKS):
        replica.tick()

    assert replica.node.is_leader


def test_a_leader_looks_for_its_majority_once_in_an_election_time_out() -> None:
    """Law: a leader checks its majority once per election time-out; one answer of a voter within it is enough."""
    replica = solo(election_ticks=TICKS)
    lead(replica)
    say(replica, ack(replica, 1))
    for _ in range(4):
        for _ in range(TICKS - 1):
            replica.tick()
        say(replica, ack(replica, 1))
        replica.tick()

    assert replica.node.is_leader


@pytest.mark.parametrize(("term", "role"), [(4, Role.PRE_CANDIDATE), (2, Role.CANDIDATE)])
def test_a_pre_vote_counts_for_the_term_that_it_was_asked_for(term: int, role: Role) -> None:
    """Law: a granted pre-vote of an earlier attempt, for another term, does not count."""
    replica = solo(1)
    replica.node.campaign()
    work(replica)

    say(replica, PreVoteResponse(PEER, ME, Term(term), granted=True))

    assert replica.node.role is role


def test_only_the_leader_sends_a_replica_into_an_election() -> None:
    """Law: a replica obeys TimeoutNow only from its leader, because it overrides stickiness."""
    replica = solo(1, term=2)
    say(replica, heartbeat(2))

    roles = []
    for sender in (OTHER, PEER):
        say(replica, TimeoutNow(sender, ME, Term(2)))
        roles.append(replica.node.role)

    assert roles == [Role.FOLLOWER, Role.CANDIDATE]


def test_a_leader_speaks_once_in_a_heartbeat_interval() -> None:
    """Law: a leader sends heartbeats once per interval, counted from the last ones."""
    replica = solo(heartbeat_ticks=3)
    lead(replica)

    rounds: list[list[int]] = []
    for _ in range(7):
        replica.tick()
        sent = work(replica)
        rounds.append([each.context for each in sent if isinstance(each, Heartbeat)])

    assert rounds == [[], [], [1, 1], [], [], [2, 2], []]


def test_a_new_reign_begins_with_a_whole_heartbeat_interval() -> None:
    """Law: a new leadership starts with a whole heartbeat interval; ticks of the earlier one do not count."""
    replica = solo(heartbeat_ticks=3)
    lead(replica)
    replica.tick()
    replica.tick()
    say(replica, heartbeat(replica.node.term + 1))

    lead(replica)
    replica.tick()

    assert not work(replica)


def test_a_candidate_asks_as_often_as_it_may_before_it_opens_the_next_term() -> None:
    """Law: a candidate asks a limited number of times in each term, a time-out apart, before it opens the next term."""
    replica = solo(1, pre_vote=False, election_ticks=TICKS)
    replica.node.campaign()
    terms = []
    for _ in range(2 * VOTE_REQUESTS_MAX + 1):
        terms += [each.term for each in work(replica) if isinstance(each, Vote)]
        for _ in range(TICKS):
            replica.tick()

    asked = 2 * VOTE_REQUESTS_MAX  # Two voters are asked each time.
    assert terms == [*([2] * asked), *([3] * asked), 4, 4]


@pytest.mark.parametrize("round_trip", [0, 3])
def test_a_silent_majority_has_the_time_that_it_needed_the_last_time(round_trip: int) -> None:
    """Law: a leader waits for a silent majority for an election time-out and one measured round trip."""
    replica = solo(election_ticks=TICKS)
    lead(replica)
    for _ in range(round_trip):
        replica.tick()
    say(replica, ack(replica, 1))

    # The majority was heard in the first of two periods.
    assert ticks_until(replica, Role.FOLLOWER) == 2 * (TICKS + round_trip) - round_trip


@pytest.mark.parametrize("lost", [0, 1, 2, SPREAD_DOUBLINGS_MAX, SPREAD_DOUBLINGS_MAX + 1])
def test_each_lost_election_doubles_the_range_of_the_time_out(lost: int) -> None:
    """Law: each lost election doubles the range of the time-out, up to a limit."""
    ranges: list[int] = []

    def dice(below: int) -> int:
        ranges.append(below)
        return below - 1

    replica = Replica(Config(ME, election_ticks=TICKS, pre_vote=False), Membership(VOTERS), dice)
    replica.start()
    for _ in range(lost):
        replica.node.campaign()
        work(replica)
        term = replica.node.term
        say(replica, *(VoteResponse(each, ME, term, granted=False) for each in (PEER, OTHER)))

    spread = TICKS << min(lost, SPREAD_DOUBLINGS_MAX)
    assert ranges[-1] == spread + 1
    assert ticks_until(replica, Role.CANDIDATE) == TICKS + spread


def test_half_of_the_lost_elections_are_forgotten_when_a_leader_is_found() -> None:
    """Law: each new leader halves the number of lost elections once, however many heartbeats it sends."""
    ranges: list[int] = []

    def dice(below: int) -> int:
        ranges.append(below)
        return 0

    replica = Replica(Config(ME, election_ticks=TICKS, pre_vote=False), Membership(VOTERS), dice)
    replica.start()
    for _ in range(3):
        replica.node.campaign()
        work(replica)
        term = replica.node.term
        say(replica, *(VoteResponse(each, ME, term, granted=False) for each in (PEER, OTHER)))
    ranges.clear()

    say(replica, heartbeat(3), heartbeat(3, round_=2), heartbeat(3, round_=3))

    assert ranges == [2 * TICKS + 1]


def test_each_heartbeat_begins_the_time_out_again() -> None:
    """Law: each heartbeat restarts the election time-out, so a follower that hears its leader never campaigns."""
    replica = solo(1, election_ticks=TICKS)
    for round_ in range(1, 4):
        say(replica, heartbeat(1, round_=round_))
        for _ in range(TICKS - 1):
            replica.tick()
            assert replica.node.role is Role.FOLLOWER


def test_the_time_out_goes_on_when_a_candidate_is_merely_newer() -> None:
    """Law: a candidate that cannot win does not restart the time-out of one that can (section 5.2)."""
    replica = solo(1, 1, term=1, election_ticks=TICKS)
    for _ in range(TICKS - 1):
        replica.tick()
    say(replica, asks(Vote, (1, 1)))

    assert replica.node.term == 2
    assert ticks_until(replica, Role.PRE_CANDIDATE) == 1


def test_a_granted_vote_begins_the_time_out_again() -> None:
    """Law: a granted vote restarts the voter's time-out, so that the candidate has time to win."""
    replica = solo(1, term=1, election_ticks=TICKS)
    for _ in range(TICKS - 1):
        replica.tick()
    say(replica, asks(Vote, (1, 1)))

    assert ticks_until(replica, Role.PRE_CANDIDATE) == TICKS


def test_nothing_of_a_reign_is_left_in_the_next_one() -> None:
    """Law: a transfer, waiting reads and uncommitted bytes end with the leadership."""
    replica = solo(uncommitted_bytes_max=10)
    lead(replica)
    say(replica, ack(replica, 1))
    replica.node.propose(b"0123456789")
    replica.node.read_index(7)
    replica.node.transfer_leadership(PEER)
    work(replica)
    say(replica, heartbeat(replica.node.term + 1))

    lead(replica)
    replica.node.propose(b"0123456789")
    sent = say(replica, ack(replica, replica.node.last_index))

    assert replica.node.status().transferee is None
    assert not replica.read_states
    assert not [each for each in sent if isinstance(each, TimeoutNow)]


def test_messages_to_a_stranger_leave_a_leader_of_another_node_alone() -> None:
    """Law: a broken connection to a node that does not lead does not hurry an election."""
    replica = solo(1, jitter=TICKS, election_ticks=TICKS)
    say(replica, heartbeat(1))

    replica.node.leader_gone(NodeId(OTHER))

    assert ticks_until(replica, Role.PRE_CANDIDATE) == 2 * TICKS


def test_an_election_without_a_result_in_time_is_lost() -> None:
    """Law: an election with an answer but no result in time counts as lost; a follower's time-out does not."""
    ranges: list[int] = []

    def dice(below: int) -> int:
        ranges.append(below)
        return 0

    replica = Replica(Config(ME, election_ticks=TICKS, pre_vote=False), Membership(VOTERS), dice)
    replica.start()
    for _ in range(3):
        for _ in range(TICKS):
            replica.tick()
        work(replica)
        say(replica, VoteResponse(PEER, ME, replica.node.term, granted=False))

    assert ranges == [TICKS + 1, TICKS + 1, 2 * TICKS + 1, 4 * TICKS + 1]


@pytest.mark.parametrize(("node", "waits"), [(ME, TICKS + 1), (OTHER, TICKS + 3)])
def test_those_whose_leader_is_gone_run_one_after_the_other(node: NodeId, waits: int) -> None:
    """Law: when a leader is gone, voters campaign in turn: the first a tick after stickiness ends,
    each other one two ticks later.
    """
    config = Config(node, election_ticks=TICKS)
    replica = Replica(config, Membership(VOTERS), lambda below: below - 1)
    replica.start()
    say(replica, Heartbeat(PEER, node, Term(1), Index(0), 1))

    replica.node.leader_gone(PEER)

    assert ticks_until(replica, Role.PRE_CANDIDATE) == waits


def test_a_slow_majority_has_no_more_time_than_a_candidacy() -> None:
    """Law: however long the first answers took, a leader waits for a silent majority no longer than a candidacy lasts."""
    longest = VOTE_REQUESTS_MAX * TICKS
    replica = solo(election_ticks=TICKS)
    lead(replica)
    for _ in range(longest - 4):
        replica.tick()
    say(replica, ack(replica, 1))

    # The majority was heard in the first of two periods.
    assert ticks_until(replica, Role.FOLLOWER) == 4 + longest
