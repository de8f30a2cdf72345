"""The place of a known send, as the duplicate window keeps it; ``duplicates.py`` reads and writes it."""

import msgspec


class FirstSend(msgspec.Struct, frozen=True, gc=False):
    """Where the first send of an identity went, as the answer to its sender said.

    There are hundreds of thousands of them: they are nothing that the collector looks through.
    """

    queue_id: int
    queue_offset: int
    physical: int
    store_timestamp: int
    cancelled_ms: int = 0  # when it was taken back, by the leader's clock; 0 as long as it stands
