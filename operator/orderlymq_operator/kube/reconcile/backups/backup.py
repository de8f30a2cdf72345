"""
One reconcile of one Backup: observe its Job, decide, make it, report; delete stored data before a Backup is removed.

Rules: the same as in `cluster`. A Job is only read: its pod's report is checked, and the operator executes nothing from
it. A Backup that has ended is never observed again, so its Job may be deleted.
"""

import logging
from datetime import UTC, datetime
from itertools import filterfalse
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ConflictError, ForbiddenError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.job import (
    CREATION,
    DELETION,
    ToolEnvironment,
    cluster_with,
    creation_job,
    deletion_job,
    pod_settings,
)
from orderlymq_operator.kube.observe.desired import MESSAGE_MAX
from orderlymq_operator.kube.observe.inventory import Inventory, Item, Key
from orderlymq_operator.kube.observe.jobs import job_facts
from orderlymq_operator.kube.observe.refusedpods import refused_run
from orderlymq_operator.kube.reconcile.accepted import may_wait, read_accepted_cluster
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.backoff import Backoff
from orderlymq_operator.kube.reconcile.finalizers import GIVE_UP_S, Finalizers, age_s
from orderlymq_operator.kube.reconcile.status import condition_of, previous_facts
from orderlymq_operator.kube.reconcile.writer import StatusWriter
from orderlymq_operator.kube.resources import BACKUPS, JOBS, PODS, TIME_FORMAT, Json
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.backups.lifecycle import (
    ENDED,
    BackupStep,
    JobFacts,
    ObservedBackup,
    Removal,
    failure,
    next_removal,
    next_step,
)
from orderlymq_operator.plan.backups.report import BackupReport
from orderlymq_operator.resources.backups.backup import Backup
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.meta import ObjectMeta

_log = logging.getLogger(__name__)

# The first pause while a Job runs: watches show only the end of its pod, which comes a moment before the end of the
# Job.
LOOKING_S: Final = 2.0
# The pause while a Backup waits for its turn, or for a Cluster that does not serve.
WAITING_S: Final = 5.0
# The longest such pause if waiting needs requests to the API server, because an edit of the Cluster is not accepted
# yet. A person may take a day for that.
WAITING_MAX_S: Final = 60.0
# How long the operator waits for the pod of a deleted Job. A deleted pod ends within its grace time, except on a lost
# node.
ENDING_S: Final = 300.0


class BackupReconciler:
    """Reconciles Backups; `reconcile` is called for one key at a time."""

    def __init__(
        self, api: Api, inventory: Inventory, metrics: OperatorMetrics, defaults: Defaults
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._metrics = metrics
        self._defaults = defaults
        self._writer = StatusWriter(api, inventory, metrics)
        self._finalizers = Finalizers(api, inventory)
        self._backoff = Backoff()
        # The UIDs of waiting Backups for which this process found no Job and has made none since.
        self._jobless: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile once; return the seconds until the next reconcile is due, or None if none is planned.

        Raises:
            ApiError: the API server could not be read or written; try again.
        """
        with self._metrics.reconciles.time():
            await self._inventory.refresh(key)
            item = self._inventory.item("Backup", key)
            if item is None:
                self._writer.failures.forget(key)
                self._backoff.forget(key)
                self._jobless.pop(key, None)
                return None
            backup = item.manifest
            if not isinstance(backup, Backup):
                await self._finalizers.release(item, names.BACKUP_FINALIZER)
                if item.deleting_since is None:
                    await self._writer.not_ready(item, "Invalid", item.error)
                return None
            if item.deleting_since is not None:
                return await self._remove(item, backup)
            if backup.spec.deletion_policy != "Delete":
                await self._finalizers.release(item, names.BACKUP_FINALIZER)
            elif not await self._finalizers.hold(item, names.BACKUP_FINALIZER):
                return LOOKING_S  # the Backup has changed since it was read
            item = self._inventory.item("Backup", key) or item
            async with self._writer.saying_refusals(item):
                return await self._advance(item, backup)

    async def _advance(self, item: Item, backup: Backup) -> float | None:
        """Take the next step of making the backup; return the pause (s) before the next reconcile."""
        if item.status.get("phase") in ENDED or item.is_paused:
            return None
        found = self._cluster_of(item, backup)
        cluster = None if found is None else await read_accepted_cluster(self._api, found)
        environment = self._environment(item, backup, cluster)
        phase = item.status.get("phase")
        is_jobless = phase == "Waiting" and self._jobless.pop(item.key, "") == item.uid
        maker = JobFacts() if is_jobless else (await self._jobs(item, environment))[0]
        step = next_step(
            ObservedBackup(
                cluster=backup.spec.cluster_ref.name,
                phase=phase,
                job=maker,
                cluster_found=found is not None,
                cluster_problem=_problem(found, cluster),
                ahead=self._ahead(item, backup),
            )
        )
        assert step is not None, "one that has ended was left out"
        if step.start and found is not None and cluster is not None:
            made = creation_job(backup, cluster, _standing_groups(found), environment)
            if taken := await self._create(item, made):
                step = failure(taken)
        facts = facts_of(item, backup, step)
        if cluster is not None:
            if settings := pod_settings(cluster):
                facts["podSettings"] = settings
            else:
                facts.pop("podSettings", None)
        await self._writer.write(item, {"Ready": step.condition}, facts)
        if step.phase in ENDED:
            self._backoff.forget(item.key)
            return None
        if step.phase != "Waiting":
            return self._backoff.pause_s(item.key, maker, LOOKING_S)
        self._jobless[item.key] = item.uid
        if found is None or not may_wait(found):
            return WAITING_S  # waiting needs no requests
        return self._backoff.pause_s(item.key, step.condition, WAITING_S, WAITING_MAX_S)

    async def _remove(self, item: Item, backup: Backup) -> float | None:
        """Delete the stored data, then remove the finalizer; return the pause (s) before the next reconcile."""
        if names.BACKUP_FINALIZER not in item.finalizers:
            return None
        if backup.spec.deletion_policy != "Delete":
            await self._finalizers.release(item, names.BACKUP_FINALIZER)
            return None
        stored = item.status.get("backupId")
        try:
            found = self._cluster_of(item, backup)
            cluster = None if found is None else await read_accepted_cluster(self._api, found)
            environment = self._environment(item, backup, cluster)
            maker, remover = await self._jobs(item, environment)
            removal = next_removal(stored, maker, remover)
            if removal.start:
                read = await self._inventory.read(BACKUPS, item.key)
                if read is None or read.version != item.version:
                    return LOOKING_S  # a user may have decided to keep the data, and no watch has shown that yet
                stored = maker.report.id if maker.report is not None else str(stored)
                if taken := await self._create(item, deletion_job(backup, stored, environment)):
                    report = ConditionReport("False", "DeletionFailed", f"{taken}; delete it")
                    removal = Removal(condition=report)
            if removal.retry:
                await self._delete(item, remover)
        except ForbiddenError as error:
            assert item.deleting_since is not None, "it is being deleted"
            if error.status != 403 or age_s(item.deleting_since) < GIVE_UP_S:
                raise
            if await self._finalizers.is_closing(item.namespace):
                # No Job can be created in the namespace, and its deletion must not wait for this Backup.
                _log.warning("%s/%s: %s stays stored: %s", *item.key, stored, error)
                removal = Removal(release=True)
            else:
                # A quota or an admission rule may forbid the Job for a while.
                text = f"{error}; the operator tries again. To keep the stored data, set deletionPolicy to Retain"
                report = ConditionReport("False", "DeletionFailed", text[:MESSAGE_MAX])
                removal = Removal(retry=True, condition=report)
        if removal.release:
            await self._finalizers.release(item, names.BACKUP_FINALIZER)
            return None
        assert removal.condition is not None, "what waits says why"
        await self._writer.write(item, {"Ready": removal.condition}, previous_facts(item))
        if removal.retry:
            return WAITING_S
        return self._backoff.pause_s(item.key, (maker, remover), LOOKING_S)

    # -- observing -------------------------------------------------------------------------------

    async def _jobs(self, item: Item, environment: ToolEnvironment) -> tuple[JobFacts, JobFacts]:
        """Return the facts about the Job that makes the backup and the Job that deletes it, of exactly this Backup.

        If a Job's pod lacks an image that a new Job may get in another form, the Job is deleted, because it never
        began. A Job that is being deleted counts while its pod may still store data.
        """
        chosen = _labelled(item)
        jobs = await self._api.list(JOBS, item.namespace, labels=chosen)
        pods = await self._api.list(PODS, item.namespace, labels=chosen) if jobs else []
        # If there are two, the Job that is not being deleted comes first.
        jobs = sorted(
            filterfalse(_is_over, jobs), key=lambda job: "deletionTimestamp" in job["metadata"]
        )
        found = {job["metadata"]["name"]: job for job in jobs}
        # Found by the ends of their names, because an earlier operator used names without a part of the UID.
        made = [
            next((job for name, job in found.items() if name.endswith(f"-{end}")), None)
            for end in (CREATION, DELETION)
        ]
        maker, remover = [
            job_facts(job, pods, environment.image_form, await refused_run(self._api, job, pods))
            for job in made
        ]
        for job in (maker, remover):
            if job.in_vain:
                await self._delete(item, job)
        gone = JobFacts()
        return gone if maker.in_vain else maker, gone if remover.in_vain else remover

    async def _delete(self, item: Item, job: JobFacts) -> None:
        """Delete a Job by its observed UID."""
        await self._api.delete(
            JOBS, item.namespace, job.name, uid=job.uid, propagation="Background"
        )

    def _cluster_of(self, item: Item, backup: Backup) -> Item | None:
        found = self._inventory.cluster((item.namespace, backup.spec.cluster_ref.name))
        return None if found is None or found.deleting_since is not None else found

    def _ahead(self, item: Item, backup: Backup) -> str:
        """Return the name of an older Backup of the same Cluster that must end first; empty if there is none."""
        for other in self._inventory.items("Backup"):
            if other.uid == item.uid:
                return ""
            if (
                other.namespace == item.namespace
                and isinstance(other.manifest, Backup)
                and other.manifest.spec.cluster_ref == backup.spec.cluster_ref
                and other.status.get("phase") not in ENDED
                and (other.deleting_since is None or _stores(other))
            ):
                return other.name
        return ""

    def _environment(self, item: Item, backup: Backup, cluster: Cluster | None) -> ToolEnvironment:
        """Return the environment of a Backup's pods: that of its Cluster, or the last known one without a Cluster."""
        if cluster is None:
            meta = ObjectMeta(name=backup.spec.cluster_ref.name, namespace=item.namespace)
            cluster = cluster_with(item.status.get("podSettings", ""), meta)
        image = cluster.spec.image if cluster is not None else None
        policy = cluster.spec.image_pull_policy if cluster is not None else None
        return ToolEnvironment(
            image or self._defaults.image,
            policy or self._defaults.pull_policy,
            cluster,
            self._defaults.pull_secrets,
        )

    # -- carrying out --------------------------------------------------------------------------

    async def _create(self, item: Item, job: Json) -> str:
        """Make a Job; return why it cannot be made, or empty if it exists or may exist soon."""
        name = job["metadata"]["name"]
        try:
            await self._api.create(JOBS, item.namespace, job)
        except ConflictError:
            own = await self._api.list(JOBS, item.namespace, labels=_labelled(item))
            if name not in {found["metadata"]["name"] for found in own}:
                return f"Job {name!r} exists but does not belong to this Backup"
            _log.info("%s/%s: Job %s exists already", *item.key, name)
            return ""
        _log.info("%s/%s: created Job %s", *item.key, name)
        return ""


def _is_over(job: Json) -> bool:
    """Return whether a Job has been in deletion for so long that the operator no longer waits for its pod."""
    since = job["metadata"].get("deletionTimestamp")
    return since is not None and age_s(since) >= ENDING_S


def _stores(item: Item) -> bool:
    """Return whether the Job of a leaving Backup still runs, according to the Backup's last condition."""
    ready = condition_of(item.status, "Ready")
    is_held = names.BACKUP_FINALIZER in item.finalizers
    return is_held and ready is not None and ready["reason"] == "BackupRunning"


def _labelled(item: Item) -> str:
    return f"{names.LABEL_BACKUP_UID}={item.uid}"


def facts_of(item: Item, backup: Backup, step: BackupStep) -> Json:
    """Return the status of a Backup without conditions."""
    facts = previous_facts(item) | {
        "phase": step.phase,
        "location": backup.spec.destination.location,
    }
    now = datetime.now(UTC).strftime(TIME_FORMAT)
    if step.phase != "Waiting":
        facts.setdefault("startedAt", now)
    if step.phase in ENDED:
        facts["completedAt"] = now
    if step.attempts:
        facts["attempts"] = step.attempts
    if step.error:
        facts["error"] = step.error
    if step.report is not None:
        facts |= _stored(step.report)
    return facts


def _stored(report: BackupReport) -> Json:
    return {
        "backupId": report.id,
        "completedAt": _moment(report.ended_ms),
        "sizeBytes": report.size_bytes,
        "newBytes": report.new_bytes,
        "files": report.files,
        "spreadMs": report.spread_ms,
        "verified": report.verified,
        "groups": [
            {
                "name": f"{report.cluster}-{end}",
                "entry": entry,
                "takenAt": _moment(at_ms),
                "sizeBytes": size,
            }
            for end, entry, at_ms, size in report.groups
        ],
    }


def _moment(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime(TIME_FORMAT)


def _problem(found: Item | None, cluster: Cluster | None) -> str:
    """Return why a Cluster with the accepted form *cluster* does not serve; empty if it does or does not exist."""
    if found is None:
        return ""
    available = condition_of(found.status, "Available")
    if available is None or available["status"] == "Unknown":
        return "it has not started"
    if available["status"] != "True":
        return str(available.get("message", ""))
    if cluster is None:
        return f"its spec cannot be used: {found.error or 'it is not confirmed'}"
    standing = _standing_groups(found)
    added = [name for name in cluster.group_names if name not in standing]
    return f"{added[0]} has not started" if added else ""


def _standing_groups(cluster: Item) -> list[str]:
    """Return the broker groups that a backup must have, also those above spec.groups, which still hold messages."""
    return [str(each["name"]) for each in cluster.status.get("groups") or []]
