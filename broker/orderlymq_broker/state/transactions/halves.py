"""
Half messages whose transaction is open, each until it is committed or rolled back.

The rules: a half message is open from the entry that stores it to the entry that ends it. The copy that consumers see
is in the same entry as its end, so a crash cannot separate them. A half message that is not in this table counts as
ended if a client asks again. One that was given up after too many checks stays in the table until retention removes
its message. Until then, a late answer or an administrator can still end it. Next step:
``processors/transactions/halves.py`` begins and ends half messages, and ``checks.py`` there asks the producers.
"""

from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

import msgspec

from orderlymq_broker.state.sharedroom import SharedRoom
from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.state.transactions.halfrecords import (
    HalfEnded,
    HalfGivenUp,
    HalfOpened,
    HalfResumed,
    HalvesChecked,
    HalvesMoved,
)
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

# Each half message that has not ended takes about 400 bytes of memory on every replica, even after it was given up. A
# producer group that never ends its transactions must take neither all of the memory nor the room of a topic's other
# groups. The producer chooses the group's name, so a group counts per topic: a client that may write one topic must
# not use up the room of another topic's groups.
OPEN_MAX: Final = 500_000
OPEN_OF_GROUP_MAX: Final = OPEN_MAX // 2
# The most offsets of ended half messages that are kept, in addition to twice the number of half messages.
ENDED_MAX: Final = 1_024


class Half(msgspec.Struct, frozen=True, array_like=True):
    """One half message.

    Attributes:
        opened: the record that opened it, with its place, owner and time.
        checks: how often its producer group was asked.
        checked_ms: when it was last asked, wall ms of the leader; 0 before that.
        given_up: no producer is asked any more.
    """

    opened: HalfOpened
    checks: int = 0
    checked_ms: int = 0
    given_up: bool = False

    @property
    def offset(self) -> int:
        """The queue offset in the topic of half messages, which identifies this one."""
        return self.opened.offset


class Oldest:
    """Finds the oldest of some half messages, which come and go in any order.

    It keeps offsets in a heap. An offset whose half message is gone is removed when it is reached, or when there are
    too many.
    """

    def __init__(self, halves: dict[int, Half]) -> None:
        self._halves = halves
        self._offsets: list[int] = []

    def add(self, offset: int) -> None:
        """Add the offset of a new half message."""
        if len(self._offsets) > 2 * len(self._halves) + ENDED_MAX:
            self._offsets = list(self._halves)
            heapify(self._offsets)
        heappush(self._offsets, offset)

    def find(self) -> Half | None:
        """Return the half message with the lowest offset, which is also the lowest in the log."""
        offsets = self._offsets
        while offsets:
            half = self._halves.get(offsets[0])
            if half is not None:
                return half
            heappop(offsets)
        return None

    def behind(self, count: int) -> Half | None:
        """Return the oldest one after the first *count*, or None if there are no more."""
        skipped: list[int] = []
        while len(skipped) < count and self.find() is not None:
            skipped.append(heappop(self._offsets))
        half = self.find()
        for offset in skipped:
            heappush(self._offsets, offset)
        return half


class TransactionTable:
    """All half messages that are open, and those that were given up, by their offsets.

    ``OPEN_MAX`` limits both together, and *room* counts the share of each topic. Retention removes those whose
    messages it has removed.
    """

    def __init__(self, reader: Reader) -> None:
        self.open: dict[int, Half] = {}
        self.given_up: dict[int, Half] = {}
        self.open_by_group: Counter[str] = Counter()
        self.given_up_by_group: Counter[str] = Counter()
        self.room = SharedRoom(OPEN_MAX)
        self._by_source: Counter[tuple[str, str]] = Counter()
        self._given_up_by_topic: Counter[str] = Counter()
        self._oldest_open = Oldest(self.open)
        self._oldest_given_up = Oldest(self.given_up)
        for half in read_as(reader, Table.TRANSACTIONS, Half):
            self._add(half)

    def get(self, offset: int) -> Half | None:
        """Return a half message that has not ended, whether given up or not."""
        return self.open.get(offset) or self.given_up.get(offset)

    def oldest_open(self) -> Half | None:
        """Return the open half message that began first, or None."""
        return self._oldest_open.find()

    def first_open(self) -> int | None:
        """Return the physical offset of the oldest open half message, or None; retention must not pass it."""
        oldest = self.oldest_open()
        return None if oldest is None else oldest.opened.physical

    def floor_up_to(self, floor: int, most: int) -> int:
        """Return the highest offset up to *floor* below which no half message is open and at most *most* were given up."""
        halves = (self.oldest_open(), self._oldest_given_up.behind(most))
        return min([floor, *(half.opened.physical for half in halves if half is not None)])

    def of_group(self, group: str, topic: str) -> int:
        """Return how many half messages from a producer group to a topic have not ended."""
        return self._by_source[group, topic]

    def of_topic(self, topic: str) -> int:
        """Return how many half messages of a topic may still be committed, including those that were given up."""
        return self.room.part(topic)

    def given_up_of_topic(self, topic: str) -> int:
        """Return how many half messages of a topic were given up and may still be committed."""
        return self._given_up_by_topic[topic]

    # -- records -----------------------------------------------------------------------------------

    def begin(self, record: HalfOpened, writes: TableWrites) -> HalvesMoved:
        """Open a half message; its message is in the same entry."""
        assert self.get(record.offset) is None, f"{record} is open already"
        self._put(Half(record), writes)

        return HalvesMoved((record.offset,))

    def end(self, record: HalfEnded, writes: TableWrites) -> HalvesMoved:
        """End a half message; a leader ends each only once, because it remembers pending ends.

        Retention may have removed one that was given up after its end was proposed. The end counts
        anyway, because the committed message is in the same entry.
        """
        half = self.get(record.offset)
        if half is None:
            return HalvesMoved(())
        self._remove(half)
        writes.delete(Table.TRANSACTIONS, record.offset)

        return HalvesMoved((record.offset,))

    def check_again(self, record: HalvesChecked, wall_ms: int, writes: TableWrites) -> HalvesMoved:
        """Count a check of each half message that is still open."""
        asked = []
        for offset in record.offsets:
            half = self.open.get(offset)
            if half is None:
                continue
            half = msgspec.structs.replace(half, checks=half.checks + 1, checked_ms=wall_ms)
            self.open[offset] = half
            writes.put(Table.TRANSACTIONS, offset, value=half)
            asked.append(offset)

        return HalvesMoved(tuple(asked))

    def give_up(self, record: HalfGivenUp, writes: TableWrites) -> HalvesMoved:
        """Stop asking about a half message."""
        half = self.open.get(record.offset)
        if half is None:
            return HalvesMoved(())
        self._remove(half)
        self._put(msgspec.structs.replace(half, given_up=True), writes)

        return HalvesMoved((record.offset,))

    def resume(self, record: HalfResumed, writes: TableWrites) -> HalvesMoved:
        """Start asking about a half message again; one that was not asked about yet does not change."""
        half = self.get(record.offset)
        if half is None or not (half.given_up or half.checks):
            return HalvesMoved(())
        self._remove(half)
        self._put(Half(half.opened), writes)

        return HalvesMoved((record.offset,))

    def drop_below(self, floor: int, writes: TableWrites) -> list[int]:
        """Remove half messages whose messages retention has removed; return the physical offsets of these."""
        dropped = []
        for oldest in (self._oldest_open, self._oldest_given_up):
            while (half := oldest.find()) is not None and half.opened.physical < floor:
                self._remove(half)
                writes.delete(Table.TRANSACTIONS, half.offset)
                dropped.append(half.opened.physical)

        return dropped

    # -- for the digest and tests ------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield half messages for the digest."""
        for halves in (self.open, self.given_up):
            for offset in sorted(halves):
                yield (halves[offset],)

    def check(self) -> None:
        """Assert the invariants."""
        for oldest, halves in (
            (self._oldest_open, self.open),
            (self._oldest_given_up, self.given_up),
        ):
            assert oldest.find() == (halves[min(halves)] if halves else None), "another is older"
        assert not self.open.keys() & self.given_up.keys()
        for halves, counts in (
            (self.open, self.open_by_group),
            (self.given_up, self.given_up_by_group),
        ):
            assert +counts == Counter(half.opened.group for half in halves.values())
        everyone = [each.opened for each in (*self.open.values(), *self.given_up.values())]
        assert self.room.parts() == Counter(opened.topic for opened in everyone)
        assert self.room.used == len(everyone)
        assert self._by_source == Counter((opened.group, opened.topic) for opened in everyone)
        assert self._given_up_by_topic == Counter(
            half.opened.topic for half in self.given_up.values()
        )
        assert not any(half.given_up for half in self.open.values())
        assert all(half.given_up for half in self.given_up.values())

    # -- parts -------------------------------------------------------------------------------------

    def _put(self, half: Half, writes: TableWrites) -> None:
        self._add(half)
        writes.put(Table.TRANSACTIONS, half.offset, value=half)

    def _add(self, half: Half) -> None:
        halves = self.given_up if half.given_up else self.open
        counts = self.given_up_by_group if half.given_up else self.open_by_group
        oldest = self._oldest_given_up if half.given_up else self._oldest_open
        halves[half.offset] = half
        counts[half.opened.group] += 1
        self._by_source[half.opened.group, half.opened.topic] += 1
        self.room.take(half.opened.topic, 1)
        if half.given_up:
            self._given_up_by_topic[half.opened.topic] += 1
        oldest.add(half.offset)

    def _remove(self, half: Half) -> None:
        halves = self.given_up if half.given_up else self.open
        counts = self.given_up_by_group if half.given_up else self.open_by_group
        del halves[half.offset]
        counts[half.opened.group] -= 1
        if not counts[half.opened.group]:
            del counts[half.opened.group]
        source = half.opened.group, half.opened.topic
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]
        self.room.take(half.opened.topic, -1)
        if half.given_up:
            self._given_up_by_topic[half.opened.topic] -= 1
            if not self._given_up_by_topic[half.opened.topic]:
                del self._given_up_by_topic[half.opened.topic]
