"""
Assignments of queues to members, for groups whose assignment an operator has decided.

The rules: an assignment outlives its author: queues of members that are gone, and queues that are new, go to the
members with the fewest, and nothing else moves, the same on every raft group that is asked; a group without
an assignment divides as its clients do (``processors/groups/strategies.py``). An assignment promises nothing about order:
the lock of a queue alone decides which member may consume it.
"""

from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heapreplace
from typing import Any, Final

import msgspec

from orderlymq_broker.state.records import AssignmentChanged, AssignmentSet, Refused
from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

# As many groups as anybody divides by hand; a row may have 100 KiB.
ASSIGNMENTS_MAX: Final = 10_000

QueuePlace = tuple[str, int]
"""Broker name and number of a queue."""


class AssignmentTable:
    """Divisions by group and topic.

    Rows go with their group or topic, or when an operator ends the assignment. Groups and topics may stand on other raft
    groups alone, so a bound keeps out the rest.
    """

    def __init__(self, reader: Reader) -> None:
        rows = read_as(reader, Table.ASSIGNMENTS, AssignmentSet)
        self._divisions = {(found.group, found.topic): found for found in rows}

    def get(self, group: str, topic: str) -> Mapping[QueuePlace, str] | None:
        """Return the owners by queue; None when nobody has decided."""
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
        """Replace an assignment; one without owners ends it."""
        key = (record.group, record.topic)
        # The token is about who may say so, not about the assignment.
        row = msgspec.structs.replace(record, token=-1)
        present = self._divisions.get(key)
        if present == row or (present is None and not record.owners):
            return AssignmentChanged(record.group, changed=False)
        if present is None and len(self._divisions) >= ASSIGNMENTS_MAX:
            return Refused(
                f"{ASSIGNMENTS_MAX} assignments are kept at most; end those of groups that are gone"
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
        """Forget the assignments of a group or topic that is deleted."""
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
    """Return an owner for each of *queues*: the decided one if it is a member, else the member with the fewest queues.

    *members* says since when each has been there. Of those with equally few it is the newest: in a
    rolling restart what an old one takes has to move again. Nobody gets anything when there are no
    members. Operators decide by the same rule.
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
