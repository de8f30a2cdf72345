"""The condition ScaleDownBlocked while a group is emptied and removed: `kubectl wait` relies on it."""

from typing import Any

import pytest

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.resources import CLUSTERS, PODS, STATEFUL_SETS
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import TopicOffset, TopicStats
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.operator.kube.samples import NAMESPACE
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

QUEUE = MessageQueue("log", "demo-1", 0)
DRAIN: dict[str, Any] = {"groups": 2, "scaleDown": {"policy": "Drain"}}


def told(small: SmallCluster) -> tuple[str, str, int]:
    """Return status, reason and generation of the condition; the generation is relative to the spec's."""
    found = small.condition("ScaleDownBlocked")
    meta = (small.server.find(CLUSTERS, *KEY) or {})["metadata"]
    return found["status"], found["reason"], found["observedGeneration"] - meta["generation"]


async def passes(small: SmallCluster, count: int = 4) -> None:
    for _ in range(count):
        await small.reconciler.reconcile(KEY)


def stand_second_group(small: SmallCluster) -> None:
    """Let the second group's replica run as the first group's does."""
    found = small.server.find(PODS, NAMESPACE, "demo-0-0")
    assert found is not None
    meta = found["metadata"]
    labels = {**meta["labels"], "orderlymq.io/group": "1"}
    second = {**meta, "name": "demo-1-0", "uid": "demo-1-0", "labels": labels}
    small.server.put(PODS, {**found, "metadata": second})


async def test_a_group_is_not_said_to_have_gone_before_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: the condition does not report a group as gone before it is,
    neither if its broker refuses nor while it has messages.
    """
    async with small_cluster(monkeypatch.setattr, **DRAIN) as small:
        stand_second_group(small)
        await passes(small)
        assert told(small) == ("False", "NotBlocked", 0)
        small.change(groups=1)
        answer = small.scripted.answers[RequestCode.UPDATE_BROKER_CONFIG]
        small.scripted.answers[RequestCode.UPDATE_BROKER_CONFIG] = lambda request: request.reply(
            ResponseCode.SYSTEM_ERROR, remark="an election"
        )

        with pytest.raises(AdminError, match="an election"):
            await passes(small)
        assert told(small) == ("True", "Draining", 0)
        small.scripted.answers[RequestCode.UPDATE_BROKER_CONFIG] = answer
        small.scripted.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda request: request.reply(
            body=TopicStats({QUEUE: TopicOffset(0, 3)}).to_json()
        )
        await passes(small)
        assert small.server.find(STATEFUL_SETS, NAMESPACE, "demo-1") is not None
        assert told(small) == ("True", "Draining", 0)

        small.scripted.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda request: request.reply(
            body=TopicStats().to_json()
        )
        small.scripted.answers[RequestCode.GET_BROKER_CLUSTER_ACL_INFO] = lambda request: (
            request.reply(body=b'{"accounts": []}')
        )
        await passes(small)
        assert small.server.find(STATEFUL_SETS, NAMESPACE, "demo-1") is None
        assert told(small) == ("False", "NotBlocked", 0)


async def test_a_pass_that_comes_to_nothing_says_nothing_of_the_new_spec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a pass that fails says nothing about the new spec: Ready has the refusal,
    the other conditions keep the old generation.
    """
    async with small_cluster(monkeypatch.setattr, **DRAIN) as small:
        stand_second_group(small)
        await passes(small)
        small.change(groups=1)
        small.server.refused["GET /apis/apps/v1/"] = (403, "no Role")

        with pytest.raises(ApiError):
            await passes(small)

        assert small.condition("Ready")["reason"] == "ApiRefused"
        assert told(small) == ("False", "NotBlocked", -1)
