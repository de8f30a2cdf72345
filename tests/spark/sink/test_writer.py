"""The ordered sink sends the missing rows of a partly stored run; with real brokers, without Spark."""

import pickle
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from orderlymq.errors import SettingError
from orderlymq.message import Message
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import UnorderedRows
from orderlymq_spark.options import Connect, parse_sink
from orderlymq_spark.sink.messages import QueueMessages
from orderlymq_spark.sink.writer import OrderedBatchWriter, send_messages
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]


@pytest.mark.parametrize(
    "stored", [(), (0,), (0, 1, 2), (0, 2), (0, 2, 5), (0, 1, 3, 4, 6, 7, 8), tuple(range(9))]
)
def test_a_row_that_is_not_stored_is_sent_whatever_is_stored_behind_it(
    topics: Topics, stored: tuple[int, ...]
) -> None:
    """A frame that overlaps an earlier one may have new rows anywhere; none is lost and none is sent twice."""
    topic = topics.make(queues=1)
    (queue,) = topics.queues(topic)
    access = access_to(Connect(topics.bootstrap))
    messages = [
        Message(topic=topic, body=b"x", key="k", unique_key=f"{topic}-{number}")
        for number in range(9)
    ]
    if stored:
        send_messages(
            access, [QueueMessages(queue, [messages[number] for number in stored])], 1 << 20
        )

    sent = send_messages(access, [QueueMessages(queue, messages)], 1 << 20)

    assert sent.count == 9 - len(stored)
    found = [message.message_id for message in topics.read(topic)[queue]]
    late = [number for number in range(9) if number not in stored]
    assert found == [f"{topic}-{number}" for number in (*stored, *late)]


def test_what_is_stored_in_the_midst_of_a_run_is_found(topics: Topics) -> None:
    """Looking at a few places of the run is not enough: once, 120 of 1000 rows were all sent again."""
    topic = topics.make(queues=1)
    (queue,) = topics.queues(topic)
    access = access_to(Connect(topics.bootstrap))
    messages = [
        Message(topic=topic, body=b"x", key="k", unique_key=f"{topic}-{number}")
        for number in range(1000)
    ]
    send_messages(access, [QueueMessages(queue, messages[300:420])], 1 << 20)

    assert send_messages(access, [QueueMessages(queue, messages)], 1 << 20).count == 880


def tries(topics: Topics, topic: str, loads: Sequence[Sequence[list[dict[str, Any]]]]) -> None:
    """Write loads; each is tried with these rows one after the other, each time by a new writer."""
    columns = {"sharding_key": "string", "body": "string", "at": "bigint"}
    options = parse_sink(
        {
            "bootstrap": topics.bootstrap,
            "topic": topic,
            "appId": "job",
            "orderBy": "at",
            "batchBytes": "1",
        }
    )
    for load in loads:
        # Spark makes the writer once, on the driver, and pickles it for every task.
        pickled = pickle.dumps(OrderedBatchWriter(options, columns))
        for number, rows in enumerate(load):
            batch = pa.RecordBatch.from_pylist(rows)
            if number < len(load) - 1:
                with pytest.raises(SettingError):
                    pickle.loads(pickled).write(iter([batch]))
            else:
                pickle.loads(pickled).write(iter([batch]))


def test_a_task_that_is_tried_again_with_another_order_sends_each_row_once(
    topics: Topics,
) -> None:
    """A shuffle gives the rows in a new order each time, and orderBy leaves ties open."""
    topic = topics.make(queues=2)
    chance = Random(1)
    rows = [{"sharding_key": f"k{n % 3}", "body": f"b{n}", "at": n // 6} for n in range(30)]
    # The last row cannot be sent, so the first try fails after all others.
    deadly = {"sharding_key": "k0", "body": "b" * (16 << 20), "at": 3}
    one = [*chance.sample(rows, 30), deadly], chance.sample(rows, 30)

    tries(topics, topic, [one])

    found = [m for messages in topics.read(topic).values() for m in messages]
    assert sorted(m.text for m in found) == sorted(f"b{n}" for n in range(30))
    for key in ("k0", "k1", "k2"):
        order = [int(m.text[1:]) // 6 for m in found if m.key == key]
        assert order == sorted(order)


def test_a_first_try_that_another_overtakes_adds_nothing(topics: Topics) -> None:
    """Spark gives up a task that hangs and tries it elsewhere, without waiting for the end of the first try."""
    topic = topics.make(queues=1, ordered=False)  # without a duplicate window
    options = parse_sink({"bootstrap": topics.bootstrap, "topic": topic, "appId": "job"})
    pickled = pickle.dumps(
        OrderedBatchWriter(options, {"sharding_key": "string", "body": "string"})
    )
    rows = [{"sharding_key": "k", "body": f"b{number}"} for number in range(9)]
    batch = pa.RecordBatch.from_pylist(rows)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch
        pickle.loads(pickled).write(iter([batch]))

    first = pickle.loads(pickled).write(overtaken())

    assert first.count == 0
    assert [m.text for m in next(iter(topics.read(topic).values()))] == [r["body"] for r in rows]


def test_what_its_first_producer_could_send_the_sink_can_send_again(topics: Topics) -> None:
    """A cluster stores bodies that exceed a producer's limit: compressed ones, or those of producers with another limit."""
    topic = topics.make(queues=1)
    body = "b" * (5 << 20)

    tries(topics, topic, [[[{"sharding_key": "k", "body": body, "at": 0}]]])

    assert [m.text for m in next(iter(topics.read(topic).values()))] == [body]


def test_a_second_load_of_the_same_rows_is_another_one(topics: Topics) -> None:
    """Tonight's load may have the same rows as last night's."""
    topic = topics.make(queues=1)
    rows = [{"sharding_key": "k", "body": "x", "at": 0}] * 3

    tries(topics, topic, [[rows], [rows]])

    assert sum(map(len, topics.read(topic).values())) == 6


def test_rows_alike_without_a_key_in_two_tasks_are_refused(topics: Topics) -> None:
    """The rows would have the same identity; the error says how to bring them into one task."""
    options = parse_sink({"bootstrap": topics.bootstrap, "topic": topics.make(), "appId": "job"})
    writer = OrderedBatchWriter(options, {"body": "string"})
    rows = pa.RecordBatch.from_pylist([{"body": "x"}])

    said = [writer.write(iter([rows])) for _ in range(2)]

    with pytest.raises(UnorderedRows, match="or rows without a key"):
        writer.commit(said)
