"""If Kubernetes cannot make a pod, because of a quota for example, the pod's owner says so."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backups.backup import BackupReconciler
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import (
    BACKUPS,
    EVENTS,
    JOBS,
    PIPELINES,
    PODS,
    STATEFUL_SETS,
    Json,
    Resource,
)
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.reconcile.pipeline.pipelineworld import NAME, OBJECT, one_pipeline
from tests.operator.kube.samples import NAMESPACE, custom
from tests.operator.kube.smallcluster import DEFAULTS, KEY, SmallCluster, small_cluster

QUOTA = "is forbidden: exceeded quota: pods, requested: pods=1, used: pods=1, limited: pods=1"
REFUSED = f'create Pod demo-0-0 in StatefulSet demo-0 failed error: pods "demo-0-0" {QUOTA}'
MADE = "create Pod demo-0-0 in StatefulSet demo-0 successful"


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as found:
        for _ in range(4):
            await found.reconciler.reconcile(KEY)
        yield found


def tell(server: ObjectServer, maker: Resource, name: str, text: str, at: str, **more: Any) -> None:
    """Let a controller write an event about an object whose pods it makes."""
    made = server.find(maker, NAMESPACE, name)
    assert made is not None, f"there is no {maker.kind} {name}"
    event: Json = {
        "metadata": {"name": f"{name}.{at[-3:-1]}", "namespace": NAMESPACE},
        "involvedObject": {"uid": made["metadata"]["uid"]},
        "reason": "FailedCreate",
        "message": text,
        "lastTimestamp": at,
    }
    server.put(EVENTS, {**event, **more})


def lose_broker(small: SmallCluster) -> None:
    ended = small.server.drop(PODS, NAMESPACE, "demo-0-0")
    small.shown(PODS, ended, gone=True)


async def ready(small: SmallCluster) -> tuple[str, str]:
    small.now[0] += 60
    await small.reconciler.reconcile(KEY)
    found = small.condition("Ready")
    return found["reason"], found["message"]


async def test_a_cluster_says_what_refuses_a_pod_of_it(small: SmallCluster) -> None:
    """Law: as long as a Cluster's pod is missing, its status has the API server's words."""
    lose_broker(small)
    tell(
        small.server,
        STATEFUL_SETS,
        "demo-0",
        MADE,
        "2026-01-01T00:00:01Z",
        reason="SuccessfulCreate",
    )
    tell(small.server, STATEFUL_SETS, "demo-0", REFUSED, "2026-01-01T00:00:02Z")

    assert await ready(small) == ("ApiRefused", REFUSED)


@pytest.mark.parametrize(
    ("text", "at", "made_at"),
    [
        (REFUSED, "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"),
        (REFUSED.replace("demo-0-0", "demo-0-7"), "2026-01-01T00:00:02Z", "2026-01-01T00:00:01Z"),
    ],
    ids=["it was made since", "it is about another one"],
)
async def test_a_refusal_that_is_over_explains_no_missing_pod(
    small: SmallCluster, text: str, at: str, made_at: str
) -> None:
    """Law: a refusal that is over does not explain a pod that was evicted later."""
    lose_broker(small)
    tell(small.server, STATEFUL_SETS, "demo-0", text, at)
    tell(small.server, STATEFUL_SETS, "demo-0", MADE, made_at, reason="SuccessfulCreate")

    assert (await ready(small))[0] != "ApiRefused"


async def test_events_are_read_only_while_a_pod_is_missing(small: SmallCluster) -> None:
    """Law: events are read only while a pod is missing; without the right to read them the Cluster goes on."""
    small.server.asked.clear()
    await ready(small)
    assert not any(path.endswith("/events") for _, path, *_ in small.server.asked)

    lose_broker(small)
    small.server.refused[EVENTS.path(NAMESPACE)] = (403, "no right")
    assert (await ready(small))[0] != "ApiRefused"


@pytest.mark.parametrize("spec", [{}, {"trigger": "availableNow"}], ids=["stream", "Job"])
async def test_a_pipeline_says_what_refuses_its_driver(
    monkeypatch: pytest.MonkeyPatch, spec: Json
) -> None:
    """Law: a Pipeline whose driver cannot be made says why."""
    async with one_pipeline(monkeypatch) as world:
        world.want(**spec)
        await world.settle()
        maker = STATEFUL_SETS if not spec else JOBS
        (name,) = [
            each["metadata"]["name"]
            for each in world.server.objects.values()
            if each.get("kind") == maker.kind and each["metadata"]["name"].startswith(OBJECT)
        ]
        tell(world.server, maker, name, f"Error creating: pods {QUOTA}", "2026-01-01T00:00:02Z")
        await world.settle()

        found = world.server.find(PIPELINES, NAMESPACE, NAME)
        assert found is not None
        condition = condition_of(found["status"], "Ready") or {}
        assert (condition["reason"], found["status"]["phase"]) == ("ApiRefused", "Starting")
        assert QUOTA in condition["message"]


async def test_a_backup_says_what_refuses_its_pod(small: SmallCluster) -> None:
    """Law: a Backup whose Job has no pod says why."""
    destination = {"pvc": {"claimName": "backups"}}
    small.server.put(
        BACKUPS,
        custom(
            "Backup", "monday", spec={"clusterRef": {"name": "demo"}, "destination": destination}
        ),
    )
    inventory = Inventory(small.api, (NAMESPACE,))
    backups = BackupReconciler(small.api, inventory, small.metrics, DEFAULTS)
    await backups.reconcile((NAMESPACE, "monday"))
    text = f"Error creating: pods {QUOTA}"
    tell(small.server, JOBS, "monday-uid-shop-backup", text, "2026-01-01T00:00:02Z")
    await backups.reconcile((NAMESPACE, "monday"))

    found = small.server.find(BACKUPS, NAMESPACE, "monday")
    assert found is not None
    assert (condition_of(found["status"], "Ready") or {})["message"] == text
