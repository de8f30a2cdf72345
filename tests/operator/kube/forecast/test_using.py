"""The forecast of Pipelines, Backups and ScheduledBackups, compared with reconciles that then carry the change out."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from orderlymq_operator.kube.forecast.reader import forecast_with
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.names import ANNOTATION_PAUSE
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backups.schedule import ScheduleReconciler
from orderlymq_operator.kube.resources import (
    BACKUPS,
    CLAIMS,
    CLUSTERS,
    JOBS,
    PIPELINES,
    SCHEDULED_BACKUPS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    Json,
    Resource,
)
from orderlymq_operator.plan.forecast.effects import SERIOUS, Forecast
from orderlymq_operator.plan.forecast.report import report_of, text_of
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.reconcile.pipeline import pipelineworld
from tests.operator.kube.reconcile.pipeline.pipelineworld import STREAM, World, one_pipeline
from tests.operator.kube.samples import NAMESPACE, custom

_FILES = Path(__file__).parents[4] / "examples"
_EXAMPLES = "\n---\n".join(
    path.read_text()
    for path in [*sorted((_FILES / "pipelines").glob("*.yaml")), _FILES / "kubernetes/backups.yaml"]
)
_BACKUP: Json = {
    "clusterRef": {"name": "demo"},
    "destination": {"pvc": {"claimName": "backups", "path": "shop"}},
}
_SCHEDULE: Json = {**_BACKUP, "schedule": "30 2 * * *"}
# Objects that hold a driver and its data; other objects of the same name only follow.
_MADE = (STATEFUL_SETS, JOBS, CLAIMS)
_NOW = datetime.now(UTC)


@pytest.fixture
def server() -> ObjectServer:
    made = ObjectServer()
    made.put(CLUSTERS, custom("Cluster", "demo"))
    return made


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with one_pipeline(monkeypatch) as made:
        yield made


def written(kind: str, name: str, spec: Json, **facts: Any) -> str:
    """Return a manifest as a person writes it."""
    made = custom(kind, name, **facts)
    meta = {key: made["metadata"][key] for key in ("name", "namespace", *facts)}
    return yaml.safe_dump({**made, "status": None, "metadata": meta, "spec": spec})


async def foretold(server: ObjectServer, text: str) -> Forecast:
    async with server.serving() as api:
        return await forecast_with(api, parse(text, "new.yaml"), NAMESPACE)


def effects(said: Forecast) -> list[str]:
    return [effect.kind for effect in said.effects]


@pytest.mark.parametrize("has_cluster", [False, True])
async def test_no_manifest_is_passed_over(server: ObjectServer, *, has_cluster: bool) -> None:
    """Law: no manifest is silently skipped: the plan says what is created or waits for a Cluster."""
    if not has_cluster:
        server.objects.clear()
    every = parse(_EXAMPLES, "examples.yaml")
    said = await foretold(server, _EXAMPLES)
    first = [each.effects[0].kind for each in said.resources]
    waits = [
        not has_cluster and each.resource.spec.cluster_ref is not None  # type: ignore[union-attr]
        for each in every
    ]

    assert [each.subject.kind for each in said.resources] == [each.resource.kind for each in every]
    assert first == ["Waits" if each else "Creates" for each in waits]
    assert "Nothing to change" not in text_of(report_of(said))


async def test_a_cluster_of_the_same_file_is_there(server: ObjectServer) -> None:
    """Law: one file may create a Cluster and what uses it."""
    server.objects.clear()
    cluster = written("Cluster", "demo", {})
    said = await foretold(server, f"{cluster}---\n{written('Backup', 'now', _BACKUP)}")

    assert [each.subject.kind for each in said.resources] == ["Cluster", "Topic", "Backup"]
    assert [each.kind for each in said.resources[2].effects] == ["Creates"]


# -- ScheduledBackups and Backups ----------------------------------------------------------------


def keep(server: ObjectServer, days: int, **retention: int) -> None:
    """Let a schedule have a complete Backup for each of the last *days*, and let another one have its own."""
    server.put(
        SCHEDULED_BACKUPS,
        custom("ScheduledBackup", "nightly", spec={**_SCHEDULE, "retention": retention}),
    )
    owner = [{"kind": "ScheduledBackup", "uid": f"uid-{NAMESPACE}-nightly", "controller": True}]
    for day in range(days):
        at = (_NOW - timedelta(days=day, hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, owners in ((f"nightly-{day}", owner), (f"other-{day}", [])):
            made = custom("Backup", name, creationTimestamp=at, ownerReferences=owners)
            made |= {"spec": _BACKUP, "status": {"phase": "Complete"}}
            server.put(BACKUPS, made)


@pytest.mark.parametrize("retention", [{"keepLast": 1}, {"keepLast": 1, "keepDays": 3}])
@pytest.mark.parametrize("suspend", [False, True])
async def test_the_stored_backups_that_go_are_named(
    server: ObjectServer, retention: dict[str, int], suspend: bool
) -> None:
    """Law: with a shorter retention the plan names the stored Backups that the reconcile deletes."""
    keep(server, 6, keepLast=30)
    spec = {**_SCHEDULE, "retention": retention, "suspend": suspend}
    said = await foretold(server, written("ScheduledBackup", "nightly", spec))
    (deletes,) = [each for each in said.effects if each.kind == "DeletesData"]
    server.put(SCHEDULED_BACKUPS, custom("ScheduledBackup", "nightly", spec=spec))
    before = stored(server)
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        await ScheduleReconciler(api, inventory, OperatorMetrics()).reconcile(
            (NAMESPACE, "nightly")
        )

    assert {f"Backup/{name}" for name in before - stored(server)} == set(deletes.targets)
    assert len(deletes.targets) == (5 if len(retention) == 1 else 3)
    assert deletes.kind in SERIOUS


def stored(server: ObjectServer) -> set[str]:
    return {
        found["metadata"]["name"]
        for found in server.objects.values()
        if found.get("kind") == "Backup" and "deletionTimestamp" not in found["metadata"]
    }


async def test_a_longer_retention_and_a_new_time_delete_nothing(server: ObjectServer) -> None:
    """Law: a longer retention and a new time delete nothing, and an equal manifest changes nothing."""
    keep(server, 6, keepLast=6)
    spec = {**_SCHEDULE, "retention": {"keepLast": 7}, "schedule": "0 4 * * *"}
    said = await foretold(server, written("ScheduledBackup", "nightly", spec))
    same = await foretold(
        server,
        written("ScheduledBackup", "nightly", {**_SCHEDULE, "retention": {"keepLast": 6}}),
    )

    assert effects(said) == ["Changes", "Changes"]
    assert "spec.schedule changes from '30 2 * * *' to '0 4 * * *'" in str(said.effects)
    assert "spec.retention.keepLast changes from 6 to 7" in str(said.effects)
    assert effects(same) == []


async def test_what_waits_is_said(server: ObjectServer) -> None:
    """Law: an invalid or paused schedule is said to wait, and deletes nothing."""
    keep(server, 3, keepLast=6)
    wrong = {**_SCHEDULE, "schedule": "0 0 31 2 *"}
    paused = written(
        "ScheduledBackup",
        "nightly",
        {**_SCHEDULE, "retention": {"keepLast": 1}},
        annotations={ANNOTATION_PAUSE: "true"},
    )

    never = await foretold(server, written("ScheduledBackup", "nightly", wrong))
    assert effects(never)[0] == "Waits"
    assert "spec.schedule" in never.effects[0].text
    assert effects(await foretold(server, paused))[0] == "Waits"


async def test_what_cannot_be_changed_is_refused(server: ObjectServer) -> None:
    """Law: of a Backup only deletionPolicy may change, as in the schema."""
    server.put(BACKUPS, {**custom("Backup", "now"), "spec": _BACKUP})
    place = {"pvc": {"claimName": "backups", "path": "elsewhere"}}
    moved = await foretold(server, written("Backup", "now", {**_BACKUP, "destination": place}))
    deleted = await foretold(
        server, written("Backup", "now", {**_BACKUP, "deletionPolicy": "Delete"})
    )

    assert [(each.kind, each.field) for each in moved.refusals] == [("Backup", "spec.destination")]
    assert effects(moved) == []
    assert effects(deleted) == ["Changes"]


# -- Pipelines -----------------------------------------------------------------------------------


async def plan(world: World, **spec: Any) -> Forecast:
    wanted = {**STREAM, "clusterRef": {"name": "demo"}, **spec}
    return await foretold(world.server, written("Pipeline", pipelineworld.NAME, wanted))


async def test_a_pipeline_is_made_and_stays_as_it_is(world: World) -> None:
    """Law: a new Pipeline is created, also before the operator has seen it; an equal manifest changes nothing."""
    before = effects(await plan(world))
    world.server.objects.pop(PIPELINES.path(NAMESPACE, pipelineworld.NAME))
    new = effects(await plan(world))
    world.want()
    await world.hear()

    assert before == new == ["Creates"]
    assert effects(await plan(world)) == []


@pytest.mark.parametrize(
    ("spec", "kinds", "write"),
    [
        ({"trigger": "10s"}, ["Restarts"], ("PATCH", STATEFUL_SETS)),
        ({"spark": {"memory": "2g"}}, ["Restarts"], ("PATCH", STATEFUL_SETS)),
        ({"trigger": "availableNow"}, ["Removes", "Creates"], ("DELETE", STATEFUL_SETS)),
        ({"suspend": True}, ["Changes"], ("PATCH", STATEFUL_SETS)),
        ({"storage": {"size": "20Gi"}}, ["Changes"], ("PATCH", CLAIMS)),
        ({"clusterRef": {"name": "other"}}, ["Waits"], None),
    ],
)
async def test_a_changed_pipeline_does_what_was_foretold(
    world: World, spec: Json, kinds: list[str], write: tuple[str, Resource] | None
) -> None:
    """Law: a changed Pipeline's driver restarts or is replaced as forecast,
    and nothing happens while its Cluster is missing.
    """
    standard = {"metadata": {"name": "standard"}, "allowVolumeExpansion": True}
    world.server.put(STORAGE_CLASSES, standard)
    await world.hear()
    claim = world.server.find(CLAIMS, NAMESPACE, pipelineworld.OBJECT)
    assert claim is not None
    bound = {**claim["spec"], "storageClassName": "standard"}
    world.server.put(CLAIMS, {**claim, "spec": bound, "status": {"phase": "Bound"}})
    said = await plan(world, **spec)
    found = world.server.find(PIPELINES, NAMESPACE, pipelineworld.NAME)
    assert found is not None
    changed = {**found["spec"], **spec}
    world.put({**found, "spec": changed, "metadata": {**found["metadata"], "generation": 2}})
    world.server.writes()
    await world.look()
    kept = {resource.path(NAMESPACE, pipelineworld.OBJECT): resource for resource in _MADE}
    done = [(method, kept[path]) for method, path, *_ in world.server.writes() if path in kept]

    assert effects(said) == kinds
    assert done == ([] if write is None else [write])


async def test_what_a_pipeline_cannot_change_is_refused(world: World) -> None:
    """Law: what a Pipeline cannot change is refused, as in the schema."""
    await world.hear()
    fields = [
        [each.field for each in (await plan(world, storage=storage)).refusals]
        for storage in ({"size": "1Gi"}, {"accessMode": "ReadWriteMany"})
    ]

    assert fields == [["spec.storage.size"], ["spec.storage.accessMode"]]
