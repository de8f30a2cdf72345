"""Reads of queues in a store that has lost rows which its tables expect."""

import pytest

from orderlymq_broker.store.consumequeue import read_entries, read_messages
from orderlymq_broker.store.kv import Batch, Family, StoreFailed
from orderlymq_broker.store.layout import (
    META_APPLIED,
    Applied,
    encode_applied,
    message_key,
    queue_key,
)
from tests.broker.store.memory import MemoryStore

TOPIC, QUEUE = 7, 2


@pytest.fixture
def store() -> MemoryStore:
    """Ten queue entries and messages; retention has deleted the messages before 30."""
    store, batch = MemoryStore(), Batch()
    for number in range(10):
        batch.put(Family.CONSUME_QUEUE, queue_key(TOPIC, QUEUE, number), b"entry %d" % number)
        if number >= 3:
            batch.put(Family.MESSAGES, message_key(10 * number), b"message %d" % number)
    batch.put(Family.CONSUME_QUEUE, queue_key(TOPIC, QUEUE + 1, 0), b"of another queue")
    batch.put(Family.META, META_APPLIED, encode_applied(Applied(1, 1, 100, 30)))
    store.write(batch, sync=True)
    return store


def test_what_is_there_is_read(store: MemoryStore) -> None:
    """Law: entries are read in order; messages in the order of the wanted places, None for those that retention deleted."""
    pairs = read_entries(store, TOPIC, QUEUE, 4, 3)
    messages = read_messages(store, [message_key(place) for place in (50, 20, 30)])

    assert [value for _, value in pairs] == [b"entry 4", b"entry 5", b"entry 6"]
    assert messages == [b"message 5", None, b"message 3"]
    assert read_messages(store, []) == []


@pytest.mark.parametrize("gone", [4, 5, 6, 9])
def test_a_missing_entry_fails_the_read(store: MemoryStore, gone: int) -> None:
    """Law: a missing queue entry fails the read, at the begin, inside and at the end, even if the next queue follows."""
    batch = Batch()
    batch.delete(Family.CONSUME_QUEUE, queue_key(TOPIC, QUEUE, gone))
    store.write(batch, sync=True)

    with pytest.raises(StoreFailed, match="has 5 of 6 entries from offset 4 on: files"):
        read_entries(store, TOPIC, QUEUE, 4, 6)


def test_a_missing_message_fails_the_read(store: MemoryStore) -> None:
    """Law: a message that is missing above the retention floor fails the read, because files of the store are lost."""
    batch = Batch()
    batch.delete(Family.MESSAGES, message_key(60))
    store.write(batch, sync=True)

    with pytest.raises(StoreFailed, match="physical offset 60 is missing: files"):
        read_messages(store, [message_key(place) for place in (50, 60, 70)])
