"""
The restore of a new Cluster from a backup: find the backup, restore every replica, record that the restore is complete.

Rules: replicas are restored only before any broker of the Cluster has run. The operator marks the name servers'
StatefulSet before a broker starts. A Cluster is not restored again if it has that mark, if its status reports a
restore, or if one of its StatefulSets has run brokers: a replica that loses its volume later gets its data from its
peers.
"""

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ConflictError
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.job import ToolEnvironment, lookup_job, lookup_name
from orderlymq_operator.kube.objects.backups.restore import (
    CONTAINER,
    RESTORING,
    Restore,
    is_restoring,
)
from orderlymq_operator.kube.objects.cluster import name_server_set
from orderlymq_operator.kube.objects.ownership import owners
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.kube.observe.jobs import job_facts, terminated, word_of
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.observe.refusedpods import refused_replica, refused_run
from orderlymq_operator.kube.reconcile.backend import KubeBackend
from orderlymq_operator.kube.resources import JOBS, PODS, STATEFUL_SETS, TIME_FORMAT, Json
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.backups.report import BackupReport
from orderlymq_operator.resources.backups.bootstrap import LATEST, FromBackup
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_protocol.plurals import counted

_log = logging.getLogger(__name__)

# The pause after a failed lookup; Kubernetes has already tried it several times.
AGAIN_S: Final = 30.0
# The space that `orderlymq backup restore` needs in addition to the files of a broker group.
_ROOM: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a restore.

    Attributes:
        facts: the content of status.restored.
        pause_s: the pause before the next step; None while the restore waits for something.
        applied: the number of changed objects, whose read state is out of date.
    """

    condition: ConditionReport
    facts: Json
    pause_s: float | None = None
    applied: int = 0


def restored_id(item: Item, cluster: Cluster, live: Live) -> str | None:
    """Return the backup from which a Cluster was restored: empty for none, None while the restore is not complete."""
    if cluster.spec.bootstrap is None:
        return ""
    servers = live.find(STATEFUL_SETS, names.name_server_set(cluster)) or {"metadata": {}}
    noted = (servers["metadata"].get("annotations") or {}).get(names.ANNOTATION_RESTORED)
    restored = item.status.get("restored") or {}
    if noted or restored.get("completedAt"):
        return str(noted or restored.get("backupId"))
    made = [live.find(STATEFUL_SETS, group) for group in cluster.group_names]
    if any(each is not None and not is_restoring(each) for each in made):
        return str(restored.get("backupId") or "unknown")
    return None


def restored_condition(item: Item, backup_id: str | None) -> ConditionReport | None:
    """Return the condition Restored of a Cluster after its restore; None if it is not restored."""
    if not backup_id:
        return None
    restored = item.status.get("restored") or {}
    text = f"was restored from backup {backup_id} of cluster {restored.get('cluster', 'unknown')}"
    return ConditionReport("True", "RestoredFromBackup", text)


class Bootstrap:
    """Restores new Clusters; `advance` takes one step of one Cluster."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def advance(self, item: Item, cluster: Cluster, backend: KubeBackend) -> Progress:
        """Take the next step of the restore.

        Raises:
            ApiError: the API server could not be read or written; try again.
        """
        assert cluster.spec.bootstrap is not None, "a Cluster that begins empty is not restored"
        source = cluster.spec.bootstrap.from_backup
        restored = dict(item.status.get("restored") or {})
        if not restored.get("backupId"):
            return await self._find(item, cluster, source, backend)
        backup_id = str(restored["backupId"])
        restore = Restore(source.destination, backup_id, cluster.group_names)
        backend.environment = replace(backend.environment, restoring=restore)
        applied = await self._make_replicas(cluster, backend)
        waiting, problem = await self._look(item, cluster, backup_id, backend)
        if problem := problem or await refused_replica(self._api, backend.live):
            failed = ConditionReport("False", "RestoreFailed", problem)
            return Progress(failed, restored, applied=applied)
        if waiting:
            text = f"{backup_id} is not restored yet on {counted(len(waiting), 'replica')}, including {waiting[0]}"
            return Progress(_restoring(text), restored, applied=applied)
        # Set the mark before any broker starts: from now on, no replica is restored.
        backend.environment = replace(backend.environment, restoring=None, restored=backup_id)
        await self._api.apply(name_server_set(cluster, backend.environment))
        restored["completedAt"] = datetime.now(UTC).strftime(TIME_FORMAT)
        _log.info(
            "%s/%s: all replicas are restored from backup %s", item.namespace, item.name, backup_id
        )
        return Progress(
            _restoring(
                f"all replicas are restored from {backup_id}; the brokers are being started"
            ),
            restored,
            0.0,
        )

    async def _make_replicas(self, cluster: Cluster, backend: KubeBackend) -> int:
        """Make all objects for the restore; return how many objects were changed."""
        applied = await backend.ensure()
        for group in cluster.group_names:
            if backend.live.find(STATEFUL_SETS, group) is None:
                await backend.start_group(group)
                applied += 1
        for name, pod in backend.live.pods.items():
            if backend.live.waits_in_vain(pod) and not pod.deleting:
                await self._api.delete(PODS, pod.namespace, name, uid=pod.uid)
                applied += 1
        return applied

    async def release(self, backend: KubeBackend) -> int:
        """Delete pods that only restored, after their StatefulSets make broker pods; return how many were deleted."""
        count = 0
        for name, pod in backend.live.pods.items():
            if pod.annotations.get(names.ANNOTATION_REVISION) != RESTORING or pod.deleting:
                continue
            await self._api.delete(PODS, pod.namespace, name, uid=pod.uid)
            count += 1
        return count

    # -- the backup ------------------------------------------------------------------------------

    async def _find(
        self, item: Item, cluster: Cluster, source: FromBackup, backend: KubeBackend
    ) -> Progress:
        """Find the backup by a Job, and check that it fits."""
        chosen = f"{names.LABEL_RESTORE}={item.name}"
        jobs = await self._api.list(JOBS, item.namespace, labels=chosen)
        own = [
            job
            for job in jobs
            if item.uid in owners(job, "Cluster") and "deletionTimestamp" not in job["metadata"]
        ]
        pods = await self._api.list(PODS, item.namespace, labels=chosen)
        environment = ToolEnvironment(
            backend.environment.image, backend.environment.pull_policy, cluster
        )
        job = own[0] if own else None
        refused = await refused_run(self._api, job, pods)
        found = job_facts(job, pods, environment.image_form, refused)
        if found.in_vain:
            await self._delete_lookup(own[0])
            return Progress(_restoring(f"{found.trouble}; its Job is created again"), {})
        match found.state:
            case "Missing":
                if problem := await self._start_lookup(item, cluster, source, environment):
                    return Progress(ConditionReport("False", "RestoreFailed", problem), {}, AGAIN_S)
                return Progress(_restoring("a Job looks for the backup"), {})
            case "Complete" if found.report is not None:
                return _fits(cluster, source, found.report)
            case "Running":
                text = found.error or found.trouble
                if found.failed and text:
                    return Progress(ConditionReport("False", "RestoreFailed", text), {})
                return Progress(_restoring(text or "a Job looks for the backup"), {})
        await self._delete_lookup(own[0])
        text = found.error or "the Job's pod is gone, and its result is not known"
        return Progress(ConditionReport("False", "RestoreFailed", text), {}, AGAIN_S)

    async def _start_lookup(
        self, item: Item, cluster: Cluster, source: FromBackup, environment: ToolEnvironment
    ) -> str:
        """Make the lookup Job; return why it cannot be made, or empty if it exists or may exist soon."""
        wanted = None if source.backup == LATEST else source.backup
        try:
            await self._api.create(
                JOBS, item.namespace, lookup_job(cluster, source.destination, wanted, environment)
            )
        except ConflictError:
            name = lookup_name(cluster)
            found = await self._api.list(JOBS, item.namespace, fields=f"metadata.name={name}")
            if any(not owners(job, "Cluster") for job in found):
                return f"Job {name!r} exists but does not belong to this Cluster; delete it"
            _log.info("%s/%s: a former lookup is still being deleted", item.namespace, item.name)
        return ""

    async def _delete_lookup(self, job: Json) -> None:
        meta = job["metadata"]
        await self._api.delete(
            JOBS, meta["namespace"], meta["name"], uid=meta["uid"], propagation="Background"
        )

    # -- the replicas ----------------------------------------------------------------------------

    async def _look(
        self, item: Item, cluster: Cluster, backup_id: str, backend: KubeBackend
    ) -> tuple[list[str], str]:
        """Return the pods whose replicas are not restored yet, and why one of them fails, or empty."""
        chosen = f"{names.LABEL_CLUSTER}={item.name},app.kubernetes.io/component={names.BROKER}"
        pods = await self._api.list(PODS, item.namespace, labels=chosen)
        # Exclude pods of a former Cluster of the name: they restored its volumes, perhaps from the same backup.
        sets = [backend.live.find(STATEFUL_SETS, group) for group in cluster.group_names]
        own = {made["metadata"]["uid"] for made in sets if made is not None}
        found = {
            pod["metadata"]["name"]: pod for pod in pods if owners(pod, STATEFUL_SETS.kind) & own
        }
        waiting, problems = [], []
        for group, form in sorted(backend.environment.groups.items()):
            for node in range(1, form.replicas + 1):
                name = names.pod_name(group, node)
                said, problem = _said(found.get(name))
                if said != backup_id:
                    waiting.append(name)
                if problem:
                    problems.append(f"{name}: {problem}")
        return waiting, problems[0] if problems else ""


def _said(pod: Json | None) -> tuple[str | None, str]:
    """Return the id of the backup that a pod has restored, or None, and why it fails, or empty."""
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return None, ""
    notes = pod["metadata"].get("annotations") or {}
    if notes.get(names.ANNOTATION_REVISION) != RESTORING:
        return None, ""
    ended = terminated(pod, CONTAINER, "initContainerStatuses")
    if ended is None:
        trouble = pod_facts(pod).trouble
        return None, trouble.text if trouble is not None else ""
    word = word_of(ended)
    return (word.id, "") if isinstance(word, BackupReport) else (None, word)


def _fits(cluster: Cluster, source: FromBackup, report: BackupReport) -> Progress:
    """Return the progress after a backup was found: it must fit into the volumes.

    Only a replica can judge whether it would keep all messages, because files have more or fewer bytes than their
    messages.
    """
    largest = max((size for *_, size in report.groups), default=0)
    room = cluster.spec.storage.size.size_bytes
    if largest + _ROOM > room:
        text = f"a group of backup {report.id} needs {largest + _ROOM} bytes, but spec.storage.size leaves only {room}"
        return Progress(ConditionReport("False", "RestoreFailed", text), {}, AGAIN_S)
    restored: dict[str, Any] = {
        "backupId": report.id,
        "cluster": report.cluster,
        "location": source.destination.location,
    }
    return Progress(_restoring(f"backup {report.id} was found"), restored, 0.0)


def _restoring(text: str) -> ConditionReport:
    return ConditionReport("False", "Restoring", text)
