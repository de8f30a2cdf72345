"""
Assignments of queues to members, for consumer groups whose assignment an operator has decided.

The rules: an assignment outlives the operator that made it. Queues of members that are gone, and new queues, go to
the members with the fewest queues. Nothing else moves, and every raft group gives the same result. A group without an
assignment assigns queues as its clients do (``processors/groups/strategies.py``). An assignment does not guarantee
order: only the lock of a queue decides which member may consume it.
"""

from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heapreplace
from typing import Any, Final

import msgspec

from orderlymq_broker.state.records import AssignmentChanged, AssignmentSet, Refused
from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

# More groups than anyone assigns by hand; a row may have 100 KiB.
ASSIGNMENTS_MAX: Final = 10_000

QueuePlace = tuple[str, int]
"""Broker name and number of a queue."""


class AssignmentTable:
    """Assignments by group and topic.

    A row is removed with its group or topic, or when an operator ends the assignment. Its group and topic may exist
    only in other raft groups, so a limit bounds the rows.
    """

    def __init__(self, reader: Reader) -> None:
        rows = read_as(reader, Table.ASSIGNMENTS, AssignmentSet)
        self._divisions = {(found.group, found.topic): found for found in rows}

    def get(self, group: str, topic: str) -> Mapping[QueuePlace, str] | None:
        """Return the owners by queue, or None if no operator has decided."""
        found = self._divisions.get((group, topic))

        return None if found is None else {(b, number): owner for b, number, owner in found.owners}

    def of_group(self, group: str) -> dict[str, tuple[tuple[str, int, str], ...]]:
        """Return the assignments of a group by topic."""
        return {
            topic: found.owners
            for (name, topic), found in sorted(self._divisions.items())
            if name == group
        }

    def set(self, record: AssignmentSet, writes: TableWrites) -> AssignmentChanged | Refused:
        """Replace an assignment; a record without owners ends it."""
        key = (record.group, record.topic)
        # The token controls who may set the assignment; it is not a part of it.
        row = msgspec.structs.replace(record, token=-1)
        present = self._divisions.get(key)
        if present == row or (present is None and not record.owners):
            return AssignmentChanged(record.group, changed=False)
        if present is None and len(self._divisions) >= ASSIGNMENTS_MAX:
            return Refused(
                f"at most {ASSIGNMENTS_MAX} assignments are kept; end those of deleted groups"
            )
        if record.owners:
            self._divisions[key] = row
            writes.put(Table.ASSIGNMENTS, *key, value=row)
        else:
            del self._divisions[key]
            writes.delete(Table.ASSIGNMENTS, *key)

        return AssignmentChanged(record.group, changed=True)

    def drop(
        self, writes: TableWrites, *, group: str | None = None, topic: str | None = None
    ) -> None:
        """Remove the assignments of a deleted group or topic."""
        for key in [key for key in self._divisions if group == key[0] or topic == key[1]]:
            del self._divisions[key]
            writes.delete(Table.ASSIGNMENTS, *key)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield assignments for the digest."""
        for key in sorted(self._divisions):
            yield (self._divisions[key],)


def full_assignment(
    assignment: Mapping[QueuePlace, str], queues: Collection[QueuePlace], members: Mapping[str, int]
) -> dict[QueuePlace, str]:
    """Return an owner for each of *queues*: the assigned one if it is a member, or else the member with the fewest.

    *members* maps each member to the time since when it is one. Of members with equally few queues, the newest is
    chosen, because in a rolling restart the queues that an old member takes have to move again. Without members, no
    queue has an owner. Operators decide by the same rule.
    """
    if not members:
        return {}
    owners = {q: owner for q in queues if (owner := assignment.get(q)) in members and owner}
    shares = dict.fromkeys(members, 0)
    for owner in owners.values():
        shares[owner] += 1
    takers = [(share, -members[member], member) for member, share in shares.items()]
    heapify(takers)
    for queue in sorted(set(queues) - owners.keys()):
        share, age, taker = takers[0]
        owners[queue] = taker
        heapreplace(takers, (share + 1, age, taker))

    return owners
