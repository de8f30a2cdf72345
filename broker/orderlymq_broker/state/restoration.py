"""
Changes of a state when a backup becomes a new cluster.

The rule: epochs and attempts that clients of the former cluster got after the backup was made are invalid in the new
one. All locks are free, lanes are handed out again, and all epochs and attempts begin above those that the former
cluster may have given. Offsets continue from the backup. A client that sends no epoch must be stopped before, or must
find queues with other names. Messages, offsets, parked keys, delays, transactions and accounts do not change. Every
replica that restores the same backup computes the same state, except for the time of the restore. Ages count from
that time, because the restored messages were out of reach while the backup was stored, and would otherwise be too old
immediately.
"""

from typing import Final

from orderlymq_broker.state.broker import OPERATOR_ROW, RESTORED_ROW, BrokerState
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.store.layout import Table

# More changes of holder than a queue sees between a backup and the end of its cluster. It is far below the
# 2**53 that JavaScript can read, so that restored clusters may be backed up and restored a million times.
FENCE_STEP: Final = 1 << 32


def fence(state: BrokerState, writes: TableWrites, *, taken_ms: int, restored_ms: int) -> None:
    """Remove the clients and operators of the former cluster from *state*; the times are those of backup and restore."""
    for group in list(state.members.groups()):
        for client_id in list(state.members.of_group(group)):
            state.members.leave(group, client_id, writes)
    state.locks.fence(FENCE_STEP, writes)
    state.lanes.fence(FENCE_STEP, taken_ms, writes)
    # Assignments name clients and brokers of the former cluster.
    for group in sorted({row[0].group for row in state.assignments.rows()}):
        state.assignments.drop(writes, group=group)
    # The operator of the new cluster counts its tokens from the beginning.
    state.operator_token = 0
    writes.delete(Table.COUNTERS, OPERATOR_ROW)
    state.restored_ms = restored_ms
    writes.put(Table.COUNTERS, RESTORED_ROW, value=restored_ms)
