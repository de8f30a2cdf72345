"""Deletions of Backups: the stored data is deleted first if that is wanted, and nothing waits forever."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from orderlymq_operator.kube.objects.names import BACKUP_FINALIZER
from orderlymq_operator.kube.reconcile.backups.backup import (
    ENDING_S,
)
from orderlymq_operator.kube.resources import BACKUPS, CLUSTERS, JOBS, PODS, Json
from tests.operator.kube.reconcile.backups.backupworld import SERVES, World, backing_up
from tests.operator.kube.reconcile.backups.jobs import (
    ID,
    end_job,
    jobs,
    lack_image,
    report,
)
from tests.operator.kube.rights import of_file
from tests.operator.kube.samples import NAMESPACE, custom

_POD: Json = {"apiVersion": PODS.api_version, "kind": PODS.kind, "spec": {}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with backing_up() as found:
        yield found


def is_held(world: World) -> bool:
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}
    return BACKUP_FINALIZER in found["metadata"]["finalizers"]


async def delete_while_it_runs(world: World, at: datetime) -> None:
    """Delete a running Backup and everything that it owns, as `--cascade=foreground` does, at a given time."""
    world.put("monday", spec={"deletionPolicy": "Delete"})
    await world.look("monday")
    when = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    for resource, name in ((BACKUPS, "monday"), (JOBS, "monday-uid-shop-backup")):
        found = world.server.find(resource, NAMESPACE, name)
        assert found is not None
        meta = {**found["metadata"], "deletionTimestamp": when}
        job = world.server.put(resource, {**found, "metadata": meta})
    meta = {
        "name": "monday-uid-shop-backup-x0",
        "namespace": NAMESPACE,
        "labels": job["spec"]["template"]["metadata"]["labels"],
        "ownerReferences": [{"kind": JOBS.kind, "uid": job["metadata"]["uid"]}],
    }
    running = {"name": "backup", "state": {"running": {"startedAt": when}}}
    status = {"phase": "Running", "containerStatuses": [running]}
    world.server.put(PODS, {**_POD, "metadata": meta, "status": status})


def _pod(world: World, job: str) -> Json:
    found = world.server.find(JOBS, NAMESPACE, job)
    assert found is not None
    return dict(found["spec"]["template"]["spec"])


async def test_what_is_stored_goes_first_where_that_is_wanted(world: World) -> None:
    """Law: the finalizer keeps a Backup until its Job has deleted the data;
    a Backup that retains its data has no finalizer.
    """
    world.put(
        "monday", spec={"deletionPolicy": "Delete"}, status={"phase": "Complete", "backupId": ID}
    )
    world.put("tuesday", status={"phase": "Complete", "backupId": ID})
    await world.look("monday")
    await world.look("tuesday")
    held = [
        (world.server.find(BACKUPS, NAMESPACE, name) or {})["metadata"].get("finalizers")
        for name in ("monday", "tuesday")
    ]
    world.put_deleted()
    await world.look("monday")
    deleting = world.reason("monday")
    job = world.server.find(JOBS, NAMESPACE, "monday-uid-shop-delete")
    end_job(world.server, "monday-uid-shop-delete", {"error": "the store refuses"}, failed=4)
    await world.look("monday")
    refused = world.reason("monday")
    await world.look("monday")
    end_job(world.server, "monday-uid-shop-delete", report())
    await world.look("monday")
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}

    assert held == [[BACKUP_FINALIZER], None]
    assert (deleting, refused) == ("DeletingStored", "DeletionFailed")
    assert job is not None
    assert job["metadata"]["ownerReferences"] == []
    assert ID in job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert not found["metadata"]["finalizers"]


async def test_nothing_stored_is_deleted_by_what_a_silent_watch_showed(world: World) -> None:
    """Law: nothing stored is deleted because of an old state of the watch; if a person now wants to keep it, it is kept."""
    world.put_deleted()
    await world.inventory.refresh()
    found = world.server.find(BACKUPS, NAMESPACE, "monday")
    assert found is not None
    world.server.put(BACKUPS, {**found, "spec": {**found["spec"], "deletionPolicy": "Retain"}})
    for _ in range(2):
        await world.backups.reconcile((NAMESPACE, "monday"))

    assert world.server.find(JOBS, NAMESPACE, "monday-uid-shop-delete") is None
    kept = world.server.find(BACKUPS, NAMESPACE, "monday") or {}
    assert kept["metadata"]["finalizers"] == []


@pytest.mark.parametrize("user", [{"runAsUser": 4711}, {}], ids=["chosen", "left to admission"])
async def test_what_is_stored_is_deleted_by_a_pod_as_the_cluster_s_were(
    world: World, user: Json
) -> None:
    """Law: data is deleted by a pod with the Cluster's image, pull secrets, nodes and user, even if the Cluster is gone."""
    spec: Json = {
        "image": "registry.example/orderlymq:7",
        "imagePullSecrets": ["registry"],
        "placement": {"tolerations": [{"key": "mq", "operator": "Exists"}]},
        "podTemplate": {"securityContext": user, "env": [{"name": "A"}]},
    }
    world.server.put(CLUSTERS, custom("Cluster", "demo", spec=spec, status=SERVES))
    world.put("monday", spec={"deletionPolicy": "Delete"})
    await world.look("monday")
    end_job(world.server, "monday-uid-shop-backup", report())
    await world.look("monday")
    world.server.drop(CLUSTERS, NAMESPACE, "demo")
    backup = world.server.find(BACKUPS, NAMESPACE, "monday") or {}
    meta = {**backup["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.server.put(BACKUPS, {**backup, "metadata": meta})
    await world.look("monday")

    made, removed = (_pod(world, f"monday-uid-shop-{end}") for end in ("backup", "delete"))
    assert removed["imagePullSecrets"] == [{"name": "registry"}]
    assert removed["securityContext"].get("runAsUser") == user.get("runAsUser")
    assert removed["containers"][0]["image"] == "registry.example/orderlymq:7"
    alike = ("imagePullSecrets", "tolerations", "securityContext")
    assert [removed.get(key) for key in alike] == [made.get(key) for key in alike]


async def test_only_the_job_that_was_looked_at_is_deleted(world: World) -> None:
    """Law: the operator deletes only the Job that it has read; a new Job of the same name runs on."""
    job = "monday-uid-shop-backup"
    world.put("monday")
    await world.look("monday")
    lack_image(world.server, job)
    world.server.put(CLUSTERS, custom("Cluster", "demo", spec={"image": "2"}, status=SERVES))
    seen = world.server.find(JOBS, NAMESPACE, job) or {}
    another = {**seen, "metadata": {**seen["metadata"], "uid": "another"}}

    async def replace() -> None:
        if world.server.asked[-1][1].endswith("/pods"):
            world.server.put(JOBS, another)

    world.server.slow = replace
    await world.look("monday")

    found = world.server.find(JOBS, NAMESPACE, job) or {"metadata": {}}
    assert found["metadata"].get("uid") == "another"


async def test_a_backup_that_never_began_holds_no_deletion_back(world: World) -> None:
    """Law: a Backup whose Job never started, because its image was missing, can be deleted immediately:
    it has stored nothing.
    """
    world.put("monday", spec={"deletionPolicy": "Delete"})
    await world.look("monday")
    lack_image(world.server, "monday-uid-shop-backup")
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}
    gone = {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.server.put(BACKUPS, {**found, "metadata": gone})
    await world.look("monday")
    waits = world.reason("monday")
    world.server.put(CLUSTERS, custom("Cluster", "demo", spec={"image": "2"}, status=SERVES))
    await world.look("monday")

    assert waits == "BackupRunning"
    assert jobs(world.server) == []
    assert not (world.server.find(BACKUPS, NAMESPACE, "monday") or {})["metadata"]["finalizers"]


async def test_a_backup_of_a_former_one_s_name_is_deleted_too(world: World) -> None:
    """Law: a finished Job of another Backup of the same name does not mean that this Backup's data is deleted."""
    for uid in ("former", "present"):
        world.put(
            "monday",
            uid=uid,
            spec={"deletionPolicy": "Delete"},
            status={"phase": "Complete", "backupId": ID},
            finalizers=[BACKUP_FINALIZER],
            deletionTimestamp="2026-01-01T00:00:00Z",
        )
        await world.look("monday")
        end_job(world.server, f"monday-{uid}-delete", report())
        await world.look("monday")
        found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}

        assert not found["metadata"]["finalizers"]


async def test_the_next_waits_for_one_that_is_deleted_while_it_runs(world: World) -> None:
    """Law: the next Backup waits until a deleted one has stopped, because brokers refuse two copies at a time.

    It does not wait until data is deleted.
    """
    world.put("tuesday", creationTimestamp="2026-01-02T00:00:00Z")
    await delete_while_it_runs(world, datetime.now(UTC))
    for name in ("monday", "tuesday"):
        await world.look(name)
    early = (world.reason("monday"), world.reason("tuesday"), jobs(world.server))
    end_job(world.server, "monday-uid-shop-backup", report())
    for name in ("monday", "tuesday"):
        await world.look(name)

    assert early == ("BackupRunning", "BackupWaiting", ["monday-uid-shop-backup"])
    assert (world.reason("monday"), world.reason("tuesday")) == ("DeletingStored", "BackupRunning")


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_backup_that_is_deleted_with_its_job_waits_for_the_pod(
    world: World, is_stored: bool
) -> None:
    """Law: a deleted Backup waits for its ending pod, which may still store something;
    that data is deleted before the Backup goes.
    """
    await delete_while_it_runs(world, datetime.now(UTC))
    await world.look("monday")
    held, reason = is_held(world), world.reason("monday")
    job = world.server.find(JOBS, NAMESPACE, "monday-uid-shop-backup")
    end_job(
        world.server, "monday-uid-shop-backup", report() if is_stored else {"error": "terminated"}
    )
    assert job is not None
    world.server.put(JOBS, job)  # An object that is being deleted gets no condition.
    await world.look("monday")

    assert (held, reason) == (True, "BackupRunning")
    assert is_held(world) == is_stored
    assert ("monday-uid-shop-delete" in jobs(world.server)) == is_stored


async def test_a_pod_that_never_ends_keeps_no_backup(world: World) -> None:
    """Law: a pod that never ends (its node is lost) keeps a Backup only for a limited time."""
    await delete_while_it_runs(world, datetime.now(UTC) - timedelta(seconds=ENDING_S + 1))
    await world.look("monday")

    assert not is_held(world)


@pytest.mark.parametrize("has_role", [True, False])
async def test_a_namespace_that_is_deleted_waits_for_no_job(world: World, has_role: bool) -> None:
    """Law: in a namespace that is being deleted no Job can be made or read, so the Backup goes and its data stays."""
    world.put_deleted()
    world.server.terminating = True
    if not has_role:
        world.server.rights = of_file("cluster")
    await world.look("monday")
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}

    assert not found["metadata"]["finalizers"]
    assert jobs(world.server) == []
