"""
Dropping what is too old: whole ranges of messages, and the index entries that led to them.

The rule: the floor only rises, and what lies below it is deleted as one range, never message by
message. When and how far is decided by the state machine, the same on every replica; giving the
files back and sweeping the key index are local work that changes no answer.
"""

from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family, Reader

# Index entries looked at in one step of the sweep: about a millisecond of the event loop.
SWEEP_COUNT = 256


def messages_floor(reader: Reader) -> int:
    """Return the physical offset below which messages were dropped."""
    value = reader.get(Family.META, layout.META_MESSAGES_FLOOR)

    return 0 if value is None else layout.decode_u64(value)


def drop_messages(batch: Batch, floor_physical: int, *, since: int = 0) -> None:
    """Add to *batch* the deletion of all messages below *floor_physical*.

    *since* is the former floor; naming it keeps the deleted ranges apart, which reads like.
    """
    batch.delete_range(
        Family.MESSAGES, layout.message_key(since), layout.message_key(floor_physical)
    )
    batch.put(Family.META, layout.META_MESSAGES_FLOOR, layout.encode_u64(floor_physical))


def sweep_index(reader: Reader, batch: Batch, *, cursor: bytes, floor_physical: int) -> bytes:
    """Add to *batch* the deletion of index entries of dropped messages, from *cursor* on.

    Returns the next cursor, empty when the whole index was seen. The entries are ordered by
    text, so no range holds all the old ones: a slow walk finds them, a little at a time.
    """
    pairs = reader.scan(Family.KEY_INDEX, cursor or b"\x00", _INDEX_END, limit=SWEEP_COUNT)
    for key, _ in pairs:
        if layout.decode_u64(key[-8:]) < floor_physical:
            batch.delete(Family.KEY_INDEX, key)

    return pairs[-1][0] + b"\x00" if len(pairs) == SWEEP_COUNT else b""


_INDEX_END = b"\xff" * 16
