"""What a follower takes over from its leader, and what it answers."""

from orderlymq_raft import (
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Index,
    InstallSnapshot,
    InstallSnapshotResponse,
    Membership,
    Role,
    SnapshotMeta,
    Term,
)
from tests.raft.harness.replica import Replica
from tests.raft.harness.solo import (
    ME,
    OTHER,
    PEER,
    VOTERS,
    append,
    entry,
    heartbeat,
    say,
    solo,
    work,
)


def terms(replica: Replica) -> list[int]:
    """Return the terms of the log on disk."""
    storage = replica.storage
    return [storage.term(Index(index)) for index in range(1, storage.last_index() + 1)]


def test_where_an_append_parts_from_the_log_its_entries_stand() -> None:
    """Law: equal entries stay; the first entry that differs and all behind it are replaced."""
    replica = solo(1, 1, 2, 2)

    sent = say(replica, append(3, (1, 1), [entry(2, 1), entry(3, 3)]))

    assert terms(replica) == [1, 1, 3]
    assert sent == [AppendResponse(ME, PEER, Term(3), Index(3))]


def test_an_append_at_the_commit_index_adds_all_its_entries() -> None:
    """Law: all entries of an append that begins at the commit index are added."""
    replica = solo(1, 1, commit=2)

    sent = say(replica, append(1, (2, 1), [entry(3, 1), entry(4, 1)], commit=3))

    assert terms(replica) == [1, 1, 1, 1]
    assert replica.node.commit == 3
    assert sent == [AppendResponse(ME, PEER, Term(1), Index(4))]


def test_an_append_below_the_commit_index_is_answered_with_what_is_certain() -> None:
    """Law: a late append below the commit index is answered with the commit index, so that the log does not seem shorter."""
    replica = solo(1, 1, 1, commit=3)

    assert say(replica, append(1, (0, 0), [entry(1, 1)])) == [
        AppendResponse(ME, PEER, Term(1), Index(3))
    ]


def test_a_refusal_names_the_last_index_that_can_be_equal() -> None:
    """Law: a refusal hints at the last entry that may be equal: not of a later term than the leader's,
    not below the commit index.
    """
    replica = solo(1, 1, 2, 4, 4, commit=1)

    sent = say(replica, append(5, (5, 3)))

    assert sent == [
        AppendResponse(
            ME, PEER, Term(5), Index(5), reject=True, hint_index=Index(3), hint_term=Term(2)
        )
    ]


def test_a_heartbeat_commits_what_the_leader_knows_to_be_here() -> None:
    """Law: a heartbeat commits only up to the index that it names.

    If the log does not reach that index, the answer says where the log ends.
    """
    replica = solo(1, 1, 1)
    say(replica, append(1, (3, 1)))

    known = say(replica, heartbeat(1, 2))
    unknown = say(replica, heartbeat(1, 4, 2))

    assert replica.node.commit == 2
    assert known == [HeartbeatResponse(ME, PEER, Term(1), 1)]
    assert unknown == [
        AppendResponse(
            ME, PEER, Term(1), Index(4), reject=True, hint_index=Index(3), hint_term=Term(1)
        ),
        HeartbeatResponse(ME, PEER, Term(1), 2),
    ]


def test_a_heartbeat_commits_nothing_that_this_process_has_not_compared() -> None:
    """Law: a heartbeat commits only entries that this process has compared with the leader's log.

    A power failure may have undone what an earlier process acknowledged.
    """
    replica = solo(1, 1, 1, term=2)

    say(replica, heartbeat(2, 3))
    not_compared = replica.node.commit
    say(replica, append(2, (1, 1)), heartbeat(2, 3, 2))
    partly = replica.node.commit
    say(replica, append(2, (1, 1), [entry(2, 2), entry(3, 2)]), heartbeat(2, 3, 3))

    assert (not_compared, partly, replica.node.commit) == (0, 1, 3)
    assert terms(replica) == [1, 2, 2]


def test_what_was_compared_with_one_leader_says_nothing_of_the_next() -> None:
    """Law: a comparison with one leader's log does not count for the next leader."""
    replica = solo(1, 1, 1)
    say(replica, append(1, (3, 1)))

    say(replica, Heartbeat(OTHER, ME, Term(2), Index(3), 1))

    assert replica.node.commit == 0


def test_a_snapshot_at_the_commit_index_is_nothing_new() -> None:
    """Law: a snapshot at the commit index changes nothing; the entries behind it stay."""
    replica = solo(1, 1, 1, commit=2)
    meta = SnapshotMeta(Index(2), Term(1), Membership(VOTERS))

    sent = say(replica, InstallSnapshot(PEER, ME, Term(1), meta))

    assert terms(replica) == [1, 1, 1]
    assert sent == [InstallSnapshotResponse(ME, PEER, Term(1), Index(2))]


def test_a_snapshot_below_the_commit_index_is_nothing_new() -> None:
    """Law: a snapshot below the commit index changes nothing, even if its entry is compacted here."""
    replica = solo(1, 1, 1, commit=3)
    work(replica)
    replica.storage.compact(Index(3))
    meta = SnapshotMeta(Index(2), Term(1), Membership(VOTERS))

    sent = say(replica, InstallSnapshot(PEER, ME, Term(1), meta))

    assert replica.node.last_index == 3
    assert sent == [InstallSnapshotResponse(ME, PEER, Term(1), Index(3))]


def test_who_sends_a_snapshot_leads() -> None:
    """Law: the sender of a snapshot is the leader, also for a candidate that has heard nothing else from it."""
    replica = solo(1, pre_vote=False)
    replica.node.campaign()
    meta = SnapshotMeta(Index(4), Term(1), Membership(VOTERS))

    say(replica, InstallSnapshot(PEER, ME, Term(2), meta))

    assert (replica.node.role, replica.node.leader) == (Role.FOLLOWER, PEER)


def test_a_snapshot_brings_its_membership() -> None:
    """Law: a snapshot brings its membership, because the changes before it are in no log any more."""
    replica = solo(1)
    members = Membership(frozenset({ME, PEER}), frozenset({OTHER}))

    say(replica, InstallSnapshot(PEER, ME, Term(2), SnapshotMeta(Index(4), Term(1), members)))

    assert replica.node.status().membership == members


def test_a_snapshot_of_a_former_leader_is_installed() -> None:
    """Law: a former leader's snapshot is installed because it holds only committed entries;
    the answer names the newer term.
    """
    replica = solo(1, 1, 1)
    say(replica, heartbeat(4))
    meta = SnapshotMeta(Index(3), Term(2), Membership(frozenset({ME, OTHER})))

    sent = say(replica, InstallSnapshot(OTHER, ME, Term(2), meta))

    status = replica.node.status()
    assert (status.commit, status.last_index, status.membership) == (3, 3, meta.membership)
    assert (status.term, status.leader) == (4, PEER)
    assert sent == [AppendResponse(ME, OTHER, Term(4), Index(0), reject=True)]
    assert say(replica, append(4, (3, 2), [entry(4, 4)])) == [
        AppendResponse(ME, PEER, Term(4), Index(4))
    ]


def test_a_former_leaders_snapshot_of_what_the_log_holds_keeps_what_follows() -> None:
    """Law: a former leader's snapshot keeps the entries behind it, because the present leader counts on their
    acknowledgement.
    """
    replica = solo(1, 2, 2)
    say(replica, heartbeat(4))
    meta = SnapshotMeta(Index(2), Term(2), Membership(VOTERS))

    say(replica, InstallSnapshot(OTHER, ME, Term(3), meta))

    assert (replica.node.commit, replica.node.last_index) == (2, 3)


def test_a_former_leaders_snapshot_changes_no_log_that_stands_for_election() -> None:
    """Law: a former leader's snapshot does not change a candidate's log, on which its votes rest.

    A snapshot of a term above the replica's own waits.
    """
    candidate, follower = solo(1, pre_vote=False), solo(1, term=3)
    candidate.node.campaign()
    own, later = (SnapshotMeta(Index(5), Term(term), Membership(VOTERS)) for term in (1, 4))

    say(candidate, InstallSnapshot(OTHER, ME, Term(1), own))
    say(follower, InstallSnapshot(OTHER, ME, Term(2), later))

    assert (candidate.node.last_index, follower.node.last_index) == (1, 1)
