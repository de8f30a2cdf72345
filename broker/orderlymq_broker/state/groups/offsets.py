"""
Consumer offsets: the next message that a group wants from each queue.

The rules: a commit moves an offset forward or not at all. A commit accepted under a lock counts only until the queue
is locked with a higher epoch. So a late commit of a former holder cannot move the offset of the new one. Only a reset
moves an offset backwards.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from orderlymq_broker.state.groups.locks import LockTable
from orderlymq_broker.state.records import Commit, OffsetsMoved
from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

_NO_QUEUES: Mapping[int, int] = {}
_NO_TOPICS: Mapping[str, dict[int, int]] = {}


class OffsetTable:
    """Offsets by group, topic and queue, *count* in all.

    A row is removed with its topic, or with its group if the deletion of the group says so. A commit that comes after
    the deletion of its topic is ignored.
    """

    def __init__(self, reader: Reader) -> None:
        self._groups: dict[str, dict[str, dict[int, int]]] = {}
        self.count = 0
        for commit in read_as(reader, Table.OFFSETS, Commit):
            self._put(self._queues(commit), commit)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None if the group never committed there."""
        return self._groups.get(group, _NO_TOPICS).get(topic, _NO_QUEUES).get(queue_id)

    def of_group(self, group: str) -> Mapping[str, Mapping[int, int]]:
        """Return the offsets of a group by topic and queue; queues are in the order in which they were added."""
        return self._groups.get(group, _NO_TOPICS)

    def groups(self) -> Iterator[str]:
        """Yield every group that has offsets."""
        yield from self._groups

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic."""
        return [group for group, topics in self._groups.items() if topic in topics]

    def commit(
        self,
        commits: tuple[Commit, ...],
        locks: LockTable,
        topics: Collection[str],
        writes: TableWrites,
    ) -> OffsetsMoved:
        """Move offsets of existing *topics* forward."""
        moved = 0
        for commit in commits:
            if commit.topic in topics and self._is_allowed(commit, locks):
                moved += self.advance(commit, writes)

        return OffsetsMoved(moved, len(commits) - moved)

    def reset(
        self, commits: tuple[Commit, ...], topics: Collection[str], writes: TableWrites
    ) -> OffsetsMoved:
        """Set offsets of existing *topics*, even backwards."""
        known = [commit for commit in commits if commit.topic in topics]
        for commit in known:
            self._set(self._queues(commit), commit, writes)

        reset = dict.fromkeys((commit.group, commit.topic) for commit in known)
        return OffsetsMoved(len(known), len(commits) - len(known), tuple(reset))

    def advance(self, commit: Commit, writes: TableWrites) -> bool:
        """Move one offset forward without a check of the sender; return whether it was lower before."""
        queues = self._queues(commit)
        present = queues.get(commit.queue_id)
        if present is not None and commit.offset <= present:
            return False
        self._set(queues, commit, writes)
        return True

    @staticmethod
    def _is_allowed(commit: Commit, locks: LockTable) -> bool:
        """Return whether the lock under which the leader accepted a commit is still current.

        A commit without an epoch was accepted because no client held the queue; a lock that was granted
        meanwhile begins at the stored offset.
        """
        if commit.epoch:
            return locks.is_current(commit.group, commit.topic, commit.queue_id, commit.epoch)
        if not locks.takes_locks(commit.group):
            return True
        return locks.get(commit.group, commit.topic, commit.queue_id) is None

    def drop_topic(self, topic: str, writes: TableWrites) -> None:
        """Remove the offsets of all groups in a topic."""
        gone = {group: self._groups[group].pop(topic) for group in self.groups_of(topic)}
        for group in gone:
            if not self._groups[group]:
                del self._groups[group]
        self.count -= sum(map(len, gone.values()))
        writes.delete_numbered_of(Table.OFFSETS, gone, topic)

    def drop_group(self, group: str, writes: TableWrites) -> None:
        """Remove the offsets of a group."""
        topics = self._groups.pop(group, {})
        self.count -= sum(map(len, topics.values()))
        writes.delete_grouped(Table.OFFSETS, group, topics)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield offsets for the digest."""
        for group in sorted(self._groups):
            for topic in sorted(self._groups[group]):
                queues = self._groups[group][topic]
                for queue_id in sorted(queues):
                    yield (group, topic, queue_id, queues[queue_id])

    def _queues(self, commit: Commit) -> dict[int, int]:
        return self._groups.setdefault(commit.group, {}).setdefault(commit.topic, {})

    def check(self) -> None:
        """Assert the invariants."""
        rows = sum(len(queues) for topics in self._groups.values() for queues in topics.values())
        assert self.count == rows, f"{self.count} offsets are counted, but {rows} exist"

    def _put(self, queues: dict[int, int], commit: Commit) -> None:
        self.count += commit.queue_id not in queues
        queues[commit.queue_id] = commit.offset

    def _set(self, queues: dict[int, int], commit: Commit, writes: TableWrites) -> None:
        self._put(queues, commit)
        row = Commit(commit.group, commit.topic, commit.queue_id, commit.offset)
        writes.put(Table.OFFSETS, commit.group, commit.topic, commit.queue_id, value=row)
