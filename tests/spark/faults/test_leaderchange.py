"""A leader dies during a batch: the effects on reads and sends, tested without Spark."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderlymq.blocking import AdminClient
from orderlymq.message import Message
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import Connect, parse_source
from orderlymq_spark.sink.messages import QueueMessages
from orderlymq_spark.sink.writer import send_messages
from orderlymq_spark.source.queuereader import message_schema, read_range
from tests.cluster.processes import Group
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(150)]

COUNT = 20_000


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Group]:
    with Group(tmp_path, 3) as group:
        yield group


def kill_leader(group: Group) -> None:
    leader = group.wait_for_leader()
    group.brokers[leader].signal(signal.SIGKILL)
    group.brokers[leader].wait()


def test_a_batch_whose_leader_dies_is_read_on_from_the_next_one(three: Group) -> None:
    """Every offset is read once, in order, with its body; the reader continues the range where it was."""
    with AdminClient(three.name_server_address) as admin:
        topics = Topics(three.name_server_address, admin)
        topic = topics.make(queues=1)
        topics.bulk(topic, COUNT, size=200, text=True)
        (queue,) = topics.queues(topic)
        expected = [message.body for message in topics.read(topic)[queue]]
    options = parse_source({"bootstrap": three.name_server_address, "topic": topic})
    offsets: list[int] = []
    bodies: list[bytes] = []

    batches = read_range(options, message_schema(options), QueueRange(queue, 0, COUNT))
    for number, batch in enumerate(batches):
        offsets += batch.column("queue_offset").to_pylist()
        bodies += batch.column("body").to_pylist()
        if number == 0:
            kill_leader(three)

    assert number > 0, "the whole range came before the leader died"
    assert offsets == list(range(COUNT))
    assert bodies == expected


def test_a_run_whose_leader_dies_is_stored_once_and_in_order(three: Group) -> None:
    """Each message is stored once, whether the dead leader had acknowledged it, only stored it, or never received it."""
    with AdminClient(three.name_server_address) as admin:
        topics = Topics(three.name_server_address, admin)
        topic = topics.make(queues=1)
        (queue,) = topics.queues(topic)
        access = access_to(Connect(three.name_server_address))
        messages = [
            Message(topic=topic, body=b"%d" % n, key="k", unique_key=f"{topic}-{n}")
            for n in range(COUNT)
        ]
        dying = threading.Thread(target=_kill_when_it_has_begun, args=(three, topics, topic))
        dying.start()
        send_messages(access, [QueueMessages(queue, messages)], 16 << 10)
        assert not dying.is_alive(), "the whole run was sent before the leader died"
        dying.join()

        found = [message.body for message in topics.read(topic)[queue]]

    assert found == [message.body for message in messages]


def _kill_when_it_has_begun(group: Group, topics: Topics, topic: str) -> None:
    access = access_to(Connect(group.name_server_address))
    (queue,) = topics.queues(topic)
    while access.bounds([queue])[1][queue] < 300:
        pass
    kill_leader(group)
