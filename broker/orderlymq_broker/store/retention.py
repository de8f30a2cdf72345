"""
Clearing away what retention has left behind: index entries that lead to dropped messages.

The rule: when and how far messages are dropped is decided by the state machine, the same on every
replica and as whole ranges; what is done here is local work that changes no answer, because a
reader of the index asks for the message itself. `RocksStore.reclaim` gives the files back.
"""

from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family, Reader

# Index entries looked at in one step of the sweep: well under a millisecond of the event loop.
SWEEP_COUNT = 256

_INDEX_END = b"\xff" * 16


def sweep_index(reader: Reader, batch: Batch, *, cursor: bytes, floor_physical: int) -> bytes:
    """Add to *batch* the deletion of index entries of dropped messages, from *cursor* on.

    Returns the next cursor, empty when the whole index was seen; begin with an empty one. The
    entries are ordered by text, so no range holds all the old ones: a slow walk finds them.
    """
    pairs = reader.scan(Family.KEY_INDEX, cursor or b"\x00", _INDEX_END, limit=SWEEP_COUNT)
    for key, _ in pairs:
        if layout.decode_u64(key[-8:]) < floor_physical:
            batch.delete(Family.KEY_INDEX, key)

    return pairs[-1][0] + b"\x00" if len(pairs) == SWEEP_COUNT else b""
