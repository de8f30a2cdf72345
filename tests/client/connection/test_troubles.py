"""A lasting trouble is logged once, then every half minute, and when it ends."""

import pytest

from orderlymq.connection.troubles import AGAIN_S, Troubles
from orderlymq.errors import BrokerError, BrokerUnreachable


def test_a_lost_broker_is_logged_once_then_every_half_minute_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a lost broker is logged once, every half minute, and when it is back, however many queues are affected."""
    now = [100.0]
    troubles = Troubles(lambda: now[0])
    for _ in range(60 * 7):
        troubles.failed("broker-a", "pulls of T", BrokerUnreachable("connection lost"))
        troubles.failed("broker-a", "locks", BrokerError(1, "this replica does not lead"))
        now[0] += 1 / 7
    assert [record.getMessage() for record in caplog.records] == [
        "the connection to broker-a is lost and will be retried: connection lost"
    ] * (60 // int(AGAIN_S))

    caplog.clear()
    troubles.failed("broker-b", "locks", BrokerUnreachable("connection lost"))
    troubles.answered("broker-a", "locks")
    troubles.answered("broker-a", "pulls of T")
    assert [record.getMessage() for record in caplog.records] == [
        "the connection to broker-b is lost and will be retried: connection lost",
        "broker-a is back after 60 s",
    ]


def test_a_queue_that_another_client_has_is_no_lost_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a queue held by another client is logged as refused, not as a lost broker."""
    refused = BrokerError(1, "queue 0 of topic T in the ordered group G is not locked")
    Troubles(lambda: 0.0).failed("broker-a", "pulls of T", refused)

    (said,) = caplog.records
    assert said.getMessage() == f"broker-a refuses pulls of T: {refused}"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (16, "reader may not SUB T"),
        (1, "org.apache.rocketmq.acl.common.AclException: No permission for topic-T"),
    ],
)
def test_a_refusal_is_no_loss_and_is_handed_on(
    code: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a final refusal is logged once per thing and passed on; one that may pass is not."""
    found: list[BrokerError] = []
    troubles = Troubles(lambda: 0.0)
    troubles.on_refused = found.append
    refused = BrokerError(code, words)

    for error in (refused, refused, BrokerError(2, "busy")):
        troubles.failed("broker-a", "pulls of T", error)

    assert found == [refused, refused]
    (said,) = caplog.records
    assert said.getMessage() == f"broker-a refuses pulls of T: {refused}"
