"""Queues: where they begin and end after a restart, and which messages are in memory."""

import gc
import tracemalloc
from collections import deque
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.state.records import (
    QueueFloor,
    RetentionAdvanced,
    TopicSet,
    encode_records,
)
from orderlymq_broker.state.topics.queues import LEFT_MIN, RANGE_MIN, Queue, Tail, TailCache
from orderlymq_broker.state.topics.rows import TailEntry
from orderlymq_broker.store.entry import encode_entry, split_entry
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import decode_queue_key, queue_bounds
from tests.broker.state.entries import WALL_MS, Replica


@pytest.mark.parametrize("floor", [0, 1, 2, 3])
def test_a_restarted_replica_finds_each_queue_where_it_was(replica: Replica, floor: int) -> None:
    """Law: a restarted replica finds each queue's begin, end and newest time, trimmed, emptied or not."""
    replica.take(TopicSet("a", 3, 3), TopicSet("b", 2, 2))
    for topic_id, queue_id in ((1, 0), (1, 2), (2, 0), (2, 1)):
        for number in range(3):
            replica.append(topic_id, queue_id, timestamp=WALL_MS + number)
    replica.take(RetentionAdvanced((QueueFloor(1, 2, floor), QueueFloor(2, 0, floor))))
    replica.append(2, 0, timestamp=WALL_MS + 9)

    again = replica.restarted().state

    assert sorted(queue.row() for queue in again.topics.queues()) == [
        (1, 0, 0, 3, WALL_MS + 2),
        (1, 2, floor, 3, WALL_MS + 2),
        (2, 0, floor, 4, WALL_MS + 9),
        (2, 1, 0, 3, WALL_MS + 2),
    ]
    assert again.last_timestamp == WALL_MS + 9


@pytest.mark.parametrize(("count", "ranges"), [(RANGE_MIN - 1, 0), (RANGE_MIN, 1)])
def test_a_few_entries_of_a_queue_go_one_by_one(replica: Replica, count: int, ranges: int) -> None:
    """Law: a few queue entries are deleted one by one, because ranges slow down readers of other queues;
    many are one range.
    """
    replica.take(TopicSet("a", 1, 1))
    for _ in range(count + 1):
        replica.append(1, 0)
    record, batch = RetentionAdvanced((QueueFloor(1, 0, count),)), Batch()
    data = encode_entry(encode_records([record]), [], replica.state.physical_end, WALL_MS)

    replica.machine.apply(replica.state.applied_index + 1, 1, split_entry(data), batch)

    assert len(batch.range_deletes) == ranges
    replica.store.write(batch, sync=True)
    assert replica.restarted().state.topics.by_id[1].queue(0).min_offset == count
    rows = replica.store.scan(Family.CONSUME_QUEUE, *queue_bounds(1, 0), limit=count)
    assert [decode_queue_key(key)[2] for key, _ in rows] == [count]


def entry(number: int, size: int) -> TailEntry:
    return TailEntry(number, 0, number, bytes(size), 0, size)


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 100)), max_size=20))
def test_a_tail_is_what_came_without_what_has_left(steps: list[tuple[int, int]]) -> None:
    """Law: a tail holds the entries that were added and not removed; a deque is the slow twin."""
    tail, twin = Tail(), deque[TailEntry]()
    number = 0
    for come, leave in steps:
        for _ in range(come):
            number += 1
            tail.append(entry(number, 1))
            twin.append(entry(number, 1))
        left = min(leave, len(twin))
        assert [tail.pop_oldest() for _ in range(left)] == [twin.popleft() for _ in range(left)]

        assert (len(tail), list(tail)) == (len(twin), list(twin))
        assert [tail[place] for place in range(len(twin))] == list(twin)
        assert tail.part(leave // 2, leave) == list(twin)[leave // 2 : leave]
        assert len(tail._entries) <= max(2 * len(twin), len(twin) + LEFT_MIN), "places are kept"


def test_the_middle_of_a_long_tail_is_read_as_fast_as_its_begin() -> None:
    """Law: the middle of a long tail is read as fast as its begin; in a deque of 300,000 each message took 20 us."""
    tail = Tail()
    for number in range(200_000):
        tail.append(entry(number, 1))

    def fastest(start: int) -> float:
        times = []
        for _ in range(20):
            began = perf_counter()
            assert len([tail[place] for place in range(start, start + 32)]) == 32
            times.append(perf_counter() - began)
        return min(times)

    assert fastest(len(tail) // 2) < 8 * fastest(0)


def test_what_fits_exactly_is_kept_and_one_byte_more_lets_the_oldest_go() -> None:
    """Law: a cache that is exactly full keeps all; one byte more drops only as many of the oldest messages as needed."""
    cache, queue = TailCache(300), Queue(1, 0)
    for number, size in enumerate((100, 100, 100)):
        queue.next_offset += 1
        cache.add(queue, entry(number, size))
    assert (len(cache), cache.size, queue.tail_start) == (3, 300, 0)

    queue.next_offset += 1
    cache.add(queue, entry(3, 1))

    assert (len(cache), cache.size, queue.tail_start) == (3, 201, 1)
    assert [each.physical for each in queue.tail] == [1, 2, 3]


def test_a_smaller_limit_counts_immediately_and_for_what_comes_later() -> None:
    """Law: a smaller limit takes effect immediately; a message larger than the limit is not kept."""
    cache, queue = TailCache(300), Queue(1, 0)
    for number in range(3):
        queue.next_offset += 1
        cache.add(queue, entry(number, 100))

    cache.resize(200)
    assert (len(cache), cache.size, queue.tail_start) == (2, 200, 1)
    queue.next_offset += 1
    cache.add(queue, entry(3, 201))

    assert (len(cache), cache.size, queue.tail_start) == (0, 0, 4)


def test_a_queue_without_messages_in_memory_costs_little() -> None:
    """Law: a queue without messages in memory takes less than 100 bytes; 320,000 empty tails once took 200 MB."""
    cache, count = TailCache(100), 2_000
    queues = [Queue(1, number) for number in range(count)]
    gc.collect()
    tracemalloc.start()
    try:
        for number, queue in enumerate(queues):
            queue.next_offset, queue.last_timestamp = 1, number
            cache.add(queue, entry(number, 50))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert held < 100 * count
    assert [len(queue.tail) for queue in queues] == [0] * (count - 2) + [1, 1]
    for queue in queues:
        queue.check()


def test_a_queue_begins_with_nothing() -> None:
    """Law: a new queue starts with zeros, so that replicas agree however it was made."""
    assert Queue(7, 3).row() == (7, 3, 0, 0, 0)
