"""The operator's default pull secrets: each pod for a Cluster or Pipeline that names none gets them."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import yaml

from orderlymq_operator.kube.forecast.reader import forecast_with
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.accepted import may_wait
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.backups.backup import BackupReconciler
from orderlymq_operator.kube.reconcile.pipeline import PipelineReconciler
from orderlymq_operator.kube.resources import (
    BACKUPS,
    CLUSTERS,
    DEPLOYMENTS,
    JOBS,
    PIPELINES,
    STATEFUL_SETS,
    Json,
    Resource,
)
from orderlymq_operator.plan.permissions import DriverPolicy
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import IMAGE, NAMESPACE, custom, item
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

DEFAULTS: Final = Defaults(IMAGE, "IfNotPresent", pull_secrets=("registry",))
WITH_ALL: Final[dict[str, Any]] = {
    "console": {"enabled": True, "accounts": {"secretName": "who-may-look"}},
    "canary": {"enabled": True},
}
STREAM: Final[dict[str, Any]] = {
    "type": "archive",
    "source": {"topic": "orders"},
    "checkpoint": "checkpoint",
    "path": "archive",
    "trigger": "30s",
}


def pulled_with(server: ObjectServer, *kinds: Resource) -> list[list[str]]:
    """Return the pull secrets of the pods of all objects of these kinds."""
    chosen = {resource.kind for resource in kinds}
    specs = [
        made["spec"]["template"]["spec"]
        for made in server.objects.values()
        if made.get("kind") in chosen
    ]
    return [[each["name"] for each in spec.get("imagePullSecrets", [])] for spec in specs]


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr, defaults=DEFAULTS, **WITH_ALL) as found:
        await calm(found)
        yield found


async def calm(small: SmallCluster) -> None:
    """Make passes until nothing is left to do."""
    for _ in range(4):
        await small.reconciler.reconcile(KEY)


async def test_a_cluster_that_names_no_pull_secrets_gets_the_operators(small: SmallCluster) -> None:
    """Law: a Cluster's own pull secrets win over the operator's; the remembered spec has only the Cluster's own,
    and no pod is replaced.
    """
    assert pulled_with(small.server, STATEFUL_SETS, DEPLOYMENTS) == [["registry"]] * 4
    servers = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-nameserver")
    assert servers is not None
    assert "registry" not in servers["metadata"]["annotations"][names.ANNOTATION_ACCEPTED]
    small.server.writes()

    small.change(imagePullSecrets=["own"])
    await calm(small)

    assert pulled_with(small.server, STATEFUL_SETS, DEPLOYMENTS) == [["own"]] * 4
    assert not any(path.endswith("/eviction") for _, path, *_ in small.server.writes())


async def test_the_forecast_knows_the_operators_pull_secrets(small: SmallCluster) -> None:
    """Law: the forecast knows the default pull secrets, so a manifest that changes nothing forecasts nothing."""
    meta = {"name": "demo", "namespace": NAMESPACE}
    found = small.server.find(CLUSTERS, *KEY)
    assert found is not None
    text = yaml.safe_dump({**found, "metadata": meta, "status": {}})
    async with small.server.serving() as api:
        said = await forecast_with(api, parse(text, "new.yaml"), NAMESPACE)

    assert not said.effects, said.resources


@pytest.mark.parametrize(("own", "wanted"), [([], "registry-internal"), (["own"], "own")])
async def test_the_driver_of_a_pipeline_has_them_too(own: list[str], wanted: str) -> None:
    """Law: a Pipeline's driver gets them too; only names in the Pipeline itself are validated."""
    server = ObjectServer()
    server.put(PIPELINES, custom("Pipeline", "archive", spec={**STREAM, "imagePullSecrets": own}))
    server.put(CLUSTERS, custom("Cluster", "demo"))
    async with server.serving() as api:
        drivers = PipelineReconciler(
            api,
            Inventory(api, ()),
            OperatorMetrics(),
            policy=DriverPolicy("spark:1"),
            pull_policy="IfNotPresent",
            pull_secrets=("registry-internal",),
        )
        await drivers.reconcile((NAMESPACE, "archive"))
        await drivers.close()

    assert pulled_with(server, STATEFUL_SETS) == [[wanted]]


@pytest.mark.parametrize(
    ("cluster", "wanted"),
    [({}, "registry"), ({"imagePullSecrets": ["own"]}, "own"), (None, "registry")],
    ids=["none named", "named", "no Cluster"],
)
async def test_the_jobs_of_a_backup_have_them_too(cluster: Json | None, wanted: str) -> None:
    """Law: a Backup's Jobs get them too; the deleting Job even if the Cluster is gone."""
    server = ObjectServer()
    if cluster is not None:
        server.put(CLUSTERS, custom("Cluster", "demo", spec=cluster))
    spec = {
        "clusterRef": {"name": "demo"},
        "destination": {"pvc": {"claimName": "backups"}},
        "deletionPolicy": "Delete",
    }
    leaving: dict[str, Any] = {
        "status": {"phase": "Complete", "backupId": "20260101T000000Z-1"},
        "finalizers": [names.BACKUP_FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    server.put(BACKUPS, {**custom("Backup", "monday", **leaving), "spec": spec})
    async with server.serving() as api:
        makers = BackupReconciler(api, Inventory(api, ()), OperatorMetrics(), DEFAULTS)
        await makers.reconcile((NAMESPACE, "monday"))

    assert pulled_with(server, JOBS) == [[wanted]]


def test_a_confirmation_of_the_spec_before_does_not_let_an_edit_be_carried_out() -> None:
    """Law: a failed reconcile does not let an edit pass, although it writes a status:
    it has not checked whether a confirmation is needed.
    """
    confirmed = {"type": "Confirmed", "status": "True", "reason": "NothingToConfirm"}

    def waits(generation: int) -> bool:
        conditions = [{**confirmed, "observedGeneration": generation}]
        status = {"observedGeneration": 2, "conditions": conditions}
        return may_wait(item("Cluster", "demo", generation=2, status=status))

    assert [waits(generation) for generation in (1, 2)] == [True, False]
