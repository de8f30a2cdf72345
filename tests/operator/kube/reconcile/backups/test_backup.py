"""Reconciles of Backups with a small API server: Jobs are made once, and their reports are read."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from orderlymq_operator.kube.errors import ApiError, ForbiddenError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.names import BACKUP_FINALIZER
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backoff import MAX_S
from orderlymq_operator.kube.reconcile.backups.backup import (
    LOOKING_S,
    WAITING_MAX_S,
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


async def test_a_backup_is_made_once_and_reported(world: World) -> None:
    """Law: a Backup's Job is made once; when it has ended the status has its report, also without the Job."""
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
    """Law: only the backup container's report counts, not that of another container."""
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
    """Law: a Job refused because of a quota is reported; the Backup goes on when that is gone."""
    world.put("monday")
    world.server.refused[JOBS.path(NAMESPACE)] = (status, text)
    with pytest.raises(ApiError, match="jobs is"):
        await world.look("monday")
    told = world.reason("monday")
    world.server.refused.clear()
    await world.look("monday")

    assert (told, world.reason("monday")) == (reason, "BackupRunning")
    assert jobs(world.server) == ["monday-uid-shop-backup"]


async def again(world: World, name: str, times: int) -> tuple[list[float | None], int]:
    """Reconcile repeatedly by a timer; return when each next one is due, and how many lists were read."""
    world.server.asked.clear()
    due = [await world.backups.reconcile((NAMESPACE, name)) for _ in range(times)]
    return due, sum(method == "GET" for method, *_ in world.server.asked)


async def test_backups_that_wait_ask_the_api_server_for_nothing(world: World) -> None:
    """Law: Backups that wait for their Cluster send no requests, and each begins when the Cluster serves."""
    world.server.put(CLUSTERS, custom("Cluster", "demo", status={"observedGeneration": 1}))
    names = [f"backup-{number}" for number in range(3)]
    for name in names:
        world.put(name)
        await world.look(name)

    for name in names:
        assert await again(world, name, 3) == ([WAITING_S] * 3, 0)
    world.server.put(CLUSTERS, custom("Cluster", "demo", status=SERVES))
    for name in names:
        await world.look(name)
    assert [world.reason(name) for name in names] == [
        "BackupRunning",
        "BackupWaiting",
        "BackupWaiting",
    ]


async def test_a_backup_of_a_cluster_with_an_open_edit_is_looked_at_ever_more_rarely(
    world: World,
) -> None:
    """Law: a Backup that waits for a Cluster's open edit is looked at less and less often."""
    world.server.put(CLUSTERS, custom("Cluster", "demo", status={}))
    world.put("monday")
    await world.look("monday")
    due, lists = await again(world, "monday", 20)

    assert (due[0], due[-1]) == (WAITING_S, WAITING_MAX_S)
    assert lists == 20


async def test_a_job_that_was_made_before_the_operator_ended_is_found(world: World) -> None:
    """Law: after a restart the operator finds the Job and makes no other."""
    world.put("monday")
    await world.look("monday")
    found = world.server.find(BACKUPS, NAMESPACE, "monday")
    assert found is not None
    world.server.put(BACKUPS, {**found, "status": {"phase": "Waiting"}})
    end_job(world.server, "monday-uid-shop-backup", report())
    world.begin_again()
    await world.look("monday")

    assert world.reason("monday") == "BackupComplete"


async def test_a_backup_that_runs_for_hours_is_looked_at_ever_more_rarely(world: World) -> None:
    """Law: a long Backup is looked at less and less often; its Job's end is noticed immediately."""
    world.put("monday")
    await world.look("monday")
    due, _ = await again(world, "monday", 20)
    name = "monday-uid-shop-backup"
    job = world.server.find(JOBS, NAMESPACE, name)
    end_job(world.server, name, report())
    ended = world.server.find(JOBS, NAMESPACE, name)
    assert job is not None
    assert ended is not None
    world.server.put(JOBS, {**ended, "status": job.get("status", {})})
    (soon,), _ = await again(world, "monday", 1)

    assert (due[0], due[-1]) == (LOOKING_S, MAX_S)
    assert soon == LOOKING_S


async def test_nothing_is_stored_for_a_backup_without_its_finalizer(world: World) -> None:
    """Law: without its finalizer no Job is made, because its data would stay after a deletion."""
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
    """Law: one Backup of a Cluster runs at a time, the oldest first; one whose Cluster does not serve costs no attempt."""
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
    """Law: a Backup covers every existing broker group, also one to be removed, and waits for a wanted one."""
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
    """Law: a Backup of a Cluster with an unusable spec waits and says so."""
    spec = {"retention": {"time": "never"}}
    world.server.put(CLUSTERS, custom("Cluster", "demo", spec=spec, status=SERVES))
    world.put("monday")
    await world.look("monday")
    ready = condition_of(world.status("monday"), "Ready") or {}

    assert ready["reason"] == "BackupWaiting"
    assert "spec.retention.time" in ready["message"]
    assert jobs(world.server) == []


async def test_only_what_a_person_can_cure_is_a_warning(world: World) -> None:
    """Law: waiting, running and completing are Normal events; a failure is a Warning."""
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
    """Law: a Job of a former Backup with the same name does not count."""
    world.put("monday")
    await world.look("monday")
    end_job(world.server, "monday-uid-shop-backup", report())
    world.put("monday", uid="another")
    await world.look("monday")

    assert world.status("monday").get("backupId") is None
    assert world.reason("monday") == "BackupRunning"


@pytest.mark.parametrize("end", ["backup", "delete"])
async def test_a_job_without_its_image_is_made_again_with_another_one(
    world: World, end: str
) -> None:
    """Law: a Job is made again with another image only while its pod lacks the image."""
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


async def test_a_job_of_somebody_else_stops_this_backup_alone(world: World) -> None:
    """Law: a Backup fails and says so if somebody else's Job has the name of its Job; the next Backup begins all the same."""
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
        "'monday-uid-shop-backup' exists but does not belong to this Backup"
        in world.status("monday")["error"]
    )
    assert world.reason("tuesday") == "BackupRunning"
    assert world.reason("gone") == "DeletionFailed"


async def test_the_jobs_of_an_earlier_operator_count(world: World) -> None:
    """Law: after an upgrade no second Job is made; a Backup also waits for a running Job that has the older version's
    name.
    """
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


async def test_a_failure_that_stays_is_reported(world: World) -> None:
    """Law: a Backup that waits because the API server always answers 500 (a broken admission hook) says so."""
    world.put("monday")
    world.server.refused[f"POST {JOBS.path(NAMESPACE)}"] = (500, "failed calling webhook")
    for _ in range(4):
        with pytest.raises(ApiError):
            await world.look("monday")

    told = condition_of(world.status("monday"), "Ready") or {}
    assert (told["reason"], told["message"]) == ("ApiRefused", "failed calling webhook")


async def test_a_refusal_of_a_moment_lets_no_backup_go(world: World) -> None:
    """Law: a refusal that may pass does not let a deleted Backup go; the operator tries for a minute to delete its data."""
    world.put_deleted(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    world.server.rights = of_file("cluster")
    with pytest.raises(ForbiddenError):
        await world.look("monday")
    found = world.server.find(BACKUPS, NAMESPACE, "monday") or {}

    assert found["metadata"]["finalizers"] == [BACKUP_FINALIZER]


async def test_a_refusal_that_lasts_lets_no_backup_go(world: World) -> None:
    """Law: a lasting refusal lets a Backup go without its data only if the namespace is being deleted;
    a quota is waited for.
    """
    world.put_deleted()
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
    """Law: a Backup is made as the running Cluster is; an edit of the Cluster that still waits does not change the Backup
    or its pod.
    """
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
