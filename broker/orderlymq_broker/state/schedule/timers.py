"""
Timer messages that wait: an index by due time in the store, and a sum of it in memory.

The rules: a timer opens with the append of its message to the timer topic, whose tags code is the due
time, and ends by the record that stands in one entry with its copy, so no crash can part them; the
index lives in the store alone, because millions may wait for days; number and sum of what waits are
kept so that replicas can compare. The leader ends each timer once: ``processors/schedule/timers.py``.
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
_SUM_BITS: Final = 63  # msgpack's numbers end at 64 bits with a sign


class TimerTable:
    """How many timers wait, and the sum of their hashes; the rows are in the store and go with the record that ends them."""

    def __init__(self, count: int = 0, checksum: int = 0) -> None:
        self.count = count
        self.checksum = checksum

    @classmethod
    def load(cls, reader: Reader) -> "TimerTable":
        """Read number and sum."""
        return cls(*read_counter(reader, _COUNTERS, tuple[int, int], (0, 0)))

    def open(self, record: Append, writes: TableWrites) -> None:
        """Let a message of the timer topic wait for its time."""
        timer = TimerRef(record.tags_code, record.queue_offset, record.physical)
        self.count += 1
        self._add(_hash(timer))
        writes.put(Table.TIMERS, timer.due_ms, timer.offset, value=timer)
        writes.put(Table.TIMER_PLACES, timer.offset, value=timer)
        self._write(writes)

    def end(self, record: TimersEnded, writes: TableWrites) -> Done:
        """Let timers wait no more: they were delivered, cancelled or are of no use."""
        assert len(record.timers) <= self.count, (
            f"{record} ends more than the {self.count} that wait"
        )
        for timer in record.timers:
            self._add(-_hash(timer))
            writes.delete(Table.TIMERS, timer.due_ms, timer.offset)
            writes.delete(Table.TIMER_PLACES, timer.offset)
        self.count -= len(record.timers)
        self._write(writes)

        return Done()

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield what replicas must agree on."""
        yield (self.count, self.checksum)

    def check(self) -> None:
        """Assert what always holds."""
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
    """Return the timer of a row of TIMERS or TIMER_PLACES."""
    return msgspec.msgpack.decode(value, type=TimerRef)


def _hash(timer: TimerRef) -> int:
    digest = blake2b(_REF.pack(timer.due_ms, timer.offset, timer.physical), digest_size=8)

    return int.from_bytes(digest.digest()) >> (64 - _SUM_BITS)
