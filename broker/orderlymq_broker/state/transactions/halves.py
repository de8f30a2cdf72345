"""
Half messages whose transaction is open, each until it is committed or rolled back.

The rules: a half is open from the entry that stores it to the entry that ends it, and the copy that
consumers see stands in the same entry as its end, so no crash can part them; a half that is not here
has ended for all who ask again; one that was given up after too many checks stays known, so that a late
answer or an administrator can still end it, until retention takes its message. Next step:
``processors/transactions/halves.py`` begins and ends them, ``checks.py`` there asks the producers.
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

# Each that has not ended costs some 400 bytes of memory on every replica, also when it was given up. A producer group that
# never ends its transactions must take neither all of the memory nor the room of the other groups of a topic. Its name is what a
# producer says it is, so it is the group of one topic: who may write another topic must take the room of neither.
OPEN_MAX: Final = 500_000
OPEN_OF_GROUP_MAX: Final = OPEN_MAX // 2
# Offsets of ended halves that are kept at most beside twice as many as there are halves.
ENDED_MAX: Final = 1_024


class Half(msgspec.Struct, frozen=True, array_like=True):
    """One half message.

    Attributes:
        opened: the record that opened it: where it is, whose it is, since when.
        checks: how often its producer group was asked.
        checked_ms: when it was last asked, wall ms of the leader; 0 before.
        given_up: nobody is asked any more.
    """

    opened: HalfOpened
    checks: int = 0
    checked_ms: int = 0
    given_up: bool = False

    @property
    def offset(self) -> int:
        """Queue offset in the topic of halves, by which everybody names this half."""
        return self.opened.offset


class Oldest:
    """Which of some halves is the oldest, in any order of their coming and going.

    Offsets in a heap; one whose half is gone leaves when it is met, or when there are too many of them.
    """

    def __init__(self, halves: dict[int, Half]) -> None:
        self._halves = halves
        self._offsets: list[int] = []

    def add(self, offset: int) -> None:
        """Learn of a half that has come."""
        if len(self._offsets) > 2 * len(self._halves) + ENDED_MAX:
            self._offsets = list(self._halves)
            heapify(self._offsets)
        heappush(self._offsets, offset)

    def find(self) -> Half | None:
        """Return the half with the lowest offset, hence the lowest place in the log."""
        offsets = self._offsets
        while offsets:
            half = self._halves.get(offsets[0])
            if half is not None:
                return half
            heappop(offsets)
        return None

    def behind(self, count: int) -> Half | None:
        """Return the oldest but *count* of them, None when there are no more."""
        skipped: list[int] = []
        while len(skipped) < count and self.find() is not None:
            skipped.append(heappop(self._offsets))
        half = self.find()
        for offset in skipped:
            heappush(self._offsets, offset)
        return half


class TransactionTable:
    """All halves that are open, and those that were given up, by their offsets.

    ``OPEN_MAX`` bounds both together, and *room* is what topics have of it; retention takes all whose messages it has taken.
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
        """Return a half that has not ended, given up or not."""
        return self.open.get(offset) or self.given_up.get(offset)

    def oldest_open(self) -> Half | None:
        """Return the open half that began first, None when there is none."""
        return self._oldest_open.find()

    def first_open(self) -> int | None:
        """Return the physical offset of the oldest open half: retention must not pass it."""
        oldest = self.oldest_open()
        return None if oldest is None else oldest.opened.physical

    def floor_up_to(self, floor: int, most: int) -> int:
        """Return the physical offset, up to *floor*, below which no half is open, and no more than *most* were given up."""
        halves = (self.oldest_open(), self._oldest_given_up.behind(most))
        return min([floor, *(half.opened.physical for half in halves if half is not None)])

    def of_group(self, group: str, topic: str) -> int:
        """Return how many halves that a producer group has sent to a topic have not ended."""
        return self._by_source[group, topic]

    def of_topic(self, topic: str) -> int:
        """Return how many halves of a topic may still be committed, those that were given up included."""
        return self.room.part(topic)

    def given_up_of_topic(self, topic: str) -> int:
        """Return how many halves of a topic were given up and may still be committed."""
        return self._given_up_by_topic[topic]

    # -- records -----------------------------------------------------------------------------------

    def begin(self, record: HalfOpened, writes: TableWrites) -> HalvesMoved:
        """Open a half; its message stands in the same entry."""
        assert self.get(record.offset) is None, f"{record} is open already"
        self._put(Half(record), writes)

        return HalvesMoved((record.offset,))

    def end(self, record: HalfEnded, writes: TableWrites) -> HalvesMoved:
        """End a half; one leader ends each only once, because it remembers pending ends.

        Retention may have taken one that was given up since its end was proposed. The end counts all the
        same: what is committed stands in the same entry.
        """
        half = self.get(record.offset)
        if half is None:
            return HalvesMoved(())
        self._remove(half)
        writes.delete(Table.TRANSACTIONS, record.offset)

        return HalvesMoved((record.offset,))

    def check_again(self, record: HalvesChecked, wall_ms: int, writes: TableWrites) -> HalvesMoved:
        """Count a check of each half that is still open."""
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
        """Ask nobody about a half any more."""
        half = self.open.get(record.offset)
        if half is None:
            return HalvesMoved(())
        self._remove(half)
        self._put(msgspec.structs.replace(half, given_up=True), writes)

        return HalvesMoved((record.offset,))

    def resume(self, record: HalfResumed, writes: TableWrites) -> HalvesMoved:
        """Begin to ask about a half again; one that nobody was asked about yet stays as it is."""
        half = self.get(record.offset)
        if half is None or not (half.given_up or half.checks):
            return HalvesMoved(())
        self._remove(half)
        self._put(Half(half.opened), writes)

        return HalvesMoved((record.offset,))

    def drop_below(self, floor: int, writes: TableWrites) -> list[int]:
        """Forget halves whose messages retention has taken; return where these were."""
        dropped = []
        for oldest in (self._oldest_open, self._oldest_given_up):
            while (half := oldest.find()) is not None and half.opened.physical < floor:
                self._remove(half)
                writes.delete(Table.TRANSACTIONS, half.offset)
                dropped.append(half.opened.physical)

        return dropped

    # -- for the digest and tests ------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield halves for the digest."""
        for halves in (self.open, self.given_up):
            for offset in sorted(halves):
                yield (halves[offset],)

    def check(self) -> None:
        """Assert what always holds."""
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
