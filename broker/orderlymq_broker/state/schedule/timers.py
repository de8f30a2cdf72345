"""
Timer messages that wait: an index by due time in the store, and a checksum of it in memory.

The rules: a timer opens with the append of its message to the timer topic, whose tags code is the due time. It ends
with a record in the same log entry as its copy, so a crash cannot separate them. The index is only in the store,
because millions of timers may wait for days. The number and checksum of the waiting timers are kept so that replicas
can compare. The leader ends each timer once: ``processors/schedule/timers.py``.
"""

from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

import msgspec

from orderlymq_broker.state.records import Append, Done
from orderlymq_broker.state.schedule.timerrecords import TimerRef, TimersEnded
from orderlymq_broker.state.tables import TableWrites, read_as, read_counter
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

_COUNTERS: Final = "timers"
_REF: Final = Struct(">QQQ")
_SUM_BITS: Final = 63  # msgpack's signed integers have 64 bits


class TimerTable:
    """The number of waiting timers and the sum of their hashes; the rows are in the store until a record ends them."""

    def __init__(self, count: int = 0, checksum: int = 0) -> None:
        self.count = count
        self.checksum = checksum

    @classmethod
    def load(cls, reader: Reader) -> "TimerTable":
        """Read the number and the sum."""
        return cls(*read_counter(reader, _COUNTERS, tuple[int, int], (0, 0)))

    def open(self, record: Append, writes: TableWrites) -> None:
        """Open a timer for a message of the timer topic."""
        timer = TimerRef(record.tags_code, record.queue_offset, record.physical)
        self.count += 1
        self._add(_hash(timer))
        writes.put(Table.TIMERS, timer.due_ms, timer.offset, value=timer)
        writes.put(Table.TIMER_PLACES, timer.offset, value=timer)
        self._write(writes)

    def end(self, record: TimersEnded, writes: TableWrites) -> Done:
        """End timers that were delivered, cancelled or became useless."""
        assert len(record.timers) <= self.count, (
            f"{record} ends more timers than the {self.count} that wait"
        )
        for timer in record.timers:
            self._add(-_hash(timer))
            writes.delete(Table.TIMERS, timer.due_ms, timer.offset)
            writes.delete(Table.TIMER_PLACES, timer.offset)
        self.count -= len(record.timers)
        self._write(writes)

        return Done()

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values on which replicas must agree."""
        yield (self.count, self.checksum)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.count or not self.checksum, "no timer waits, but their sum is not 0"

    def _add(self, number: int) -> None:
        self.checksum = (self.checksum + number) % (1 << _SUM_BITS)

    def _write(self, writes: TableWrites) -> None:
        writes.put(Table.COUNTERS, _COUNTERS, value=(self.count, self.checksum))


def read_timers(reader: Reader) -> TimerTable:
    """Count and sum the rows themselves, for the doctor."""
    table = TimerTable()
    for timer in read_as(reader, Table.TIMER_PLACES, TimerRef):
        table.count += 1
        table._add(_hash(timer))

    return table


def decode_timer(value: bytes) -> TimerRef:
    """Return the timer in a row of TIMERS or TIMER_PLACES."""
    return msgspec.msgpack.decode(value, type=TimerRef)


def _hash(timer: TimerRef) -> int:
    digest = blake2b(_REF.pack(timer.due_ms, timer.offset, timer.physical), digest_size=8)

    return int.from_bytes(digest.digest()) >> (64 - _SUM_BITS)
