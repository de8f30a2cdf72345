"""Custom resource definitions are deleted while the operator runs, at a real API server, which waits for their objects."""

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest
from bench.apiload import NAMESPACE, Kube

from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.cluster import ClusterReconciler
from orderlymq_operator.kube.resources import TOPICS
from tests.operator.kube.realapi import administrator, needs_api_server, operator, real_api_server
from tests.operator.kube.samples import IMAGE

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), needs_api_server]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_api_server(tmp_path_factory.mktemp("api")) as found:
        yield found


async def gone(kube: Kube, name: str) -> None:
    """Wait until a definition has gone."""
    for _ in range(120):
        try:
            await kube.call("GET", f"{DEFINITIONS}/{name}")
        except RuntimeError:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"{name} stays")


async def test_all_definitions_can_be_deleted_at_once(address: str) -> None:
    """Law: no finalizer of ours keeps a definition, even if that of Clusters has gone first."""
    meta = {"name": "held", "namespace": NAMESPACE, "finalizers": [FINALIZER]}
    kind = {"apiVersion": TOPICS.api_version, "kind": TOPICS.kind}
    spec = {"clusterRef": {"name": "demo"}, "deletionPolicy": "Delete"}
    async with administrator(address) as kube, operator(address) as api:
        for _ in range(40):
            try:
                await kube.call(
                    "POST", TOPICS.path(NAMESPACE), {**kind, "metadata": meta, "spec": spec}
                )
            except (RuntimeError, aiohttp.ClientError):
                await asyncio.sleep(0.5)  # The definition is not served yet.
            else:
                break
        for name in ("clusters.orderlymq.io", "topics.orderlymq.io"):
            await kube.call("DELETE", f"{DEFINITIONS}/{name}")
        await gone(kube, "clusters.orderlymq.io")
        reconciler = ClusterReconciler(
            api,
            Inventory(api, (NAMESPACE,)),
            Defaults(IMAGE, "IfNotPresent"),
            OperatorMetrics(),
            Credentials(api, lambda: 1),
            lambda _: "",
        )
        for _ in range(20):
            try:
                await reconciler.reconcile((NAMESPACE, "demo"))
            except ApiError:
                await asyncio.sleep(0.5)
            else:
                break
        await reconciler.close()
        await gone(kube, "topics.orderlymq.io")
