"""
The laws of disks, checked after a run: each disk is read as a restart would read it.

Rules: a replica would restart with the state that it has now. Every disk holds the content of the log, byte for byte
the same. The messages of the topic are where they were acknowledged, with the content that was sent.
"""

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING

from orderlymq_broker.processors.fetch.read import read_queue
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.store.kv import Family
from orderlymq_protocol.message.properties import UNIQ_KEY, decode_properties
from orderlymq_protocol.message.record import StoredMessage, iter_records
from tests.broker.store.memory import MemoryStore

if TYPE_CHECKING:
    from tests.sim.world import World

Place = tuple[int, int, int]  # topic id, queue, offset


def check_disks(world: "World") -> None:
    """Read the disks of all members and compare them with each other and with the log."""
    laws, model = world.laws, world.laws.model
    whole: dict[Place, bytes] = {}
    for node in sorted(world.members):
        replica = world.replicas[node]
        found = BrokerState(replica.store)
        laws.ensure(
            found.digest() == replica.state.digest(),
            "same disk",
            f"{replica.name} would begin with another state than it has at entry "
            f"{replica.state.applied_index}",
        )
        _check_topics(world, replica.name, found, replica.store)
        for place, message in _messages(found, replica.store):
            other = whole.setdefault(place, message)
            laws.ensure(
                message == other, "same disk", f"{replica.name} has another message at {place}"
            )
            if place[0] == world.topic_id:
                (stored,) = iter_records(message)
                laws.ensure(
                    stored.queue_offset == place[2] and _key(stored) == model.at[place],
                    "same disk",
                    f"{replica.name} has {stored} at {place}, sent was {model.at[place]}",
                )


def _check_topics(world: "World", name: str, state: BrokerState, store: MemoryStore) -> None:
    """Check that no row of a deleted topic is left, neither on the disk nor among the pending writes."""
    number = Struct(">I")
    for family in (Family.CONSUME_QUEUE, Family.KEY_INDEX):
        for key, _ in store.scan(family, b"", b"\xff" * 9, limit=1 << 20):
            world.laws.ensure(
                number.unpack_from(key)[0] in state.topics.by_id,
                "lives",
                f"{name} has a row {key!r} in {family.name} of a topic that is gone",
            )


def _messages(state: BrokerState, store: MemoryStore) -> Iterator[tuple[Place, bytes]]:
    for topic_id, topic in sorted(state.topics.by_id.items()):
        for queue_id, queue in sorted(topic.queues.items()):
            offset = queue.min_offset
            while True:
                reading = read_queue(store, queue, offset)
                if not reading.messages:
                    break
                for message in reading.messages:
                    yield (topic_id, queue_id, offset), bytes(message)
                    offset += 1


def _key(message: StoredMessage) -> str:
    """Return the unique key of a message whose body is the same text, else an empty text."""
    key = decode_properties(message.properties).get(UNIQ_KEY, "")
    return key if message.body == key.encode() else ""
