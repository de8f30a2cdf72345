"""
Checks the order of one queue, row by row: the core of the order audit. Pure.

Rules: a sequence number is compared with the highest number before it, not with the previous row; otherwise one late
message would count twice. The result does not depend on how rows are cut into batches.

Findings use the words of `orderlymq.oracle.verdict`: a gap in the queue's offsets is *lost*, a gap in a key's numbers
is *skipped*, a repeated number is *duplicated*, and a number after a higher one is *reordered*. A limited number of
gaps is remembered. A late number that may belong to a forgotten gap is reported as *reordered*, which is also true of
a repeated number, and counts as undecided.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from orderlymq.oracle.verdict import Defect

# The gaps of a queue that are remembered to recognise late messages; about 150 MB, as much as a million keys take.
_OPEN_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class Break:
    """One place where the order is broken.

    Attributes:
        expected, got: offsets for *lost*, sequence numbers otherwise.
    """

    queue: str
    offset: int
    defect: Defect
    key: str
    expected: int
    got: int

    def __str__(self) -> str:
        what = f"key {self.key}" if self.key else "the queue"
        return (
            f"{self.queue}@{self.offset} {self.defect.value}: {what} has {self.got} where "
            f"{self.expected} was expected"
        )


@dataclass(slots=True)
class OrderCheck:
    """The state of the check of one queue.

    Attributes:
        next_offset: the next expected offset; None before the first row.
        expected: the next expected sequence number of each key.
        first: the lowest number seen of each key.
        open: the open gaps of each key as ordered [from, to) pairs; at most `open_max` for all keys.
        given_up: for keys with forgotten gaps: their lowest start, their highest end, and how many numbers they have.
        epochs: the epoch of each key, if rows have epochs.
        counts: rows, rows without a number, findings by defect, and undecided findings.
    """

    queue: str
    first_sequence: int | None = None
    next_offset: int | None = None
    expected: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    open: dict[str, list[list[int]]] = field(default_factory=dict)
    given_up: dict[str, list[int]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    open_max: int = _OPEN_MAX
    _open_count: int = field(init=False)

    def __post_init__(self) -> None:
        self._open_count = sum(map(len, self.open.values()))

    def feed(
        self,
        offsets: Iterable[int],
        keys: Iterable[str | None],
        sequences: Iterable[int | None],
        epochs: Iterable[int | None] | None = None,
    ) -> list[Break]:
        """Check rows in offset order; return the breaks found in them."""
        found: list[Break] = []
        expected = self.expected
        next_offset = self.next_offset
        rows = unnumbered = 0
        for offset, key, sequence, epoch in zip(
            offsets, keys, sequences, repeat(None) if epochs is None else epochs, strict=False
        ):
            rows += 1
            if offset != next_offset and next_offset is not None:
                defect = Defect.LOST if offset > next_offset else Defect.DUPLICATED
                found.append(Break(self.queue, offset, defect, "", next_offset, offset))
                if offset < next_offset:
                    continue
            next_offset = offset + 1
            if sequence is None or key is None:
                unnumbered += 1
            elif epoch is None and expected.get(key) == sequence:
                expected[key] = sequence + 1
            else:
                self._judge(found, offset, key, sequence, epoch)
        self.next_offset = next_offset
        self._count("rows", rows)
        self._count("unnumbered", unnumbered)
        for each in found:
            self._count(each.defect.value, 1)
        return found

    def note(self, defect: Defect, offset: int, expected: int) -> Break:
        """Count a break in the queue's offsets that file names show and no row shows."""
        self._count(defect.value, 1)
        return Break(self.queue, offset, defect, "", expected, offset)

    def _judge(
        self, found: list[Break], offset: int, key: str, sequence: int, epoch: int | None
    ) -> None:
        """Check a number that is not simply the next one."""
        if epoch is not None:
            known = self.epochs.get(key, epoch)
            if epoch < known:
                found.append(Break(self.queue, offset, Defect.REORDERED, key, known, epoch))
                return
            self.epochs[key] = epoch
            if epoch > known:
                # The producer restarted, so its numbers are unrelated to the earlier ones.
                self.expected.pop(key, None)
                self._open_count -= len(self.open.pop(key, ()))
                self.given_up.pop(key, None)
        if key not in self.expected:
            self.first[key] = sequence
            self.expected[key] = sequence if self.first_sequence is None else self.first_sequence
        expected = self.expected[key]
        if sequence == expected:
            self.expected[key] = sequence + 1
            return
        if sequence > expected:
            self._open(key, expected, sequence)
            self.expected[key] = sequence + 1
            defect = Defect.SKIPPED
        elif self._close(key, sequence):
            defect = Defect.REORDERED
        elif sequence < self.first[key]:
            # The number precedes all seen ones, so the numbers in between are also missing.
            if sequence + 1 < self.first[key]:
                self._open(key, sequence + 1, self.first[key])
            self.first[key] = sequence
            defect = Defect.REORDERED
        elif self._was_given_up(key, sequence):
            self._count("undecided", 1)
            defect = Defect.REORDERED
        else:
            defect = Defect.DUPLICATED
        found.append(Break(self.queue, offset, defect, key, expected, sequence))

    def _open(self, key: str, start: int, end: int) -> None:
        jumps = self.open.setdefault(key, [])
        jumps.insert(bisect_right(jumps, start, key=itemgetter(0)), [start, end])
        self._open_count += 1
        self._give_up(key, jumps)

    def _close(self, key: str, sequence: int) -> bool:
        """Remove a number from the open gaps; return whether it was in one."""
        jumps = self.open.get(key, [])
        number = bisect_right(jumps, sequence, key=itemgetter(0)) - 1
        if number < 0 or sequence >= jumps[number][1]:
            return False
        start, end = jumps[number]
        pieces = [
            piece for piece in ([start, sequence], [sequence + 1, end]) if piece[0] < piece[1]
        ]
        jumps[number : number + 1] = pieces
        self._open_count += len(pieces) - 1
        self._give_up(key, jumps)
        return True

    def _give_up(self, key: str, jumps: list[list[int]]) -> None:
        """Forget the key's lowest gap if there are too many, but remember its range; remove an empty list."""
        if self._open_count > self.open_max:
            start, end = jumps.pop(0)
            self._open_count -= 1
            low, high, numbers = self.given_up.get(key, (start, end, 0))
            self.given_up[key] = [min(low, start), max(high, end), numbers + end - start]
        if not jumps:
            del self.open[key]

    def _was_given_up(self, key: str, sequence: int) -> bool:
        """Return whether a number may belong to a forgotten gap."""
        low, high, _ = self.given_up.get(key, (0, 0, 0))
        return low <= sequence < high

    def _count(self, name: str, number: int) -> None:
        if number:
            self.counts[name] = self.counts.get(name, 0) + number

    @property
    def missing(self) -> int:
        """The count of numbers that were skipped and never came; undecided ones may have come."""
        return sum(end - start for jumps in self.open.values() for start, end in jumps) + sum(
            numbers for _, _, numbers in self.given_up.values()
        )

    @property
    def undecided(self) -> int:
        """The count of numbers reported as reordered that may have been seen before."""
        return self.counts.get("undecided", 0)

    def to_state(self) -> dict[str, Any]:
        """Return the whole state as JSON values."""
        return {
            "queue": self.queue,
            "first_sequence": self.first_sequence,
            "next_offset": self.next_offset,
            "expected": self.expected,
            "first": self.first,
            "open": self.open,
            "given_up": self.given_up,
            "epochs": self.epochs,
            "counts": self.counts,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "OrderCheck":
        """Restore a state from `to_state`, including those of earlier versions, which kept gaps in another order."""
        return cls(**state | {"open": {key: sorted(each) for key, each in state["open"].items()}})
