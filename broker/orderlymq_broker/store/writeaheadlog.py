"""
Checks the write-ahead logs of a store before RocksDB opens it.

The rule: each log continues where the one before it ends. RocksDB takes a torn end of a log for a write that
was never acknowledged, but that is true only for the newest log. If it did so for an older log, or if a log
were missing, the store would open with a hole in the middle of acknowledged data. So a store with a gap
between two logs is refused.

A log consists of blocks with consecutive records, which are split at the end of a block. A record is a batch,
which begins with the number of its first write and the count of its writes.
"""

import struct
from pathlib import Path
from typing import BinaryIO, Final

from orderlymq_broker.store.kv import StoreFailed

_BLOCK: Final = 32 << 10
_HEADER: Final = struct.Struct("<IHB")  # checksum, length of the payload, kind
_BATCH: Final = struct.Struct("<QI")
# The kinds of records and of their pieces; with this program's options there are no others.
_WHOLE, _FIRST, _MIDDLE, _LAST = range(1, 5)


def refuse_gap(store: Path) -> None:
    """Check that the logs of a store that is not open follow each other.

    Raises:
        StoreFailed: there is a gap; *store* is unchanged.
    """
    end: int | None = None
    before = ""
    for path in sorted(store.glob("*.log"), key=lambda each: each.name.zfill(32)):
        with path.open("rb") as log:
            first = _head_at(log, 0)
            if first is None:
                continue
            number, count = _last_batch(log) or (first[0], 0)
        if end is not None and first[0] > end:
            raise StoreFailed(
                f"{store}: the write-ahead log {before} ends before write {end} and {path.name} "
                f"begins with {first[0]}: the writes between them are lost; restore this replica "
                "from its peers"
            )
        end, before = number + count, path.name


def _last_batch(log: BinaryIO) -> tuple[int, int] | None:
    """Return number and count of the last complete batch; None if there is none."""
    for block in reversed(range(-(-log.seek(0, 2) // _BLOCK))):
        at = block * _BLOCK
        found: list[int] = []
        while (piece := _piece_at(log, at)) is not None and at < (block + 1) * _BLOCK:
            size, kind = piece
            if kind in (_WHOLE, _FIRST):
                found.append(at)
            at += _HEADER.size + size
        for start in reversed(found):
            if _is_whole(log, start):
                return _head_at(log, start)

    return None


def _head_at(log: BinaryIO, start: int) -> tuple[int, int] | None:
    """Return number and count of the batch that begins at *start*; None if they cannot be read."""
    at, kinds, head = start, (_WHOLE, _FIRST), b""
    # The head may span two blocks.
    while len(head) < _BATCH.size:
        log.seek(at)
        piece = log.read(_HEADER.size)
        if len(piece) < _HEADER.size:
            return None
        _, size, kind = _HEADER.unpack(piece)
        if kind not in kinds:
            return None
        head += log.read(min(size, _BATCH.size - len(head)))
        at, kinds = at + _HEADER.size + size, (_MIDDLE, _LAST)

    return _BATCH.unpack(head)


def _is_whole(log: BinaryIO, start: int) -> bool:
    """Return whether the batch that begins at *start* is complete."""
    at, kind = start, _FIRST
    while kind in (_FIRST, _MIDDLE):
        # A piece of a record ends with its block. A rest that is too small for another piece is left empty.
        left = -at % _BLOCK
        at += left if left < _HEADER.size else 0
        piece = _piece_at(log, at)
        if piece is None:
            return False
        size, kind = piece
        at += _HEADER.size + size

    return True


def _piece_at(log: BinaryIO, at: int) -> tuple[int, int] | None:
    """Return size and kind of the piece at *at*; None if there is no complete one."""
    end = log.seek(0, 2)
    log.seek(at)
    head = log.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    _, size, kind = _HEADER.unpack(head)
    is_whole = at + _HEADER.size + size <= end and _WHOLE <= kind <= _LAST

    return (size, kind) if is_whole else None
