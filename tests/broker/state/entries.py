"""Entries as a leader writes them, and a replica that applies them to a store."""

from collections.abc import Mapping, Sequence

from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Append, Outcome, Record, encode_records
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.store.entry import encode_entry, split_entry
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import message_key
from orderlymq_protocol.message.properties import encode_properties
from orderlymq_protocol.message.record import RecordTemplate, encode_with_positions, pack_host
from tests.broker.store.memory import MemoryStore

WALL_MS = 1_700_000_000_000
HOST = pack_host("192.0.2.1", 1)


def stored(
    queue_offset: int,
    physical: int,
    body: bytes = b"x",
    queue_id: int = 0,
    properties: Mapping[str, str] | None = None,
) -> bytes:
    """Return a message as it is stored at these offsets."""
    template = RecordTemplate(
        topic=b"orders",
        queue_id=queue_id,
        body=body,
        properties=encode_properties(properties or {}),
        flag=0,
        sys_flag=0,
        born_timestamp=0,
        born_host=HOST,
        store_timestamp=WALL_MS,
        store_host=HOST,
    )
    return encode_with_positions(template, queue_offset, physical)


class Replica:
    """A state machine and its store."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.state = BrokerState(self.store)
        self.machine = StateMachine(self.state)

    def apply(self, data: bytes) -> list[Outcome]:
        """Apply an encoded entry."""
        parts = split_entry(data)
        batch = Batch()
        outcomes = self.machine.apply(self.state.applied_index + 1, 1, parts, batch)
        physical, blob = parts.physical_start, parts.blob
        while blob:
            size = int.from_bytes(blob[:4], "big")
            batch.put(Family.MESSAGES, message_key(physical), bytes(blob[:size]))
            physical, blob = physical + size, blob[size:]
        self.store.write(batch, sync=True)
        return outcomes

    def take(
        self, *records: Record, messages: Sequence[bytes] = (), wall_ms: int = WALL_MS
    ) -> list[Outcome]:
        """Apply records as one entry at the end of this replica's log; return their outcomes."""
        data = encode_entry(encode_records(records), messages, self.state.physical_end, wall_ms)
        return self.apply(data)

    def append(
        self,
        topic_id: int,
        queue_id: int = 0,
        *,
        identity: bytes = b"",
        timestamp: int = WALL_MS,
        keys: str = "",
        unique_key: str = "",
    ) -> Outcome:
        """Apply one message at the end of a queue."""
        topic = self.state.topics.by_id.get(topic_id)
        offset = topic.queue(queue_id).next_offset if topic is not None else 0
        physical = self.state.physical_end
        message = stored(offset, physical, queue_id=queue_id)
        record = Append(
            topic_id,
            queue_id,
            offset,
            physical,
            len(message),
            7,
            timestamp,
            unique_key,
            keys,
            identity,
            queue_id,
        )
        return self.take(record, messages=[message])[0]

    def restarted(self) -> "Replica":
        """Return a replica that starts from the data in this one's store."""
        return Replica(self.store)

    def topic_id(self, name: str = "orders") -> int:
        """Return the id of a topic."""
        return self.state.topics.by_name[name].id
