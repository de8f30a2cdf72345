"""Passes over a Cluster with an API server that keeps objects and one broker with a status page; HTTP is real."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.cluster import ClusterReconciler
from orderlymq_operator.kube.resources import CLUSTERS, PODS, Json
from tests.operator.kube.apiserver import absent, serving_api
from tests.operator.kube.samples import IMAGE, NAMESPACE, custom, pod

KEY = (NAMESPACE, "demo")
HOST = "127.0.0.1"
OF_NAMESPACE = "/{root:.*}/namespaces/{namespace}/{plural}"


class Objects:
    """The objects of one Cluster, by path: every selector chooses all of them."""

    def __init__(self, present: dict[str, Json]) -> None:
        self._by_path = present
        self._version = 1

    async def show(self, request: web.Request) -> web.Response:
        """Serve a collection, or the one object that is asked for by name."""
        wanted = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        items = [
            found
            for path, found in sorted(self._by_path.items())
            if path.rpartition("/")[0] == request.path and wanted in ("", path.rpartition("/")[2])
        ]
        return web.json_response({"items": items, "metadata": {}})

    async def create(self, request: web.Request) -> web.Response:
        """Make the Secret by which the Cluster's processes know each other."""
        made = orjson.loads(await request.read())
        self._by_path[f"{request.path}/{made['metadata']['name']}"] = made
        return web.json_response(made, status=201)

    async def one(self, request: web.Request) -> web.Response:
        """Serve an object."""
        found = self._by_path.get(request.path)
        return await absent(request) if found is None else web.json_response(found)

    async def apply(self, request: web.Request) -> web.Response:
        """Make an object, or replace parts of it; Services get an address."""
        path = request.path.removesuffix("/status")
        made = orjson.loads(await request.read())
        former = self._by_path.get(path, {"metadata": {"uid": path}})
        self._version += 1
        version = {"resourceVersion": str(self._version)}
        now = {**former, **made, "metadata": {**former["metadata"], **made["metadata"], **version}}
        if now["kind"] == "Service":
            now["spec"].setdefault("clusterIP", "10.96.0.7")
        self._by_path[path] = now
        return web.json_response(now)


class Broker:
    """The status page of a group's only broker, which leads until its node is lost."""

    def __init__(self) -> None:
        self.lost = False
        self.asked = asyncio.Event()
        self.refused = asyncio.Event()

    async def status(self, request: web.Request) -> web.Response:
        """Answer that it leads; a lost node does not answer, and later refuses the connection."""
        if not self.lost:
            return web.json_response({"role": "leader", "term": 1, "leader": 1, "voters": [1]})
        self.asked.set()
        await self.refused.wait()
        return web.Response(status=503)


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    found = Broker()
    application = web.Application()
    application.router.add_get("/status", found.status)
    async with TestServer(application, host=HOST) as server:
        monkeypatch.setattr(names, "HTTP_PORT", server.port)
        yield found


@pytest.fixture
async def reconciler(broker: Broker) -> AsyncIterator[ClusterReconciler]:
    """A new operator beside a running Cluster of one replica."""
    replica = pod("demo-0-0", podIP=HOST)
    replica["metadata"]["labels"] = {
        names.LABEL_CLUSTER: "demo",
        names.LABEL_GROUP: "0",
        "app.kubernetes.io/component": names.BROKER,
    }
    objects = Objects(
        {
            CLUSTERS.path(NAMESPACE, "demo"): custom(
                "Cluster",
                "demo",
                spec={"replicasPerGroup": 1, "security": {"internalTls": "Disabled"}},
            ),
            PODS.path(NAMESPACE, "demo-0-0"): replica,
        }
    )
    async with serving_api(
        web.get(OF_NAMESPACE, objects.show),
        web.get(f"{OF_NAMESPACE}/{{name}}", objects.one),
        web.post(OF_NAMESPACE, objects.create),
        web.patch(f"{OF_NAMESPACE}/{{name}}", objects.apply),
        web.patch(f"{OF_NAMESPACE}/{{name}}/status", objects.apply),
    ) as api:
        inventory = Inventory(api, (NAMESPACE,))
        defaults = Defaults(IMAGE, "IfNotPresent")
        made = ClusterReconciler(
            api,
            inventory,
            defaults,
            OperatorMetrics(),
            Credentials(api, lambda: 1),
            lambda address: "",
        )
        yield made
        await made.close()


def leaders(reconciler: ClusterReconciler) -> list[tuple[tuple[str, ...], bool]]:
    """Return which leaders hand-overs would ask now, and whether these are all, by Cluster."""
    return [(target.addresses, target.complete) for target in reconciler.seen.targets()]


async def test_hand_overs_know_the_leaders_of_the_last_pass_until_the_next_one_has_asked(
    reconciler: ClusterReconciler, broker: Broker
) -> None:
    """Law: hand-overs use the leaders of the last pass until the next one has answers;
    a lost node delays a pass for seconds.
    """
    await reconciler.reconcile(KEY)
    before = leaders(reconciler)

    broker.lost = True
    under_way = asyncio.create_task(reconciler.reconcile(KEY))
    async with asyncio.timeout(10):
        await broker.asked.wait()
    meanwhile = leaders(reconciler)
    broker.refused.set()
    await under_way

    assert before == meanwhile == [((f"{HOST}:{names.BROKER_PORT}",), True)]
    assert leaders(reconciler) == [((), False)]
