"""
Majority quorums: the index that a majority has reached, and the result of a vote.

Pure arithmetic over plain mappings, without knowledge of logs, terms or peers.
"""

from collections.abc import Mapping, Set
from enum import Enum
from typing import TypeVar

Node = TypeVar("Node", bound=int)


class VoteResult(Enum):
    """The state of an election."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def committed_index(voters: Set[Node], acked: Mapping[Node, int]) -> int:
    """Return the highest value that a majority of *voters* has reached."""
    assert voters, "an empty configuration commits nothing; callers must not ask"

    # A voter that has not reported counts as zero. It can hold the result back, never raise it.
    reached = sorted([acked.get(voter, 0) for voter in voters])

    return reached[(len(reached) - 1) // 2]


def vote_result(voters: Set[Node], votes: Mapping[Node, bool]) -> VoteResult:
    """Return the state of the election, given the *votes* that have arrived so far."""
    assert voters, "an empty configuration elects nobody; callers must not ask"

    needed = len(voters) // 2 + 1
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)

    if granted >= needed:
        return VoteResult.WON
    # Lost: the voters that have not answered can no longer make it a majority.
    if len(voters) - refused < needed:
        return VoteResult.LOST
    return VoteResult.PENDING


def has_majority(voters: Set[Node], present: Set[Node]) -> bool:
    """Return whether *present* contains a majority of *voters*."""
    return len(voters & present) > len(voters) // 2
