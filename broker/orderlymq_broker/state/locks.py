"""
Queue locks: which client may pull and commit a queue of an ordered group.

States of (group, queue): Free -> Held(client, epoch, lease) -> Free.

The rules: at most one holder; the epoch rises whenever the holder changes, never falls, and outlives
the lock (a free lock stays in the table for its epoch). Time is not known here: that a lease is over
is a record of the leader, and it names the last renewal it had seen (*stamp*), so that it cannot
free a lock that was renewed meanwhile. The leader's clock for leases is in ``processors/locking.py``.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from orderlymq_broker.state.records import (
    LocksExpired,
    LocksFreed,
    LocksGranted,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.tables import TableWrites, read_rows
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

QueueRef = tuple[str, int]

# The row of a group that takes locks has this instead of a topic; no topic has an empty name.
_GROUP_MARK: Final = ""


class Lock(msgspec.Struct, frozen=True, array_like=True):
    """One lock; free when *client_id* is empty.

    Attributes:
        stamp: raft index of the last grant or renewal.
        held_since_ms: leader's wall clock when the holder got it.
        released_by: who gave a free lock back by itself; it may still commit until another
            client holds the queue, because Java's consumer unlocks before it stores its offsets.
    """

    group: str
    topic: str
    queue_id: int
    client_id: str = ""
    epoch: int = 0
    lease_ms: int = 0
    address: str = ""
    stamp: int = 0
    held_since_ms: int = 0
    released_by: str = ""

    @property
    def held(self) -> bool:
        """Tell whether somebody holds it."""
        return self.client_id != ""


_NO_LOCKS: Mapping[QueueRef, Lock] = {}


class LockTable:
    """The locks of all groups, and which groups take locks."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[QueueRef, Lock]] = {}
        self._ordered: set[str] = set()

    @classmethod
    def load(cls, reader: Reader) -> "LockTable":
        """Read the table."""
        table = cls()
        for value in read_rows(reader, Table.LOCKS):
            lock = msgspec.msgpack.decode(value, type=Lock)
            if lock.topic == _GROUP_MARK:
                table._ordered.add(lock.group)
            else:
                table._groups.setdefault(lock.group, {})[lock.topic, lock.queue_id] = lock
        return table

    def get(self, group: str, topic: str, queue_id: int) -> Lock | None:
        """Return the lock if somebody holds it."""
        lock = self._last(group, topic, queue_id)

        return lock if lock is not None and lock.client_id else None

    def is_current(self, group: str, topic: str, queue_id: int, epoch: int) -> bool:
        """Tell whether nobody has held the queue after this epoch."""
        lock = self._last(group, topic, queue_id)

        return lock is not None and lock.epoch == epoch

    def epoch(self, group: str, topic: str, queue_id: int) -> int:
        """Return the epoch of who holds the queue or held it last, 0 when nobody ever did."""
        lock = self._last(group, topic, queue_id)

        return lock.epoch if lock is not None else 0

    def released(self, group: str, topic: str, queue_id: int) -> Lock | None:
        """Return the lock if it is free because its last holder gave it back."""
        lock = self._last(group, topic, queue_id)

        return lock if lock is not None and lock.released_by else None

    def _last(self, group: str, topic: str, queue_id: int) -> Lock | None:
        """Return the lock as it is or as it was last, None when nobody ever held the queue."""
        return self._groups.get(group, _NO_LOCKS).get((topic, queue_id))

    def takes_locks(self, group: str) -> bool:
        """Tell whether the group has ever asked for a lock: from then on it is ordered."""
        return group in self._ordered

    def held(self, group: str | None = None) -> Iterator[Lock]:
        """Yield the held locks, of one group or of all."""
        groups = self._groups if group is None else {group: self._groups.get(group, _NO_LOCKS)}
        for locks in groups.values():
            yield from (lock for lock in locks.values() if lock.client_id)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that hold or once held a queue of a topic."""
        return [
            group
            for group, locks in self._groups.items()
            if any(name == topic for name, _ in locks)
        ]

    def request(
        self, record: LocksRequested, stamp: int, wall_ms: int, writes: TableWrites
    ) -> LocksGranted:
        """Grant what is free, renew what the client holds."""
        if record.orderly and record.group not in self._ordered:
            self._ordered.add(record.group)
            writes.put(
                Table.LOCKS, record.group, _GROUP_MARK, 0, value=Lock(record.group, _GROUP_MARK, 0)
            )
        locks = self._groups.setdefault(record.group, {})
        granted = []
        for topic, queue_id in record.queues:
            lock = locks.get((topic, queue_id)) or Lock(record.group, topic, queue_id)
            if lock.held and lock.client_id != record.client_id:
                continue
            renewed = lock.held
            lock = Lock(
                record.group,
                topic,
                queue_id,
                record.client_id,
                lock.epoch if renewed else lock.epoch + 1,
                record.lease_ms,
                record.address,
                stamp,
                lock.held_since_ms if renewed else wall_ms,
            )
            self._set(lock, writes)
            granted.append((topic, queue_id, lock.epoch))

        return LocksGranted(record.group, record.client_id, record.lease_ms, tuple(granted))

    def release(self, record: LocksReleased, writes: TableWrites) -> LocksFreed:
        """Free what the client holds of the named queues, or all it holds."""
        mine = [lock for lock in self.held(record.group) if lock.client_id == record.client_id]
        if record.queues is not None:
            named = set(record.queues)
            mine = [lock for lock in mine if (lock.topic, lock.queue_id) in named]

        return self._free(
            mine, f"released by {record.client_id}", writes, released_by=record.client_id
        )

    def expire(self, record: LocksExpired, writes: TableWrites) -> LocksFreed:
        """Free the locks that have not been renewed since the leader looked."""
        locks = self._groups.get(record.group, _NO_LOCKS)
        over = [
            lock
            for ref in record.locks
            if (lock := locks.get((ref.topic, ref.queue_id))) is not None
            and lock.held
            and lock.stamp == ref.stamp
        ]

        return self._free(over, "lease over", writes)

    def holds(self, group: str, client_id: str) -> bool:
        """Tell whether a client holds any queue of a group."""
        locks = self._groups.get(group, _NO_LOCKS)

        return any(lock.client_id == client_id for lock in locks.values())

    def free(self, group: str) -> list[tuple[str, str, int]]:
        """Return the queues of a group that somebody has held and nobody holds."""
        locks = self._groups.get(group, _NO_LOCKS)

        return sorted((group, *queue) for queue, lock in locks.items() if not lock.held)

    def free_client(self, client_id: str, reason: str, writes: TableWrites) -> LocksFreed:
        """Free everything a client holds, in every group."""
        mine = [lock for lock in self.held() if lock.client_id == client_id]

        return self._free(mine, reason, writes)

    def free_all(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        reason: str,
        writes: TableWrites,
    ) -> LocksFreed:
        """Free the locks of a group or of a topic that is deleted; the epochs stay."""
        gone = [lock for lock in self.held(group) if topic is None or lock.topic == topic]

        return self._free(gone, reason, writes)

    def forget_ordered(self, group: str, writes: TableWrites) -> None:
        """Forget that a deleted group took locks."""
        if group in self._ordered:
            self._ordered.discard(group)
            writes.delete(Table.LOCKS, group, _GROUP_MARK, 0)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield locks for the digest."""
        yield tuple(sorted(self._ordered))
        for group in sorted(self._groups):
            for key in sorted(self._groups[group]):
                yield (self._groups[group][key],)

    def check(self) -> None:
        """Assert what always holds."""
        for group, locks in self._groups.items():
            for key, lock in locks.items():
                assert (lock.group, lock.topic, lock.queue_id) == (group, *key), lock
                assert lock.epoch >= 1, f"a lock that was never held: {lock}"
                assert not lock.held or lock.lease_ms > 0, lock
                assert not (lock.held and lock.released_by), lock

    def _set(self, lock: Lock, writes: TableWrites) -> None:
        self._groups[lock.group][lock.topic, lock.queue_id] = lock
        writes.put(Table.LOCKS, lock.group, lock.topic, lock.queue_id, value=lock)

    def _free(
        self, locks: Iterable[Lock], reason: str, writes: TableWrites, *, released_by: str = ""
    ) -> LocksFreed:
        # A table that was read from the store has another order than one that has grown.
        freed = sorted(locks, key=lambda lock: (lock.group, lock.topic, lock.queue_id))
        for lock in freed:
            free = Lock(
                lock.group,
                lock.topic,
                lock.queue_id,
                epoch=lock.epoch,
                released_by=released_by,
            )
            self._set(free, writes)

        return LocksFreed(tuple((lock.group, lock.topic, lock.queue_id) for lock in freed), reason)
