"""Two thousand Topics are applied together."""

import os
import time

from e2e.installed import Operator
from e2e.space import Property, Space, condition_of

COUNT = int(os.environ.get("ORDERLYMQ_E2E_TOPICS", "2000"))
READY_S = 600.0


def test_many_topics_become_ready_with_few_writes(
    space: Space, operator: Operator, record_property: Property
) -> None:
    """There are few writes per Topic, memory stays bounded, and nothing is written after all are ready."""
    space.example("quickstart.yaml")
    space.ready("cluster/demo")
    before = operator.writes()

    begun = time.monotonic()
    space.kubectl(
        "create", "-f", "-", stdin="\n---\n".join(map(_topic, range(COUNT))), timeout_s=600
    )
    applied = time.monotonic() - begun
    space.until(lambda: _all_ready(space), f"{COUNT} Topics", READY_S)
    ready = time.monotonic() - begun
    written = operator.writes() - before
    time.sleep(20)
    settled = operator.writes()
    time.sleep(30)

    record_property("applied_s", round(applied, 1))
    record_property("ready_s", round(ready, 1))
    record_property("writes", written)
    record_property("operator_memory_mib", operator.memory_mib())
    assert written <= 3 * COUNT + 100
    assert operator.writes() == settled, "something is written although nothing changes"
    assert operator.memory_mib() < 150


def _all_ready(space: Space) -> bool:
    topics = space.items("topics.orderlymq.io")
    ready = [topic for topic in topics if (condition_of(topic, "Ready") or {})["status"] == "True"]
    return len(ready) >= COUNT


def _topic(number: int) -> str:
    return f"""
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: topic-{number}}}
spec: {{clusterRef: {{name: demo}}, queues: 1}}
"""
