"""
The state of a broker: all tables of one raft group, and the index up to which the log is applied to them.

The rules: the state equals the content of the store after the last applied entry, so a restarted replica loads it from
there. Only ``statemachine.py`` changes it. Replicas that have applied the same entries have the same digest.
"""

from hashlib import blake2b
from typing import Any, Final

from orderlymq_broker.state.admin.access import AccessTable
from orderlymq_broker.state.admin.settings import OverrideTable
from orderlymq_broker.state.groups.assignment import AssignmentTable
from orderlymq_broker.state.groups.locks import LockTable
from orderlymq_broker.state.groups.members import MemberTable
from orderlymq_broker.state.groups.offsets import OffsetTable
from orderlymq_broker.state.groups.parkedkeys import ParkedTable
from orderlymq_broker.state.lanes.table import LaneTable
from orderlymq_broker.state.schedule.timers import TimerTable
from orderlymq_broker.state.send.duplicates import DedupWindow
from orderlymq_broker.state.tables import encode_row, read_as, read_counter
from orderlymq_broker.state.topics.expansiontable import ExpansionTable
from orderlymq_broker.state.topics.queues import TailCache, load_queues
from orderlymq_broker.state.topics.topics import GroupTable, TopicTable
from orderlymq_broker.state.transactions.halves import TransactionTable
from orderlymq_broker.store.kv import Family, Reader
from orderlymq_broker.store.layout import (
    META_APPLIED,
    Applied,
    Table,
    decode_applied,
    encode_applied,
)

# The counters row that holds the greatest token of an operator.
OPERATOR_ROW: Final = "operator"
# The counters row that holds the time when a backup was restored, by the clock of this replica or of the one it was
# copied from.
RESTORED_ROW: Final = "restored"


class BrokerState:
    """The complete replicated state of a broker, which survives its leader.

    Life cycle: read from a store (empty for a new one), then changed only by ``StateMachine``.

    Attributes:
        restored_ms: the wall time when it was restored from a backup, otherwise 0. It may differ between replicas,
            because only leaders use it for decisions.
    """

    def __init__(self, reader: Reader) -> None:
        """Read the state from the last write to the store."""
        self.topics = TopicTable(reader)
        self.groups = GroupTable(reader)
        self.locks = LockTable(reader)
        self.offsets = OffsetTable(reader)
        self.members = MemberTable(reader)
        self.dedup = DedupWindow(reader)
        self.access = AccessTable(reader)
        self.overrides = OverrideTable(reader)
        self.transactions = TransactionTable(reader)
        self.expansions = ExpansionTable(reader)
        self.assignments = AssignmentTable(reader)
        self.parked = ParkedTable(reader)
        self.lanes = LaneTable(reader)
        self.timers = TimerTable.load(reader)
        for name, expanding in self.expansions.by_topic.items():
            self.topics.by_name[name].expansion = expanding
        self.operator_token = read_counter(reader, OPERATOR_ROW, int, 0)
        self.restored_ms = read_counter(reader, RESTORED_ROW, int, 0)
        self.delay = dict(read_as(reader, Table.DELAY, tuple[int, int]))
        self.tail = TailCache()
        self.last_timestamp = 0
        for (topic_id, queue_id), queue in load_queues(reader).items():
            topic = self.topics.by_id.get(topic_id)
            if topic is not None:
                topic.queues[queue_id] = queue
                self.last_timestamp = max(self.last_timestamp, queue.last_timestamp)
        applied = decode_applied(reader.get(Family.META, META_APPLIED))
        self.applied_index = applied.index
        self.physical_end, self.floor = applied.physical_end, applied.floor

    @property
    def topics_version(self) -> int:
        """The number of changes of the topic table: the counter of its data version."""
        return self.topics.version.counter

    @property
    def topics_timestamp(self) -> int:
        """When the topic table last changed, in wall ms of the leader."""
        return self.topics.version.timestamp

    def is_ordered(self, group: str) -> bool:
        """Return whether the group's queues have holders: by configuration, or since its first lock.

        A group that is declared concurrent has holders only while a queue is held. Replicas that do not know the
        declaration yet keep the same locks: they fence too much, never too little.
        """
        config = self.groups.get(group)
        if config is not None and (config.orderly or config.by_key):
            return True
        is_concurrent = config is not None and config.concurrent

        return self.locks.takes_locks(group) and not (
            is_concurrent and group not in self.locks.held_of
        )

    def is_by_key(self, group: str) -> bool:
        """Return whether the group consumes by lanes instead of queue locks."""
        config = self.groups.get(group)

        return config is not None and config.by_key

    def only_broadcasts(self, group: str) -> bool:
        """Return whether all members of a group broadcast: each keeps its own offsets, and nothing here waits for them.

        One member that broadcasts does not mean that the others do. A lock of a client that is no member belongs to an
        ordered consumer, and no broadcasting member gets lanes.
        """
        if not self.members.all_broadcast(group) or self.is_by_key(group):
            return False
        members = self.members.of_group(group)
        held = sum(len(self.locks.held_by(client_id, group)) for client_id in members)

        return held == self.locks.held_of[group]

    def oldest_kept_ms(self, wall_ms: int, age_ms: int) -> int:
        """Return the store time below which messages are older than *age_ms*; after a restore, age counts from it."""
        oldest_ms = wall_ms - age_ms

        return oldest_ms if oldest_ms > self.restored_ms else 0

    def digest(self) -> str:
        """Return a hash of everything on which replicas must agree at equal indexes."""
        digest = blake2b(digest_size=16)
        applied = Applied(self.applied_index, 0, self.physical_end, self.floor)
        digest.update(encode_applied(applied))
        tables: tuple[Any, ...] = (
            self.topics,
            self.groups,
            self.offsets,
            self.locks,
            self.members,
            self.dedup,
            self.transactions,
            self.access,
            self.overrides,
            self.expansions,
            self.assignments,
            self.timers,
            self.parked,
            self.lanes,
        )
        for table in tables:
            for row in table.rows():
                digest.update(encode_row(row))
        digest.update(encode_row((self.operator_token, sorted(self.delay.items()))))

        return digest.hexdigest()

    def check_invariants(self) -> None:
        """Assert the invariants within one state (ordering rules 1, 2, 3 and 8)."""
        self.topics.check()
        self.locks.check()
        self.offsets.check()
        self.members.check()
        self.dedup.check()
        self.transactions.check()
        self.expansions.check()
        self.timers.check()
        self.parked.check()
        self.lanes.check()
        assert self.floor <= self.physical_end
        in_tails = [entry for queue in self.topics.queues() for entry in queue.tail]
        assert sum(len(entry.message) for entry in in_tails) <= self.tail.size
        assert self.tail.size <= self.tail.size_max or len(self.tail) <= 1
        assert all(entry.physical < self.physical_end for entry in in_tails)
