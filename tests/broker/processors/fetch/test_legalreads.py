"""A read fails only if files of the store are lost, and never in a complete store."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.processors.fetch.read import Matches, PropertyTest, read_queue
from orderlymq_broker.processors.lanes.scan import Budget, messages_at, messages_from, physical_at
from orderlymq_broker.state.records import (
    Append,
    QueueFloor,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_protocol.message.record import iter_records
from tests.broker.state.entries import WALL_MS, Replica, stored

TOPICS, QUEUES = ("orders", "bills"), 2
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "trim", "drop", "drop", "again", "restart", "forget"]),
        st.sampled_from(TOPICS),
        st.integers(0, QUEUES - 1),
        st.integers(0, 80),
    ),
    max_size=10,
)


def send(replica: Replica, name: str, number: int, count: int) -> None:
    """Send messages; the first one of a queue is at the place where another cluster's queue may begin."""
    queue = replica.state.topics.by_name[name].queue(number)
    offset, physical = queue.next_offset or count, replica.state.physical_end
    records, messages = [], []
    for each in range(count):
        message = stored(offset + each, physical, queue_id=number)
        records.append(
            Append(
                queue.topic_id,
                number,
                offset + each,
                physical,
                len(message),
                each % 3,
                WALL_MS,
                "",
                "",
                b"",
                number,
            )
        )
        messages.append(message)
        physical += len(message)
    replica.take(*records, messages=messages)


def change(replica: Replica, step: str, name: str, number: int, amount: int) -> Replica:
    """Apply one event that may happen to a store; return the replica that goes on."""
    queue = replica.state.topics.by_name[name].queue(number)
    share = (queue.next_offset - queue.min_offset) * amount // 100
    match step:
        case "send":
            send(replica, name, number, 1 + amount)
        case "trim":
            floor = QueueFloor(queue.topic_id, number, queue.min_offset + share)
            replica.take(RetentionAdvanced((floor,)))
        case "drop" if share:
            # Behind the other queues, as after messages that lanes owe.
            place = place_of(replica, queue, queue.min_offset + share - 1)
            replica.take(RetentionAdvanced((), place or 0))
        case "again":
            replica.take(TopicDeleted(name), TopicSet(name, QUEUES, QUEUES))
        case "restart":
            return replica.restarted()
        case "forget":
            replica.state.tail.resize(50 * amount)
    return replica


def place_of(replica: Replica, queue: Queue, offset: int) -> int | None:
    return physical_at(replica.store, queue, offset)


def read_all(replica: Replica, queue: Queue, matches: Matches | None) -> Iterator[int]:
    """Yield the offsets that a consumer gets that begins at the first kept message."""
    at = queue.min_offset
    while at < queue.next_offset:
        reading = read_queue(replica.store, queue, at, matches=matches)
        for message in reading.messages:
            yield from (each.queue_offset for each in iter_records(message))
        assert reading.next_offset > at
        at = reading.next_offset


@given(STEPS)
@hypothesis_settings(max_examples=40, deadline=None)
def test_no_read_fails_whatever_has_happened(steps: list[tuple[str, str, int, int]]) -> None:
    """Law: consumers, lanes and administrators read all messages that retention has left, in order, after any events."""
    replica = Replica()
    replica.take(*(TopicSet(name, QUEUES, QUEUES) for name in TOPICS))
    replica.state.tail.resize(1_000)
    for step in steps:
        replica = change(replica, *step)

        for queue in replica.state.topics.queues():
            offsets = range(queue.min_offset, queue.next_offset)
            floor = replica.state.floor
            kept = {each for each in offsets if (place_of(replica, queue, each) or 0) >= floor}
            around = range(max(0, queue.min_offset - 2), queue.next_offset + 2)
            at = zip(around, messages_at(replica.store, queue, around), strict=True)
            seen = messages_from(replica.store, queue, 0, None, Budget(), lambda: 8)
            for found in (
                [offset for offset, message in at if message is not None],
                [each.offset for each in seen if each.message is not None],
                list(read_all(replica, queue, None)),
                list(read_all(replica, queue, PropertyTest(lambda _: True))),
            ):
                # Some deleted messages are still in memory.
                assert found == sorted(found)
                assert kept <= set(found) <= set(range(queue.next_offset))
            by_tag = list(read_all(replica, queue, lambda code: code == 1))
            assert by_tag == sorted(by_tag)
