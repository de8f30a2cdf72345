"""
The parked keys of groups whose dead letters hold back later messages of their key (``onDeadLetter: HoldKey``).

The rules: a key is held in the queue in which its message failed, from that message on. Only the present or last
holder of the queue's lock may hold a key, so that the next holder learns every held key with its lock. A message that
is consumed already holds nothing. A repeated record changes nothing, even if it comes late. So after a release by an
administrator, the letters that were held do not park the key again. ``processors/groups/parkedkeys.py`` serves the
requests.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from orderlymq_broker.state.groups.locks import LockTable
from orderlymq_broker.state.groups.offsets import OffsetTable
from orderlymq_broker.state.groups.parkedkeyrecords import (
    KeyFollowed,
    KeyParked,
    KeyReleased,
    KeysReleased,
    ParkedFound,
    ParkedKey,
    ParkedOutcome,
    ParkedRecord,
    ReleasedKey,
)
from orderlymq_broker.state.records import Commit, Refused
from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

# The limit for one group in one raft group. Every answer to a lock request contains all of them. So many poisoned
# keys mean that the cause is not the messages. Beyond the limit, the queue stops instead of letting a key pass.
PARKED_KEYS_MAX: Final = 1_000
# Together with the maximum above, it limits the answer to a lock request to 1 MB.
KEY_BYTES_MAX: Final = 1_024

FULL: Final = "full"
STALE: Final = "stale"

_Place = tuple[str, str, int]
_Queue = tuple[str, int]
Row = TypeVar("Row", ParkedKey, ReleasedKey)


class _Rows(Generic[Row]):
    """Rows of one table by group, within a group by topic and queue, and within a queue by key."""

    def __init__(self, reader: Reader, table: Table, kind: type[Row]) -> None:
        self._table = table
        self.groups: dict[str, dict[_Queue, dict[str, Row]]] = {}
        self.counts: Counter[str] = Counter()
        for row in read_as(reader, table, kind):
            self._add(row)

    def of_queue(self, group: str, topic: str, queue_id: int) -> Mapping[str, Row]:
        return self.groups.get(group, {}).get((topic, queue_id), {})

    def of_group(self, group: str) -> list[Row]:
        return [row for keys in self.groups.get(group, {}).values() for row in keys.values()]

    def put(self, row: Row, writes: TableWrites) -> None:
        self._add(row)
        writes.put(self._table, *_place(row), row.key, value=row)

    def drop(self, found: Iterable[Row], writes: TableWrites) -> None:
        for row in found:
            group, topic, queue_id = _place(row)
            queues = self.groups[group]
            del queues[topic, queue_id][row.key]
            self.counts[group] -= 1
            if not queues[topic, queue_id]:
                del queues[topic, queue_id]
            if not queues:
                del self.groups[group], self.counts[group]
            writes.delete(self._table, group, topic, queue_id, row.key)

    def drop_of(self, group: str | None, topic: str | None, writes: TableWrites) -> None:
        for name in list(self.groups) if group is None else [group]:
            found = [each for each in self.of_group(name) if topic in (None, each.topic)]
            self.drop(found, writes)

    def sorted(self) -> Iterator[Row]:
        for group in sorted(self.groups):
            for queue in sorted(self.groups[group]):
                keys = self.groups[group][queue]
                yield from (keys[key] for key in sorted(keys))

    def check(self) -> None:
        for group, queues in self.groups.items():
            assert queues, group
            assert self.counts[group] == sum(map(len, queues.values())), group
            for (topic, queue_id), keys in queues.items():
                assert keys, (group, topic, queue_id)
                for key, row in keys.items():
                    assert _place(row) == (group, topic, queue_id), row
                    assert row.key == key, row

    def _add(self, row: Row) -> None:
        group, topic, queue_id = _place(row)
        keys = self.groups.setdefault(group, {}).setdefault((topic, queue_id), {})
        self.counts[group] += row.key not in keys
        keys[row.key] = row


class ParkedTable:
    """Parked keys by group, topic and queue, and the keys that were released.

    A group holds at most ``PARKED_KEYS_MAX``. A released key is removed with the next release of its group once no
    member can ask for it any more. All rows are removed with their topic or group.
    """

    def __init__(self, reader: Reader) -> None:
        self._held = _Rows(reader, Table.HELD_KEYS, ParkedKey)
        self._released = _Rows(reader, Table.LET_GO_KEYS, ReleasedKey)

    def of_queue(self, group: str, topic: str, queue_id: int) -> Mapping[str, ParkedKey]:
        """Return the parked keys of a queue, by key."""
        return self._held.of_queue(group, topic, queue_id)

    def of_group(self, group: str) -> list[ParkedKey]:
        """Return all parked keys of a group, the oldest first."""
        found = self._held.of_group(group)

        return sorted(found, key=lambda held: (held.since_ms, held.topic, held.key, held.queue_id))

    def oldest_ms(self, group: str) -> int:
        """Return since when the oldest parked key of a group has been held; the group must hold one."""
        return min(held.since_ms for held in self._held.of_group(group))

    def count_in(self, group: str, topic: str) -> int:
        """Return how many keys of a topic a group holds."""
        queues = self._held.groups.get(group, {})

        return sum(len(keys) for (name, _), keys in queues.items() if name == topic)

    def counts(self) -> dict[str, int]:
        """Return how many keys each group holds."""
        return dict(self._held.counts)

    def is_held(self, group: str, key: str) -> bool:
        """Return whether a group holds a key in any queue."""
        return any(key in keys for keys in self._held.groups.get(group, {}).values())

    def apply(
        self,
        record: ParkedRecord,
        locks: LockTable,
        offsets: OffsetTable,
        wall_ms: int,
        writes: TableWrites,
    ) -> ParkedOutcome | Refused:
        """Hold a key, count a message that follows it, or release it."""
        match record:
            case KeyParked():
                return self._hold(record, locks, offsets, wall_ms, writes)
            case KeyFollowed():
                return self._follow(record, locks, writes)
            case KeyReleased():
                return self._release(record, locks, offsets, writes)

    def reset(self, commits: tuple[Commit, ...], writes: TableWrites) -> None:
        """Remove released keys where an administrator sets an offset; a message that fails again then parks its key."""
        for place in {(commit.group, commit.topic, commit.queue_id) for commit in commits}:
            self._released.drop(list(self._released.of_queue(*place).values()), writes)

    def drop(
        self, writes: TableWrites, *, group: str | None = None, topic: str | None = None
    ) -> None:
        """Remove the parked keys of a deleted group or topic."""
        self._held.drop_of(group, topic, writes)
        self._released.drop_of(group, topic, writes)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the parked keys for the digest."""
        for rows in (self._held, self._released):
            for row in rows.sorted():
                yield (row,)

    def check(self) -> None:
        """Assert the invariants."""
        self._held.check()
        self._released.check()
        assert all((held.behind == 0) == (held.last < 0) for held in self._held.sorted())
        assert all(count <= PARKED_KEYS_MAX for count in self.counts().values())

    def _hold(
        self,
        record: KeyParked,
        locks: LockTable,
        offsets: OffsetTable,
        wall_ms: int,
        writes: TableWrites,
    ) -> ParkedFound | Refused:
        """Hold a key, unless it is held already or the group holds too many."""
        place = _place(record)
        present = self.of_queue(*place).get(record.key)
        if present is not None:
            return ParkedFound(present)
        if not locks.is_current(*place, record.epoch):
            return Refused(STALE)
        if (offsets.get(*place) or 0) > record.offset:
            return ParkedFound(None)
        gone = self._released.of_queue(*place).get(record.key)
        if gone is not None and gone.epoch == record.epoch and record.offset <= gone.last:
            return ParkedFound(None)
        if self._held.counts[record.group] >= PARKED_KEYS_MAX:
            return Refused(FULL)
        held = ParkedKey(*place, record.key, record.offset, record.message_id, wall_ms)
        self._held.put(held, writes)

        return ParkedFound(held)

    def _follow(
        self, record: KeyFollowed, locks: LockTable, writes: TableWrites
    ) -> ParkedFound | Refused:
        """Count a message that follows a dead letter, once."""
        place = _place(record)
        held = self.of_queue(*place).get(record.key)
        if held is None or record.offset < held.offset:
            return ParkedFound(None)
        if not locks.is_current(*place, record.epoch):
            return Refused(STALE)
        if record.offset > max(held.last, held.offset):
            held = msgspec.structs.replace(held, behind=held.behind + 1, last=record.offset)
            self._held.put(held, writes)

        return ParkedFound(held)

    def _release(
        self, record: KeyReleased, locks: LockTable, offsets: OffsetTable, writes: TableWrites
    ) -> KeysReleased:
        """Release keys, and remember them while members may ask again for letters that they have asked for."""
        self._released.drop(
            [
                gone
                for gone in self._released.of_group(record.group)
                if not locks.is_current(*_place(gone), gone.epoch)
                or (offsets.get(*_place(gone)) or 0) > gone.last
            ],
            writes,
        )
        found = [
            held
            for held in self.of_group(record.group)
            if (held.topic, held.key) == (record.topic, record.key)
            and record.queue_id in (-1, held.queue_id)
            and record.first in (-1, held.offset)
        ]
        for held in found:
            place = _place(held)
            last = max(held.last, held.offset)
            gone = ReleasedKey(*place, held.key, last, locks.epoch(*place))
            self._released.put(gone, writes)
        self._held.drop(found, writes)

        return KeysReleased(tuple(found))


def _place(held: ParkedKey | ReleasedKey | KeyParked | KeyFollowed) -> _Place:
    return held.group, held.topic, held.queue_id
