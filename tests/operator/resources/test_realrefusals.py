"""Names that no broker takes, at a real API server: it refuses what the planner refuses, and nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest
from bench.apiload import NAMESPACE, Kube

from orderlymq_operator.plan.actions import Observed
from orderlymq_operator.plan.refusals import refusals
from orderlymq_operator.resources.meta import API_VERSION
from tests.operator.examples import desired, group, topic
from tests.operator.kube.realapi import administrator, needs_api_server, real_api_server

TOPICS = (
    *("%DLQ%billing", "%RETRY%billing", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_orders", "TBW102"),
    *("SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "%orders", "DLQ-billing", "Orders_of_TBW102"),
)
KEYS = ("a\x01b", "\n", "a\u2028b", "a\u00a0b", "KEYS", "Order id, größer", "__SHARDINGKEY")

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), needs_api_server]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_api_server(tmp_path_factory.mktemp("api")) as found:
        yield found


async def _refuses(kube: Kube, kind: str, **spec: Any) -> bool:
    """Return whether the API server does not take an object."""
    made = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": "one"},
        "spec": {"clusterRef": {"name": "demo"}, **spec},
    }
    path = f"/apis/orderlymq.io/v1alpha1/namespaces/{NAMESPACE}/{kind.lower()}s"
    try:
        await kube.call("POST", path, made, dryRun="All")
    except RuntimeError as error:
        if "choose" not in str(error):
            raise
        return True
    return False


async def test_the_api_server_refuses_the_names_that_the_planner_refuses(address: str) -> None:
    """Law: the schema and the planner say the same of each name; `refusals` alone knows the names of a Cluster's own topics."""
    async with administrator(address) as kube:
        topics = {name: await _refuses(kube, "Topic", topicName=name) for name in TOPICS}
        keys = {key: await _refuses(kube, "ConsumerGroup", laneKeyProperty=key) for key in KEYS}

    assert topics == {
        name: bool(refusals(desired(topic("one", topicName=name)), Observed())) for name in TOPICS
    }
    assert keys == {
        key: bool(refusals(desired(group("one", laneKeyProperty=key)), Observed())) for key in KEYS
    }
    assert (sum(topics.values()), sum(keys.values())) == (7, 4)
