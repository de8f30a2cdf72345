"""Passes over Pipelines against a small API server and drivers that answer over real HTTP, or do not."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from orderlymq_operator.kube.api import Api, ApiError, ForbiddenError, RetryLaterError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile import pipeline as module
from orderlymq_operator.kube.reconcile.pipeline import (
    ASKING_S,
    AT_WORK_S,
    WAITING_S,
    PipelineReconciler,
)
from orderlymq_operator.kube.resources import (
    CLAIMS,
    CLUSTERS,
    CRON_JOBS,
    DEFINITIONS,
    JOBS,
    PIPELINES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SPARK_APPLICATIONS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    Json,
)
from orderlymq_operator.plan.permissions import DriverPolicy
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, custom, pod

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
    """The page that a driver's pod serves: its report as JSON, or any bytes; None answers nothing till the end."""

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
        """Let the Pipeline be like this; None takes a field away."""
        every = {key: value for key, value in {**STREAM, **spec}.items() if value is not None}
        before = self.server.find(PIPELINES, NAMESPACE, NAME) or {}
        made = custom("Pipeline", NAME, spec=every, status=before.get("status", {}))
        made["spec"] = {"clusterRef": {"name": "demo"}, **every}
        self.put(made)

    async def begin_again(self) -> None:
        """Let the operator be another process."""
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
            "annotations": {
                names.ANNOTATION_WORK: workload["metadata"]["annotations"][names.ANNOTATION_WORK]
            },
        }
        self.server.put(PODS, made)

    async def hear(self) -> None:
        """Let the driver run, say its word, and be heard."""
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


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    driver = Driver()
    app = web.Application()
    app.router.add_get("/status", driver.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(names, "HTTP_PORT", runner.addresses[0][1])
    monkeypatch.setattr(module, "_SOON_S", 5.0)  # on a busy machine
    await web.TCPSite(runner, "::1", names.HTTP_PORT).start()
    server = ObjectServer()
    server.put(CLUSTERS, custom("Cluster", "demo", status={"observedGeneration": 1}))
    async with server.serving() as api:
        inventory = Inventory(api, ())
        made = World(server, api, _drivers(api, inventory), inventory, driver)
        made.want()
        yield made
        await made.drivers.close()
        driver.end.set()
    await runner.cleanup()


async def test_a_new_pipeline_is_made_once_and_then_left_alone(world: World) -> None:
    """One pass makes everything, the next finds nothing to do and waits for the driver."""
    assert await world.look() == AT_WORK_S
    made = world.server.writes()
    assert made[-1] == ("PATCH", f"{PIPELINES.path(NAMESPACE, NAME)}/status")
    assert world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT) is not None

    assert await world.settle() == WAITING_S
    world.server.writes()

    assert await world.look() == WAITING_S
    assert world.server.writes() == []
    assert (world.status["phase"], world.reason[1]) == ("Starting", "Progressing")


async def test_a_driver_that_runs_is_asked_and_reported(world: World) -> None:
    """Its figures stand in the status, and it is asked again after a while."""
    await world.settle()
    world.run_driver()
    world.driver.report = {**WORD, "offsets": {"orders": {"demo-0": {"1": 4, "0": 3}}}}

    assert await world.settle() == ASKING_S

    assert world.reason == ("True", "DriverRunning")
    status = {key: value for key, value in world.status.items() if key != "conditions"}
    assert status == {
        "phase": "Running",
        "driver": f"{OBJECT}-0",
        "claim": OBJECT,
        "lastBatch": 7,
        "rows": 1234,
        "lag": 5,
        "offsets": [
            {"topic": "orders", "broker": "demo-0", "queue": queue, "offset": 3 + queue}
            for queue in (0, 1)
        ],
        "observedGeneration": 1,
    }


async def test_a_report_of_any_length_is_read_whole(world: World) -> None:
    """A pipeline of thousands of queues says more than one packet holds."""
    await world.settle()
    world.run_driver()
    queues = {str(queue): 10**9 + queue for queue in range(20_000)}
    world.driver.report = {**WORD, "offsets": {"orders": {"demo-0": queues}}}

    await world.settle()

    assert world.status["lastBatch"] == 7
    assert world.status["offsets"][0]["offset"] == 10**9


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(b"<html>busy</html>", id="no JSON"),
        pytest.param(b"[]", id="no report"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b" " * (2 << 20) + b"{}", id="without end"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_a_driver_that_says_nothing_of_use_keeps_its_last_figures(
    world: World, report: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its earlier figures stay true; its silence is no news of the pipeline and no error."""
    await world.hear()
    monkeypatch.setattr(module, "FIGURES_S", 0.0)
    world.driver.report = report

    assert await world.settle() == ASKING_S

    assert (world.status["phase"], world.status["lastBatch"]) == ("Running", 7)
    assert world.reason == ("True", "DriverRunning")


async def test_a_driver_that_does_not_answer_holds_nobody_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: no look waits till a driver answers, and each is asked once at a time; what it has said before stays."""
    await world.hear()
    world.driver.report, asked = None, world.driver.asked
    monkeypatch.setattr(module, "_SOON_S", 0.05)
    monkeypatch.setattr(module, "_ANSWER_S", 3600.0)
    await world.begin_again()

    for _ in range(3):
        assert await world.settle() == ASKING_S
    assert (world.status["phase"], world.status["lastBatch"]) == ("Running", 7)
    assert world.driver.asked == asked + 1


async def test_a_late_answer_is_read_by_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver with a busy JVM is slow each time, and is heard all the same."""
    await world.settle()
    world.run_driver()
    monkeypatch.setattr(module, "_SOON_S", 0.0)
    monkeypatch.setattr(module, "FIGURES_S", 0.0)
    await world.settle()
    assert "lastBatch" not in world.status

    world.driver.report = WORD
    world.driver.end.set()
    monkeypatch.setattr(module, "_SOON_S", 60.0)
    await world.settle()

    assert (world.status["lastBatch"], world.driver.asked) == (7, 1)


async def test_a_driver_that_is_gone_is_no_error(world: World) -> None:
    """Its pod seems ready for a while after its node has died."""
    await world.settle()
    world.run_driver(podIP="127.0.0.254")

    assert await world.settle() == ASKING_S

    assert "lastBatch" not in world.status


async def test_a_driver_with_an_address_of_ipv6_is_asked(world: World) -> None:
    """Law: an IPv6-only Kubernetes needs no setting."""
    await world.settle()
    world.run_driver(podIP="::1")
    world.driver.report = WORD

    await world.settle()

    assert world.status["lastBatch"] == 7


async def test_what_a_former_container_said_is_no_news_of_this_one(world: World) -> None:
    """A driver that runs again and is silent has not failed."""
    ended = {"exitCode": 1, "message": '{"phase": "Failed", "last_error": "disk full"}'}
    container = {"name": "driver", "state": {"running": {}}, "lastState": {"terminated": ended}}
    await world.settle()
    world.run_driver(containerStatuses=[container])
    world.driver.report = b""

    await world.settle()

    assert "lastError" not in world.status


async def test_only_a_driver_that_may_answer_is_asked(world: World) -> None:
    """One that starts, has no address or has ended would only be waited for."""
    await world.settle()
    cases: list[Json] = [{"conditions": []}, {"podIP": ""}, {"phase": "Failed"}]
    for status in cases:
        world.run_driver(**status)
        await world.settle()

    assert world.driver.asked == 0


async def test_figures_alone_are_written_now_and_then_and_news_immediately(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver is asked more often than its status is written; a change of phase does not wait."""
    await world.hear()
    world.server.writes()

    world.driver.report = {**WORD, "last_batch": 8}
    await world.look()
    assert world.server.writes() == []

    with monkeypatch.context() as changed:
        changed.setattr(module, "FIGURES_S", 0.0)
        await world.look()
    assert world.status["lastBatch"] == 8

    world.run_driver(conditions=[])
    assert await world.look() == WAITING_S
    assert (world.status["phase"], world.status["lastBatch"]) == ("Starting", 8)


async def test_a_driver_says_when_it_has_failed(world: World) -> None:
    """The last word of a pod that ended stands in the status, and goes when the next one runs."""
    word = '{"phase": "Failed", "last_error": "the disk is full", "last_batch": 3}'
    ended = {"name": "driver", "state": {"terminated": {"exitCode": 1, "message": word}}}
    await world.settle()
    world.run_driver(phase="Failed", containerStatuses=[ended])
    await world.settle()
    assert (world.status["lastError"], world.status["lastBatch"]) == ("the disk is full", 3)

    world.run_driver()
    world.driver.report = {**WORD, "phase": "Running"}
    await world.settle()

    assert "lastError" not in world.status


async def test_a_suspended_pipeline_has_no_driver_and_goes_on_when_it_may(world: World) -> None:
    """Only the number of drivers is touched."""
    await world.hear()

    world.want(suspend=True)
    await world.settle()
    made = world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT)
    assert made is not None
    assert made["spec"]["replicas"] == 0
    world.server.drop(PODS, NAMESPACE, f"{OBJECT}-0")
    await world.settle()
    assert (world.status["phase"], world.status["lastBatch"]) == ("Suspended", 7)
    assert "driver" not in world.status

    world.want()
    await world.settle()
    made = world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT)
    assert made is not None
    assert made["spec"]["replicas"] == 1


async def test_another_kind_of_driver_comes_after_the_former_one_is_gone(world: World) -> None:
    """Two drivers never work on one checkpoint."""
    await world.hear()
    world.server.writes()

    world.want(trigger=None)
    await world.look()
    place = STATEFUL_SETS.path(NAMESPACE, OBJECT)
    assert ("DELETE", place, "Background") in world.server.writes()
    await world.look()
    assert (world.reason[1], await world.api.list(JOBS)) == ("PreviousDriverTerminating", [])

    world.server.drop(PODS, NAMESPACE, f"{OBJECT}-0")
    await world.settle()
    assert len(await world.api.list(JOBS)) == 1

    world.want(trigger=None, schedule="5 * * * *")
    await world.settle()
    assert await world.api.list(JOBS) == []
    assert world.server.find(CRON_JOBS, NAMESPACE, OBJECT) is not None
    assert world.status["phase"] == "Scheduled"


async def test_a_correction_reaches_a_stream_that_no_node_has_taken(world: World) -> None:
    """Kubernetes replaces only a pod that is ready, so the StatefulSet is made again."""
    world.want(resources={"requests": {"cpu": "900"}})
    await world.settle()
    world.run_driver(phase="Pending", conditions=[])
    waits = world.server.find(PODS, NAMESPACE, f"{OBJECT}-0")
    former = world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT)
    assert waits is not None
    assert former is not None
    waits["metadata"]["labels"]["controller-revision-hash"] = "former"
    former["status"]["updateRevision"] = "former"
    assert await world.settle() == WAITING_S

    world.want(resources={"requests": {"cpu": "1"}})
    await world.look()
    applied = world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT)
    assert applied is not None
    assert applied["metadata"]["uid"] == former["metadata"]["uid"]
    applied["status"]["updateRevision"] = "corrected"
    await world.settle()

    made = world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT)
    assert made is not None
    assert made["metadata"]["uid"] != former["metadata"]["uid"]


RUN = f"{OBJECT}-29923115"


async def begin_run(world: World, **status: Any) -> None:
    """Let the schedule's time come: Kubernetes gives a Job without labels those of its pods."""
    world.want(trigger=None, schedule="* * * * *")
    await world.settle()
    (cron,) = await world.api.list(CRON_JOBS)
    template = cron["spec"]["jobTemplate"]
    metadata = {
        **template["metadata"],
        "name": RUN,
        "namespace": NAMESPACE,
        "labels": template["spec"]["template"]["metadata"]["labels"],
        "ownerReferences": [{"kind": "CronJob", "name": OBJECT}],
    }
    world.server.put(JOBS, {**template, "kind": "Job", "metadata": metadata})
    world.run_driver("CronJob", f"{RUN}-x", **status)
    world.driver.report = WORD
    world.server.writes()
    await world.settle()


async def test_a_scheduled_run_is_left_alone(world: World) -> None:
    """It has the labels by which a pipeline's own Jobs are found."""
    await begin_run(world)

    assert world.server.find(JOBS, NAMESPACE, RUN) is not None
    assert world.reason[1] != "PreviousDriverTerminating"
    assert not any(verb == "DELETE" for verb, *_ in world.server.writes())


async def test_a_suspended_schedule_lets_no_run_go_on(world: World) -> None:
    """Kubernetes ends the pods of a suspended Job; the suspension of a CronJob it applies only to further ones."""
    await begin_run(world)
    for suspend in (True, False):
        world.want(trigger=None, schedule="* * * * *", suspend=suspend)
        await world.settle()

        run = world.server.find(JOBS, NAMESPACE, RUN)
        assert run is not None
        assert run["spec"]["suspend"] is suspend


async def test_a_stream_waits_for_the_run_of_a_former_schedule(world: World) -> None:
    """Between two attempts nothing but the Job shows it, and its CronJob may be gone before."""
    await begin_run(world, phase="Failed")
    world.want()
    await world.look()
    assert world.reason == ("False", "PreviousDriverTerminating")
    assert world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT) is None

    await world.settle()

    assert world.server.find(JOBS, NAMESPACE, RUN) is None
    assert world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT) is not None


async def test_a_run_without_its_image_makes_room_for_the_next_one(world: World) -> None:
    """It would wait for ever: neither its image nor its pull secrets change with those of its schedule."""
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    lacks = [{"name": "driver", "image": "spark:1", "state": waiting}]
    await begin_run(world, phase="Pending", containerStatuses=lacks, conditions=[])
    waited = world.server.find(JOBS, NAMESPACE, RUN) is not None, world.reason[1]
    world.want(trigger=None, schedule="* * * * *", imagePullSecrets=["registry"])
    await world.settle()

    assert waited == (True, "ImageUnavailable")
    assert world.server.find(JOBS, NAMESPACE, RUN) is None


async def test_rights_go_with_the_executors_that_needed_them(world: World) -> None:
    """A driver that makes no executors has none."""
    world.want(backend="kubernetes")
    await world.settle()
    rights = await world.api.list(ROLES), await world.api.list(ROLE_BINDINGS)
    assert [len(each) for each in rights] == [1, 1]

    world.want()
    await world.settle()

    rights = await world.api.list(ROLES), await world.api.list(ROLE_BINDINGS)
    assert rights == ([], [])


async def test_a_larger_volume_that_is_there_is_not_made_smaller(world: World) -> None:
    """Kubernetes would refuse it, at each pass."""
    world.want(storage={"size": "5Gi"})
    await world.settle()
    world.want(storage={"size": "1Gi"})

    assert await world.settle() == WAITING_S

    claim = world.server.find(CLAIMS, NAMESPACE, OBJECT)
    assert claim is not None
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"


def bound(world: World, *, grows: bool) -> Json:
    """Let the Pipeline's claim have its volume, of a class that lets it grow or does not."""
    claim = world.server.find(CLAIMS, NAMESPACE, OBJECT)
    assert claim is not None
    claim["spec"]["storageClassName"] = "disk"
    claim["status"] = {"phase": "Bound"}
    made = {"metadata": {"name": "disk"}, "allowVolumeExpansion": grows}
    world.server.put(STORAGE_CLASSES, made)
    return claim


@pytest.mark.parametrize("reason", ["NotExpandable", "GrowthRefused"])
async def test_a_volume_that_cannot_grow_keeps_no_driver_from_running(
    world: World, reason: str
) -> None:
    """Its size never goes back, so it is said beside how the driver is; figures go on."""
    await world.hear()
    bound(world, grows=reason == "GrowthRefused")
    world.server.refused[CLAIMS.path(NAMESPACE, OBJECT)] = 403, "exceeded quota"
    world.want(storage={"size": "20Gi"}, trigger=None)
    await world.look()
    world.server.drop(PODS, NAMESPACE, f"{OBJECT}-0")
    await world.settle()
    world.run_driver("Job", "run-x")
    world.driver.report = {**WORD, "last_batch": 8}

    assert await world.settle() == ASKING_S

    said = {each["type"]: each["reason"] for each in world.status["conditions"]}
    assert said == {"Ready": "Progressing", "StorageReady": reason}
    assert (world.status["phase"], world.status["lastBatch"]) == ("Running", 8)
    world.server.refused.clear()
    bound(world, grows=True)
    await world.begin_again()
    await world.settle()
    await world.settle()
    assert world.reason == ("False", "Progressing")
    claim = world.server.find(CLAIMS, NAMESPACE, OBJECT)
    assert claim is not None
    assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"


async def test_a_volume_that_nobody_has_used_grows_when_it_is_bound(world: World) -> None:
    """Nobody may change one that is not, and a driver is what binds it."""
    await world.settle()
    world.server.refused[CLAIMS.path(NAMESPACE, OBJECT)] = 403, "only bound claims can grow"
    world.want(storage={"size": "20Gi"})

    assert await world.settle() == WAITING_S

    assert world.reason == ("False", "Progressing")


async def test_spark_applications_need_their_definition_which_is_asked_for_rarely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a sentence says so and nothing is made; once it is there, it is found."""
    world.want(backend="sparkApplication", trigger=None)
    assert await world.settle() is None
    assert world.reason == ("False", "DefinitionMissing")
    name = f"{SPARK_APPLICATIONS.plural}.sparkoperator.k8s.io"
    question = ("GET", DEFINITIONS.path(None, name))
    world.server.asked.clear()
    await world.look()
    assert question not in world.server.asked

    known = yaml.safe_load(
        (Path(__file__).parents[1] / "objects" / "sparkapplications.yaml").read_text()
    )
    spec = known["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    suspend = spec["properties"].pop("suspend")
    world.server.put(DEFINITIONS, {"metadata": {"name": name}, **known})
    monkeypatch.setattr(module, "_DEFINITION_S", -1.0)
    await world.settle()
    assert world.reason == ("False", "DefinitionTooOld")
    assert await world.api.list(SPARK_APPLICATIONS) == []

    spec["properties"]["suspend"] = suspend
    world.server.put(DEFINITIONS, {"metadata": {"name": name}, **known})
    await world.settle()

    assert len(await world.api.list(SPARK_APPLICATIONS)) == 1


async def test_the_pods_of_a_spark_application_are_one_driver(world: World) -> None:
    """Kubeflow's operator hands the labels on to all pods: executors are none, and none is in the way."""
    known = yaml.safe_load(
        (Path(__file__).parents[1] / "objects" / "sparkapplications.yaml").read_text()
    )
    name = f"{SPARK_APPLICATIONS.plural}.sparkoperator.k8s.io"
    world.server.put(DEFINITIONS, {"metadata": {"name": name}, **known})
    world.want(backend="sparkApplication", trigger=None)
    await world.settle()
    (made,) = await world.api.list(SPARK_APPLICATIONS)
    for role in ("driver", "executor"):
        found = pod(f"{OBJECT}-{role}", podIP="127.0.0.1", conditions=READY)
        found["apiVersion"] = "v1"
        found["metadata"]["labels"] = {**made["metadata"]["labels"], "spark-role": role}
        world.server.put(PODS, found)
    world.driver.report = WORD
    made["status"] = {"applicationState": {"state": "RUNNING"}}
    world.server.put(SPARK_APPLICATIONS, made)

    await world.settle()

    assert world.reason == ("True", "DriverRunning")
    assert (world.status["driver"], world.status["rows"]) == (f"{OBJECT}-driver", WORD["rows"])

    made["status"] = {"applicationState": {"state": "COMPLETED"}}
    world.server.put(SPARK_APPLICATIONS, made)
    world.want(backend="sparkApplication", trigger=None, spark={"memory": "2g"})
    await world.settle()
    (after,) = await world.api.list(SPARK_APPLICATIONS)
    assert after["spec"] == made["spec"], "a run that has ended would be submitted again"


async def test_a_pipeline_that_is_made_again_does_its_work_itself(world: World) -> None:
    """The Job of the former one and what its driver said are not its own, however late they are collected."""
    world.want(trigger=None)
    await world.settle()
    (former,) = await world.api.list(JOBS)
    former["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.server.put(JOBS, former)
    word = '{"phase": "Finished", "result": "6000 messages", "passed": true}'
    ended = {"name": "driver", "state": {"terminated": {"exitCode": 0, "message": word}}}
    world.run_driver("Job", "run-x", phase="Succeeded", containerStatuses=[ended])
    await world.settle()
    assert world.status["result"] == "6000 messages"

    world.server.drop(PIPELINES, NAMESPACE, NAME)
    spec = {key: value for key, value in STREAM.items() if key != "trigger"}
    made = custom("Pipeline", NAME, uid="another", creationTimestamp="2026-01-02T00:00:00Z")
    world.put({**made, "spec": {**spec, "clusterRef": {"name": "demo"}}})
    await world.begin_again()
    await world.settle()

    (job,) = await world.api.list(JOBS)
    assert [each["uid"] for each in job["metadata"]["ownerReferences"]] == ["another"]
    assert (world.reason, world.status["phase"]) == (("False", "Progressing"), "Starting")
    assert "result" not in world.status


async def test_a_cluster_that_is_not_there_is_named_and_nothing_made(world: World) -> None:
    """Its coming wakes the pipeline; until then nobody asks."""
    world.server.drop(CLUSTERS, NAMESPACE, "demo")
    world.inventory.invalidate()

    assert await world.look() is None

    assert world.reason == ("False", "ClusterNotFound")
    assert world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT) is None


async def test_an_invalid_manifest_is_reported_and_what_runs_goes_on(world: World) -> None:
    """The sentence names the field."""
    await world.settle()
    world.want(path=None)
    world.server.writes()

    assert await world.look() is None

    assert world.reason == ("False", "Invalid")
    assert [path for _, path, *_ in world.server.writes()] == [
        f"{PIPELINES.path(NAMESPACE, NAME)}/status"
    ]


@pytest.mark.parametrize("how", ["paused", "deleted", "gone"])
async def test_what_is_paused_or_goes_is_left_alone(world: World, how: str) -> None:
    """The person who paused it decides; what a deleted one owns goes with it."""
    made = custom("Pipeline", NAME, spec=STREAM)
    if how == "paused":
        made["metadata"]["annotations"] = {names.ANNOTATION_PAUSE: "true"}
    if how == "deleted":
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.put(made)
    if how == "gone":
        world.server.drop(PIPELINES, NAMESPACE, NAME)

    assert await world.look() is None

    assert world.server.writes() == []


async def test_what_the_api_server_refuses_is_reported_and_tried_again(world: World) -> None:
    """Missing rights have their own reason; figures of before stay."""
    world.server.refused[STATEFUL_SETS.path(NAMESPACE)] = 403, "statefulsets is forbidden"
    with pytest.raises(ForbiddenError):
        await world.look()
    assert world.reason == ("False", "Forbidden")

    world.server.refused[STATEFUL_SETS.path(NAMESPACE)] = 422, "replicas must be a number"
    with pytest.raises(Exception, match="must be a number"):
        await world.look()
    assert world.reason == ("False", "ApiRefused")

    world.server.refused.clear()
    await world.settle()
    assert world.reason == ("False", "Progressing")


async def test_an_object_that_the_api_server_cannot_read_is_reported(world: World) -> None:
    """Law: an answer of 500 that no later attempt changes is a refusal."""
    text = (
        "failed to create typed patch object (shop/a; apps/v1, Kind=StatefulSet): duplicate entries"
    )
    world.server.refused[STATEFUL_SETS.path(NAMESPACE)] = 500, text

    with pytest.raises(ApiError, match="duplicate entries"):
        await world.look()

    assert world.reason == ("False", "ApiRefused")


async def test_an_answer_of_500_that_stays_is_reported(world: World) -> None:
    """Law: it may pass, so that the first ones are no news; one that comes again and again is a person's to know."""
    world.server.refused[STATEFUL_SETS.path(NAMESPACE)] = 500, "the webhook does not answer"
    known = []
    for _ in range(5):
        with pytest.raises(RetryLaterError):
            await world.look()
        known.append(bool(world.status))
    assert known == [False, False, False, True, True]
    assert world.reason == ("False", "ApiRefused")

    world.server.refused.clear()
    await world.settle()
    assert world.reason == ("False", "Progressing")


async def test_an_api_server_that_is_away_is_no_news_of_a_pipeline(world: World) -> None:
    """Nothing could be written either; the caller tries again."""
    world.server.refused[PODS.path(NAMESPACE)] = 503, "etcd is away"

    with pytest.raises(RetryLaterError):
        await world.look()

    assert world.status == {}


async def test_a_pipeline_that_runs_costs_two_lists_a_look(world: World) -> None:
    """Its pods, and what makes them; everything else once a minute."""
    world.want()
    await world.settle()
    world.run_driver()
    await world.settle()
    await world.look()
    world.server.asked.clear()

    assert await world.look() == ASKING_S

    read = [path.rpartition("/")[2] for method, path, *_ in world.server.asked if method == "GET"]
    assert sorted(read) == ["pods", "statefulsets"]
