"""The place of a known send in the duplicate window; ``duplicates.py`` reads and writes it."""

import msgspec


class FirstSend(msgspec.Struct, frozen=True, gc=False):
    """The place of the first send of an identity, as in the answer to its sender.

    There are hundreds of thousands of them, so they are excluded from the garbage collector's scans.
    """

    queue_id: int
    queue_offset: int
    physical: int
    store_timestamp: int
    cancelled_ms: int = 0  # when it was taken back, by the leader's clock; 0 if it was not
