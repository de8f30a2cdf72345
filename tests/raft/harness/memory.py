"""
A log in memory, for tests of the core.

It behaves as a durable log does. It outlives the Node that reads it, so a crash loses only the Node.
The broker's durable log is in orderlymq_broker.store.
"""

from collections.abc import Sequence

from orderlymq_raft.log import Compacted, Unavailable
from orderlymq_raft.types import Entry, HardState, Index, Membership, SnapshotMeta, Term


class MemoryLogStorage:
    """Implements LogStorage for tests; a shell calls its writing methods between ready and advance.

    Invariant: entry i of the list has index first_index() + i.
    """

    def __init__(self, membership: Membership | None = None) -> None:
        self._hard_state = HardState()
        self._membership = membership or Membership()
        self._applied = Index(0)
        self._compacted_index = Index(0)
        self._compacted_term = Term(0)
        self._entries: list[Entry] = []

    @property
    def applied(self) -> Index:
        """Return the applied index that set_applied() or apply_snapshot() stored."""
        return self._applied

    def initial_state(self) -> tuple[HardState, Membership]:
        """Return the hard state and the membership at the applied index."""
        return self._hard_state, self._membership

    def first_index(self) -> Index:
        """Return the first index that is not compacted away."""
        return Index(self._compacted_index + 1)

    def last_index(self) -> Index:
        """Return the last index."""
        return Index(self._compacted_index + len(self._entries))

    def term(self, index: Index) -> Term:
        """Return the term of the entry; raises Compacted or Unavailable."""
        if index == self._compacted_index:
            return self._compacted_term
        if index < self._compacted_index:
            raise Compacted(index)
        if index > self.last_index():
            raise Unavailable(index)
        return self._entries[index - self._compacted_index - 1].term

    def entries(self, low: Index, high_exclusive: Index, size_bytes_max: int) -> Sequence[Entry]:
        """Return entries from *low* on within the size limit, but at least one; raises Compacted or Unavailable."""
        if low <= self._compacted_index:
            raise Compacted(low)
        if high_exclusive > self.last_index() + 1:
            raise Unavailable(high_exclusive)
        first = self.first_index()
        found: list[Entry] = []
        size = 0
        for entry in self._entries[low - first : high_exclusive - first]:
            size += len(entry.data)
            if found and size > size_bytes_max:
                break
            found.append(entry)
        return found

    def snapshot(self) -> SnapshotMeta:
        """Return the applied state; raises Unavailable before anything was applied."""
        if self._applied == 0:
            raise Unavailable(0)
        return SnapshotMeta(self._applied, self.term(self._applied), self._membership)

    def set_hard_state(self, hard_state: HardState) -> None:
        """Store term, vote and commit index."""
        self._hard_state = hard_state

    def append(self, entries: Sequence[Entry]) -> None:
        """Store entries, replacing everything from the first one's index on."""
        if not entries:
            return
        position = entries[0].index - self.first_index()
        assert 0 <= position <= len(self._entries), "the log has no holes"
        self._entries[position:] = entries

    def set_applied(self, index: Index, membership: Membership | None = None) -> None:
        """Store the applied index; *membership* if a CONFIG entry was applied."""
        assert index >= self._applied, "what is applied stays applied"
        self._applied = index
        if membership is not None:
            self._membership = membership

    def compact(self, index: Index) -> None:
        """Drop entries up to *index*, which must be applied."""
        assert index <= self._applied, "only what the snapshot holds may be dropped"
        if index <= self._compacted_index:
            return
        term = self.term(index)
        del self._entries[: index - self._compacted_index]
        self._compacted_index = index
        self._compacted_term = term

    def apply_snapshot(self, meta: SnapshotMeta) -> None:
        """Replace everything by the snapshot."""
        self._entries.clear()
        self._compacted_index = meta.index
        self._compacted_term = meta.term
        self._applied = meta.index
        self._membership = meta.membership
