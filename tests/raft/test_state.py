"""The state that a replica clears, keeps or resets when its role changes."""

from typing import Any

from orderlymq_raft import Index, NodeId, Role, Term
from orderlymq_raft.state import PendingRead, RaftState
from tests.raft.harness.solo import ME, OTHER, PEER, VOTERS, lead, solo

#: The fields of a leader, with the values that they have in every other role.
OF_A_LEADER: dict[str, Any] = {
    "votes": {},
    "progress": {},
    "term_start": 0,
    "uncommitted_bytes": 0,
    "transferee": None,
    "transfer_sent": False,
    "round": 0,
    "round_ticks": [],
    "round_trip_ticks": None,
    "lease_tick": None,
    "lease_revoked": False,
    "reads_next": [],
    "reads_pending": [],
    "append_wanted": False,
    "heartbeat_wanted": False,
    "heartbeat_elapsed": 0,
}


def state_of(
    *terms: int, term: int | None = None, vote: NodeId | None = None, jitter: int = 0
) -> RaftState:
    """Return the state of node 1 as it starts, with a log of entries of *terms*."""
    return solo(*terms, term=term, vote=vote, jitter=jitter).node._state


def shown(state: RaftState, *names: str) -> dict[str, Any]:
    """Return fields of a state, with each container as a list or a dict."""
    found = {name: getattr(state, name) for name in names}
    return {
        name: value if isinstance(value, dict) or not hasattr(value, "__iter__") else list(value)
        for name, value in found.items()
    }


def busy_leader() -> RaftState:
    """Return the state of a leader in which every field of a leader has been changed."""
    replica = solo()
    lead(replica)
    state = replica.node._state
    state.votes = {PEER: True}
    state.uncommitted_bytes = 7
    state.transferee, state.transfer_sent = OTHER, True
    state.round = 3
    state.round_ticks.append((3, 8))
    state.round_trip_ticks, state.lease_tick, state.lease_revoked = 2, 8, True
    state.reads_next.append(1)
    state.reads_pending.append(PendingRead(3, Index(2), (2,)))
    state.append_wanted = state.heartbeat_wanted = True
    state.heartbeat_elapsed = 1
    return state


def test_a_replica_begins_as_a_follower_that_has_heard_of_nobody() -> None:
    """Law: a replica starts as a follower without a known leader; it keeps only term, vote and log."""
    state = state_of(1, 1, 2, term=3, vote=PEER, jitter=4)

    assert shown(state, *OF_A_LEADER) == OF_A_LEADER
    begun = shown(state, "role", "leader", "term", "vote", "recovering", "forced_candidate")
    assert begun == {
        "role": Role.FOLLOWER,
        "leader": None,
        "term": 3,
        "vote": PEER,
        "recovering": False,
        "forced_candidate": False,
    }
    names = ("ticks", "election_elapsed", "elections_lost", "votes_asked", "hurry_ticks")
    assert shown(state, *names, "led_since_tick") == dict.fromkeys((*names, "led_since_tick"), 0)
    assert state.election_timeout == state.config.election_ticks + 4


def test_who_leads_no_more_has_nothing_of_a_leader() -> None:
    """Law: a replica that stops leading clears its leader's fields.

    Otherwise a later term would use a read, lease or transfer of an earlier one.
    """
    state = busy_leader()
    changed = shown(state, *OF_A_LEADER)
    assert [name for name in OF_A_LEADER if changed[name] == OF_A_LEADER[name]] == []

    state.become_follower(Term(9), None)

    assert shown(state, *OF_A_LEADER) == OF_A_LEADER


def test_only_a_heard_leader_or_an_end_of_a_candidacy_sets_the_timer_back() -> None:
    """Law: a newer term alone does not restart a follower's election timer, because that candidate may be unable to win."""
    elapsed = []
    for role, leader in (
        (Role.FOLLOWER, None),
        (Role.FOLLOWER, PEER),
        (Role.CANDIDATE, None),
        (Role.CANDIDATE, PEER),
    ):
        state = state_of(1)
        state.role, state.election_elapsed = role, 5
        state.become_follower(Term(7), leader)
        elapsed.append(state.election_elapsed)

    assert elapsed == [5, 0, 0, 0]


def test_a_heard_leader_ends_a_forced_candidacy_and_halves_the_lost_elections() -> None:
    """Law: when a leader is heard, a forced candidacy ends and half of the lost elections are forgotten.

    A new term without a known leader changes neither.
    """
    state = state_of(1)
    state.forced_candidate, state.elections_lost = True, 7

    state.become_follower(Term(7), None)
    before = state.forced_candidate, state.elections_lost
    state.become_follower(Term(7), PEER)

    assert before == (True, 7)
    assert (state.forced_candidate, state.elections_lost) == (False, 3)


def test_a_candidacy_begins_without_votes_and_with_a_time_out_of_its_own() -> None:
    """Law: a candidacy begins without votes and draws its own time-out, so that two candidates do not stay in step."""
    for begin in (RaftState.become_pre_candidate, RaftState.become_candidate):
        state = state_of(1)
        state.votes, state.leader = {PEER: True}, PEER
        state.election_elapsed, state.hurry_ticks = 5, 3
        state.random_below = lambda below: below - 1
        begin(state)

        names = ("votes", "leader", "election_elapsed", "hurry_ticks", "election_timeout")
        assert shown(state, *names) == {
            "votes": {},
            "leader": None,
            "election_elapsed": 0,
            "hurry_ticks": 0,
            "election_timeout": 2 * state.config.election_ticks,
        }


def test_a_leader_begins_with_clocks_at_zero_and_the_tick_of_its_election() -> None:
    """Law: a new leader starts with no votes, clocks at zero and the tick of its election."""
    state = state_of(1)
    state.role, state.ticks = Role.CANDIDATE, 40
    state.votes, state.election_elapsed, state.heartbeat_elapsed = {PEER: True}, 5, 1

    state.become_leader()

    names = ("votes", "election_elapsed", "heartbeat_elapsed", "led_since_tick", "term_start")
    assert shown(state, *names) == {
        "votes": {},
        "election_elapsed": 0,
        "heartbeat_elapsed": 0,
        "led_since_tick": 40,
        "term_start": 2,
    }
    assert set(state.progress) == VOTERS


def test_a_leader_that_tracks_itself_again_has_answered_every_round() -> None:
    """Law: a leader that becomes a voter again counts as having answered every round,
    because it sends itself no heartbeats.
    """
    state = busy_leader()

    state.track(ME, Index(1))
    state.track(OTHER, Index(1))

    assert [state.progress[node].acked_round for node in (ME, OTHER)] == [3, 0]


def test_a_peer_that_lost_its_log_is_asked_at_the_next_turn() -> None:
    """Law: a peer that lost its log is sent a heartbeat at the next turn; it counts again from that round."""
    state = busy_leader()
    state.append_wanted = state.heartbeat_wanted = False

    state.track_wiped(OTHER)

    assert (state.append_wanted, state.heartbeat_wanted) == (True, True)
    assert state.progress[OTHER].counts_from_round == 4
