"""The entries that a leader lets its shell compact, and the reports about snapshots that it gets."""

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
    """Law: compaction keeps the entries that live peers still need, and never passes the applied index."""
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
    """Law: a peer that answers within each period counts as alive, also at the moment when the leader begins a new period."""
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
    """Law: a peer that answers but stores nothing (its disk is full) cannot make its leader's log grow without bound."""
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
    """Law: the entries after a snapshot that is being sent stay. Otherwise a slow peer would fetch snapshots for ever."""
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
    """Law: a peer that installs a snapshot is silent for a while; the entries after the snapshot stay until then.

    A peer that is gone does not keep them for ever.
    """
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
    """Law: the leader ignores reports about a node that is no peer, about a snapshot that it is not sending,
    and that a peer which gets a snapshot is unreachable.
    """
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
