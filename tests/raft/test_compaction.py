"""What a leader lets its shell drop, and what it is told of snapshots."""

from orderlymq_raft import (
    AppendResponse,
    Config,
    Index,
    InstallSnapshot,
    NodeId,
    ProgressState,
    Term,
)
from orderlymq_raft.node import INSTALL_ELECTIONS
from tests.raft.harness.solo import (
    ME,
    OTHER,
    PEER,
    ack,
    lead,
    say,
    solo,
    work,
)


def test_compaction_spares_what_live_peers_wait_for() -> None:
    """And never passes what is applied."""
    replica = solo()
    lead(replica)
    say(replica, ack(replica, 1), ack(replica, 1, OTHER))
    for index in range(2, 5):
        replica.node.propose(b"x")
        work(replica)
        say(replica, ack(replica, index))

    assert replica.node.compact(Index(9)) == 1
    say(replica, ack(replica, 3, OTHER))
    assert replica.node.compact(Index(2)) == 2
    assert replica.node.compact(Index(9)) == 3


def test_a_peer_is_alive_until_it_was_silent_for_a_whole_election_time_out() -> None:
    """At the moment in which the leader begins to count again nobody has been heard, and nobody is gone."""
    replica = solo()
    lead(replica)
    ticks = Config(ME).election_ticks
    alive = []
    for _ in range(3):
        say(replica, ack(replica, 1), ack(replica, 0, OTHER))
        for _ in range(ticks):
            replica.tick()
            work(replica)
            say(replica, ack(replica, 1))
            alive.append(replica.node.status().progress[OTHER].is_alive)
            assert replica.node.compact(Index(1)) == 0

    for _ in range(2 * ticks):
        replica.tick()
        work(replica)
        say(replica, ack(replica, 1))

    assert all(alive)
    assert not replica.node.status().progress[OTHER].is_alive
    assert replica.node.compact(Index(1)) == 1


def test_a_peer_that_answers_and_stores_nothing_holds_a_bounded_log() -> None:
    """Law: a follower whose disk is full for hours does not fill that of its leader."""
    replica = solo(live_lag_entries_max=3)
    lead(replica)
    say(replica, ack(replica, 1, OTHER))
    for index in range(1, 9):
        say(replica, ack(replica, index))
        replica.node.propose(b"x")
    work(replica)
    say(replica, ack(replica, 9))

    kept = [replica.node.compact(Index(wished)) for wished in (2, 4, 5, 9)]

    assert replica.node.status().progress[OTHER].is_alive
    assert kept == [1, 1, 2, 6]


def test_compaction_spares_what_follows_a_snapshot_under_way() -> None:
    """Else a peer that is slower than the log grows would fetch snapshots for ever."""
    replica = solo()
    lead(replica)
    for index in range(1, 5):
        say(replica, ack(replica, index))
        replica.node.propose(b"x")
    work(replica)
    replica.storage.compact(Index(4))
    refusal = AppendResponse(OTHER, ME, Term(1), Index(0), reject=True)

    sent = say(replica, refusal)
    say(replica, ack(replica, 5))

    assert [type(message) for message in sent] == [InstallSnapshot]
    assert replica.storage.applied == 5
    assert replica.node.compact(Index(9)) == 4


def test_compaction_spares_what_follows_a_snapshot_while_it_is_put_in_place() -> None:
    """Law: a peer that took one over hears nobody for a while, and need not fetch another; one that is gone holds nothing for ever."""
    replica = solo()
    lead(replica)
    for index in range(1, 6):
        say(replica, ack(replica, index))
        replica.node.propose(b"x")
    work(replica)
    replica.storage.compact(Index(4))
    say(replica, AppendResponse(OTHER, ME, Term(1), Index(0), reject=True))
    say(replica, ack(replica, 6))

    replica.node.report_snapshot(OTHER, ok=True)
    longest = INSTALL_ELECTIONS * replica.config.election_ticks
    kept = []
    for tick in range(1, longest + 9):
        replica.tick()
        work(replica)
        say(replica, ack(replica, 6))
        if not replica.node.status().progress[OTHER].is_alive:
            kept.append((tick, replica.node.compact(Index(9))))

    assert kept[0][0] <= 3 * replica.config.election_ticks
    assert kept == [(tick, 5 if tick < longest else 6) for tick, _ in kept]


def test_reports_about_a_peer_that_is_not_meant_change_nothing() -> None:
    """Law: neither of a stranger, nor that a snapshot arrived where none is sent, nor that one under way needs a probe."""
    replica = solo()
    lead(replica)
    for index in range(1, 4):
        say(replica, ack(replica, index))
        replica.node.propose(b"x")
    work(replica)
    replica.storage.compact(Index(3))
    say(replica, AppendResponse(OTHER, ME, Term(1), Index(0), reject=True))

    for node in (NodeId(9), OTHER):
        replica.node.report_unreachable(node)
    for node in (NodeId(9), PEER):
        for ok in (False, True):
            replica.node.report_snapshot(node, ok)

    states = {peer: one.state for peer, one in replica.node.status().progress.items()}
    assert (states[PEER], states[OTHER]) == (ProgressState.REPLICATE, ProgressState.SNAPSHOT)
