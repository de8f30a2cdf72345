"""What the ordered sink sends of a run that is stored in part; against real brokers, without Spark."""

import pytest

from orderlymq.message import Message
from orderlymq_spark.access import access_to
from orderlymq_spark.options import Connect
from orderlymq_spark.outgoing import Run
from orderlymq_spark.sink import send_runs
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]


@pytest.mark.parametrize(
    "stored", [(), (0,), (0, 1, 2), (0, 2), (0, 2, 5), (0, 1, 3, 4, 6, 7, 8), tuple(range(9))]
)
def test_a_row_that_is_not_stored_is_sent_whatever_is_stored_behind_it(
    topics: Topics, stored: tuple[int, ...]
) -> None:
    """A frame that overlaps one of before may have new rows anywhere; none is lost and none comes twice."""
    topic = topics.make(queues=1)
    (queue,) = topics.queues(topic)
    access = access_to(Connect(topics.bootstrap))
    messages = [
        Message(topic=topic, body=b"x", key="k", unique_key=f"{topic}-{number}")
        for number in range(9)
    ]
    if stored:
        send_runs(access, [Run(queue, [messages[number] for number in stored])], 1 << 20)

    count = send_runs(access, [Run(queue, messages)], 1 << 20)

    assert count == 9 - len(stored)
    found = [message.message_id for message in topics.read(topic)[queue]]
    late = [number for number in range(9) if number not in stored]
    assert found == [f"{topic}-{number}" for number in (*stored, *late)]
