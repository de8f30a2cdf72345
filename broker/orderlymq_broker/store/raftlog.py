"""
The durable raft log over the key-value store.

The rule: an entry is stored as its head (RAFT_LOG, by index) and its bodies (MESSAGES, by physical offset),
and is joined again when a follower needs it. An entry is readable as soon as the batch that contains it is
staged. Only the log puts or truncates MESSAGES; the state machine drops the oldest messages by retention.
``orderlymq_raft.log`` reads this log.
"""

import zlib
from bisect import bisect_right
from collections.abc import Sequence

from orderlymq_broker.store import layout
from orderlymq_broker.store.entry import EntryCorrupt, cut_messages, head_length, split_entry
from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import Applied, Compaction, LogValue
from orderlymq_raft.log import Compacted, Unavailable
from orderlymq_raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    NodeId,
    SnapshotMeta,
    Term,
)

# Log heads read in one scan: a few hundred bytes each, as many as an append ever carries.
_HEADS_PER_SCAN = 64

_LOG_END = layout.U64_END
_MESSAGES_END = layout.U64_END

# No limit on the number of pairs, because the range limits the scan.
_NO_LIMIT = 1 << 62


class RaftLogStore:
    """The log of one replica; implements `orderlymq_raft.log.LogStorage`.

    Life cycle: built when the store is open, changed only through batches that the caller immediately stages
    or prepares, on the event loop. Invariants: indexes are dense from the compaction to the last one, terms
    never fall, and the bodies of the entries are dense in physical offsets.
    """

    def __init__(self, kv: Reader, tail_size_max: int) -> None:
        self._kv = kv
        self._tail_size_max = tail_size_max
        self._tail: dict[int, Entry] = {}
        self._tail_size = 0
        meta = kv.multi_get(
            Family.META,
            [layout.META_HARD_STATE, layout.META_MEMBERSHIP, layout.META_COMPACTED],
        )
        term, vote, commit = layout.decode_hard_state(meta[0])
        self._hard_state = HardState(
            Term(term), None if vote is None else NodeId(vote), Index(commit)
        )
        self._membership = Membership() if meta[1] is None else Membership.decode(meta[1])
        self._compacted = layout.decode_compaction(meta[2])
        self._last = self._find_last()
        if self._last < (applied := self._applied().index):
            raise EntryCorrupt(
                f"the log ends at entry {self._last}, but {applied} is applied: files of the "
                "store are lost; restore this replica from its peers"
            )
        self._physical_end = self._physical_after(self._last)
        # The first index of each term's run, and the term; because terms never fall, this covers all entries.
        self._runs: list[int] = []
        self._run_terms: list[int] = []
        self._find_runs()

    # -- what the core reads -------------------------------------------------------------------

    def initial_state(self) -> tuple[HardState, Membership]:
        """Return the stored term, vote and commit index, and the membership at the applied index."""
        return self._hard_state, self._membership

    def first_index(self) -> Index:
        """Return the first index that `entries` can return; last + 1 if the log is empty."""
        return Index(self._compacted.index + 1)

    def last_index(self) -> Index:
        """Return the last index that was added to a batch; 0 if there never was one."""
        return Index(self._last)

    def term(self, index: Index) -> Term:
        """Return the term of the entry at *index*; also works for the last compacted one.

        Raises:
            Compacted: *index* lies before the compaction.
            Unavailable: *index* lies after the last entry.
        """
        if index == self._compacted.index:
            return Term(self._compacted.term)
        if index < self._compacted.index:
            raise Compacted(index)
        if index > self._last:
            raise Unavailable(index)

        return Term(self._run_terms[bisect_right(self._runs, index) - 1])

    def entries(self, low: Index, high_exclusive: Index, size_bytes_max: int) -> Sequence[Entry]:
        """Return consecutive entries from *low*, at least one, that fit into *size_bytes_max*.

        May return fewer than fit, but never none.

        Raises:
            Compacted: *low* was compacted, or retention has dropped its bodies.
            Unavailable: *high_exclusive* is more than one after the last entry.
            EntryCorrupt: the stored data is not what was appended.
        """
        if low <= self._compacted.index:
            raise Compacted(low)
        if high_exclusive > self._last + 1:
            raise Unavailable(high_exclusive)
        if low in self._tail:
            return self._entries_of_tail(low, high_exclusive, size_bytes_max)

        return self._read(low, high_exclusive, size_bytes_max)

    def snapshot(self) -> SnapshotMeta:
        """Return the applied state; a checkpoint contains the committed part of it.

        Raises:
            Unavailable: nothing was applied yet.
        """
        applied = self._applied()
        if applied.index == 0:
            raise Unavailable(0)

        return SnapshotMeta(Index(applied.index), Term(applied.term), self._membership)

    # -- what the shell writes -----------------------------------------------------------------

    def append(
        self, batch: Batch, entries: Sequence[Entry], hard_state: HardState | None = None
    ) -> None:
        """Add the entries and hard state of a Ready to *batch*; stage or prepare the batch immediately.

        Stored entries from the first index of *entries* on are truncated, with their bodies.

        Raises:
            EntryCorrupt: a payload is not an entry, or its bodies do not continue at the end of the log.
        """
        if entries:
            first = entries[0].index
            assert self._compacted.index < first <= self._last + 1, "the log has no holes"
            if first <= self._last:
                self._truncate(batch, first)
            for entry in entries:
                assert entry.index == self._last + 1, "entries are consecutive"
                self._append(batch, entry)
        if hard_state is not None:
            self.set_hard_state(batch, hard_state)

    def set_hard_state(self, batch: Batch, hard_state: HardState) -> None:
        """Add term, vote and commit index to *batch*."""
        self._hard_state = hard_state
        batch.put(
            Family.META,
            layout.META_HARD_STATE,
            layout.encode_hard_state(hard_state.term, hard_state.vote, hard_state.commit),
        )

    def set_membership(self, batch: Batch, membership: Membership) -> None:
        """Add the membership of the raft group to *batch*; call this when the CONFIG entry is applied."""
        self._membership = membership
        batch.put(Family.META, layout.META_MEMBERSHIP, membership.encode())

    def compact(self, batch: Batch, to_index: Index) -> None:
        """Drop the heads of the entries up to *to_index*, which must be applied.

        The bodies stay, because consumers read them until retention drops them.
        """
        if to_index <= self._compacted.index:
            return
        assert to_index <= self._last, "only what exists can be compacted"
        first = self._compacted.index + 1
        compaction = Compaction(to_index, self.term(to_index), self._physical_after(to_index))
        batch.delete_range(Family.RAFT_LOG, layout.log_key(first), layout.log_key(to_index + 1))
        self._set_compaction(batch, compaction)
        for index in [index for index in self._tail if index <= to_index]:
            self._forget(index)
        run = bisect_right(self._runs, to_index) - 1
        del self._runs[:run], self._run_terms[:run]

    def install(self, batch: Batch, meta: SnapshotMeta, *, physical_end: int) -> None:
        """Restart after a snapshot: the log is empty, and the next entry is *meta.index* + 1.

        For stores whose tables already contain the snapshot. A snapshot on disk goes through ``snapshot.py``,
        which calls this.
        """
        batch.delete_range(Family.RAFT_LOG, layout.log_key(0), _LOG_END)
        batch.delete_range(Family.MESSAGES, layout.message_key(physical_end), _MESSAGES_END)
        self._tail.clear()
        self._tail_size = 0
        self._runs.clear()
        self._run_terms.clear()
        self._last = meta.index
        self._physical_end = physical_end
        self._set_compaction(batch, Compaction(meta.index, meta.term, physical_end))
        self.set_membership(batch, meta.membership)

    def physical_end(self) -> int:
        """Return where the bodies of the last entry end, whether it is persisted or only handed out."""
        return self._physical_end

    # -- parts ---------------------------------------------------------------------------------

    def _append(self, batch: Batch, entry: Entry) -> None:
        data = entry.data
        cut = len(data)
        if entry.kind is EntryKind.NORMAL:
            cut = head_length(data)
            parts = split_entry(data)
            if parts.physical_start != self._physical_end:
                raise EntryCorrupt(
                    f"entry {entry.index} begins at physical offset {parts.physical_start}, but "
                    f"the log ends at {self._physical_end}; restore this replica from its peers"
                )
            key = layout.message_key
            batch.puts += [
                (Family.MESSAGES, key(physical), message)
                for physical, message in cut_messages(data, cut, parts.physical_start)
            ]
            self._physical_end = parts.physical_end
        batch.put(
            Family.RAFT_LOG,
            layout.log_key(entry.index),
            layout.encode_log_value(
                term=entry.term,
                kind=entry.kind,
                blob_length=len(data) - cut,
                checksum=zlib.crc32(data),
                head=data[:cut],
            ),
        )
        if not self._run_terms or self._run_terms[-1] != entry.term:
            self._runs.append(entry.index)
            self._run_terms.append(entry.term)
        self._last = entry.index
        self._remember(entry)

    def _truncate(self, batch: Batch, first: int) -> None:
        physical = self._physical_after(first - 1)
        batch.delete_range(Family.RAFT_LOG, layout.log_key(first), _LOG_END)
        batch.delete_range(Family.MESSAGES, layout.message_key(physical), _MESSAGES_END)
        for index in [index for index in self._tail if index >= first]:
            self._forget(index)
        while self._runs and self._runs[-1] >= first:
            self._runs.pop()
            self._run_terms.pop()
        self._last = first - 1
        self._physical_end = physical

    def _entries_of_tail(self, low: int, high_exclusive: int, size_max: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for index in range(low, high_exclusive):
            entry = self._tail.get(index)
            if entry is None:
                break
            size += len(entry.data)
            if found and size > size_max:
                break
            found.append(entry)

        return found

    def _read(self, low: int, high_exclusive: int, size_max: int) -> list[Entry]:
        heads: list[LogValue] = []
        size = 0
        pairs = self._kv.scan(
            Family.RAFT_LOG,
            layout.log_key(low),
            layout.log_key(high_exclusive),
            limit=_HEADS_PER_SCAN,
        )
        for position, (key, value) in enumerate(pairs):
            if layout.decode_u64(key) != low + position:
                break
            head = _decode(value, low + position)
            size += len(head.head) + head.blob_length
            if heads and size > size_max:
                break
            heads.append(head)
        if not heads:
            raise EntryCorrupt(f"entry {low} is missing; restore this replica from its peers")

        return self._join(low, heads)

    def _join(self, low: int, heads: list[LogValue]) -> list[Entry]:
        bodies = self._read_bodies(low, heads)
        found: list[Entry] = []
        position = 0
        for index, head in enumerate(heads, low):
            blob = bodies[position : position + head.blob_length]
            position += head.blob_length
            data = head.head + blob
            if zlib.crc32(data) != head.checksum:
                raise EntryCorrupt(
                    f"entry {index} is damaged on disk: its checksum does not match; stop this "
                    "replica, run 'orderlymq doctor' on it and restore it from its peers"
                )
            found.append(Entry(Term(head.term), Index(index), data, EntryKind(head.kind)))

        return found

    def _read_bodies(self, low: int, heads: list[LogValue]) -> bytes:
        length = sum(head.blob_length for head in heads)
        if not length:
            return b""
        start = next(split_entry(head.head).physical_start for head in heads if head.blob_length)
        pairs = self._kv.scan(
            Family.MESSAGES,
            layout.message_key(start),
            layout.message_key(start + length),
            limit=_NO_LIMIT,
        )
        bodies = b"".join([value for _, value in pairs])
        if len(bodies) == length:
            return bodies
        if start < self._applied().floor:
            raise Compacted(low)
        raise EntryCorrupt(
            f"{length - len(bodies)} bytes of messages are missing after physical offset {start}; "
            "restore this replica from its peers"
        )

    def _applied(self) -> Applied:
        return layout.decode_applied(self._kv.get(Family.META, layout.META_APPLIED))

    def _set_compaction(self, batch: Batch, compaction: Compaction) -> None:
        self._compacted = compaction
        batch.put(Family.META, layout.META_COMPACTED, layout.encode_compaction(compaction))

    def _remember(self, entry: Entry) -> None:
        self._tail[entry.index] = entry
        self._tail_size += len(entry.data)
        while self._tail_size > self._tail_size_max:
            self._forget(next(iter(self._tail)))

    def _forget(self, index: int) -> None:
        self._tail_size -= len(self._tail.pop(index).data)

    def _head(self, index: int) -> LogValue:
        value = self._kv.get(Family.RAFT_LOG, layout.log_key(index))
        if value is None:
            raise EntryCorrupt(f"entry {index} is missing; restore this replica from its peers")

        return _decode(value, index)

    def _physical_after(self, index: int) -> int:
        # NOOP and CONFIG entries have no bodies and no position, so look before them. There is one per election
        # or membership change, so this loop is short.
        while index > self._compacted.index:
            entry = self._tail.get(index)
            kind = entry.kind if entry else self._head(index).kind
            if kind == EntryKind.NORMAL:
                if entry:
                    return split_entry(entry.data).physical_end
                head = self._head(index)
                return split_entry(head.head).physical_start + head.blob_length
            index -= 1

        return self._compacted.physical_end

    def _find_last(self) -> int:
        newest = self._kv.scan(Family.RAFT_LOG, layout.log_key(0), _LOG_END, limit=1, reverse=True)

        return layout.decode_u64(newest[0][0]) if newest else self._compacted.index

    def _find_runs(self) -> None:
        index = self._compacted.index + 1
        while index <= self._last:
            term = self._head(index).term
            self._runs.append(index)
            self._run_terms.append(term)
            # The run ends before the first higher term. Use a binary search, because there may be 20 000 entries.
            index = bisect_right(
                range(self._last + 1), term, lo=index + 1, key=lambda at: self._head(at).term
            )


def _decode(value: bytes, index: int) -> LogValue:
    try:
        return layout.decode_log_value(value)
    except layout.KeyCorrupt as error:
        raise EntryCorrupt(f"entry {index} is damaged on disk: {error}") from error
