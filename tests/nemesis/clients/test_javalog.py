"""The output of Java programs becomes the history that the oracle reads."""

from orderlymq.oracle.verdict import Kind
from tests.nemesis.clients.javalog import deal_of, event_of
from tests.nemesis.figures import family
from tests.nemesis.invariants.transactions import DEALS, Step


def test_a_send_and_its_outcomes_are_distinguished() -> None:
    """An answer of the broker is definite; a time-out and a lost connection are not."""
    send = {"event": "send", "key": "key-1", "body": 7}
    broker = "org.apache.rocketmq.client.exception.MQBrokerException: CODE: 14  DESC: try again"
    timeout = "org.apache.rocketmq.remoting.exception.RemotingTimeoutException: wait response"
    facts = {"topic": "orders", "key": "p.1/key-1", "message": "p.1/key-1:7"}

    assert event_of(send, "p.1", "") == (Kind.SEND, facts)
    assert event_of({**send, "event": "failed", "text": broker}, "p.1", "") == (
        Kind.REFUSED,
        {**facts, "detail": broker},
    )
    assert event_of({**send, "event": "failed", "text": timeout}, "p.1", "") == (
        Kind.UNKNOWN,
        {**facts, "detail": timeout},
    )
    acknowledged = {**send, "event": "ack", "queue": "g:3", "offset": 12}
    assert event_of(acknowledged, "p.1", "") == (Kind.ACK, {**facts, "queue": "g:3", "offset": 12})


def test_a_delivery_names_the_incarnation_that_got_it() -> None:
    """A client that was killed and started again is another one."""
    line = {"event": "deliver", "topic": "orders", "body": "m", "queue": "g:0", "offset": 3}

    assert event_of(line, "c.2", "together") == (
        Kind.DELIVER,
        {
            "topic": "orders",
            "message": "m",
            "queue": "g:0",
            "offset": 3,
            "group": "together",
            "client": "c.2",
        },
    )
    assert event_of({"event": "started"}, "c.2", "together") is None


def test_families_are_read_from_names() -> None:
    """Figures are reported per kind of client."""
    assert [family(name) for name in ("producer-sdk.3", "consumer-java-4.9.8-a.1")] == [
        "SDK",
        "Java 4",
    ]


def test_each_step_of_a_transaction_is_reported() -> None:
    """Begun, stored, decided, asked about; a failed send leaves open whether its half is stored."""
    facts = {"topic": DEALS, "message": "dealer.1/commit:0"}

    def told(event: str, **more: str) -> tuple[Kind, dict[str, str | int]] | None:
        return deal_of({"event": event, "body": "dealer.1/commit:0", **more})

    assert told("begin") == (Kind.SEND, facts)
    assert told("stored") == (Kind.NOTED, {**facts, "detail": Step.HALF})
    assert told("decided", state="UNKNOW") == (Kind.NOTED, {**facts, "detail": Step.UNKNOWN})
    assert told("check", answer="rollback") == (
        Kind.NOTED,
        {**facts, "detail": Step.CHECKED_ROLLBACK},
    )
    assert told("failed", text="CODE: 2") == (Kind.UNKNOWN, {**facts, "detail": "CODE: 2"})
    assert told("half") is None
