"""Apache's mqadmin, in two generations, with our cluster: the daily commands of administrators."""

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Java

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return cluster.topic()


def test_topics_are_made_shown_and_deleted(cluster: LocalCluster, java: Java) -> None:
    """updateTopic, topicList, topicRoute, topicStatus, topicClusterList and deleteTopic."""
    name = f"made-by-mqadmin-{java.version.replace('.', '-')}"
    ns = cluster.name_server

    made = java.admin(ns, "updateTopic", "-c", "clients", "-t", name, "-r", "6", "-w", "6")
    assert f"topicName={name}, readQueueNums=6, writeQueueNums=6, perm=RW-" in made
    assert name in java.admin(ns, "topicList").split()
    assert '"writeQueueNums":6' in java.admin(ns, "topicRoute", "-t", name)
    status = java.admin(ns, "topicStatus", "-t", name)
    assert [line.split()[1] for line in status.splitlines() if line.startswith("clients-0")] == [
        str(queue) for queue in range(6)
    ]
    assert "clients" in java.admin(ns, "topicClusterList", "-t", name).split()
    assert "success" in java.admin(ns, "deleteTopic", "-c", "clients", "-t", name)
    assert name not in java.admin(ns, "topicList").split()


def test_an_ordered_topic_keeps_its_queues(cluster: LocalCluster, java: Java, topic: str) -> None:
    """updateTopic with another queue count is refused with the reason; the order configuration is shown."""
    ns = cluster.name_server

    refused = java.admin(ns, "updateTopic", "-c", "clients", "-t", topic, "-r", "9", "-w", "9")

    assert f"topic[{topic}] is ordered and keeps its 4 queues" in refused
    assert '"orderTopicConf":"clients-0:4"' in java.admin(ns, "topicRoute", "-t", topic)


@pytest.mark.long
def test_the_cluster_and_a_groups_progress_are_shown(
    cluster: LocalCluster, java: Java, topic: str
) -> None:
    """clusterList, consumerProgress (lag of a consumer group without members) and resetOffsetByTime."""
    ns = cluster.name_server
    group = cluster.group(topic)
    with java.start("send", ns=ns, topic=topic, count=12, keys=5) as sender:
        sender.finish()
    with java.start("consume", ns=ns, topic=topic, group=group, expected=12) as consumer:
        consumer.finish()
    with java.start("send", ns=ns, topic=topic, count=7, keys=5) as sender:
        sender.finish()

    assert f"127.0.0.1:{cluster.base + 12}" in java.admin(ns, "clusterList")
    assert "Diff Total: 7" in java.admin(ns, "consumerProgress", "-g", group)
    listed = java.admin(ns, "consumerProgress")
    assert any(
        line.split()[0] == group and line.split()[-1] == "7"
        for line in listed.splitlines()
        if line.strip()
    )
    java.admin(ns, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true")
    assert "Diff Total: 19" in java.admin(ns, "consumerProgress", "-g", group)


def test_a_message_is_found_by_tools(cluster: LocalCluster, java: Java, topic: str) -> None:
    """sendMessage, queryMsgByKey and queryMsgById."""
    ns = cluster.name_server

    sent = java.admin(ns, "sendMessage", "-t", topic, "-p", "from a tool", "-k", "tool-key")
    assert "SEND_OK" in sent
    found = java.admin(ns, "queryMsgByKey", "-t", topic, "-k", "tool-key")
    assert len([line for line in found.splitlines() if line and not line.startswith("#")]) == 1
    with java.start("query", ns=ns, topic=topic, key="tool-key") as query:
        (message,) = [e for e in query.finish() if e["event"] == "by-key"]
    assert message["body"] == "from a tool"
