"""Spark waits during changes of the cluster, and reports lasting ones."""

import signal
import time
import tracemalloc
from pathlib import Path
from random import randbytes

import pytest

from orderlymq.blocking import AdminClient, Producer
from orderlymq.errors import BrokerError
from orderlymq.message import Message
from orderlymq_protocol.codes import ResponseCode
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import SourceUnavailable
from orderlymq_spark.options import Connect
from tests.cluster.processes import Group
from tests.spark.topics import Topics

FOLLOWER = BrokerError(
    ResponseCode.SYSTEM_ERROR,
    "this replica does not lead group demo-0, it has no leader; try again",
    "10.0.0.1:10911",
)


class Answers:
    """Gives a broker's answers one after the other, and the last one for ever."""

    def __init__(self, *answers: BrokerError | str) -> None:
        self.answers = list(answers)

    async def __call__(self) -> str:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BrokerError):
            raise answer
        return answer


def test_an_election_is_waited_out() -> None:
    """As RocketMQ's clients expect, a replica without a leader answers with a system error; reading goes on after it."""
    access = access_to(Connect("127.0.0.1:1"))

    assert access.wait(Answers(FOLLOWER, FOLLOWER, "found")) == "found"


def test_what_lasts_is_reported_with_the_brokers_words() -> None:
    """After retryTimeout the error has the broker's own text, and finished work is not lost."""
    access = access_to(Connect("127.0.0.1:1", retry_timeout_ms=100))

    with pytest.raises(SourceUnavailable, match=r"it has no leader.*waited 0\.1 s"):
        access.wait(Answers(FOLLOWER))


def test_a_refusal_is_not_waited_out() -> None:
    """A missing right is reported immediately, because waiting does not give it."""
    access = access_to(Connect("127.0.0.1:1"))

    for code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR):
        with pytest.raises(BrokerError, match="no right"):
            access.wait(Answers(BrokerError(code, "no right")))


@pytest.mark.cluster
def test_what_is_stored_is_looked_up_without_name_servers(tmp_path: Path) -> None:
    """A repeated load looks up each row; asking a name server before each look-up halved the speed."""
    with Group(tmp_path, 1) as group, AdminClient(group.name_server_address) as admin:
        topics = Topics(group.name_server_address, admin)
        topic = topics.make()
        topics.numbered(topic, 3)
        access = access_to(Connect(group.name_server_address, retry_timeout_ms=1000))

        def look() -> list[bool]:
            keys = ["none", *(m.message_id for each in found.values() for m in each)]
            return access.thread.run(access.are_stored(topic, keys))

        found = topics.read(topic)
        assert look() == [False, True, True, True]
        group.name_server.signal(signal.SIGSTOP)
        began_s = time.monotonic()
        assert look() == [False, True, True, True]
        # Giving up a name server that does not answer takes 3 s or more.
        assert time.monotonic() - began_s < 3


@pytest.mark.cluster
def test_marks_of_many_queues_hold_few_messages_at_once(tmp_path: Path) -> None:
    """A mark is a number, but a whole message is read to compute it; the last messages of all queues may have gigabytes."""
    size, queues = 1 << 18, 96
    with Group(tmp_path, 1) as group, AdminClient(group.name_server_address) as admin:
        topics = Topics(group.name_server_address, admin)
        topic = topics.make(queues=queues, ordered=False)
        with Producer("tests", group.name_server_address) as producer:
            for number in range(queues):
                producer.send(Message(topic=topic, body=randbytes(size)), queue=number)
        access = access_to(Connect(group.name_server_address))
        ends = dict.fromkeys(topics.queues(topic), 1)
        access.marks(dict([*ends.items()][:1]))  # allocations of the first connection do not count

        tracemalloc.start()
        try:
            marks = access.marks(ends)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert marks.keys() == ends.keys()
    assert len({*marks.values()}) == queues
    assert peak < queues * size // 2
