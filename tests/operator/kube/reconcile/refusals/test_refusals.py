"""A refusal of one object by the API server or a broker does not delay other objects."""

import json
from collections.abc import AsyncIterator

import pytest

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.kube.reconcile.backoff import MAX_S, SOON_OBSERVATIONS
from orderlymq_operator.kube.reconcile.cluster import AT_WORK_S, EXPANDING_S
from orderlymq_operator.kube.resources import CLUSTERS, STATEFUL_SETS, TOPICS, USERS
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.operator.kube.samples import NAMESPACE, custom
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

OTHER = "/apis/orderlymq.io/v1alpha1/namespaces/other"


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr, (NAMESPACE, "other")) as found:
        found.change(allowedNamespaces=["other"])
        await settle(found)
        yield found


async def settle(small: SmallCluster) -> None:
    for _ in range(4):
        await small.reconciler.reconcile(KEY)


def image(small: SmallCluster) -> str:
    found = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-nameserver") or {}
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"])


async def test_a_namespace_that_lost_its_role_holds_no_cluster_of_another_one_up(
    small: SmallCluster,
) -> None:
    """Law: a namespace without rights does not delay Clusters elsewhere,
    even if Users and parts there can be listed but not written.
    """
    small.server.put(USERS, custom("User", "mary", "other"))
    small.server.put(TOPICS, custom("Topic", "orders", "other"))
    small.server.refused |= {
        "/api/v1/namespaces/other/": (403, "no Role"),
        f"{OTHER}/users/mary/status": (403, "no Role"),
        f"{OTHER}/topics/orders/status": (403, "no Role"),
    }
    small.change(image="orderlymq:2")

    await settle(small)

    assert image(small) == "orderlymq:2"
    assert small.condition("Ready")["reason"] != "Forbidden"


async def test_a_status_that_is_not_taken_ends_no_pass(small: SmallCluster) -> None:
    """Law: a refused status does not end a pass; before Kubernetes 1.30 a spec that breaks a newer rule refuses all
    statuses.
    """
    path = CLUSTERS.path(*KEY)
    small.server.refused[f"{path}/status"] = (422, "spec.retention: Invalid value")
    small.change(image="orderlymq:2")

    await settle(small)

    assert image(small) == "orderlymq:2"


async def test_what_is_done_again_and_again_without_effect_is_done_less_and_less(
    small: SmallCluster,
) -> None:
    """Law: a change without effect, which a broker or webhook undoes, is repeated less and less often."""
    topic = small.server.put(TOPICS, custom("Topic", "log", spec={"type": "Normal"}))
    small.reconciler.inventory.shown(TOPICS, topic, gone=False)

    pauses = [await small.reconciler.reconcile(KEY) or 0.0 for _ in range(SOON_OBSERVATIONS + 10)]

    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (AT_WORK_S, MAX_S)


def _fenced(request: RemotingCommand) -> RemotingCommand:
    counts = {"total": 4, "nextTotal": 8, "queues": 8, "writeQueues": 4, "attempt": 1}
    lists: dict[str, list[object]] = {"barriers": [], "blockers": [], "readers": []}
    fenced = {"topic": "orders", "phase": "fenced", "ageMillis": 0, "reason": "", **counts, **lists}
    return request.reply(body=json.dumps({"topics": [fenced]}).encode())


async def test_a_topic_that_a_broker_refuses_says_why_and_slows_no_fence(
    small: SmallCluster,
) -> None:
    """Law: a Topic that a broker refuses has the reason in its status, and does not slow writes that a fence has refused."""
    small.scripted.answers[RequestCode.UPDATE_AND_CREATE_TOPIC] = lambda request: request.reply(
        ResponseCode.SYSTEM_ERROR, remark="no more topics"
    )
    small.server.put(TOPICS, custom("Topic", "log", spec={"type": "Normal"}))
    small.reconciler.inventory.invalidate()
    with pytest.raises(AdminError, match="no more topics"):
        await small.reconciler.reconcile(KEY)

    growing = {"type": "Ordered", "queues": 8, "queueChangePolicy": "DrainAndSwitch"}
    small.server.put(TOPICS, custom("Topic", "orders", spec=growing))
    small.reconciler.inventory.invalidate()
    small.scripted.answers[RequestCode.ORDERLYMQ_QUEUE_EXPANSION] = _fenced
    pauses = [await small.reconciler.reconcile(KEY) for _ in range(3)]

    assert pauses == [EXPANDING_S] * 3
    (ready,) = (small.server.find(TOPICS, NAMESPACE, "log") or {})["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "Progressing")
    assert "no more topics" in ready["message"]
