"""Apache's Java client selects messages of our brokers by SQL92."""

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Java

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.mark.long
def test_sql_chooses_what_a_push_consumer_gets(cluster: LocalCluster, java: Java) -> None:
    """The broker evaluates the properties, and offsets pass unwanted messages."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    where = {"ns": cluster.name_server, "topic": topic}

    with java.start("guarding", role="send", count=12, **where) as sender:
        sender.finish()
    with java.start(
        "guarding",
        role="consume",
        group=group,
        sql="number BETWEEN 3 AND 6 OR number IN ('9') AND TAGS = 'TagG'",
        expected=5,
        **where,
    ) as consumer:
        got = consumer.finish()

    assert sorted(e["body"] for e in got if e["event"] == "done") == ["3", "4", "5", "6", "9"]


def test_a_wrong_expression_ends_the_start(cluster: LocalCluster, java: Java) -> None:
    """The client asks first (46), and gets 23 with the reason."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")

    with java.start(
        "guarding",
        role="consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        sql="number > 'three'",
    ) as consumer:
        got = consumer.finish()

    (refused,) = [e for e in got if e["event"] == "refused"]
    assert "'three' cannot be compared" in refused["all"]
