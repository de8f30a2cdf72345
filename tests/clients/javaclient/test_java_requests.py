"""Request and reply, server-side assignment, serializations: requests of newer and older Java clients."""

import pytest

from orderlymq.oracle.verdict import judge
from tests.clients.javaclient.test_java import history
from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Java, taken

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(180)]


def test_requests_are_answered(cluster: LocalCluster, java: Java) -> None:
    """Each request gets its own answer, by waiting or by a callback."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")

    with java.start("reply", ns=cluster.name_server, topic=topic, group=group) as replier:
        replier.heard("started")
        with java.start(
            "request",
            ns=cluster.name_server,
            topic=topic,
            group=f"{group}-asking",
            count=6,
            timeout=15000,
        ) as asker:
            events = asker.finish()
        replied = replier.stop()

    assert [e for e in events if e["event"] in ("failed", "error")] == []
    answers = {e["request"]: e["body"] for e in events if e["event"] == "answer"}
    assert answers == {f"ping-{n}": f"re:ping-{n}" for n in range(6)}
    assert {e["status"] for e in replied if e["event"] == "replied"} == {"SEND_OK"}


def test_a_request_that_nobody_answers_times_out(cluster: LocalCluster, java: Java) -> None:
    """The sender gets a time-out after its own limit."""
    topic = cluster.topic("Normal")

    with java.start(
        "request", ns=cluster.name_server, topic=topic, group="asking-in-vain", timeout=1500
    ) as asker:
        events = asker.finish()

    (failed,) = [e for e in events if e["event"] == "failed"]
    assert "timeout" in failed["text"].lower()


def test_the_oldest_and_newest_clients_send_and_consume_in_order(
    cluster: LocalCluster, any_java: Java
) -> None:
    """The oldest client is 4.3.1, which uses port - 2 and JSON with unquoted keys."""
    topic = cluster.topic()
    group = cluster.group(topic)

    with any_java.start("send", ns=cluster.name_server, topic=topic, count=40, keys=8) as sender:
        sent = sender.finish()
    with any_java.start(
        "consume", ns=cluster.name_server, topic=topic, group=group, expected=40
    ) as consumer:
        got = [e["body"] for e in consumer.finish() if e["event"] == "deliver"]

    assert [e for e in sent if e["event"] in ("failed", "error")] == []
    for key in range(8):
        mine = [int(body.split(":")[1]) for body in got if body.startswith(f"key-{key}:")]
        assert mine == list(range(key, 40, 8))


def test_the_binary_header_is_spoken(cluster: LocalCluster, any_java: Java) -> None:
    """With rocketmq.serialize.type=ROCKETMQ, sends, heartbeats, locks, pulls and commits work."""
    topic = cluster.topic()
    group = cluster.group(topic)
    java = any_java.speaking("rocketmq.serialize.type=ROCKETMQ")

    with java.start("send", ns=cluster.name_server, topic=topic, count=20, keys=4) as sender:
        sent = sender.finish()
    with java.start(
        "consume", ns=cluster.name_server, topic=topic, group=group, expected=20
    ) as consumer:
        got = consumer.finish()

    assert len([e for e in sent if e["event"] == "ack"]) == 20
    assert len([e for e in got if e["event"] == "done"]) == 20


def test_a_suspended_message_holds_its_queue_for_the_oldest_client_too(
    cluster: LocalCluster, any_java: Java
) -> None:
    """The same message comes again, and no later one overtakes it."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)

    with any_java.start("send", ns=cluster.name_server, topic=topic, count=4) as sender:
        sender.finish()
    with any_java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        expected=4,
        fail="key-0:1",
        times=2,
        suspend=100,
    ) as consumer:
        got = consumer.finish()

    assert [e["body"] for e in got if e["event"] == "deliver"] == [
        f"key-0:{n}" for n in (0, 1, 1, 1, 2, 3)
    ]


def test_a_failed_message_is_retried_for_the_oldest_client_too(
    cluster: LocalCluster, any_java: Java
) -> None:
    """RECONSUME_LATER sends it through the retry topic, with the name of its original topic."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")

    with any_java.start(
        "send", ns=cluster.name_server, topic=topic, count=4, kind="plain"
    ) as sender:
        sender.finish()
    with any_java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        mode="concurrently",
        expected=4,
        fail="key-0:2",
        times=1,
        seconds=40,
    ) as consumer:
        got = consumer.finish()

    again = [e for e in got if e["event"] == "deliver" and e["body"] == "key-0:2"]
    assert [(e["reconsume"], e["topic"]) for e in again] == [(0, topic), (1, topic)]


@pytest.mark.parametrize("kind", ["LZ4", "ZSTD", "ZLIB"])
def test_compressed_bodies_are_consumed(
    cluster: LocalCluster, newest_java: Java, kind: str
) -> None:
    """A 5.x producer chooses the compression; consumers get the original bodies."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    java = newest_java.speaking(f"rocketmq.message.compressType={kind}")

    with java.start(
        "send", ns=cluster.name_server, topic=topic, count=4, kind="plain", size=20_000
    ) as sender:
        sent = sender.finish()
    with newest_java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        mode="concurrently",
        expected=4,
    ) as consumer:
        got = consumer.finish()

    assert len([e for e in sent if e["event"] == "ack"]) == 4
    assert {e["size"] for e in got if e["event"] == "deliver"} == {20_000}


def test_the_broker_assigns_queues_to_clients_that_leave_it_to_it(
    cluster: LocalCluster, newest_java: Java
) -> None:
    """With clientRebalance=false, two members share the queues, and consume in order without a gap."""
    topic = cluster.topic()
    group = cluster.group(topic)
    values = {
        "ns": cluster.name_server,
        "topic": topic,
        "group": group,
        "client_rebalance": False,
        "own_instance": True,
        "seconds": 60,
    }

    with (
        newest_java.start("consume", **values) as first,
        newest_java.start("consume", **values) as second,
    ):
        first.heard("started")
        second.heard("started")
        with newest_java.start(
            "send", ns=cluster.name_server, topic=topic, count=200, keys=40
        ) as sender:
            sent = sender.finish()
        first.until(lambda _: len(taken(first, second)) == 200, timeout_s=60)
        consumers = {"first": first.stop(), "second": second.stop()}

    assert judge(history(topic, sent, consumers)).findings == ()
