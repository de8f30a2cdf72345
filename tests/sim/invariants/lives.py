"""
Topics and groups that are deleted and made again: nothing of a former life appears in the next one.

Rules: a topic's number is never given twice. A topic's deletion removes its offsets, holds, assignments, expansion,
locks and lanes. A group is deleted only if no member holds a queue; this removes its members, locks, holds and, on
request, its offsets. A request accepted under a lock of a former life moves nothing in the next. A later lock has a
newer epoch than all removed ones.
"""

from typing import TYPE_CHECKING, Any, Final

from orderlymq_broker.state.records import GroupDeleted, TopicDeleted
from tests.sim.invariants.lanes import GROUP as LANE_GROUP
from tests.sim.invariants.log import Key

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws


# The topics that are made and deleted repeatedly.
RECYCLED: Final = ("scrap-1", "scrap-2")


class Lives:
    """The topics that exist, and the state that was removed with deleted ones."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._numbers: dict[str, int] = {}
        self._used: set[int] = set()
        self._groups: set[str] = set()
        self.dead: set[int] = set()
        self._gone: set[Key] = set()
        self.deleted_at = 0  # the index of the last deletion

    def number(self, topic: str) -> int | None:
        """Return the number of a topic that exists."""
        return self._numbers.get(topic)

    def topic_set(self, name: str, replica: "Replica") -> None:
        """Note that a topic exists; check that a new topic has a number that no other had."""
        topic = replica.state.topics.get(name)
        if topic is None or self._numbers.get(name) == topic.id:
            return  # it was deleted again in the same entry, or only changed
        self._laws.ensure(
            topic.id not in self._used, "lives", f"{name} has number {topic.id}, which was in use"
        )
        self._used.add(topic.id)
        self._numbers[name] = topic.id

    def group_set(self, name: str) -> None:
        """Note that a group exists."""
        self._groups.add(name)

    def both_live(self, group: str, topic: str) -> bool:
        """Return whether a group and a topic exist."""
        return group in self._groups and topic in self._numbers

    def topic_deleted(self, record: TopicDeleted, replica: "Replica") -> None:
        """Remove from the model what goes with a topic, and check that the replica has removed it."""
        number = self._numbers.pop(record.name, None)
        if number is None:
            return
        self.dead.add(number)
        self._laws.world.coverage["topic deleted"] += 1
        self.deleted_at = replica.state.applied_index
        self._expire(lambda key: key[1] == record.name, offsets=True)
        if replica.state.topics.get(record.name) is None:
            state = replica.state
            tables = (state.offsets, state.parked, state.assignments, state.expansions)
            for table in (*tables, state.lanes):
                self._check_gone(record.name, table, record)

    def group_deleted(self, record: GroupDeleted, replica: "Replica") -> None:
        """Remove from the model what goes with a group, and check that the replica has removed it."""
        self._groups.discard(record.name)
        self._laws.world.coverage["group deleted"] += 1
        self.deleted_at = replica.state.applied_index
        held = [key for key, lock in self._laws.model.locks.items() if lock.client]
        mine = [key for key in held if key[0] == record.name]
        self._laws.ensure(not mine, "one holder", f"{record} while {mine} are held")
        self._expire(lambda key: key[0] == record.name, offsets=record.clean_offsets)
        state = replica.state
        tables = (state.parked, state.assignments, state.members)
        # `lanes` checks the offsets of the group by key, which may be set again in the same entry.
        has_none = record.clean_offsets and record.name != LANE_GROUP
        for table in (*tables, state.offsets) if has_none else tables:
            self._check_gone(record.name, table, record)

    def committed(self, key: Key) -> None:
        """Note an offset of the present life."""
        self._gone.discard(key)

    def compare(self, replica: "Replica") -> None:
        """Check that offsets of a former life do not return."""
        for key in self._gone:
            offset = replica.state.offsets.get(*key)
            self._laws.ensure(
                offset is None, "lives", f"{replica.name}: {key} is at {offset} after its deletion"
            )

    def _expire(self, is_meant: Any, *, offsets: bool) -> None:
        model = self._laws.model
        for key in [key for key in model.locks if is_meant(key)]:
            # Requests accepted under a former lock are no longer current.
            model.epochs_gone = max(model.epochs_gone, model.locks.pop(key).epoch)
        if offsets:
            gone = [key for key in model.offsets if is_meant(key)]
            self._gone.update(gone)
            for key in gone:
                del model.offsets[key]

    def _check_gone(self, name: str, table: Any, record: object) -> None:
        left = [row for row in table.rows() if name in row]
        self._laws.ensure(
            not left, "lives", f"{left} of {type(table).__name__} is left by {record}"
        )
