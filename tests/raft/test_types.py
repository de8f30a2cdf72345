"""Memberships on disk and on the wire, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_raft import Membership, NodeId, NotLeader

ids = st.integers(1, 2**64 - 1).map(NodeId)


@given(st.frozensets(ids, max_size=7), st.frozensets(ids, max_size=7))
def test_a_membership_survives_encoding(
    voters: frozenset[NodeId], learners: frozenset[NodeId]
) -> None:
    """A membership is read as it was written, whatever the ids."""
    membership = Membership(voters, learners - voters)

    assert Membership.decode(membership.encode()) == membership


def test_the_encoding_of_a_membership_stays_as_it_is() -> None:
    """It stands in logs: version, counts, sorted ids of voters, then of learners."""
    membership = Membership(frozenset({NodeId(3), NodeId(1)}), frozenset({NodeId(2)}))

    assert membership.encode().hex() == "010201" + "".join(f"{node:016x}" for node in (1, 3, 2))


@pytest.mark.parametrize(
    "data", [b"", b"\x01\x01", b"\x02\x00\x00", b"\x01\x01\x00\x00", b"\xff" * 40]
)
def test_a_damaged_membership_is_refused(data: bytes) -> None:
    """With ValueError, whatever the damage."""
    with pytest.raises(ValueError, match="membership"):
        Membership.decode(data)


def test_a_group_of_eight_is_refused() -> None:
    """Seven voters are the most."""
    with pytest.raises(ValueError, match="at most 7"):
        Membership(frozenset(NodeId(node) for node in range(1, 9)))


def test_seven_learners_are_the_most() -> None:
    """A whole group may be replaced at once."""
    learners = [NodeId(node) for node in range(11, 19)]

    assert Membership(frozenset({NodeId(1)}), frozenset(learners[:7]))
    with pytest.raises(ValueError, match="8 learners are too many; a group has at most 7"):
        Membership(frozenset({NodeId(1)}), frozenset(learners))


def test_nobody_is_voter_and_learner() -> None:
    """Each node is named once."""
    with pytest.raises(ValueError, match=r"nodes \[2\] are both voters and learners"):
        Membership(frozenset({NodeId(1), NodeId(2)}), frozenset({NodeId(2), NodeId(3)}))


def test_errors_say_what_to_do_next() -> None:
    """They name the node to ask, or say to try again."""
    assert "ask node 2" in str(NotLeader(NodeId(2)))
    assert "retry" in str(NotLeader(None))
