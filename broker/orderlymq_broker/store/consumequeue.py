"""
Reads the consume queues from the store: consecutive entries, and the messages that they name.

The rule: what the tables list must exist. A store that has lost a file may still open, and a reader that
skipped a missing entry or message would skip acknowledged data. So a read that misses one fails, and the
replica stops.
"""

from collections.abc import Sequence

from orderlymq_broker.store.kv import Family, Reader, StoreFailed
from orderlymq_broker.store.layout import META_APPLIED, decode_applied, decode_u64, queue_key

_CURE = "files of the store are lost or cut short; stop this replica, run 'orderlymq doctor' on it and restore it from its peers"


def read_entries(
    reader: Reader, topic_id: int, queue_id: int, start: int, count: int
) -> list[tuple[bytes, bytes]]:
    """Return key and value of *count* existing entries of a queue from the offset *start* on.

    Raises:
        StoreFailed: one is missing.
    """
    first, end = (queue_key(topic_id, queue_id, each) for each in (start, start + count))
    pairs = reader.scan(Family.CONSUME_QUEUE, first, end, limit=count)
    if len(pairs) != count:
        raise StoreFailed(
            f"queue {queue_id} of topic id {topic_id} has {len(pairs)} of {count} entries from "
            f"offset {start} on: {_CURE}"
        )

    return pairs


def read_places(
    reader: Reader, topic_id: int, queue_id: int, offsets: Sequence[int]
) -> list[bytes]:
    """Return the values of single existing entries of a queue, in the order of *offsets*.

    Raises:
        StoreFailed: one is missing.
    """
    keys = [queue_key(topic_id, queue_id, offset) for offset in offsets]
    places: list[bytes] = []
    for offset, value in zip(
        offsets, reader.multi_get(Family.CONSUME_QUEUE, keys) if keys else [], strict=True
    ):
        if value is None:
            raise StoreFailed(
                f"queue {queue_id} of topic id {topic_id} has no entry at offset {offset}: {_CURE}"
            )
        places.append(value)

    return places


def read_messages(reader: Reader, places: Sequence[bytes]) -> list[bytes | None]:
    """Return the stored records at the *places* that applied entries name; None for those that retention has dropped.

    Raises:
        StoreFailed: one is missing.
    """
    found = reader.multi_get(Family.MESSAGES, places) if places else []
    if None in found:
        floor = decode_applied(reader.get(Family.META, META_APPLIED)).floor
        for place, message in zip(places, found, strict=True):
            if message is None and decode_u64(place) >= floor:
                raise StoreFailed(
                    f"the message at physical offset {decode_u64(place)} is missing: {_CURE}"
                )

    return found
