"""
Queue locks: which client may pull and commit a queue of an ordered group.

States of (group, queue): Free -> Held(client, epoch, lease) -> Free.

The rules: a queue has at most one holder. The epoch rises whenever the holder changes or offsets are reset. It never
falls, and it outlives the lock: a free lock stays in the table for its epoch until its topic or group is deleted.
Then a single number remains for all such locks, the floor of all their epochs. The table does not know the time: the
leader writes a record when a lease has expired. This record names the last renewal that the leader had seen
(*stamp*), so it cannot free a lock that was renewed meanwhile. The leader's clock for leases is in
``processors/groups/locks.py``.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from orderlymq_broker.state.groups.lockrecords import (
    LocksExpired,
    LocksFreed,
    LocksGranted,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.tables import TableWrites, read_as, read_counter
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

QueueRef = tuple[str, int]

# The counters row that holds the floor of all epochs.
_FLOOR: Final = "locks"
# The row of a group that takes locks has this instead of a topic; no topic has an empty name.
_GROUP_MARK: Final = ""


class Lock(msgspec.Struct, frozen=True, array_like=True):
    """One lock; it is free if *client_id* is empty.

    Attributes:
        stamp: the raft index of the last grant or renewal.
        held_since_ms: the leader's wall clock when the holder got it.
        released_by: the client that released a free lock itself; it may still commit until another
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


_NO_TOPICS: Mapping[str, dict[int, Lock]] = {}
_NO_LOCKS: Mapping[int, Lock] = {}
_NO_GROUPS: Mapping[str, dict[QueueRef, None]] = {}
_NO_QUEUES: Mapping[QueueRef, None] = {}


class LockTable:
    """The locks of all groups, and the groups that take locks.

    A row is removed with its topic or its group. Only existing queues are locked, for existing groups, so there are
    never more than queues times groups. The locks are also indexed by client, so the work for a dead client depends
    only on what it held.

    Attributes:
        count: the number of locks, held or free.
        held_count: the number of held locks.
        held_of: the number of held locks of each group; groups without any are absent.
    """

    def __init__(self, reader: Reader) -> None:
        self._groups: dict[str, dict[str, dict[int, Lock]]] = {}
        self._holders: dict[str, dict[str, dict[QueueRef, None]]] = {}
        self._ordered: set[str] = set()
        self._floor = read_counter(reader, _FLOOR, int, 0)
        self.count = 0
        self.held_count = 0
        self.held_of: Counter[str] = Counter()
        for lock in read_as(reader, Table.LOCKS, Lock):
            if lock.topic == _GROUP_MARK:
                self._ordered.add(lock.group)
            else:
                self._put(lock)

    # -- questions ---------------------------------------------------------------------------------

    def get(self, group: str, topic: str, queue_id: int) -> Lock | None:
        """Return the lock if a client holds it."""
        lock = self._last(group, topic, queue_id)

        return lock if lock is not None and lock.client_id else None

    def is_current(self, group: str, topic: str, queue_id: int, epoch: int) -> bool:
        """Return whether no client has held the queue after this epoch."""
        lock = self._last(group, topic, queue_id)

        return lock is not None and lock.epoch == epoch

    def epoch(self, group: str, topic: str, queue_id: int) -> int:
        """Return the epoch of the present or last holder of the queue, or 0 if there never was one."""
        lock = self._last(group, topic, queue_id)

        return lock.epoch if lock is not None else 0

    def released(self, group: str, topic: str, queue_id: int) -> Lock | None:
        """Return the lock if it is free because its last holder released it."""
        lock = self._last(group, topic, queue_id)

        return lock if lock is not None and lock.released_by else None

    def _last(self, group: str, topic: str, queue_id: int) -> Lock | None:
        """Return the lock, held or free, or None if the queue was never held."""
        return self._groups.get(group, _NO_TOPICS).get(topic, _NO_LOCKS).get(queue_id)

    def takes_locks(self, group: str) -> bool:
        """Return whether the group has ever asked for a lock; from then on it is ordered."""
        return group in self._ordered

    def held(self, group: str | None = None) -> Iterator[Lock]:
        """Yield the held locks, of one group or of all."""
        groups = self._groups.values() if group is None else [self._groups.get(group, _NO_TOPICS)]
        for topics in groups:
            for locks in topics.values():
                yield from (lock for lock in locks.values() if lock.client_id)

    def held_by(self, client_id: str, group: str) -> Collection[QueueRef]:
        """Return the queues of a group that a client holds."""
        return self._holders.get(client_id, _NO_GROUPS).get(group, _NO_QUEUES).keys()

    def holds(self, group: str, client_id: str) -> bool:
        """Return whether a client holds any queue of a group."""
        return group in self._holders.get(client_id, _NO_GROUPS)

    def holds_any(self, client_id: str) -> bool:
        """Return whether a client holds any queue of any group."""
        return client_id in self._holders

    def count_of(self, client_id: str) -> int:
        """Return how many queues a client holds, in every group."""
        return sum(map(len, self._holders.get(client_id, _NO_GROUPS).values()))

    def of_client(self, client_id: str) -> Iterator[Lock]:
        """Yield the locks that a client holds, in every group."""
        for group, queues in self._holders.get(client_id, _NO_GROUPS).items():
            yield from (self._groups[group][topic][queue_id] for topic, queue_id in queues)

    def groups(self) -> Iterator[str]:
        """Yield the groups that hold or once held a queue."""
        yield from self._groups

    def topics_of(self, group: str) -> KeysView[str]:
        """Return the topics of which a group holds or once held a queue."""
        return self._groups.get(group, _NO_TOPICS).keys()

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that hold or once held a queue of a topic."""
        return [group for group, topics in self._groups.items() if topic in topics]

    def queues_of(self, group: str, topic: str) -> KeysView[int]:
        """Return the queues of a topic that a group holds or once held."""
        return self._groups.get(group, _NO_TOPICS).get(topic, _NO_LOCKS).keys()

    def of_group(self, group: str) -> Iterator[Lock]:
        """Yield the locks of a group, held or free; each may be yielded as it was at any moment of the iteration."""
        topics = self._groups.get(group, _NO_TOPICS)
        for topic in list(topics):
            yield from list(topics.get(topic, _NO_LOCKS).values())

    # -- records -----------------------------------------------------------------------------------

    def request(
        self, record: LocksRequested, stamp: int, wall_ms: int, writes: TableWrites
    ) -> LocksGranted:
        """Grant free queues and renew those of the client; the caller has left out queues that are gone."""
        if record.orderly and record.group not in self._ordered:
            self._ordered.add(record.group)
            writes.put(
                Table.LOCKS, record.group, _GROUP_MARK, 0, value=Lock(record.group, _GROUP_MARK, 0)
            )
        granted = []
        for topic, queue_id in record.queues:
            lock = self._last(record.group, topic, queue_id)
            if lock is None:
                lock = Lock(record.group, topic, queue_id, epoch=self._floor)
            renewed = bool(lock.client_id)
            if renewed and lock.client_id != record.client_id:
                continue
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
        """Free the named queues that the client holds, or all that it holds."""
        mine = self.held_by(record.client_id, record.group)
        if record.queues is not None:
            mine = {queue for queue in record.queues if queue in mine}

        return self._free(
            [(record.group, *queue) for queue in mine],
            f"released by {record.client_id}",
            writes,
            released_by=record.client_id,
        )

    def expire(self, record: LocksExpired, writes: TableWrites) -> LocksFreed:
        """Free the locks that were not renewed after the leader's check."""
        over = {
            (record.group, ref.topic, ref.queue_id)
            for ref in record.locks
            if (lock := self.get(record.group, ref.topic, ref.queue_id)) is not None
            and lock.stamp == ref.stamp
        }

        return self._free(over, "lease over", writes)

    def raise_epochs(self, queues: Iterable[tuple[str, str, int]], writes: TableWrites) -> None:
        """Raise the epochs of locks: holders keep their queues, and former holders can no longer commit."""
        for queue in queues:
            lock = self._last(*queue)
            if lock is not None:
                raised = msgspec.structs.replace(lock, epoch=lock.epoch + 1, released_by="")
                self._set(raised, writes)

    def free_client(
        self, client_id: str, reason: str, writes: TableWrites, most: int = 0
    ) -> LocksFreed:
        """Free everything that a client holds, in every group, or the first *most* of it."""
        groups = self._holders.get(client_id, _NO_GROUPS)
        mine = ((group, *queue) for group in sorted(groups) for queue in sorted(groups[group]))

        return self._free(list(islice(mine, most or None)), reason, writes)

    def drop_topic(self, topic: str, writes: TableWrites) -> None:
        """Remove the locks of a deleted topic; a topic created again with its name begins above their epochs."""
        for group in self.groups_of(topic):
            self._drop(group, topic, writes)
            if not self._groups[group]:
                del self._groups[group]

    def drop_group(self, group: str, writes: TableWrites) -> None:
        """Remove the locks of a deleted group in one turn, and the mark that it took locks."""
        topics = self._groups.pop(group, {})
        locks = [lock for locks in topics.values() for lock in locks.values()]
        for client_id in {lock.client_id for lock in locks if lock.client_id}:
            groups = self._holders[client_id]
            del groups[group]
            if not groups:
                del self._holders[client_id]
        self.held_count -= self.held_of.pop(group, 0)
        self.count -= len(locks)
        if locks:
            self._raise_floor(locks, writes)
            writes.delete_grouped(Table.LOCKS, group, topics)
        if group in self._ordered:
            self._ordered.discard(group)
            writes.delete(Table.LOCKS, group, _GROUP_MARK, 0)

    # -- a restored backup -------------------------------------------------------------------------

    def fence(self, step: int, writes: TableWrites) -> None:
        """Free every lock and begin *step* above all epochs, so that no former holder's epoch is current."""
        for topics in list(self._groups.values()):
            for topic, locks in topics.items():
                for queue_id, lock in list(locks.items()):
                    self._set(Lock(lock.group, topic, queue_id, epoch=lock.epoch + step), writes)
        self._floor += step
        writes.put(Table.COUNTERS, _FLOOR, value=self._floor)

    # -- for the digest and tests ------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield locks for the digest."""
        yield (tuple(sorted(self._ordered)), self._floor)
        for group in sorted(self._groups):
            for topic in sorted(self._groups[group]):
                locks = self._groups[group][topic]
                for queue_id in sorted(locks):
                    yield (locks[queue_id],)

    def check(self) -> None:
        """Assert the invariants."""
        held: dict[str, dict[str, dict[QueueRef, None]]] = {}
        for group, topics in self._groups.items():
            for topic, locks in topics.items():
                assert locks, f"topic {topic} has no locks of group {group}, but is still listed"
                for queue_id, lock in locks.items():
                    assert (lock.group, lock.topic, lock.queue_id) == (group, topic, queue_id), lock
                    assert lock.epoch >= 1, f"a lock that was never held: {lock}"
                    assert not lock.client_id or lock.lease_ms > 0, lock
                    assert not (lock.client_id and lock.released_by), lock
                    if lock.client_id:
                        queues = held.setdefault(lock.client_id, {}).setdefault(group, {})
                        queues[topic, queue_id] = None
        assert self._holders == held, "the index of holders differs from the locks"
        locks_of = (locks for topics in self._groups.values() for locks in topics.values())
        assert self.count == sum(map(len, locks_of))
        assert self.held_count == sum(1 for _ in self.held())
        assert self.held_of == Counter(lock.group for lock in self.held())

    # -- parts -------------------------------------------------------------------------------------

    def _put(self, lock: Lock) -> None:
        locks = self._groups.setdefault(lock.group, {}).setdefault(lock.topic, {})
        former = locks.get(lock.queue_id)
        self.count += former is None
        locks[lock.queue_id] = lock
        if former is not None:
            if former.client_id == lock.client_id:
                return  # renewed, the usual case
            self._drop_holder(former)
        if lock.client_id:
            queues = self._holders.setdefault(lock.client_id, {}).setdefault(lock.group, {})
            is_new = (lock.topic, lock.queue_id) not in queues
            self.held_count += is_new
            self.held_of[lock.group] += is_new
            queues[lock.topic, lock.queue_id] = None

    def _drop_holder(self, lock: Lock) -> None:
        groups = self._holders.get(lock.client_id)
        if groups is None:
            return
        del groups[lock.group][lock.topic, lock.queue_id]
        self._count_out(lock.client_id, lock.group, 1)

    def _count_out(self, client_id: str, group: str, count: int) -> None:
        """Subtract queues of a group that a client no longer holds; drop its entry there if none is left."""
        self.held_count -= count
        self.held_of[group] -= count
        if not self.held_of[group]:
            del self.held_of[group]
        groups = self._holders[client_id]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._holders[client_id]

    def _set(self, lock: Lock, writes: TableWrites) -> None:
        self._put(lock)
        writes.put(Table.LOCKS, lock.group, lock.topic, lock.queue_id, value=lock)

    def _drop(self, group: str, topic: str, writes: TableWrites) -> None:
        locks = self._groups[group].pop(topic)
        self.count -= len(locks)
        for client_id in {lock.client_id for lock in locks.values() if lock.client_id}:
            groups = self._holders[client_id]
            before = len(groups[group])
            groups[group] = {queue: None for queue in groups[group] if queue[0] != topic}
            self._count_out(client_id, group, before - len(groups[group]))
        writes.delete_numbered(Table.LOCKS, group, topic, numbers=locks)
        self._raise_floor(locks.values(), writes)

    def _raise_floor(self, gone: Iterable[Lock], writes: TableWrites) -> None:
        """Raise the floor, so that locks created again begin above the epochs of the removed ones."""
        self._floor = max([self._floor, *[lock.epoch for lock in gone]])
        writes.put(Table.COUNTERS, _FLOOR, value=self._floor)

    def _free(
        self,
        queues: Iterable[tuple[str, str, int]],
        reason: str,
        writes: TableWrites,
        *,
        released_by: str = "",
    ) -> LocksFreed:
        # A table that was read from the store has another order than one that has grown.
        freed = tuple(sorted(queues))
        for group, topic, queue_id in freed:
            lock = self._groups[group][topic][queue_id]
            free = Lock(group, topic, queue_id, epoch=lock.epoch, released_by=released_by)
            self._set(free, writes)

        return LocksFreed(freed, reason)
