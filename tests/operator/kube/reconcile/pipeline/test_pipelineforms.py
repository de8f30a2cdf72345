"""The objects that make a Pipeline's drivers: changes of their kind, scheduled runs, volumes, and remains of former ones."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orderlymq_operator.kube.reconcile import pipeline as module
from orderlymq_operator.kube.reconcile.pipeline import (
    ASKING_S,
    WAITING_S,
)
from orderlymq_operator.kube.resources import (
    CLAIMS,
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
from tests.operator.kube.reconcile.pipeline.pipelineworld import (
    NAME,
    OBJECT,
    READY,
    STREAM,
    WORD,
    World,
    one_pipeline,
)
from tests.operator.kube.samples import NAMESPACE, custom, pod


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with one_pipeline(monkeypatch) as made:
        yield made


async def test_another_kind_of_driver_comes_after_the_former_one_is_gone(world: World) -> None:
    """Law: a driver of another kind starts only after the former one is gone; two drivers never share a checkpoint."""
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
    """Law: a corrected StatefulSet is made again if its pod was never scheduled,
    because Kubernetes replaces only ready pods.
    """
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
    """Let the schedule's time come: Kubernetes makes a Job without labels, whose pods have them."""
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
    """Law: the Job of a scheduled run is left alone, although its labels are those of a Pipeline's own Jobs."""
    await begin_run(world)

    assert world.server.find(JOBS, NAMESPACE, RUN) is not None
    assert world.reason[1] != "PreviousDriverTerminating"
    assert not any(verb == "DELETE" for verb, *_ in world.server.writes())


async def test_a_suspended_schedule_lets_no_run_go_on(world: World) -> None:
    """Law: suspending a schedule also suspends its running Job; Kubernetes itself would only suspend further runs."""
    await begin_run(world)
    for suspend in (True, False):
        world.want(trigger=None, schedule="* * * * *", suspend=suspend)
        await world.settle()

        run = world.server.find(JOBS, NAMESPACE, RUN)
        assert run is not None
        assert run["spec"]["suspend"] is suspend


async def test_a_stream_waits_for_the_run_of_a_former_schedule(world: World) -> None:
    """Law: a stream waits for the last run of a former schedule, even if only the Job is left, between two attempts."""
    await begin_run(world, phase="Failed")
    world.want()
    await world.look()
    assert world.reason == ("False", "PreviousDriverTerminating")
    assert world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT) is None

    await world.settle()

    assert world.server.find(JOBS, NAMESPACE, RUN) is None
    assert world.server.find(STATEFUL_SETS, NAMESPACE, OBJECT) is not None


async def test_a_run_without_its_image_makes_room_for_the_next_one(world: World) -> None:
    """Law: a run that cannot pull its image is removed for the next one; its image and pull secrets cannot change."""
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    lacks = [{"name": "driver", "image": "spark:1", "state": waiting}]
    await begin_run(world, phase="Pending", containerStatuses=lacks, conditions=[])
    waited = world.server.find(JOBS, NAMESPACE, RUN) is not None, world.reason[1]
    world.want(trigger=None, schedule="* * * * *", imagePullSecrets=["registry"])
    await world.settle()

    assert waited == (True, "ImageUnavailable")
    assert world.server.find(JOBS, NAMESPACE, RUN) is None


async def test_rights_go_with_the_executors_that_needed_them(world: World) -> None:
    """Law: roles for executors are removed when the Pipeline has no executors any more."""
    world.want(backend="kubernetes")
    await world.settle()
    rights = await world.api.list(ROLES), await world.api.list(ROLE_BINDINGS)
    assert [len(each) for each in rights] == [1, 1]

    world.want()
    await world.settle()

    rights = await world.api.list(ROLES), await world.api.list(ROLE_BINDINGS)
    assert rights == ([], [])


async def test_a_larger_volume_that_is_there_is_not_made_smaller(world: World) -> None:
    """Law: an existing larger volume is not made smaller; Kubernetes would refuse that each time."""
    world.want(storage={"size": "5Gi"})
    await world.settle()
    world.want(storage={"size": "1Gi"})

    assert await world.settle() == WAITING_S

    claim = world.server.find(CLAIMS, NAMESPACE, OBJECT)
    assert claim is not None
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"


def bound(world: World, *, grows: bool) -> Json:
    """Let the Pipeline's claim have its volume, of a class that allows growth or not."""
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
    """Law: a volume that cannot grow is reported beside the driver's state, and the driver runs on."""
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


async def test_no_driver_is_replaced_while_its_checkpoint_would_go(world: World) -> None:
    """Law: no driver is replaced while its volume claim is being deleted, because its checkpoint would be lost;
    it is reported.
    """
    await world.hear()
    claim = world.server.find(CLAIMS, NAMESPACE, OBJECT)
    assert claim is not None
    meta = {**claim["metadata"], "deletionTimestamp": "2026-01-02T00:00:00Z"}
    world.server.put(CLAIMS, {**claim, "metadata": meta})
    world.want(trigger="60s")
    world.server.writes()

    await world.settle()

    workload = STATEFUL_SETS.path(NAMESPACE, OBJECT)
    assert [path for _, path, *_ in world.server.writes() if path.startswith(workload)] == []
    assert world.reason == ("False", "ClaimDeleted")
    world.server.drop(PODS, NAMESPACE, f"{OBJECT}-0")
    world.server.drop(CLAIMS, NAMESPACE, OBJECT)
    await world.begin_again()
    await world.settle()
    assert world.server.find(CLAIMS, NAMESPACE, OBJECT) is not None
    assert world.reason == ("False", "Progressing")


async def test_a_volume_that_nobody_has_used_grows_when_it_is_bound(world: World) -> None:
    """Law: a claim that is not bound grows only after a driver has bound it; Kubernetes refuses it before."""
    await world.settle()
    world.server.refused[CLAIMS.path(NAMESPACE, OBJECT)] = 403, "only bound claims can grow"
    world.want(storage={"size": "20Gi"})

    assert await world.settle() == WAITING_S

    assert world.reason == ("False", "Progressing")


async def test_spark_applications_need_their_definition_which_is_asked_for_rarely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: without the definition of SparkApplications nothing is made and the condition says so; it is looked for rarely."""
    world.want(backend="sparkApplication", trigger=None)
    assert await world.settle() is None
    assert world.reason == ("False", "DefinitionMissing")
    name = f"{SPARK_APPLICATIONS.plural}.sparkoperator.k8s.io"
    question = ("GET", DEFINITIONS.path(None, name))
    world.server.asked.clear()
    await world.look()
    assert question not in world.server.asked

    known = yaml.safe_load(
        (Path(__file__).parents[2] / "objects" / "sparkapplications.yaml").read_text()
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
    """Law: the pods of a SparkApplication are one driver: executors have the same labels, but are not taken for drivers."""
    known = yaml.safe_load(
        (Path(__file__).parents[2] / "objects" / "sparkapplications.yaml").read_text()
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
    """Law: a Pipeline made again under its name ignores the former one's Job and report, however late those are deleted."""
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
