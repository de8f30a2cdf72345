"""
The state of a broker: all tables of one raft group together, and how far the log has come in them.

The rules: it equals the content of the store after the last applied entry, so a restarted replica loads it from there;
``machine.py`` alone changes it; replicas that have applied the same entries have the same digest.
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

# Row of the counters that holds the greatest token of an operator.
OPERATOR_ROW: Final = "operator"
# Row of the counters that holds when a backup was restored, by this replica's clock or by that of the one it was copied from.
RESTORED_ROW: Final = "restored"


class BrokerState:
    """Everything a broker knows that survives its leader.

    Life cycle: read from a store (empty for a new one), changed by ``Machine`` only.

    Attributes:
        restored_ms: wall time when it was restored from a backup, else 0. Replicas may differ: leaders alone decide by it.
    """

    def __init__(self, reader: Reader) -> None:
        """Read the state as it was when the store was last written."""
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
        """How often the table of topics has changed: the counter of its data version."""
        return self.topics.version.counter

    @property
    def topics_timestamp(self) -> int:
        """When the table of topics last changed, wall ms of the leader."""
        return self.topics.version.timestamp

    def is_ordered(self, group: str) -> bool:
        """Return whether the group's queues have holders: by configuration, or since its first lock.

        One that is declared concurrent has them only while a queue is held. Replicas that do not know the declaration yet
        keep the same locks: they fence too much, never too little.
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
        """Return whether all members of a group broadcast: each keeps its own offsets, and nothing waits for those here.

        One member that broadcasts says nothing about the others. The lock of a client that is no member is of one that consumes
        in order, and no member that broadcasts gets lanes.
        """
        if not self.members.all_broadcast(group) or self.is_by_key(group):
            return False
        members = self.members.of_group(group)
        held = sum(len(self.locks.held_by(client_id, group)) for client_id in members)

        return held == self.locks.held_of[group]

    def oldest_kept_ms(self, wall_ms: int, age_ms: int) -> int:
        """Return the store time below which messages are older than *age_ms*; restored ones count from the restore."""
        oldest_ms = wall_ms - age_ms

        return oldest_ms if oldest_ms > self.restored_ms else 0

    def digest(self) -> str:
        """Return a hash of all that replicas must agree on at equal indexes."""
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
        """Assert what always holds inside one state (ordering rules 1, 2, 3 and 8)."""
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
