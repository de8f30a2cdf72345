"""
The replicated log of one replica: durable storage, and a tail of recent entries in memory.

The tail holds every entry that is not durable yet or not handed out for applying yet. So the usual path
(append, persist, commit, apply) never reads an entry back. Entries are handed out for persistence exactly
once. *stable* advances when the shell reports that they are durable. Committed entries are never truncated;
durable ones are truncated only for a later leader. replication.py appends on a leader, follower.py on a
follower.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from orderlymq_raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    SnapshotMeta,
    Term,
)

# No-op entries that open terms are empty. A new raft group has only a few of them, and no more are read.
_BLANK_BYTES_MAX: Final = 1 << 16


class Compacted(Exception):  # noqa: N818 - a fact about the log, expected and handled
    """The entry was dropped after a snapshot; send or read the snapshot instead."""


class Unavailable(Exception):  # noqa: N818 - a fact about the log, expected and handled
    """The entry or snapshot does not exist yet; try again later."""


class LogStorage(Protocol):
    """
    The durable log as the core reads it; only the shell writes it.

    It may lag behind: entries that a Ready handed out need not be visible before advance().
    """

    def initial_state(self) -> tuple[HardState, Membership]:
        """
        Return the state that was durable at the start.

        The membership is the one in effect at the *applied* index that the Node is started with. Store it
        when a CONFIG entry is applied, not when it is appended.
        """
        ...

    def first_index(self) -> Index:
        """Return the first index that entries() can return; last_index() + 1 if the log is empty."""
        ...

    def last_index(self) -> Index:
        """Return the last durable index; 0 if nothing was ever stored."""
        ...

    def term(self, index: Index) -> Term:
        """
        Return the term of an entry; must also work for first_index() - 1, and index 0 has term 0.

        Raises Compacted below that, Unavailable above last_index().
        """
        ...

    def entries(self, low: Index, high_exclusive: Index, size_bytes_max: int) -> Sequence[Entry]:
        """
        Return consecutive entries from *low*, at least one, whose data fits *size_bytes_max*.

        Raises Compacted below first_index(), Unavailable above last_index().
        """
        ...

    def snapshot(self) -> SnapshotMeta:
        """Return the state that can be sent to a peer now; raises Unavailable if there is none."""
        ...


class RaftLog:
    """
    The log's entries and its positions: applying <= stable and commit, persisting <= last_index, applied <= applying.

    tail[i] has index offset + i, and the tail ends at last_index. Storage serves all entries below offset.
    """

    __slots__ = (
        "_in_flight",
        "applied",
        "applying",
        "commit",
        "last_index",
        "last_term",
        "offset",
        "persisting",
        "snapshot",
        "stable",
        "storage",
        "tail",
    )

    def __init__(self, storage: LogStorage, *, commit: Index, applied: Index) -> None:
        self.storage = storage
        last = storage.last_index()
        assert applied <= commit <= last, (
            f"the stored log ends at {last}, but {commit} was committed and {applied} applied: "
            "entries are missing, restore the replica from its peers"
        )
        self.commit = commit
        self.applied = applied
        # The last committed entry that was handed out for applying.
        self.applying = applied
        # The last entry that is durable on this replica.
        self.stable = last
        # The last entry that was handed out for persistence.
        self.persisting = last
        self.last_index = last
        self.last_term = storage.term(last)
        self.offset = Index(last + 1)
        self.tail: list[Entry] = []
        # A snapshot that replaced the log and is not known to be durable yet.
        self.snapshot: SnapshotMeta | None = None
        # The index that becomes stable with each Ready in flight, oldest first. A truncation lowers these marks.
        # Comparing terms afterwards would be wrong if a third leader restores the very entries that a second one
        # had overwritten.
        self._in_flight: deque[Index] = deque()

    def first_index(self) -> Index:
        """Return the first index that is not compacted away."""
        if self.snapshot is not None:
            return Index(self.snapshot.index + 1)
        return self.storage.first_index()

    def term(self, index: Index) -> Term:
        """Return the term of the entry; raises Compacted or Unavailable."""
        if index == self.last_index:
            return self.last_term
        if index > self.last_index:
            raise Unavailable(index)
        if index >= self.offset:
            return self.tail[index - self.offset].term
        if self.snapshot is not None:
            if index == self.snapshot.index:
                return self.snapshot.term
            raise Compacted(index)
        return self.storage.term(index)

    def matches(self, index: Index, term: Term) -> bool:
        """Return whether the log has that entry (log matching, raft paper section 5.3)."""
        if index == self.last_index:
            return term == self.last_term
        try:
            return self.term(index) == term
        except (Compacted, Unavailable):
            return False

    def entries(self, low: Index, size_bytes_max: int) -> tuple[Entry, ...]:
        """Return the entries from *low* that fit, but at least one; raises Compacted."""
        assert low <= self.last_index, "there is nothing to read after the end"
        if low < self.offset:
            if low < self.first_index():
                raise Compacted(low)
            return tuple(self.storage.entries(low, self.offset, size_bytes_max))

        start = low - self.offset
        return self._in_tail(start, len(self.tail), size_bytes_max)

    def _in_tail(self, start: int, end: int, size_bytes_max: int) -> tuple[Entry, ...]:
        """Return the entries of the tail from position *start* to before *end* that fit, but at least one."""
        if start + 1 == end:
            return (self.tail[start],)
        size = 0
        for position in range(start, end):
            size += len(self.tail[position].data)
            if size > size_bytes_max and position > start:
                end = position
                break
        return tuple(self.tail[start:end])

    def is_up_to_date(self, last_index: Index, last_term: Term) -> bool:
        """Return whether a log with this last entry is at least as complete as this log (section 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def is_blank(self) -> bool:
        """Return whether the log holds only the no-op entries that open terms, so that no data was ever written to it."""
        if self.first_index() > 1:
            return False
        seen = 0
        # Some entries are in storage, and the latest may be only in the tail.
        while seen < self.last_index:
            try:
                opening = self.entries(Index(seen + 1), _BLANK_BYTES_MAX)
            except Compacted:
                return False  # the compacted entries were not all no-ops
            if not all(entry.kind == EntryKind.NOOP for entry in opening):
                return False
            seen += len(opening)

        return True

    def highest_with_term(self, low: Index, high: Index, term: Term) -> Index:
        """
        Return the highest index in low..high whose term is at most *term*, or *low*.

        Terms never fall along a log, so a binary search finds it (section 5.3, the accelerated back-off).
        """
        return Index(
            bisect_right(range(high + 1), term, lo=low + 1, key=lambda at: self.term(Index(at))) - 1
        )

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries after the last one."""
        assert entries[0].index == self.last_index + 1, "the log has no holes"
        self.tail.extend(entries)
        last = entries[-1]
        self.last_index = last.index
        self.last_term = last.term

    def truncate(self, index: Index) -> None:
        """Drop the entries from *index* on, because a newer leader has other entries there."""
        assert index > self.commit, f"entry {index} is committed and must stay"
        keep = Index(index - 1)
        self.last_term = self.term(keep)
        self.last_index = keep
        if index >= self.offset:
            del self.tail[index - self.offset :]
        else:
            self.tail.clear()
            self.offset = index
        self._forget_beyond(keep)

    def restore(self, meta: SnapshotMeta) -> None:
        """Replace the whole log by a snapshot."""
        assert meta.index > self.commit, "a snapshot never removes committed entries"
        # Entries after the commit index may be another leader's. Those up to it do not change.
        self._forget_beyond(self.commit)
        self.tail.clear()
        self.offset = Index(meta.index + 1)
        self.snapshot = meta
        self.last_index = meta.index
        self.last_term = meta.term
        self.commit = meta.index
        self.persisting = meta.index
        self.applying = meta.index

    def commit_to(self, index: Index) -> bool:
        """Raise the commit index; return whether it changed."""
        if index <= self.commit:
            return False
        assert index <= self.last_index, (
            f"the leader committed {index}, but the log ends at {self.last_index}: this replica "
            "has lost entries that it had acknowledged; restore it from its peers"
        )
        self.commit = index
        return True

    def has_unhanded(self) -> bool:
        """Return whether entries wait to be handed out for persistence."""
        return self.persisting < self.last_index

    def has_deliverable(self) -> bool:
        """Return whether committed, durable entries wait to be handed out for applying."""
        applying = self.applying
        return applying < self.commit and applying < self.stable

    def hand_out(self) -> tuple[Entry, ...]:
        """Return the entries to persist next; the caller must call take_off() for them."""
        if self.persisting >= self.last_index:
            return ()
        start = self.persisting + 1 - self.offset
        self.persisting = self.last_index
        return tuple(self.tail[start:] if start else self.tail)

    def deliver(self, size_bytes_max: int) -> tuple[Entry, ...]:
        """Return the entries to apply next."""
        low = Index(self.applying + 1)
        high = min(self.commit, self.stable)
        if high < low:
            return ()
        if low < self.offset:
            # This happens only after a restart: the tail keeps every entry that is not handed out.
            end = Index(min(high + 1, self.offset))
            entries = tuple(self.storage.entries(low, end, size_bytes_max))
        else:
            entries = self._in_tail(low - self.offset, high + 1 - self.offset, size_bytes_max)
        self.applying = entries[-1].index
        self._prune()
        return entries

    def take_off(self) -> None:
        """Note that a Ready with everything handed out so far is now in flight."""
        self._in_flight.append(self.persisting)

    def land(self, snapshot: SnapshotMeta | None) -> None:
        """Note that the oldest Ready in flight, which carried *snapshot*, is durable."""
        stable = self._in_flight.popleft()
        self.stable = max(self.stable, stable)
        if snapshot is not None:
            self.applied = max(self.applied, snapshot.index)
            if self.snapshot is snapshot:
                self.snapshot = None
        self._prune()

    def in_flight(self) -> int:
        """Return how many Readys are in flight."""
        return len(self._in_flight)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.applied <= self.applying <= self.commit <= self.last_index, "order of indexes"
        assert self.persisting <= self.last_index, "only what exists was handed out"
        assert self.stable <= self.persisting, "only what was handed out is durable"
        assert self.offset + len(self.tail) == self.last_index + 1, "the tail ends the log"
        assert self.offset <= self.persisting + 1, "what is not handed out is in the tail"
        for position, entry in enumerate(self.tail):
            assert entry.index == self.offset + position, "the tail has no holes"
        terms = [entry.term for entry in self.tail]
        assert terms == sorted(terms), "terms never fall along a log"
        assert not self.tail or self.tail[-1].term == self.last_term, "the cached term is right"
        assert list(self._in_flight) == sorted(self._in_flight), "flights land in order"

    def _forget_beyond(self, keep: Index) -> None:
        self.stable = min(self.stable, keep)
        self.persisting = min(self.persisting, keep)
        if self._in_flight and self._in_flight[-1] > keep:
            self._in_flight = deque(min(mark, keep) for mark in self._in_flight)

    def _prune(self) -> None:
        """Drop entries from the tail that are durable and handed out for applying."""
        done = min(self.stable, self.applying) + 1 - self.offset
        if done > 0:
            del self.tail[:done]
            self.offset = Index(self.offset + done)
