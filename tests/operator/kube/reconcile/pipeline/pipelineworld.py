"""A small API server with one Pipeline, its driver (which answers by real HTTP or not), and the operator's passes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile import pipeline as module
from orderlymq_operator.kube.reconcile.pipeline import (
    AT_WORK_S,
    PipelineReconciler,
)
from orderlymq_operator.kube.resources import (
    CLUSTERS,
    PIPELINES,
    PODS,
    Json,
)
from orderlymq_operator.plan.permissions import DriverPolicy
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, custom, pod
from tests.waiting import turns

NAME = "orders-archive"
KEY = (NAMESPACE, NAME)
OBJECT = f"{NAME}-pipeline"
STREAM: Json = {
    "type": "archive",
    "source": {"topic": "orders"},
    "checkpoint": "checkpoint",
    "path": "archive",
    "trigger": "30s",
}
READY = [
    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
]
WORD: Json = {"phase": "Running", "ready": True, "last_batch": 7, "rows": 1234, "lag": 5}


@dataclass
class Driver:
    """The page of a driver's pod: its report as JSON, or any bytes; with None no request is answered until the end."""

    report: Json | bytes | None = None
    asked: int = 0
    end: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.report is None:
            await self.end.wait()
        if isinstance(self.report, bytes):
            return web.Response(body=self.report)
        return web.json_response(self.report)


@dataclass
class World:
    """An API server with one Pipeline, its driver, and the passes over it."""

    server: ObjectServer
    api: Api
    drivers: PipelineReconciler
    inventory: Inventory
    driver: Driver = field(default_factory=Driver)

    def want(self, **spec: Any) -> None:
        """Change the Pipeline's spec; None removes a field."""
        every = {key: value for key, value in {**STREAM, **spec}.items() if value is not None}
        before = self.server.find(PIPELINES, NAMESPACE, NAME) or {}
        made = custom("Pipeline", NAME, spec=every, status=before.get("status", {}))
        made["spec"] = {"clusterRef": {"name": "demo"}, **every}
        self.put(made)

    async def begin_again(self) -> None:
        """Let a new operator process begin."""
        await self.drivers.close()
        self.inventory = Inventory(self.api, ())
        self.drivers = _drivers(self.api, self.inventory)

    def put(self, made: Json) -> None:
        self.server.put(PIPELINES, made)
        self.inventory.invalidate("Pipeline")

    async def look(self) -> float | None:
        return await self.drivers.reconcile(KEY)

    async def settle(self) -> float | None:
        """Make passes until nothing is left to do."""
        for _ in range(5):
            due = await self.look()
            if due != AT_WORK_S:
                return due
        raise AssertionError(f"it never rests: {self.server.writes()}")

    def run_driver(
        self, form: str = "StatefulSet", name: str = f"{OBJECT}-0", **status: Any
    ) -> None:
        """Let Kubernetes start what the operator has made."""
        (workload,) = [
            found
            for path, found in self.server.objects.items()
            if found.get("kind") == form and f"/namespaces/{NAMESPACE}/" in path
        ]
        made = pod(name, **{"podIP": "127.0.0.1", "conditions": READY, **status})
        made["apiVersion"] = "v1"
        made["metadata"] |= {
            "labels": {names.LABEL_PIPELINE: NAME, names.LABEL_FORM: form},
            "ownerReferences": [{"kind": form, "uid": workload["metadata"]["uid"]}],
            "annotations": {
                names.ANNOTATION_WORK: workload["metadata"]["annotations"][names.ANNOTATION_WORK]
            },
        }
        self.server.put(PODS, made)

    async def hear(self) -> None:
        """Let the driver run and report, and the operator read that."""
        await self.settle()
        self.run_driver()
        self.driver.report = WORD
        await self.settle()

    @property
    def status(self) -> Json:
        found = self.server.find(PIPELINES, NAMESPACE, NAME)
        assert found is not None
        status: Json = found["status"]
        return status

    @property
    def reason(self) -> tuple[str, str]:
        """Return the status of the condition Ready, and its reason."""
        (ready,) = self.status["conditions"]
        return ready["status"], ready["reason"]


def _drivers(api: Api, inventory: Inventory) -> PipelineReconciler:
    return PipelineReconciler(
        api,
        inventory,
        OperatorMetrics(),
        policy=DriverPolicy("spark:1"),
        pull_policy="IfNotPresent",
    )


async def _listen(runner: web.AppRunner) -> int:
    """Listen at one port for IPv4 and IPv6; another process may have that port for one of them."""
    for _ in range(20):
        first = web.TCPSite(runner, "127.0.0.1", 0)
        await first.start()
        port: int = runner.addresses[0][1]
        try:
            await web.TCPSite(runner, "::1", port).start()
        except OSError:
            await first.stop()
        else:
            return port
    raise AssertionError("no port is free in both families")


@asynccontextmanager
async def one_pipeline(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Serve the API and the driver's page."""
    driver = Driver()
    app = web.Application()
    app.router.add_get("/status", driver.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    monkeypatch.setattr(names, "HTTP_PORT", await _listen(runner))
    monkeypatch.setattr(module, "_SOON_S", 5.0)  # For a busy machine.
    server = ObjectServer()
    server.put(CLUSTERS, custom("Cluster", "demo", status={"observedGeneration": 1}))
    async with server.serving() as api:
        inventory = Inventory(api, ())
        made = World(server, api, _drivers(api, inventory), inventory, driver)
        made.want()
        yield made
        await made.drivers.close()
        driver.end.set()
    await turns()
    await runner.cleanup()
