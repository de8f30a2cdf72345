"""Transactions of Apache's Java client, from the first release whose broker checks open transactions."""

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import OLDEST_JAVA, Event, Java

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(180)]


def consumed(cluster: LocalCluster, java: Java, topic: str, group: str, count: int) -> list[Event]:
    """Return the bodies that a consumer gets, after one more second for possible duplicates."""
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        mode="orderly",
        expected=count,
        linger=1000,
        seconds=40,
    ) as consumer:
        return [event for event in consumer.finish() if event["event"] == "deliver"]


def test_transactions_are_committed_rolled_back_and_asked_about(
    cluster: LocalCluster, any_java: Java
) -> None:
    """A commit is seen once, a rollback never, and a check decides unknown ones; commits keep their order."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)

    with any_java.start(
        "transact",
        ns=cluster.name_server,
        topic=topic,
        group=f"{group}-producers",
        plan="commit,rollback,unknown,commit",
        check="plan" if any_java.version == OLDEST_JAVA else "commit",
    ) as producer:
        producer.heard("sent")
        # The oldest client reports "unknown" whatever its listener decides, so that a check decides each.
        checks = producer.heard("check", 4 if any_java.version == OLDEST_JAVA else 1)
        got = consumed(cluster, any_java, topic, group, 2 if any_java.version == OLDEST_JAVA else 3)
        ended = producer.stop()

    assert [e for e in ended if e["event"] in ("failed", "error")] == []
    bodies = [e["body"] for e in got]
    if any_java.version == OLDEST_JAVA:
        assert sorted(bodies) == ["commit:0", "commit:3"]
    else:
        assert bodies == ["commit:0", "commit:3", "unknown:2"]
        assert [e["body"] for e in checks] == ["unknown:2"]
    assert {(e["topic"], e["queue"], e["times"]) for e in checks} == {(topic, 0, "1")}


def test_a_transaction_is_asked_about_until_its_producer_knows(
    cluster: LocalCluster, any_java: Java
) -> None:
    """Two checks are answered with unknown, and the third commits; the message is seen once."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)

    with any_java.start(
        "transact",
        ns=cluster.name_server,
        topic=topic,
        group=f"{group}-producers",
        plan="unknown",
        check="later:2",
    ) as producer:
        checks = producer.heard("check", 3, timeout_s=60)
        got = consumed(cluster, any_java, topic, group, 1)
        producer.stop()

    assert [e["times"] for e in checks] == ["1", "2", "3"]
    assert [e["body"] for e in got] == ["unknown:0"]


def test_checks_go_on_under_a_new_leader(cluster: LocalCluster, any_java: Java) -> None:
    """The leader is killed between half message and check: the next leader asks, and one copy is seen."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)

    with any_java.start(
        "transact",
        ns=cluster.name_server,
        topic=topic,
        group=f"{group}-producers",
        plan="commit,unknown",
        check="plan" if any_java.version == OLDEST_JAVA else "commit",
        immunity=4,
    ) as producer:
        producer.heard("sent")
        cluster.kill_leader()
        checks = producer.heard("check", 2 if any_java.version == OLDEST_JAVA else 1, timeout_s=60)
        got = consumed(cluster, any_java, topic, group, 1 if any_java.version == OLDEST_JAVA else 2)
        producer.stop()

    bodies = [e["body"] for e in got]
    if any_java.version == OLDEST_JAVA:
        assert bodies == ["commit:0"]
    else:
        assert bodies == ["commit:0", "unknown:1"]
    assert "unknown:1" in {e["body"] for e in checks}


def test_another_producer_of_the_group_is_asked_when_the_first_is_gone(
    cluster: LocalCluster, any_java: Java
) -> None:
    """The producer dies with an open transaction; another producer of its group decides it."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)
    where = {"ns": cluster.name_server, "topic": topic, "group": f"{group}-producers"}

    with any_java.start("transact", **where, plan="unknown", immunity=3) as first:
        first.heard("sent")
        first.kill()
    # The second one's own transaction introduces it and the broker to each other.
    with any_java.start("transact", **where, plan="rollback", check="plan", immunity=60) as second:
        second.heard("sent")
        second.heard("check", 1, timeout_s=60)
        assert second.of("check")[0]["body"] == "unknown:0"
        second.stop()
