"""How a replica finds the memberships of its raft group in its log."""

from collections.abc import Sequence

from orderlymq_raft import Entry, EntryKind, Index, Membership, NodeId, Term
from orderlymq_raft.membership import load
from tests.raft.harness.memory import MemoryLogStorage
from tests.raft.harness.solo import VOTERS, entry


class SmallPieces(MemoryLogStorage):
    """A log that returns one entry at a time, as a log with large entries does."""

    def entries(self, low: Index, high_exclusive: Index, size_bytes_max: int) -> Sequence[Entry]:
        return super().entries(low, high_exclusive, 0)


def test_memberships_are_found_wherever_the_log_is_cut() -> None:
    """Law: at its start a replica reads the log in pieces and skips no membership."""
    founding = Membership(VOTERS)
    grown = [Membership(VOTERS, frozenset({NodeId(node)})) for node in (4, 5)]
    storage = SmallPieces(founding)
    changes = [
        Entry(Term(1), Index(index), each.encode(), EntryKind.CONFIG)
        for index, each in zip((2, 3), grown, strict=True)
    ]
    storage.append([entry(1, 1), *changes, entry(4, 1)])

    assert load(storage, Index(0)) == [(0, founding), (2, grown[0]), (3, grown[1])]
