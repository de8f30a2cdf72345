"""Reconciles of Backups against a small API server: Jobs are made, heard and not made again."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orderlymq_operator.kube.api import ApiError, ForbiddenError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.names import BACKUP_FINALIZER
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backups.backup import (
    ENDING_S,
    LOOKING_S,
    WAITING_S,
    BackupReconciler,
)
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import BACKUPS, CLUSTERS, EVENTS, JOBS, PODS, Json
from tests.operator.kube.reconcile.backups.backupworld import SERVES, SPEC, World, backing_up
from tests.operator.kube.reconcile.backups.jobs import (
    ID,
    end_job,
    image_of,
    jobs,
    lack_image,
    rename_job,
    report,
)
from tests.operator.kube.rights import of_file
from tests.operator.kube.samples import IMAGE, NAMESPACE, custom
from tests.operator.kube.smallcluster import DEFAULTS, KEY, small_cluster


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with backing_up() as found:
        yield found


def put_deleted(world: World, at: str = "2026-01-01T00:00:00Z") -> None:
    """Store a complete Backup that somebody deleted at *at*, and whose data is to go first."""
    world.put(
        "monday",
        spec={"deletionPolicy": "Delete"},
        status={"phase": "Complete", "backupId": ID},
        finalizers=[BACKUP_FINALIZER],
        deletionTimestamp=at,
    )


async def test_a_backup_is_made_once_and_reported(world: World) -> None:
    """Law: its Job is made once; when that has ended the status says what is stored, also without the Job."""
    world.put("monday")
    for _ in range(3):
        await world.look("monday")
    running = world.reason("monday")
    end_job(world.server, "monday-uid-shop-backup", report())
    due = await world.look("monday")
    world.server.drop(JOBS, NAMESPACE, "monday-uid-shop-backup")
    world.server.writes()
    again = await world.look("monday")

    assert running == "BackupRunning"
    assert (due, again, world.server.writes()) == (None, None, [])
    assert jobs(world.server) == []
    found = world.status("monday")
    assert found["groups"] == [
        {"name": "demo-0", "entry": 7, "takenAt": "2026-01-01T00:00:01Z", "sizeBytes": 300}
    ]
    assert (found["phase"], found["backupId"], found["verified"]) == ("Complete", ID, True)
    assert found["location"] == "pvc://backups/orderlymq"


async def test_the_report_is_that_of_the_container_that_backs_up(world: World) -> None:
    """Law: another one whose name sorts before it, and that ended as well, says nothing."""
    agent = {"name": "agent", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    world.put("monday")
    for _ in range(2):
        await world.look("monday")
    end_job(world.server, "monday-uid-shop-backup", report(), injected=(agent,))
    await world.look("monday")

    found = world.status("monday")
    assert (found["phase"], found["backupId"]) == ("Complete", ID)


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (
            403,
            "jobs is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1",
            "ApiRefused",
        ),
        (403, 'jobs is forbidden: User "operator" cannot create resource "jobs"', "Forbidden"),
        (422, "jobs is invalid", "ApiRefused"),
    ],
)
async def test_a_job_that_the_api_server_refuses_is_reported(
    world: World, status: int, text: str, reason: str
) -> None:
    """Law: a quota is a person's to know, and no missing right; the Backup is made when it is gone."""
    world.put("monday")
    world.server.refused[JOBS.path(NAMESPACE)] = (status, text)
    with pytest.raises(ApiError, match="jobs is"):
        await world.look("monday")
    told = world.reason("monday")
    world.server.refused.clear()
    await world.look("monday")

    assert (told, world.reason("monday")) == (reason, "BackupRunning")
    assert jobs(world.server) == ["monday-uid-shop-backup"]


async def test_nothing_is_stored_for_a_backup_without_its_finalizer(world: World) -> None:
    """Law: somebody deletes one that has changed since it was read, and what its Job stores would stay for ever."""
    world.put("monday", spec={"deletionPolicy": "Delete"})

    async def change() -> None:
        found = world.server.find(BACKUPS, NAMESPACE, "monday")
        assert found is not None
        world.server.put(BACKUPS, found)

    world.server.slow, at_once = change, world.server.slow
    due = await world.look("monday")
    assert (jobs(world.server), due) == ([], LOOKING_S)

    world.server.slow = at_once
    await world.look("monday")
    assert len(jobs(world.server)) == 1


async def test_one_of_a_cluster_runs_at_a_time(world: World) -> None:
    """Law: the oldest first, and one whose Cluster does not serve costs no attempt."""
    world.put("second", creationTimestamp="2026-01-02T00:00:00Z")
    world.put("first")
    world.put("stray", spec={"clusterRef": {"name": "other"}})
    for name in ("second", "first", "stray"):
        await world.look(name)
    waited = [world.reason(name) for name in ("first", "second", "stray")]
    end_job(world.server, "first-uid-shop-backup", "Killed", failed=4)
    await world.look("first")
    world.server.put(CLUSTERS, custom("Cluster", "demo", status={}))
    await world.look("second")

    assert waited == ["BackupRunning", "BackupWaiting", "ClusterNotFound"]
    assert world.reason("first") == "BackupFailed"
    assert "Killed" in world.status("first")["error"]
    assert world.reason("second") == "BackupWaiting"
    assert jobs(world.server) == ["first-uid-shop-backup"]


@pytest.mark.parametrize(
    ("wanted", "standing", "expected"),
    [
        pytest.param(1, ["demo-0", "demo-1"], "demo-0,demo-1", id="one is emptied or kept"),
        pytest.param(2, ["demo-0", "demo-1"], "demo-0,demo-1", id="calm"),
        pytest.param(2, ["demo-0"], None, id="one is added"),
        pytest.param(1, [], None, id="nobody has looked"),
    ],
)
async def test_a_backup_has_every_group_that_stands(
    world: World, wanted: int, standing: list[str], expected: str | None
) -> None:
    """Law: a group that is to go holds messages until it has gone; one that is wanted is waited for."""
    status = {**SERVES, "groups": [{"name": name, "draining": False} for name in standing]}
    world.server.put(CLUSTERS, custom("Cluster", "demo", spec={"groups": wanted}, status=status))
    world.put("monday")
    await world.look("monday")
    job = world.server.find(JOBS, NAMESPACE, "monday-uid-shop-backup")

    assert world.reason("monday") == ("BackupWaiting" if expected is None else "BackupRunning")
    assert (job is None) == (expected is None)
    if job is not None:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["command"][container["command"].index("--groups") + 1] == expected


async def test_a_backup_waits_for_a_spec_that_can_be_used(world: World) -> None:
    """Law: it says so, and not that it runs."""
    spec = {"retention": {"time": "never"}}
    world.server.put(CLUSTERS, custom("Cluster", "demo", spec=spec, status=SERVES))
    world.put("monday")
    await world.look("monday")
    ready = condition_of(world.status("monday"), "Ready") or {}

    assert ready["reason"] == "BackupWaiting"
    assert "spec.retention.time" in ready["message"]
    assert jobs(world.server) == []


async def test_only_what_a_person_can_cure_is_a_warning(world: World) -> None:
    """Law: that a Backup waits, runs and completes are Normal events; that it fails is a Warning."""
    pending = {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Pending"}]}
    for name, day in (("first", 1), ("second", 2)):
        world.put(name, creationTimestamp=f"2026-01-0{day}T00:00:00Z", status=pending)
        await world.look(name)
    end_job(world.server, "first-uid-shop-backup", report())
    await world.look("first")
    await world.look("second")
    end_job(world.server, "second-uid-shop-backup", "Killed", failed=4)
    await world.look("second")

    told = [
        (each["type"], each["involvedObject"]["name"], each["reason"])
        for each in world.server.objects.values()
        if each["kind"] == EVENTS.kind
    ]
    assert told == [
        ("Normal", "first", "BackupRunning"),
        ("Normal", "second", "BackupWaiting"),
        ("Normal", "first", "BackupComplete"),
        ("Normal", "second", "BackupRunning"),
        ("Warning", "second", "BackupFailed"),
    ]


async def test_a_job_of_a_former_backup_of_the_name_is_not_believed(world: World) -> None:
    """Law: what counts is of this very object."""
    world.put("monday")
    await world.look("monday")
    end_job(world.server, "monday-uid-shop-backup", report())
    world.put("monday", uid="another")
    await world.look("monday")

    assert world.status("monday").get("backupId") is None
    assert world.reason("monday") == "BackupRunning"


async def test_what_is_stored_goes_first_where_that_is_wanted(world: World) -> None:
    """Law: the finalizer holds a Backup until its Job has deleted, and one that retains has none."""
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
    put_deleted(world)
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
    """Law: a person who keeps it after all, as the status advises, is heard."""
    put_deleted(world)
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
    """Law: that the Cluster is gone changes nothing of image, pull secrets, nodes and user."""
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


@pytest.mark.parametrize("end", ["backup", "delete"])
async def test_a_job_without_its_image_is_made_again_with_another_one(
    world: World, end: str
) -> None:
    """Law: only then, and only while its pod lacks the image: what runs is not ended for a change of the Cluster."""
    job = f"monday-uid-shop-{end}"
    facts: Json = {"spec": {"deletionPolicy": "Delete"}}
    if end == "delete":
        facts["status"] = {"phase": "Complete", "backupId": ID}
        facts["finalizers"] = [BACKUP_FINALIZER]
        facts["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.put("monday", **facts)
    images = []
    for spec, lacks in (({}, True), ({"image": "new:1"}, False), ({}, True), ({}, False)):
        if spec:
            world.server.put(CLUSTERS, custom("Cluster", "demo", spec=spec, status=SERVES))
        await world.look("monday")
        if lacks:
            lack_image(world.server, job)
        await world.look("monday")
        images.append(image_of(world.server, job))
    world.server.drop(PODS, NAMESPACE, f"{job}-x")
    world.server.put(CLUSTERS, custom("Cluster", "demo", spec={"image": "2"}, status=SERVES))
    await world.look("monday")

    assert images == [IMAGE, "new:1", "new:1", "new:1"]
    assert image_of(world.server, job) == "new:1"


async def test_only_the_job_that_was_looked_at_is_deleted(world: World) -> None:
    """Law: another one of its name, made by another operator meanwhile, runs on."""
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
    """Law: a Job that lacks an image of before has stored nothing."""
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


def _pod(world: World, job: str) -> Json:
    found = world.server.find(JOBS, NAMESPACE, job)
    assert found is not None
    return dict(found["spec"]["template"]["spec"])


async def test_a_backup_of_a_former_one_s_name_is_deleted_too(world: World) -> None:
    """Law: the finished Job of another Backup of the same name says nothing about this one."""
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


_POD: Json = {"apiVersion": PODS.api_version, "kind": PODS.kind, "spec": {}}


async def delete_while_it_runs(world: World, at: datetime) -> None:
    """Delete a Backup that runs with all that goes with it, as `--cascade=foreground` does, at a time."""
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


def is_held(world: World) -> bool:
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}
    return BACKUP_FINALIZER in found["metadata"]["finalizers"]


async def test_the_next_waits_for_one_that_is_deleted_while_it_runs(world: World) -> None:
    """Law: brokers refuse a second copy, so the next one would fail. It waits for no deletion of what is stored."""
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
    """Law: a pod that is ending may store something, and what it has stored goes before the Backup."""
    await delete_while_it_runs(world, datetime.now(UTC))
    await world.look("monday")
    held, reason = is_held(world), world.reason("monday")
    job = world.server.find(JOBS, NAMESPACE, "monday-uid-shop-backup")
    end_job(
        world.server, "monday-uid-shop-backup", report() if is_stored else {"error": "terminated"}
    )
    assert job is not None
    world.server.put(JOBS, job)  # what is being deleted gets no condition
    await world.look("monday")

    assert (held, reason) == (True, "BackupRunning")
    assert is_held(world) == is_stored
    assert ("monday-uid-shop-delete" in jobs(world.server)) == is_stored


async def test_a_pod_that_never_ends_keeps_no_backup(world: World) -> None:
    """Law: nobody ends the pod of a lost node."""
    await delete_while_it_runs(world, datetime.now(UTC) - timedelta(seconds=ENDING_S + 1))
    await world.look("monday")

    assert not is_held(world)


async def test_a_job_of_somebody_else_stops_this_backup_alone(world: World) -> None:
    """Law: a Backup whose Job cannot have its name fails and says so; the next one begins."""
    for name in ("monday-uid-shop-backup", "gone-uid-shop-delete"):
        foreign = {"name": name, "namespace": NAMESPACE, "uid": "foreign"}
        world.server.put(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": foreign})
    world.put("monday")
    world.put("tuesday", creationTimestamp="2026-01-02T00:00:00Z")
    world.put(
        "gone",
        spec={"deletionPolicy": "Delete"},
        status={"phase": "Complete", "backupId": ID},
        finalizers=[BACKUP_FINALIZER],
        deletionTimestamp="2026-01-01T00:00:00Z",
    )
    for name in ("monday", "tuesday", "gone"):
        await world.look(name)

    assert world.reason("monday") == "BackupFailed"
    assert (
        "'monday-uid-shop-backup' is there and not of this Backup"
        in world.status("monday")["error"]
    )
    assert world.reason("tuesday") == "BackupRunning"
    assert world.reason("gone") == "DeletionFailed"


async def test_the_jobs_of_an_earlier_operator_count(world: World) -> None:
    """Law: an upgrade makes no second Job, and a Backup waits for the one that stores, by whatever name."""
    world.put("monday", spec={"deletionPolicy": "Delete"})
    await world.look("monday")
    rename_job(world.server, "monday-uid-shop-backup", "monday-backup")
    await world.look("monday")
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}
    gone = {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.server.put(BACKUPS, {**found, "metadata": gone})
    await world.look("monday")
    waited = (world.reason("monday"), jobs(world.server))
    end_job(world.server, "monday-backup", report())
    await world.look("monday")
    rename_job(world.server, "monday-uid-shop-delete", "monday-delete")
    end_job(world.server, "monday-delete", {"error": "the store refuses"}, failed=4)
    await world.look("monday")
    await world.look("monday")

    assert waited == ("BackupRunning", ["monday-backup"])
    assert jobs(world.server) == ["monday-backup", "monday-uid-shop-delete"]


@pytest.mark.parametrize("has_role", [True, False])
async def test_a_namespace_that_is_deleted_waits_for_no_job(world: World, has_role: bool) -> None:
    """Law: where no Job can be made, or read, any more the Backup goes, and what is stored stays."""
    put_deleted(world)
    world.server.terminating = True
    if not has_role:
        world.server.rights = of_file("cluster")
    await world.look("monday")
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}

    assert not found["metadata"]["finalizers"]
    assert jobs(world.server) == []


async def test_a_failure_that_stays_is_reported(world: World) -> None:
    """Law: a broken admission hook answers 500 for ever, and a Backup that waits for it says so."""
    world.put("monday")
    world.server.refused[f"POST {JOBS.path(NAMESPACE)}"] = (500, "failed calling webhook")
    for _ in range(4):
        with pytest.raises(ApiError):
            await world.look("monday")

    told = condition_of(world.status("monday"), "Ready") or {}
    assert (told["reason"], told["message"]) == ("ApiRefused", "failed calling webhook")


async def test_a_refusal_of_a_moment_lets_no_backup_go(world: World) -> None:
    """Law: what is stored would stay for ever, so the API server is asked again for a minute."""
    put_deleted(world, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    world.server.rights = of_file("cluster")
    with pytest.raises(ForbiddenError):
        await world.look("monday")
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}

    assert found["metadata"]["finalizers"] == [BACKUP_FINALIZER]


async def test_a_refusal_that_lasts_lets_no_backup_go(world: World) -> None:
    """Law: only where the namespace closes what is stored is left; a quota is waited for."""
    put_deleted(world)
    world.server.refused[JOBS.path(NAMESPACE)] = (403, "exceeded quota: jobs")
    due_s = await world.look("monday")
    held = (world.server.find(BACKUPS, NAMESPACE, "monday") or {})["metadata"]["finalizers"]
    told = condition_of(world.status("monday"), "Ready") or {}
    world.server.refused.clear()
    await world.look("monday")

    assert (held, told["reason"], due_s) == ([BACKUP_FINALIZER], "DeletionFailed", WAITING_S)
    assert told["message"].startswith("exceeded quota: jobs")
    assert jobs(world.server) == ["monday-uid-shop-delete"]


@pytest.mark.parametrize(
    ("notes", "edit"),
    [
        pytest.param({}, {"retention": {"time": "1h"}}, id="unconfirmed"),
        pytest.param({}, {"retention": {"time": "never"}}, id="unusable"),
        pytest.param({"pause": "true"}, {}, id="paused"),
    ],
)
async def test_a_backup_is_made_of_the_cluster_that_runs(
    monkeypatch: pytest.MonkeyPatch, notes: dict[str, str], edit: dict[str, Any]
) -> None:
    """Law: an edit that waits changes neither whether a Backup begins, nor what it asks, nor what its pod needs."""
    async with small_cluster(monkeypatch.setattr) as small:
        for _ in range(3):
            await small.reconciler.reconcile(KEY)
        small.annotate(**notes)
        small.change(groups=2, image="registry.example/later:2", **edit)
        for _ in range(3):
            await small.reconciler.reconcile(KEY)
        inventory = Inventory(small.api, (NAMESPACE,))
        backups = BackupReconciler(small.api, inventory, OperatorMetrics(), DEFAULTS)
        small.server.put(BACKUPS, {**custom("Backup", "monday"), "spec": SPEC})

        await backups.reconcile((NAMESPACE, "monday"))

        (job,) = jobs(small.server)
        assert image_of(small.server, job) == IMAGE
