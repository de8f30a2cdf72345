"""
The laws of locks: the state of each lock by the log, read record by record.

Rules: a lock has at most one holder. A client that asks for a free lock gets it under an epoch that no holder had
before, in this or a former life of the topic and the group. Only the holder, the end of its lease or a proven death
frees a lock. A lock of a deleted topic or group is not granted.
"""

from typing import TYPE_CHECKING

from orderlymq.oracle.verdict import Kind
from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LocksExpired,
    LocksReleased,
    LocksRequested,
)
from tests.sim.invariants.log import Key, ModelLock

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws


class LockLaws:
    """The holders of locks, by the log alone."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._world = laws.world

    def read(
        self,
        record: LocksRequested | LocksReleased | LocksExpired | ClientDead,
        index: int,
        replica: "Replica",
    ) -> None:
        """Read a record of entry *index*, which *replica* has applied."""
        locks = self._laws.model.locks
        match record:
            case LocksRequested():
                for topic, queue in record.queues:
                    self._asked((record.group, topic, queue), record.client_id, index, replica)
            case LocksReleased():
                for (group, topic, queue), lock in locks.items():
                    named = record.queues is None or (topic, queue) in record.queues
                    if group == record.group and lock.client == record.client_id and named:
                        lock.client = ""
            case LocksExpired():
                for ref in record.locks:
                    over = locks.get((record.group, ref.topic, ref.queue_id))
                    if over is not None and over.stamp == ref.stamp and over.client:
                        over.client = ""
                        self._world.coverage["lease expired"] += 1
            case ClientDead():
                for lock in locks.values():
                    if lock.client == record.client_id:
                        lock.client = ""
                        self._world.coverage["lock taken from a dead client"] += 1

    def compare(self, replica: "Replica") -> None:
        """Check that the table of *replica* agrees with the log."""
        for key, lock in self._laws.model.locks.items():
            held = replica.state.locks.get(*key)
            found = ("", 0) if held is None else (held.client_id, held.epoch)
            wanted = (lock.client, lock.epoch if lock.client else 0)
            self._laws.ensure(
                found == wanted, "locks", f"{replica.name}: {key} is held by {found}, not {wanted}"
            )

    def _asked(self, key: Key, client: str, index: int, replica: "Replica") -> None:
        model, world = self._laws.model, self._world
        if not self._exists(key, index, replica):
            world.coverage["lock asked for what is gone"] += 1
            return
        lock = model.locks.setdefault(key, ModelLock(epoch=model.epochs_gone))
        if lock.client not in ("", client):
            return
        if not lock.client:
            lock.client, lock.epoch = client, lock.epoch + 1
            lock.committed = model.offsets.get(key, 0)
            group, topic, queue = key
            world.history.event(
                Kind.LOCK,
                group=group,
                topic=topic,
                queue=str(queue),
                client=client,
                epoch=lock.epoch,
            )
        lock.stamp = index

    def _exists(self, key: Key, index: int, replica: "Replica") -> bool:
        group, topic, queue = key
        if topic == self._world.topic and queue >= self._laws.growth.queues:
            # The queue was announced; it may have been removed again with an abandoned expansion.
            lock = replica.state.locks.get(*key)
            return lock is not None and lock.stamp == index
        return self._laws.lives.both_live(group, topic)
