"""Patience: what is waited out while a cluster changes, and what is said when it lasts."""

import pytest

from orderlymq.errors import BrokerError
from orderlymq_protocol.codes import ResponseCode
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import SourceUnavailable
from orderlymq_spark.options import Connect

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


def test_what_lasts_is_told_with_the_brokers_words() -> None:
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
