"""
The part of the doctor that needs the store alone: the raft log, the messages, the positions.

The rule: nothing in the directory changes. RocksDB opens a directory of links in a temporary
place, read-only. Every value is read once, so that a checksum detects each damaged byte: that of
RocksDB, of the raft entry, or of the message body. ``orderlymq_broker/doctor/state.py`` checks what the
tables mean and whether they agree with each other; begin there.
"""

import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from orderlymq_broker.state.tables import read_pairs
from orderlymq_broker.store import layout
from orderlymq_broker.store.entry import EntryParts, split_entry
from orderlymq_broker.store.kv import Family, Reader, StoreError, StoreFailed
from orderlymq_broker.store.layout import Applied, Compaction, LogValue
from orderlymq_broker.store.replica import Identity, lock_owner, read_identity
from orderlymq_broker.store.rocks import DirectoryInUse, NoReplica, RocksStore
from orderlymq_broker.store.snapshot import effective_store
from orderlymq_protocol.message.record import RecordError, StoredMessage, body_crc, decode_record
from orderlymq_raft.types import EntryKind, Membership

# A damaged directory may have a million broken entries. Of one check no person reads more findings than this, and
# those of the other checks are still to be seen.
FINDINGS_MAX: Final = 20

# Values in memory at the same time: messages may have 4 MiB each, everything else is small.
MESSAGES_PER_PAGE: Final = 16
PAIRS_PER_PAGE: Final = 512

# Files that RocksDB never writes to are linked; the doctor works on copies of all others.
_LINKED: Final = frozenset({".sst", ".blob", ".log"})

_META_KEYS: Final = frozenset(
    {
        layout.META_FORMAT,
        layout.META_IDENTITY,
        layout.META_HARD_STATE,
        layout.META_MEMBERSHIP,
        layout.META_COMPACTED,
        layout.META_APPLIED,
        layout.META_RECOVERY,
        layout.META_PEERS,
        layout.META_STICKINESS,
        layout.META_RESTORED,
        layout.META_DROPPED,
    }
)


class Finding(msgspec.Struct, frozen=True):
    """One problem: which check found it, in which place, and what it is."""

    check: str
    place: str
    problem: str


class Report(msgspec.Struct):
    """The findings of an examination.

    Attributes:
        counts: how many entries, messages and so on were examined.
        findings: the first ones of each check, at most `FINDINGS_MAX`.
        findings_by_check: the number of all findings of each check that has any.
    """

    path: str
    identity: Identity | None = None
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    findings: list[Finding] = msgspec.field(default_factory=list)
    findings_by_check: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings_by_check

    def add(self, check: str, place: object, problem: object) -> None:
        """Note a finding."""
        count = self.findings_by_check[check] = self.findings_by_check.get(check, 0) + 1
        if count <= FINDINGS_MAX:
            self.findings.append(Finding(check, str(place), str(problem)))

    def judge(self, check: str, place: object, *rules: tuple[bool, object]) -> None:
        """Add a finding for each broken rule; a rule consists of whether it is kept, and the problem if not."""
        for is_kept, problem in rules:
            if not is_kept:
                self.add(check, place, problem)

    def count(self, what: str) -> None:
        """Count one more examined *what*."""
        self.counts[what] = self.counts.get(what, 0) + 1


class Positions(msgspec.Struct, frozen=True):
    """The positions that the replica has stored about itself."""

    applied: Applied
    compaction: Compaction
    commit: int


@contextmanager
def reading_copy(data_dir: Path) -> Iterator[RocksStore]:
    """Open the store of *data_dir* (or a bare store) for reading, without changing it.

    Raises:
        NoReplica: there is no store.
        DirectoryInUse: a running process could change it during the examination.
        FormatTooNew: a newer release has written it.
        StoreFailed: RocksDB finds damage immediately.
    """
    path = effective_store(data_dir)
    if not (path / "CURRENT").is_file():
        raise NoReplica(_nothing_here(data_dir))
    owner = lock_owner(data_dir)
    if owner is None and path == data_dir:
        owner = lock_owner(data_dir.resolve().parent)
    if owner is not None:
        raise DirectoryInUse(f"{data_dir} is in use by process {owner}; stop that process first")
    with tempfile.TemporaryDirectory(prefix="orderlymq-doctor-") as directory:
        copy = Path(directory)
        for file in path.iterdir():
            if file.suffix in _LINKED:
                (copy / file.name).symlink_to(file.resolve())
            elif file.is_file() and file.name not in {"LOG", "LOCK"}:
                shutil.copyfile(file, copy / file.name)
        try:
            store = RocksStore(copy, read_only=True)
        except StoreFailed as error:
            raise StoreFailed(str(error).replace(str(copy), str(path))) from error
        try:
            yield store
        finally:
            store.close()


def examine_positions(reader: Reader, report: Report) -> Positions:
    """Check META: everything in it can be decoded and is known.

    Raises:
        StoreError: it cannot be read; no other check makes sense then.
    """
    report.identity = read_identity(reader, Path(report.path))
    if report.identity is None:
        report.add(
            "identity", "META", "the directory has no identity; no replica was ever started on it"
        )
    values = dict(read_pages(reader, Family.META))
    for key in values.keys() - _META_KEYS:
        report.add("positions", "META", f"the key {key!r} is unknown")
    applied = layout.decode_applied(values.get(layout.META_APPLIED))
    compaction = layout.decode_compaction(values.get(layout.META_COMPACTED))
    _, _, commit = layout.decode_hard_state(values.get(layout.META_HARD_STATE))
    if layout.META_MEMBERSHIP in values:
        try:
            Membership.decode(values[layout.META_MEMBERSHIP])
        except ValueError as error:
            report.add("positions", "META membership", error)
    report.judge(
        "positions",
        "META",
        (
            applied.index >= compaction.index,
            f"the log begins after {compaction.index}, but only {applied.index} is applied",
        ),
        (
            applied.floor <= applied.physical_end,
            f"the retention floor is behind the end: {applied}",
        ),
    )

    return Positions(applied, compaction, commit)


class LogExamination:
    """Walks the raft log once; the fields hold its present position."""

    def __init__(
        self,
        reader: Reader,
        report: Report,
        positions: Positions,
        on_entry: Callable[[int, EntryParts], None],
    ) -> None:
        self._reader = reader
        self._report = report
        self._positions = positions
        self._on_entry = on_entry
        self.last = positions.compaction.index
        self.term = positions.compaction.term
        self.physical_end = positions.compaction.physical_end

    def run(self) -> None:
        """Check order, terms, checksums and bodies of all entries, and the positions in them."""
        positions = self._positions
        for key, value in read_pages(self._reader, Family.RAFT_LOG):
            self._report.count("raft entries")
            try:
                self._entry(layout.decode_u64(key), layout.decode_log_value(value))
            except (StoreError, ValueError) as error:
                self._report.add("raft log", f"the entry after {self.last}", error)
                self.last += 1
        applied = positions.applied
        self._judge(
            (
                applied.index <= self.last,
                f"{applied.index} is applied, but the log ends at {self.last}",
            ),
            (
                positions.commit <= self.last,
                f"{positions.commit} is committed, but the log ends at {self.last}",
            ),
            (
                applied.physical_end <= self.physical_end,
                f"messages are applied up to {applied.physical_end}, but those of the log end at "
                f"{self.physical_end}",
            ),
        )

    def _entry(self, index: int, head: LogValue) -> None:
        self._judge(
            (index == self.last + 1, f"entry {index} follows entry {self.last}"),
            (head.term >= self.term, f"entry {index} has term {head.term} after term {self.term}"),
        )
        self.last = index
        self.term = head.term
        applied = self._positions.applied
        self._judge(
            (
                index != applied.index or head.term == applied.term,
                f"entry {index} has term {head.term}, but it was applied in term {applied.term}",
            )
        )
        if EntryKind(head.kind) is not EntryKind.NORMAL:
            is_whole = zlib.crc32(head.head) == head.checksum
            self._judge((is_whole, f"entry {index}: the checksum does not match"))
            return
        start = split_entry(head.head).physical_start
        before, self.physical_end = self.physical_end, start + head.blob_length
        self._judge(
            (
                start == before,
                f"entry {index} begins at physical offset {start}, but the one before it ends at "
                f"{before}",
            ),
            (
                index != applied.index or self.physical_end == applied.physical_end,
                f"entry {index} ends at physical offset {self.physical_end}, but it was applied "
                f"up to {applied.physical_end}",
            ),
        )
        if start < applied.floor and head.blob_length:
            return  # retention has dropped its bodies
        self._bodies(index, start, head)

    def _bodies(self, index: int, start: int, head: LogValue) -> None:
        pairs = self._reader.scan(
            Family.MESSAGES,
            layout.message_key(start),
            layout.message_key(start + head.blob_length),
            limit=max(1, head.blob_length),
        )
        data = b"".join((head.head, *(value for _, value in pairs)))
        is_whole = zlib.crc32(data) == head.checksum
        self._judge(
            (
                is_whole,
                f"entry {index}: the checksum over its records and its messages, physical offsets "
                f"{start} to {start + head.blob_length}, does not match",
            )
        )
        if is_whole:
            self._on_entry(index, split_entry(data))

    def _judge(self, *rules: tuple[bool, str]) -> None:
        self._report.judge("raft log", f"entry {self.last}", *rules)


def examine_messages(
    reader: Reader,
    report: Report,
    positions: Positions,
    end: int,
    on_message: Callable[[int, StoredMessage], None],
) -> None:
    """Check each message, and that messages are dense from the retention floor to *end*."""
    expected: int | None = None
    for key, value in read_pages(reader, Family.MESSAGES, MESSAGES_PER_PAGE):
        report.count("messages")
        physical = layout.decode_u64(key)
        place = f"physical offset {physical}"
        report.judge(
            "messages",
            place,
            (
                expected is not None or physical >= positions.applied.floor,
                f"it is below the floor {positions.applied.floor}",
            ),
            (expected in (None, physical), f"the message before it ends at {expected}"),
        )
        expected = physical + len(value)
        message = examine_message(report, physical, value)
        if message is not None:
            on_message(physical, message)
    if expected is None:
        there_should_be_none = end == positions.applied.floor
        report.judge(
            "messages",
            f"physical offset {end}",
            (there_should_be_none, "there are no messages"),
        )
    else:
        report.judge(
            "messages",
            f"physical offset {expected}",
            (expected == end, f"the messages end here, but the log ends at {end}"),
        )


def examine_message(report: Report, physical: int, value: bytes) -> StoredMessage | None:
    """Check one stored message on its own; return None if it cannot even be decoded."""
    place = f"physical offset {physical}"
    try:
        message = decode_record(value)
    except RecordError as error:
        report.add("messages", place, error)
        return None
    size = int.from_bytes(value[:4], "big")
    report.judge(
        "messages",
        place,
        (size == len(value), f"it states {size} bytes, but it has {len(value)}"),
        (
            message.physical_offset == physical,
            f"it states the physical offset {message.physical_offset}",
        ),
        (body_crc(message.body) == message.body_crc, "the checksum of its body does not match"),
    )

    return message


def read_pages(
    reader: Reader, family: Family, per_page: int = PAIRS_PER_PAGE
) -> Iterator[tuple[bytes, bytes]]:
    """Yield every pair of *family* in key order."""
    return read_pairs(reader, family, b"", _FAMILY_END, per_page)


# No key of any family begins with this many of the highest byte.
_FAMILY_END: Final = b"\xff" * 32


def _nothing_here(data_dir: Path) -> str:
    if not data_dir.is_dir():
        return f"{data_dir}: no such directory"
    below = sorted({str(path.parent.parent) for path in data_dir.glob("**/store*/CURRENT")})
    if not below:
        return f"{data_dir}: no replica is in this directory"

    return f"{data_dir}: no replica is directly in this directory; name one of: {', '.join(below)}"
