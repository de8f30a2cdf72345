"""What a node promises to its shell: Readys, refusals, reports."""

import pytest

from orderlymq_raft import (
    Append,
    Config,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Index,
    InstallSnapshot,
    Membership,
    Node,
    NodeId,
    NotLeader,
    PreVote,
    PreVoteResponse,
    ProgressState,
    ProposalRefused,
    ReadState,
    Ready,
    RemoveNode,
    Role,
    RoleChange,
    SnapshotMeta,
    Term,
    VoteResponse,
)
from tests.raft.harness.memory import MemoryLogStorage
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
    work,
)


def test_nothing_to_do_is_no_ready() -> None:
    """Law: without work there is no Ready, not even an empty one."""
    replica = solo()

    assert replica.node.ready() is None


def test_proposals_between_two_turns_share_everything() -> None:
    """Law: proposals between two turns share one disk write and one append per peer; their data is not copied."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    data = [b"a" * 100, b"b" * 100]

    places = [replica.node.propose(one) for one in data]
    ready = replica.begin_turn()

    assert ready is not None
    assert places == [(1, 2), (1, 3)]
    assert [one.data for one in ready.entries] == data
    assert all(one.data is given for one, given in zip(ready.entries, data, strict=True))
    assert ready.messages_now == [
        Append(ME, peer, Term(1), Index(1), Term(1), Index(1), ready.entries)
        for peer in (PEER, OTHER)
    ]


def test_readys_overlap_without_repeating_anything() -> None:
    """Law: while two turns are unfinished, each entry, message and hard state is handed out once."""
    replica = solo(1)
    replica.step(append(1, (1, 1), [entry(2, 1)]))
    first = replica.begin_turn()
    replica.step(append(1, (2, 1), [entry(3, 1)]))
    second = replica.begin_turn()
    third = replica.begin_turn()

    assert first is not None
    assert second is not None
    assert (first.entries, second.entries, third) == ((entry(2, 1),), (entry(3, 1),), None)
    assert len(first.messages_after) == len(second.messages_after) == 1
    assert second.hard_state is None


def test_readys_are_advanced_in_order() -> None:
    """Law: Readys are advanced in their order; another order is an error of the shell."""
    replica = solo(1)
    replica.step(append(1, (1, 1), [entry(2, 1)]))
    replica.node.ready()
    replica.step(append(1, (2, 1), [entry(3, 1)]))
    second = replica.node.ready()
    assert second is not None

    with pytest.raises(AssertionError, match="order"):
        replica.node.advance(second)


def test_what_needs_no_sync_is_not_advanced() -> None:
    """Law: a Ready that holds only answers needs no advance, however long an earlier write takes."""
    replica = solo(1, vote=PEER)
    replica.step(append(1, (1, 1), [entry(2, 1)]))
    first = replica.node.ready()
    assert first is not None
    replica.step(Heartbeat(PEER, ME, Term(1), Index(0), 1))
    answer = replica.node.ready()
    assert answer is not None
    assert not answer.must_sync

    replica.node.advance(first)

    with pytest.raises(AssertionError, match="in flight"):
        replica.node.advance(answer)


def test_a_new_commit_index_alone_needs_no_sync() -> None:
    """Law: a new commit index alone needs no sync, because it can be learned again. Terms, votes and entries need one."""
    replica = solo(1, vote=PEER)
    say(replica, append(1, (1, 1)))
    replica.step(Heartbeat(PEER, ME, Term(1), Index(1), 1))

    ready = replica.begin_turn()

    assert ready is not None
    assert ready.hard_state == HardState(Term(1), PEER, Index(1))
    assert not ready.must_sync


def test_changes_of_role_are_reported_once() -> None:
    """Law: each change of role is reported once, with leader and term, and so is a new leader in the same role."""
    replica = solo()
    changes = []

    def note(ready: Ready | None) -> None:
        if ready is not None:
            replica.end_turn()
            changes.append(ready.role_change)

    replica.step(Heartbeat(PEER, ME, Term(1), Index(0), 1))
    note(replica.begin_turn())
    replica.step(Heartbeat(PEER, ME, Term(1), Index(0), 2))
    note(replica.begin_turn())
    replica.step(Heartbeat(OTHER, ME, Term(2), Index(0), 1))
    note(replica.begin_turn())

    assert changes == [
        RoleChange(Role.FOLLOWER, PEER, Term(1)),
        None,
        RoleChange(Role.FOLLOWER, OTHER, Term(2)),
    ]


def test_a_follower_names_the_leader_instead_of_forwarding() -> None:
    """Law: a follower refuses a proposal and names the leader; the shell decides what to do."""
    replica = solo()
    say(replica, Heartbeat(PEER, ME, Term(1), Index(0), 1))

    with pytest.raises(NotLeader) as caught:
        replica.node.propose(b"x")

    assert caught.value.leader == PEER


def test_uncommitted_bytes_are_bounded() -> None:
    """Law: uncommitted bytes are limited, so that a leader without followers does not fill its memory;
    one proposal always fits.
    """
    replica = solo(uncommitted_bytes_max=10)
    lead(replica)
    say(replica, ack(replica, 1))
    replica.node.propose(b"x" * 50)

    with pytest.raises(ProposalRefused, match="too many bytes"):
        replica.node.propose(b"x")
    say(replica, ack(replica, 2))

    assert replica.node.propose(b"x") == (1, 3)


def test_a_message_to_somebody_else_is_refused() -> None:
    """Law: a message for another node is an error, because a wrong address must be noticed."""
    with pytest.raises(ValueError, match="node 1 received a message for node 2"):
        solo().node.step(Heartbeat(OTHER, PEER, Term(1), Index(0), 1))


def test_an_unreachable_peer_is_probed_again() -> None:
    """Law: after a peer was unreachable, entries that were sent ahead are sent again."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1))
    replica.node.propose(b"x")
    work(replica)

    replica.node.report_unreachable(PEER)
    again = work(replica)

    assert again == [
        Append(ME, PEER, Term(1), Index(1), Term(1), Index(1), (entry(2, 1),)),
    ]
    assert replica.node.status().progress[PEER].state is ProgressState.PROBE


def test_a_newcomer_without_a_membership_never_runs() -> None:
    """Law: a replica without a membership never campaigns; it waits for a leader."""
    node = Node(Config(ME), MemoryLogStorage(), applied=Index(0), random_below=lambda _: 0)
    for _ in range(100):
        node.tick()
    node.campaign()

    assert node.ready() is None


def test_a_lone_voter_commits_as_soon_as_its_disk_is_done() -> None:
    """Law: a single voter commits as soon as its own disk is done, without a message."""
    storage = MemoryLogStorage(Membership(frozenset({ME})))
    node = Node(Config(ME), storage, applied=Index(0), random_below=lambda _: 0)
    node.campaign()
    for _ in range(2):
        ready = node.ready()
        assert ready is not None
        storage.append(ready.entries)
        node.advance(ready)

    assert (node.role, node.commit) == (Role.LEADER, 1)


def test_a_leader_sends_commits_immediately_when_configured_to() -> None:
    """Law: with eager_commit, followers learn of a commit immediately, at the price of more messages."""
    replica = solo(eager_commit=True)
    lead(replica)
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.propose(b"x")
    work(replica)

    assert say(replica, ack(replica, 2)) == [
        Append(ME, PEER, Term(1), Index(2), Term(1), Index(2)),
        Append(ME, OTHER, Term(1), Index(2), Term(1), Index(2)),
    ]


def test_status_shows_how_the_group_stands() -> None:
    """Law: a status has each member's lag, the leader's own included."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1))

    status = replica.node.status()

    assert (status.role, status.leader, status.commit) == (Role.LEADER, ME, 1)
    assert status.membership == Membership(VOTERS)
    assert {peer: one.match for peer, one in status.progress.items()} == {
        NodeId(1): 1,
        NodeId(2): 1,
        NodeId(3): 0,
    }


def test_a_snapshot_is_handed_out_once() -> None:
    """Law: a snapshot is handed out once, even if several Readys begin before it is durable."""
    replica = solo(1)
    meta = SnapshotMeta(Index(9), Term(1), Membership(VOTERS))
    replica.step(InstallSnapshot(PEER, ME, Term(1), meta))
    first = replica.begin_turn()
    replica.step(Heartbeat(PEER, ME, Term(1), Index(9), 1))
    second = replica.begin_turn()

    assert first is not None
    assert second is not None
    assert (first.snapshot, first.must_sync, second.snapshot) == (meta, True, None)
    before = replica.node.is_restoring
    replica.end_turn()
    assert (before, replica.node.is_restoring) == (True, False), "its files are needed until then"


def test_entries_alone_need_a_sync() -> None:
    """Law: new entries need a sync even if term and vote stay."""
    replica = solo()
    lead(replica)
    replica.node.propose(b"x")

    ready = replica.begin_turn()

    assert ready is not None
    assert (ready.hard_state, ready.must_sync, ready.promises) == (None, True, False)


def test_a_leader_does_not_forget_itself() -> None:
    """Law: a leader ignores a report that it lost its own log, because it knows its own disk."""
    replica = solo()
    lead(replica)

    replica.node.report_wiped(ME)

    assert not work(replica)
    assert replica.node.status().progress[ME].match == 1


def test_a_read_is_answered_once() -> None:
    """Law: a read is answered once, by the round that it asked for."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1))
    replica.node.read_index(7)
    for round_ in (1, 2):
        work(replica)
        say(replica, HeartbeatResponse(PEER, ME, Term(1), round_))
        for _ in range(replica.config.heartbeat_ticks):
            replica.tick()

    assert replica.read_states == [ReadState(7, Index(1))]


@pytest.mark.parametrize("lease_reads", [False, True])
def test_a_lease_is_valid_where_it_is_set_and_a_majority_has_answered(lease_reads: bool) -> None:
    """Law: a lease needs the setting and a majority of answers; without the setting voters promise no stickiness after a
    restart.
    """
    replica = solo(lease_reads=lease_reads)
    for _ in range(replica.config.election_ticks):
        replica.tick()
    lead(replica)
    say(replica, ack(replica, 1))
    replica.node.read_index(7)
    work(replica)
    valid = [replica.node.lease_valid]

    say(replica, HeartbeatResponse(PEER, ME, replica.node.term, 1))
    valid.append(replica.node.lease_valid)

    assert valid == [False, lease_reads]


def test_a_late_answer_takes_no_later_one_back() -> None:
    """Law: answers to heartbeats may arrive in any order; an older one takes nothing back."""
    fourth, fifth = NodeId(4), NodeId(5)
    replica = solo(voters=VOTERS | {fourth, fifth})
    lead(replica, (PEER, OTHER))
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    for context in (7, 8):
        replica.node.read_index(context)
        work(replica)

    for node, round_ in ((PEER, 2), (PEER, 1), (OTHER, 2)):
        say(replica, HeartbeatResponse(node, ME, Term(1), round_))

    assert replica.read_states == [ReadState(7, Index(1)), ReadState(8, Index(1))]


def test_the_first_round_trip_is_that_of_the_opening_entry() -> None:
    """Law: the round trip is measured with the opening entry, because later commits may have waited for other entries."""
    replica = solo()
    for _ in range(5):
        replica.tick()
    lead(replica)
    for _ in range(3):
        replica.tick()
    say(replica, ack(replica, 1))
    measured = [replica.node.round_trip_ticks]
    replica.node.propose(b"x")
    work(replica)
    replica.tick()
    say(replica, ack(replica, 2))
    measured.append(replica.node.round_trip_ticks)

    assert measured == [3, 3]


def test_only_a_leader_with_others_steps_down() -> None:
    """Law: a follower and an only voter cannot step down."""
    follower, alone, leader = solo(1), solo(voters=frozenset({ME})), solo()
    alone.node.campaign()
    work(alone)
    lead(leader)

    assert [each.node.step_down() for each in (follower, alone, leader)] == [False, False, True]
    assert [each.node.role for each in (alone, leader)] == [Role.LEADER, Role.FOLLOWER]


def test_an_older_pre_vote_is_answered_with_the_term() -> None:
    """Law: a pre-vote request of an older term gets no vote, but the answer names the present term."""
    replica = solo(1, term=5)

    sent = say(replica, PreVote(PEER, ME, Term(3), Index(9), Term(3)))

    assert sent == [PreVoteResponse(ME, PEER, Term(5), granted=False)]


def test_a_membership_change_that_cannot_be_meant_is_refused() -> None:
    """Law: a membership change is refused if its node is no member, or during a leadership transfer."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1))

    with pytest.raises(ProposalRefused, match="not a member"):
        replica.node.propose_membership(RemoveNode(NodeId(9)))
    replica.node.transfer_leadership(PEER)
    with pytest.raises(ProposalRefused, match="being transferred"):
        replica.node.propose_membership(RemoveNode(OTHER))


def test_a_round_trip_that_was_not_measured_is_none() -> None:
    """Law: before a round trip was measured, round_trip_ticks is 0."""
    assert solo().node.round_trip_ticks == 0


def test_who_joins_hears_everybody_and_a_member_its_leader() -> None:
    """Law: a replica without a membership hears every node; a member also hears its leader,
    which may have been added since.
    """
    fourth, stranger = NodeId(4), NodeId(9)
    joining, member = solo(voters=frozenset({PEER, OTHER})), solo()
    say(joining, heartbeat(1))
    say(member, Heartbeat(fourth, ME, Term(1), Index(0), 1))

    heard = [
        [each.node.hears(node) for node in (PEER, fourth, stranger)] for each in (joining, member)
    ]

    assert heard == [[True, True, True], [True, True, False]]


def test_what_is_committed_at_the_start_is_settled() -> None:
    """Law: at the start the newest membership that the hard state calls committed is the only one,
    even if it is not applied yet.
    """
    grown = Membership(VOTERS, frozenset({NodeId(4)}))
    storage = MemoryLogStorage(Membership(VOTERS))
    storage.append([entry(1, 1), Entry(Term(1), Index(2), grown.encode(), EntryKind.CONFIG)])
    storage.set_hard_state(HardState(Term(1), None, Index(2)))

    node = Node(Config(ME), storage, applied=Index(0), random_below=lambda _: 0)

    assert node.memberships == (grown,)


def test_a_leader_that_has_everything_founds_nothing() -> None:
    """Law: telling a replica again that it is not recovering sends no extra commit index."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    replica.node.propose(b"x")
    work(replica)
    say(replica, ack(replica, 2))
    assert replica.node.commit == 2

    replica.node.set_recovering(recovering=False)

    assert not work(replica)


@pytest.mark.parametrize("is_recovering", [False, True])
def test_a_candidate_gives_up_when_one_whose_vote_may_be_under_way_lost_its_log(
    is_recovering: bool,
) -> None:
    """Law: a candidate gives up when a voter lost its log, because that voter may vote twice.

    In a new raft group nobody has voted before.
    """
    replica = solo()
    replica.node.set_recovering(recovering=is_recovering)
    replica.node.campaign()

    replica.node.report_wiped(PEER)

    assert replica.node.role is (Role.PRE_CANDIDATE if is_recovering else Role.FOLLOWER)


def test_a_durable_vote_of_an_earlier_term_elects_nobody() -> None:
    """Law: a candidate counts its own vote only when the vote of this term is on its disk."""
    replica = solo(pre_vote=False)
    replica.node.campaign()
    replica.begin_turn()
    replica.node.campaign()
    replica.begin_turn()
    replica.step(VoteResponse(PEER, ME, Term(2), granted=True))

    leads = [replica.node.is_leader]
    for _ in range(2):
        replica.end_turn()
        leads.append(replica.node.is_leader)

    assert leads == [False, False, True]


def test_a_leader_says_whether_it_hands_its_place_over() -> None:
    """Law: is_transferring holds until the target leads or its time is over."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1))
    said = [replica.node.is_transferring]

    replica.node.transfer_leadership(PEER)
    said.append(replica.node.is_transferring)
    for _ in range(replica.config.election_ticks):
        replica.tick()

    assert [*said, replica.node.is_transferring] == [False, True, False]


def test_a_leader_knows_its_own_stickiness_best() -> None:
    """Law: a lease uses the leader's own setting, even if another stickiness was noted for its id."""
    replica = solo(voters=frozenset({ME, PEER}), lease_reads=True)
    replica.node.note_stickiness(ME, 0)
    for _ in range(replica.config.election_ticks):
        replica.tick()
    lead(replica)
    say(replica, ack(replica, 1))
    replica.node.read_index(7)
    work(replica)
    say(replica, HeartbeatResponse(PEER, ME, replica.node.term, 1))

    assert replica.node.lease_valid


def test_entries_that_become_durable_are_no_vote() -> None:
    """Law: a candidate counts its vote when that is on its disk; the earlier write of entries does not count."""
    replica = solo(1, vote=PEER, pre_vote=False, voters=frozenset({ME, PEER}))
    replica.step(append(1, (1, 1), [entry(2, 1)]))
    replica.begin_turn()
    replica.node.campaign()
    replica.begin_turn()
    replica.step(VoteResponse(PEER, ME, Term(2), granted=True))

    replica.end_turn()

    assert not replica.node.is_leader
    replica.end_turn()
    assert replica.node.is_leader
