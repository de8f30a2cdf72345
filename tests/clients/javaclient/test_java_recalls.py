"""Recalls by RocketMQ's own client: `recallMessage`, which came with 5.3.1."""

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Java

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(150)]


@pytest.mark.long
def test_a_message_that_waits_is_recalled_by_its_handle(
    cluster: LocalCluster, newest_java: Java
) -> None:
    """A repeated recall gets the same answer; the message never comes; a recall of a delivered one is too late."""
    topic = cluster.topic("Normal")

    with newest_java.script("Recalling", cluster.name_server, topic) as program:
        events = program.finish(timeout_s=120)

    said: dict[str, list[str]] = {}
    for each in events:
        said.setdefault(each["event"], []).append(each["text"])
    assert said["handle-of-plain"] == ["null"]
    assert said["recalled"] == said["sent"] * 2
    assert sorted(said["received"]) == ["plain", "stays"]
    assert said["refused"] == ["604"]
