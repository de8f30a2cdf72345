"""Apache's Go client: ordered sends and an ordered push consumer."""

from pathlib import Path

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Program, options

pytestmark = [pytest.mark.go, pytest.mark.cluster, pytest.mark.timeout(180)]


def test_go_sends_and_consumes_in_order(cluster: LocalCluster, go_program: Path) -> None:
    """Hash-selected sends come back key by key in order, a suspended message included."""
    topic = cluster.topic()
    group = cluster.group(topic)
    where = {"ns": cluster.name_server, "topic": topic}

    with Program([str(go_program), "send", *options(**where, count=60, keys=6)]) as sender:
        sent = sender.finish()
    consume = options(**where, group=group, expected=60, fail="key-3:", times=1, seconds=60)
    with Program([str(go_program), "consume", *consume]) as consumer:
        got = consumer.finish(timeout_s=90)

    assert len([e for e in sent if e["event"] == "ack"]) == 60
    done = [e for e in got if e["event"] == "done"]
    steps = {key: [] for key in {e["keys"] for e in done}}  # type: dict[str, list[int]]
    for event in done:
        steps[event["keys"]].append(int(event["body"].partition(":")[2]))
    assert steps == {f"key-{k}": list(range(k, 60, 6)) for k in range(6)}
    assert {e["body"] for e in got if e["event"] == "fail"} == {
        f"key-3:{n}" for n in range(3, 60, 6)
    }


def test_go_makes_a_topic_that_does_not_exist_with_two_name_servers(
    cluster: LocalCluster, go_program: Path
) -> None:
    """The client asks one name server for the topic and the next one for what topics are made after."""
    both = f"{cluster.name_server};127.0.0.1:{cluster.base + 1}"

    send = options(ns=both, topic="made-by-go", count=12, keys=3)
    with Program([str(go_program), "send", *send]) as sender:
        sent = sender.finish()

    assert len([each for each in sent if each["event"] == "ack"]) == 12
