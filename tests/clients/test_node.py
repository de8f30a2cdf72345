"""ali-ons, the Node client, which sends raw numbers where others send strings."""

from pathlib import Path

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Program, options

pytestmark = [pytest.mark.node, pytest.mark.cluster, pytest.mark.timeout(180)]


def test_node_sends_and_consumes(cluster: LocalCluster, node_folder: Path) -> None:
    """Messages with a sharding key keep to one queue per key, and all are consumed."""
    topic = cluster.topic()
    group = cluster.group(topic, "Concurrent")
    where = {"ns": cluster.name_server, "topic": topic}

    send = ["node", "main.js", "send", *options(**where, count=40, keys=5)]
    with Program(send, cwd=node_folder) as sender:
        sent = sender.finish()
    consume = ["node", "main.js", "consume", *options(**where, group=group, expected=40)]
    with Program(consume, cwd=node_folder) as consumer:
        got = consumer.finish()

    acks = [e for e in sent if e["event"] == "ack"]
    queues = {key: {e["queue"] for e in acks if e["key"] == key} for key in ("key-0", "key-4")}
    assert all(len(found) == 1 for found in queues.values())
    assert {e["body"] for e in got if e["event"] == "deliver"} == {
        f"key-{n % 5}:{n}" for n in range(40)
    }
