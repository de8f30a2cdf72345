"""The operator as a whole process, with kopf's watches and its lease, and an API server of our own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from orderlymq_operator.kube.app import OperatorProcess
from orderlymq_operator.kube.competitors import ANNOTATION_SERVES
from orderlymq_operator.kube.election import NAME
from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import (
    CLUSTERS,
    LEASES,
    SERVICES,
    STATEFUL_SETS,
    TOPICS,
    Json,
)
from orderlymq_operator.kube.settings import OperatorSettings
from tests.operator.kube.samples import IMAGE, NAMESPACE, custom
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster
from tests.operator.kube.test_watch import kubeconfig
from tests.ports import free_ports
from tests.waiting import until

pytestmark = pytest.mark.timeout(120)
_RESYNC_S = 0.1
_LOOK_S = 0.02


@pytest.fixture
async def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    """A Cluster that an operator has made, beside a namespace that is gone and one that it served before."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with small_cluster(monkeypatch.setattr) as found:
        # The deleted Role had granted this; our own kinds can be listed everywhere.
        for api in ("api/v1", "apis/apps/v1"):
            found.server.refused[f"/{api}/namespaces/gone/"] = (403, "not granted")
        held = custom("Topic", "held", "left", finalizers=[FINALIZER])
        found.server.put(TOPICS, held)
        lease = {
            "name": NAME,
            "namespace": "ops",
            "annotations": {ANNOTATION_SERVES: f"{NAMESPACE},left"},
        }
        found.server.put(LEASES, {"kind": LEASES.kind, "metadata": lease, "spec": {}})
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(found.api, tmp_path)))
        settings = OperatorSettings(
            namespaces=(NAMESPACE, "gone"),
            image=IMAGE,
            pull_policy="IfNotPresent",
            namespace="ops",
            identity="test",
            http_port=free_ports(1)[0],
            resync_s=_RESYNC_S,
            log_level="INFO",
            log_format="text",
        )
        task = asyncio.create_task(OperatorProcess(settings, found.api, found.metrics).run())
        try:
            await until(lambda: is_ready(found))
            yield found
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def is_ready(small: SmallCluster) -> bool:
    found = small.server.find(CLUSTERS, *KEY)
    ready = condition_of((found or {}).get("status") or {}, "Ready")
    return ready is not None and ready["status"] == "True"


def asked(small: SmallCluster) -> list[tuple[str, ...]]:
    """Return the requests since the last call, without watches, leases and the gone namespace."""
    found = [
        each
        for each in small.server.asked
        if "/leases" not in each[1] and "/namespaces/gone/" not in each[1]
    ]
    small.server.asked.clear()
    return found


async def rests(small: SmallCluster) -> None:
    """Wait until ten resyncs in a row have asked nothing."""
    async with asyncio.timeout(30):
        while asked(small):  # noqa: ASYNC110 - likewise
            await asyncio.sleep(10 * _RESYNC_S)


async def test_an_operator_at_rest_asks_the_api_server_for_nothing(small: SmallCluster) -> None:
    """Law: an operator at rest asks nothing, however often it looks;
    what a person deletes is made again when a watch shows it.
    """
    await rests(small)
    small.server.drop(SERVICES, NAMESPACE, "demo-0")
    await until(lambda: small.server.find(SERVICES, NAMESPACE, "demo-0") is not None)
    await rests(small)


async def test_a_namespace_that_is_served_no_more_keeps_no_finalizer(small: SmallCluster) -> None:
    """Law: in a namespace that is no longer served the operator removes its finalizers, because nobody else would."""
    await until(lambda: _held(small)["metadata"]["finalizers"] == [])
    await rests(small)


def _held(small: SmallCluster) -> Json:
    found = small.server.find(TOPICS, "left", "held")
    assert found is not None
    return found


async def test_a_cluster_made_again_under_its_name_has_only_what_is_its_own(
    small: SmallCluster,
) -> None:
    """Law: a Cluster made again under its name gets its own objects, each once;
    the former one's are deleted a while later.
    """
    await rests(small)
    former = small.server.drop(CLUSTERS, *KEY)
    small.server.put(CLUSTERS, custom("Cluster", "demo", spec=former["spec"], uid="made-again"))
    await until(lambda: any("a former Cluster of this name" in each for each in messages(small)))
    while small.server.collect_garbage():  # noqa: ASYNC110 - likewise
        await asyncio.sleep(_LOOK_S)
    await until(lambda: is_ready(small))
    await rests(small)

    owners = {
        each["uid"]
        for found in small.server.objects.values()
        for each in found["metadata"].get("ownerReferences") or []
    }
    assert owners == {"made-again"}
    assert small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0") is not None
    assert small.server.collect_garbage() == 0


def messages(small: SmallCluster) -> list[str]:
    found = small.server.find(CLUSTERS, *KEY) or {}
    return [each["message"] for each in (found.get("status") or {}).get("conditions") or []]
