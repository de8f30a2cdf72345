"""Majority arithmetic, compared with a slow version that follows the definition."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_raft.quorum import VoteResult, committed_index, has_majority, vote_result

voter_sets = st.frozensets(st.integers(1, 9), min_size=1, max_size=7)
acks = st.dictionaries(st.integers(1, 9), st.integers(0, 20))
ballots = st.dictionaries(st.integers(1, 9), st.booleans())


@given(voter_sets, acks)
def test_committed_is_the_highest_index_that_a_majority_has(
    voters: frozenset[int], acked: dict[int, int]
) -> None:
    """Law: an index is committed exactly when more than half of the voters have reached it."""
    reached = [
        index
        for index in range(21)
        if sum(acked.get(voter, 0) >= index for voter in voters) > len(voters) / 2
    ]

    assert committed_index(voters, acked) == max(reached)


@given(voter_sets, ballots)
def test_an_election_is_decided_when_silence_cannot_change_it(
    voters: frozenset[int], votes: dict[int, bool]
) -> None:
    """Law: an election is won or lost as soon as the votes that are missing cannot change its result."""
    silent = [voter for voter in voters if voter not in votes]
    granted = sum(votes[voter] for voter in voters if voter in votes)
    wins = {granted + more > len(voters) / 2 for more in range(len(silent) + 1)}
    expected = {True: VoteResult.WON, False: VoteResult.LOST}

    decided = expected[wins.pop()] if len(wins) == 1 else VoteResult.PENDING
    assert vote_result(voters, votes) is decided


@given(voter_sets, st.frozensets(st.integers(1, 9)), st.frozensets(st.integers(1, 9)))
def test_two_majorities_share_a_voter(
    voters: frozenset[int], one: frozenset[int], other: frozenset[int]
) -> None:
    """Law: any two majorities share a voter; raft's safety rests on this."""
    if has_majority(voters, one) and has_majority(voters, other):
        assert voters & one & other


@given(voter_sets, st.integers(10, 20))
def test_majorities_of_neighbouring_memberships_share_a_voter(
    voters: frozenset[int], newcomer: int
) -> None:
    """Law: majorities of two memberships that differ by one server share a voter,
    so no joint consensus is needed (thesis 4.1).
    """
    grown = voters | {newcomer}
    smallest = len(voters) // 2 + 1 + len(grown) // 2 + 1

    assert smallest > len(grown)
