"""Reads across a queue expansion, with real processes and without Spark."""

from pathlib import Path

import pytest

from orderlymq.blocking import Producer
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import QueueListChanged
from orderlymq_spark.options import parse_source
from orderlymq_spark.source.bounds import check_one_list
from tests.clients.localcluster import LocalCluster

# Four commands, each of which may take 120 s on a slow machine.
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(540)]

TOPIC = """
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: orders}}
spec:
  clusterRef: {{name: clients}}
  type: Ordered
  queues: {queues}
  queueChangePolicy: DrainAndSwitch
  routePropagationTime: 2s
"""


def test_a_stream_reads_no_two_lists_of_queues(tmp_path: Path) -> None:
    """Neither an older stream nor a new one from the earliest message does; one that begins after the expansion is read."""
    cluster = LocalCluster(tmp_path / "cluster", groups=2, replicas=1)
    cluster.up()
    try:
        given = {"bootstrap": cluster.name_server, "topic": "orders"}

        def check(name: str, **more: str) -> None:
            options = parse_source({**given, "startPath": str(tmp_path / name), **more})
            check_one_list(access_to(options.connect), options)

        def grow(queues: int) -> None:
            path = tmp_path / f"{queues}.yaml"
            path.write_text(TOPIC.format(queues=queues))
            cluster.command("apply", "-f", str(path), "--timeout", "110")

        def send() -> None:
            with Producer("shop", cluster.name_server) as producer:
                for number in range(40):
                    producer.send("orders", "x", key=str(number))

        grow(4)
        send()
        check("before")
        grow(10)
        send()

        with pytest.raises(QueueListChanged, match="startingTimestamp"):
            check("before")
        with pytest.raises(QueueListChanged):
            check("earliest")
        options = parse_source(given)
        expansion = access_to(options.connect).expansion("orders")
        assert expansion is not None
        check("behind", startingTimestamp=str(expansion.at_ms), startingTimestampStrategy="latest")
    finally:
        cluster.down()
