"""Reads for lanes: messages of a queue in steps, and runs of a lane's index."""

from orderlymq_broker.processors.lanes.scan import run_at
from orderlymq_broker.state.tables import encode_row
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import Table, table_key
from tests.broker.store.memory import MemoryStore

PLACE = ("g", "t", 0)


def test_a_run_is_read_from_where_it_begins() -> None:
    """The rows before it have left the index: a store goes over the remains of thousands of runs as over runs."""
    store, batch = MemoryStore(), Batch()
    for lane, run in ((7, (0, 1)), (7, (2, 3)), (7, (4,)), (8, (5,))):
        key = table_key(Table.LANE_OFFSETS, *PLACE, lane, run[0])
        batch.put(Family.TABLES, key, encode_row(run))
    store.write(batch, sync=True)

    assert run_at(store, PLACE, 7, 2) == ((2, 3), 4)
    assert run_at(store, PLACE, 7, 4) == ((4,), -1)
    assert run_at(store, PLACE, 7, 5) == ((), -1)
