"""Reads for lanes: a queue's messages in steps, and runs of a lane's index."""

from orderlymq_broker.processors.lanes.scan import runs_at
from orderlymq_broker.state.lanes.lane import RUN_MAX
from orderlymq_broker.state.tables import encode_row
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import Table, table_key
from tests.broker.store.memory import MemoryStore

PLACE = ("g", "t", 0)


def index(*runs: tuple[int, ...]) -> MemoryStore:
    """Return a store with the runs of a lane, and one run of the lane behind it."""
    store, batch = MemoryStore(), Batch()
    for lane, run in (*((7, run) for run in runs), (8, (99_999,))):
        key = table_key(Table.LANE_OFFSETS, *PLACE, lane, run[0])
        batch.put(Family.TABLES, key, encode_row(run))
    store.write(batch, sync=True)
    return store


def test_a_run_is_read_from_where_it_begins() -> None:
    """Law: a read begins at the first run that is left, because a store would walk over thousands of deleted ones."""
    store = index((0, 1), (2, 3), (4,))

    assert runs_at(store, PLACE, 7, 2) == ((2, 3, 4), -1)
    assert runs_at(store, PLACE, 7, 4) == ((4,), -1)
    assert runs_at(store, PLACE, 7, 5) == ((), -1)


def test_whole_runs_are_read_and_no_more_than_one_may_have() -> None:
    """Law: whole runs are read, several short ones together, but no more offsets than one run may have."""
    full = tuple(range(1_000, 1_000 + RUN_MAX))
    ones = [(each,) for each in range(2 * RUN_MAX)]

    assert runs_at(index(*ones), PLACE, 7, 0) == (tuple(range(RUN_MAX)), RUN_MAX)
    assert runs_at(index(*ones), PLACE, 7, RUN_MAX) == (tuple(range(RUN_MAX, 2 * RUN_MAX)), -1)
    assert runs_at(index((1, 2), full, (3_000,)), PLACE, 7, 1) == ((1, 2), 1_000)
    assert runs_at(index((1,), (2,), full), PLACE, 7, 1) == ((1, 2), 1_000)
    assert runs_at(index(full, (3_000,)), PLACE, 7, 1_000) == (full, 3_000)
    assert runs_at(index(full[1:], (3_000,)), PLACE, 7, 1_001) == ((*full[1:], 3_000), -1)
