"""Spark waits during changes of the cluster, reports lasting ones, and reads the brokers' reports of an expansion."""

import signal
import time
import tracemalloc
from pathlib import Path
from random import randbytes
from typing import Any

import pytest

from orderlymq.blocking import AdminClient, Producer
from orderlymq.errors import BrokerError
from orderlymq.message import Message
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.message.record import StoredMessage
from orderlymq_spark.cluster.access import Growth, access_to, growths_of
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


def told(
    grown: int, since: int, *, total: int = 8, queues: int = 4, **more: object
) -> dict[str, Any]:
    """Return a broker's report of an expansion."""
    return {
        "total": total,
        "attempt": 1,
        "grownMillis": grown,
        "sinceMillis": since,
        "writeQueues": queues,
        **more,
    }


def test_a_growth_is_as_late_as_its_last_broker_and_not_as_what_was_given_up_since() -> None:
    """A growth has the time of its last broker.

    An expansion that is fenced or given up has moved no key, so it does not count.
    """
    found = growths_of({"a": told(1, 900), "b": told(2, 900)})
    assert found == [Growth(2, {"a": 4, "b": 4}, 8, {}, set())]
    assert growths_of({"a": told(0, 900, total=0)}) == []


def test_queues_that_a_fence_lets_be_read_are_not_of_the_list_yet() -> None:
    """All queues of a broker that does not report count as members of the list."""
    growth = Growth(1, {"a": 4}, 4, {})
    names = [("a", 3), ("a", 4), ("b", 9)]

    assert [growth.has(MessageQueue("t", *each)) for each in names] == [True, False, True]


def test_a_broker_says_where_the_messages_of_its_list_begin() -> None:
    """Law: messages after a broker's barriers belong to its list, and so do all of a new queue; old brokers report none."""
    *_, growth = growths_of(
        {
            "a": told(1, 1, grownBarriers=[[0, 5], [1, 0]]),
            "new": told(2, 2, grownBarriers=[]),
            "former": told(1, 1),
            "older": told(1, 1, grownBarriers=None),
        }
    )
    names = [("a", 0), ("a", 1), ("a", 2), ("new", 0), ("former", 0), ("older", 0)]

    found = [growth.begins_at(MessageQueue("t", *each)) for each in names]

    assert found == [5, 0, 0, 0, None, None]


def test_a_broker_that_has_yet_to_switch_has_nothing_of_the_list() -> None:
    """Law: its messages do not count, whatever the clocks say.

    A broker outside the list has no part in it and always counts.
    """
    (growth,) = growths_of(
        {
            "a": told(1_000, 1, grownBarriers=[[0, 5]]),
            "late": told(0, 9_000, total=0, grownBarriers=None),
            "beside": told(0, 0, total=0, attempt=0, grownBarriers=None),
        }
    )
    sent = StoredMessage(*("t", 0, 0, 7, 0, 0, 0, ("h", 1), 2_000, ("h", 1), 0, 0, b"", b"", 0))

    found = [growth.is_behind(sent, MessageQueue("t", name, 0)) for name in ("a", "late", "beside")]

    assert found == [True, False, True]


def test_each_growth_has_the_barriers_of_its_list() -> None:
    """A broker without the topic at that time had no queues; without barriers in a report, the broker's times count."""
    earlier = [{"total": 4, "grownMillis": 1, "grownBarriers": [[0, 3]]}]
    unknown = [{"total": 4, "grownMillis": 2, "grownBarriers": None}]
    last = {"since": 9, "total": 8, "queues": 2}
    first, second = growths_of(
        {
            "a": told(7, **last, grownBarriers=[[0, 5], [1, 6]], earlierGrowths=earlier),
            "new": told(7, **last, grownBarriers=[], earlierGrowths=[]),
            "older": told(7, **last, grownBarriers=[[0, 4]], earlierGrowths=unknown),
            "former": told(7, **last, grownBarriers=[[0, 4]]),
        }
    )

    queues = dict.fromkeys(("a", "new", "older", "former"), 2)
    assert first == Growth(2, queues, 4, {"a": {0: 3}, "new": {}}, set())
    assert second == Growth(
        7, queues, 8, {"a": {0: 5, 1: 6}, "new": {}, "older": {0: 4}, "former": {0: 4}}, set()
    )
