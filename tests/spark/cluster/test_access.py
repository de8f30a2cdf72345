"""Spark waits out a change of the cluster, reports one that lasts, and reads its brokers' reports of an expansion."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orderlymq.blocking import AdminClient
from orderlymq.errors import BrokerError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_spark.cluster.access import Growth, access_to, growth_of
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
    """A broker's answers, one after the other; the last one is given for ever."""

    def __init__(self, *answers: BrokerError | str) -> None:
        self.answers = list(answers)

    async def __call__(self) -> str:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BrokerError):
            raise answer
        return answer


def test_an_election_is_waited_out() -> None:
    """A replica without a leader answers with a system error, as RocketMQ's clients expect; reading goes on after it."""
    access = access_to(Connect("127.0.0.1:1"))

    assert access.wait(Answers(FOLLOWER, FOLLOWER, "found")) == "found"


def test_what_lasts_is_reported_with_the_brokers_words() -> None:
    """After retryTimeout; what was finished is not lost."""
    access = access_to(Connect("127.0.0.1:1", retry_timeout_ms=100))

    with pytest.raises(SourceUnavailable, match=r"it has no leader.*waited 0\.1 s"):
        access.wait(Answers(FOLLOWER))


def test_a_refusal_is_not_waited_out() -> None:
    """Nobody's patience gives a right."""
    access = access_to(Connect("127.0.0.1:1"))

    for code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR):
        with pytest.raises(BrokerError, match="no right"):
            access.wait(Answers(BrokerError(code, "no right")))


@pytest.mark.cluster
def test_what_is_stored_is_looked_up_without_name_servers(tmp_path: Path) -> None:
    """A repeated load looks up each row; a question to a name server before each look made that half as fast."""
    with Group(tmp_path, 1) as group, AdminClient(group.name_server_address) as admin:
        topics = Topics(group.name_server_address, admin)
        topic = topics.make()
        topics.numbered(topic, 3)
        access = access_to(Connect(group.name_server_address, retry_timeout_ms=1000))

        def look() -> list[bool]:
            keys = ["none", *(m.message_id for each in found.values() for m in each)]
            return [stored > 0 for stored in access.thread.run(access.stored_last(topic, keys))]

        found = topics.read(topic)
        assert look() == [False, True, True, True]
        group.name_server.signal(signal.SIGSTOP)
        began_s = time.monotonic()
        assert look() == [False, True, True, True]
        # It takes 3 s and more to give up a name server that does not answer.
        assert time.monotonic() - began_s < 3


def told(grown: int, since: int, *, total: int = 8, queues: int = 4) -> dict[str, Any]:
    """Return what a broker reports of an expansion."""
    return {
        "total": total,
        "grownMillis": grown,
        "sinceMillis": since,
        "writeQueues": queues,
    }


def test_a_growth_is_as_late_as_its_last_broker_and_not_as_what_was_given_up_since() -> None:
    """An expansion that is fenced or given up has moved no key."""
    assert growth_of({"a": told(1, 900), "b": told(2, 900)}) == Growth(2, {"a": 4, "b": 4})
    assert growth_of({"a": told(0, 900, total=0)}) is None


def test_queues_that_a_fence_lets_be_read_are_not_of_the_list_yet() -> None:
    """A broker that does not answer says nothing about its queues: they count."""
    growth = Growth(1, {"a": 4})
    names = [("a", 3), ("a", 4), ("b", 9)]

    assert [growth.has(MessageQueue("t", *each)) for each in names] == [True, False, True]
