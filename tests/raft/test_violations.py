"""A message that breaks raft's rules raises one error and changes nothing; the replica goes on."""

import pytest

from orderlymq_raft import (
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Index,
    InstallSnapshot,
    InstallSnapshotResponse,
    Membership,
    Message,
    NodeId,
    PreVote,
    ProtocolViolation,
    SnapshotMeta,
    Term,
    TimeoutNow,
    Vote,
)
from orderlymq_raft.violations import TERM_JUMP_MAX
from tests.raft.harness.replica import Replica
from tests.raft.harness.solo import ME, OTHER, PEER, VOTERS, ack, entry, lead, say, solo, work

NOBODY = NodeId(999)
T1, T2, T3 = Term(1), Term(2), Term(3)
MEMBERS = Membership(VOTERS)


def append(
    prev: tuple[int, int], *entries: Entry, term: int = 2, sender: NodeId = PEER, commit: int = 0
) -> Append:
    index, prev_term = prev
    return Append(
        sender, ME, Term(term), Index(index), Term(prev_term), Index(commit), tuple(entries)
    )


def snapshot(sender: NodeId = PEER, term: int = 2, members: Membership = MEMBERS) -> Message:
    return InstallSnapshot(sender, ME, T2, SnapshotMeta(Index(9), Term(term), members))


def config(index: int, data: bytes) -> Entry:
    return Entry(T2, Index(index), data, EntryKind.CONFIG)


#: Messages that no correct replica sends to a follower of node 2 in term 2, with entries of terms 1, 1, 2 of which two are committed.
TO_FOLLOWER: dict[str, Message] = {
    "to somebody else": Heartbeat(PEER, OTHER, T2, Index(0), 1),
    "in our own name": Heartbeat(ME, ME, T2, Index(0), 1),
    "a heartbeat of a second leader": Heartbeat(OTHER, ME, T2, Index(0), 1),
    "an append of a second leader": append((3, 2), sender=OTHER),
    "a snapshot of a second leader": snapshot(OTHER),
    "a term out of reach": Vote(PEER, ME, Term(TERM_JUMP_MAX + 3), Index(9), T2, transfer=True),
    "an entry left out": append((3, 2), entry(5, 2)),
    "an entry twice": append((3, 2), entry(4, 2), entry(4, 2)),
    "an entry of a later term": append((3, 2), entry(4, 3)),
    "terms that fall": append((3, 2), entry(4, 1)),
    "a predecessor of a later term": append((3, 3)),
    "another entry than the committed one": append((1, 1), entry(2, 2), entry(3, 2)),
    "another entry than the committed one, at the end": append((1, 1), entry(2, 2)),
    "a membership cut short": append((3, 2), config(4, b"\x01")),
    "a membership without voters": append((3, 2), config(4, Membership().encode())),
    "node 0 as a member": append((3, 2), config(4, Membership(frozenset({NodeId(0)})).encode())),
    "a snapshot of a later term": snapshot(term=3),
    "a snapshot without voters": snapshot(members=Membership()),
    "a snapshot of a former leader without voters": InstallSnapshot(
        OTHER, ME, T1, SnapshotMeta(Index(9), T1, Membership())
    ),
    "a candidate whose log is ahead of it": Vote(OTHER, ME, T3, Index(9), Term(4)),
    "a pre-vote whose log is ahead of it": PreVote(OTHER, ME, T3, Index(9), Term(4)),
}

#: Messages that no correct replica sends to a leader of term 1 that has two entries and has sent no heartbeat.
TO_LEADER: dict[str, Message] = {
    "a heartbeat of a second leader": Heartbeat(PEER, ME, T1, Index(0), 1),
    "an append of a second leader": append((1, 1), term=1),
    "a snapshot of a second leader": InstallSnapshot(
        PEER, ME, T1, SnapshotMeta(Index(9), T1, MEMBERS)
    ),
    "entries it never sent": AppendResponse(PEER, ME, T1, Index(3)),
    "a snapshot it never sent": InstallSnapshotResponse(PEER, ME, T1, Index(3)),
    "a round it never began": HeartbeatResponse(PEER, ME, T1, 1 << 40),
}


def follower() -> Replica:
    replica = solo(1, 1, 2, commit=2)
    say(replica, Heartbeat(PEER, ME, T2, Index(2), 1))
    work(replica)
    return replica


@pytest.mark.parametrize("message", TO_FOLLOWER.values(), ids=TO_FOLLOWER)
def test_a_follower_refuses_what_no_leader_says(message: Message) -> None:
    """Law: the follower checks the rules before it changes anything, and goes on following its rightful leader."""
    replica = follower()
    before = replica.node.status()

    with pytest.raises(ProtocolViolation):
        replica.node.step(message)

    assert replica.node.status() == before
    assert replica.node.ready() is None
    answers = say(replica, append((3, 2), entry(4, 2), commit=3))
    assert answers == [AppendResponse(ME, PEER, T2, Index(4))]


@pytest.mark.parametrize("message", TO_LEADER.values(), ids=TO_LEADER)
def test_a_leader_refuses_what_no_follower_says(message: Message) -> None:
    """Law: the leader neither steps down nor commits, and needs no restart."""
    replica = solo()
    lead(replica)
    replica.node.propose(b"x")
    work(replica)
    before = replica.node.status()

    with pytest.raises(ProtocolViolation):
        replica.node.step(message)

    assert replica.node.status() == before
    assert replica.node.ready() is None
    say(replica, ack(replica, 2))
    assert replica.node.commit == 2


@pytest.mark.parametrize(
    "message",
    [
        append((3, 2), term=3, sender=NOBODY),
        Heartbeat(NOBODY, ME, T3, Index(0), 1),
        Vote(NOBODY, ME, T3, Index(9), T2, transfer=True),
        HeartbeatResponse(NOBODY, ME, T3, 1),
        TimeoutNow(NOBODY, ME, T3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_who_is_no_member_is_not_heard_beside_a_leader(message: Message) -> None:
    """Law: a removed replica, or one of another raft group, cannot depose a leader that is heard."""
    replica = follower()
    before = replica.node.status()

    assert say(replica, message) == []
    assert replica.node.status() == before


@pytest.mark.parametrize(
    "message",
    [
        append((4, 2), term=3, sender=OTHER),
        Vote(OTHER, ME, T3, Index(9), T2, transfer=True),
        InstallSnapshot(OTHER, ME, T3, SnapshotMeta(Index(9), T2, MEMBERS)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_who_was_removed_is_heard_until_that_is_committed(message: Message) -> None:
    """Law: a removed replica is heard until its removal is committed, because it may lead until then.

    Afterwards it cannot depose a leader that is heard.
    """
    replica = follower()
    without = config(4, Membership(VOTERS - {OTHER}).encode())
    say(replica, append((3, 2), without))
    assert replica.node.hears(OTHER)

    say(replica, Heartbeat(PEER, ME, T2, Index(4), 1))
    before = replica.node.status()
    say(replica, message)

    assert not replica.node.hears(OTHER)
    assert replica.node.hears(PEER)
    assert replica.node.status() == before


def test_a_leader_of_an_earlier_term_breaks_no_rule() -> None:
    """Law: an append of a leader of an earlier term is no violation, even if others have committed different entries:
    that leader may have been paused.
    """
    replica = follower()

    answers = say(replica, append((1, 1), entry(2, 1), entry(3, 1), term=1, sender=OTHER))

    assert answers == [AppendResponse(ME, OTHER, T2, Index(0), reject=True)]


def test_a_member_that_the_log_does_not_know_yet_is_heard_when_no_leader_is() -> None:
    """Law: without a leader, a node that the log does not know as a member is heard,
    because this replica's log may lag (thesis 4.1).
    """
    replica = follower()
    for _ in range(replica.node.election_ticks):
        replica.node.tick()

    say(replica, append((3, 2), entry(4, 3), term=3, sender=NOBODY))

    assert replica.node.hears(NOBODY)
    assert (replica.node.leader, replica.node.term, replica.node.last_index) == (NOBODY, T3, 4)


def test_a_replica_that_joins_hears_whichever_leader_there_is() -> None:
    """Law: a replica without a membership follows any leader, of any term."""
    replica = solo(voters=frozenset())

    say(replica, append((0, 0), entry(1, TERM_JUMP_MAX * 4), term=TERM_JUMP_MAX * 4))

    assert (replica.node.leader, replica.node.last_index) == (PEER, 1)


def test_who_refuses_acknowledges_nothing() -> None:
    """Law: a refusal may name an index beyond the leader's log, because it can answer a question of an earlier leadership."""
    replica = solo()
    lead(replica)

    assert say(replica, AppendResponse(PEER, ME, T1, Index(99), reject=True)) == []
    assert replica.node.is_leader


def test_a_node_may_have_the_highest_number() -> None:
    """Law: node numbers have 63 bits, as in the frames between replicas."""
    replica = follower()
    highest = Membership(VOTERS | {NodeId((1 << 63) - 1)})

    answers = say(replica, append((3, 2), config(4, highest.encode())))

    assert answers == [AppendResponse(ME, PEER, T2, Index(4))]
