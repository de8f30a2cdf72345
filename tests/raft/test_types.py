"""The encoding of memberships, and the memberships that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_raft import Membership, NodeId, NotLeader

ids = st.integers(1, 2**64 - 1).map(NodeId)


@given(st.frozensets(ids, max_size=7), st.frozensets(ids, max_size=7))
def test_a_membership_survives_encoding(
    voters: frozenset[NodeId], learners: frozenset[NodeId]
) -> None:
    """Law: a membership is decoded as it was encoded, for any ids."""
    membership = Membership(voters, learners - voters)

    assert Membership.decode(membership.encode()) == membership


def test_the_encoding_of_a_membership_stays_as_it_is() -> None:
    """Law: the encoding stays the same because logs hold it: version, counts, sorted ids of voters, then of learners."""
    membership = Membership(frozenset({NodeId(3), NodeId(1)}), frozenset({NodeId(2)}))

    assert membership.encode().hex() == "010201" + "".join(f"{node:016x}" for node in (1, 3, 2))


@pytest.mark.parametrize(
    "data", [b"", b"\x01\x01", b"\x02\x00\x00", b"\x01\x01\x00\x00", b"\xff" * 40]
)
def test_a_damaged_membership_is_refused(data: bytes) -> None:
    """Law: any damage to an encoded membership raises ValueError."""
    with pytest.raises(ValueError, match="membership"):
        Membership.decode(data)


def test_a_group_of_eight_is_refused() -> None:
    """Law: a raft group has at most seven voters."""
    with pytest.raises(ValueError, match="at most 7"):
        Membership(frozenset(NodeId(node) for node in range(1, 9)))


def test_seven_learners_are_the_most() -> None:
    """Law: a raft group has at most seven learners, enough to replace all its voters."""
    learners = [NodeId(node) for node in range(11, 19)]

    assert Membership(frozenset({NodeId(1)}), frozenset(learners[:7]))
    with pytest.raises(ValueError, match="8 learners are too many; a group has at most 7"):
        Membership(frozenset({NodeId(1)}), frozenset(learners))


def test_nobody_is_voter_and_learner() -> None:
    """Law: a node is either a voter or a learner."""
    with pytest.raises(ValueError, match=r"nodes \[2\] are both voters and learners"):
        Membership(frozenset({NodeId(1), NodeId(2)}), frozenset({NodeId(2), NodeId(3)}))


def test_errors_say_what_to_do_next() -> None:
    """Law: an error names the node to ask, or says to try again."""
    assert "ask node 2" in str(NotLeader(NodeId(2)))
    assert "retry" in str(NotLeader(None))
