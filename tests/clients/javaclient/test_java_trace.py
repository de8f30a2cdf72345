"""Message traces of Apache's Java client, and the command that shows the life of a message."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from orderlymq.blocking import Producer
from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Java

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("traced"), config={"traceTopicEnable": "true"})
    cluster.up()
    yield cluster
    cluster.down()


def told(steps: list[dict[str, Any]]) -> set[str]:
    """Return the events, and the details of each delivery."""
    return {step["details"] if step["what"] == "consuming" else step["what"] for step in steps}


def life(cluster: LocalCluster, message_id: str, wanted: set[str]) -> list[dict[str, Any]]:
    """Return the steps of a message when all *wanted* ones are there: each is reported separately and late."""
    end = time.monotonic() + 30
    while True:
        shown = json.loads(cluster.command("trace", message_id, "--output", "json"))
        steps: list[dict[str, Any]] = shown["steps"]
        if wanted <= told(steps) or time.monotonic() > end:
            return steps
        time.sleep(0.5)


@pytest.mark.long
def test_the_life_of_a_message_is_shown_from_end_to_end(traced: LocalCluster, java: Java) -> None:
    """A message is sent, stored, consumed without success, kept for a retry and consumed, by both client generations."""
    topic = traced.topic("Normal")
    group = traced.group(topic, "Concurrent")
    where = {"ns": traced.name_server, "topic": topic, "trace": True}

    with java.start("guarding", role="send", count=2, linger=6000, **where) as sender:
        sent = [event for event in sender.finish() if event["event"] == "ack"]
    with java.start(
        "guarding", role="consume", group=group, fail="1", expected=2, linger=6000, **where
    ) as consumer:
        consumer.finish()

    message_id = next(event["msgId"] for event in sent if event["body"] == 1)
    wanted = {"sent", "stored", "waits for try 2", "delivery 2", "consumed"}
    # The push consumer of 5.x traces only after its start; its first delivery may be earlier.
    from_the_start = java.version.startswith("4.")
    if from_the_start:
        wanted |= {"delivery 1", "not consumed"}
    steps = life(traced, message_id, wanted)
    assert wanted <= told(steps), steps
    assert [step["at"] for step in steps] == sorted(step["at"] for step in steps)
    deliveries = [step["details"] for step in steps if step["what"] == "consuming"]
    both = ["delivery 1", "delivery 2"]
    assert deliveries == both or (not from_the_start and deliveries == both[1:])


def test_our_sdk_traces_as_well(traced: LocalCluster) -> None:
    """The SDK writes the same records, which the same command shows."""
    topic = traced.topic("Normal")
    with Producer("shop", traced.name_server, trace=True) as producer:
        result = producer.send(topic, "hello", keys="k1")

    steps = life(traced, result.message_id, {"sent", "stored"})

    assert {"sent", "stored"} <= {step["what"] for step in steps}
    assert "producer shop" in {step["who"] for step in steps}
