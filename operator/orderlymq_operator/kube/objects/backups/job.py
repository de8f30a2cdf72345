"""
Jobs that run one command of `orderlymq backup` in a pod: create, delete, show.

Pure. Rules: a Job has no rights in the API server. Its pod says in its termination message how it ended. Kubernetes tries
again what failed, some times; a command that cannot be right is tried once. No two pods of a Job run at the same time.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.place import Place, place_of
from orderlymq_operator.kube.objects.clientaccess import (
    access_variables,
    name_servers,
    tls_volumes,
)
from orderlymq_operator.kube.objects.clientpod import locked_down_pod
from orderlymq_operator.kube.objects.drift import fingerprint
from orderlymq_operator.kube.objects.ownership import owned
from orderlymq_operator.kube.objects.podtemplate import Mounted, pull_secrets
from orderlymq_operator.kube.resources import JOBS, Json
from orderlymq_operator.resources.backups.backup import BACKUP_RESOURCES, Backup, Scratch
from orderlymq_operator.resources.backups.destination import Destination
from orderlymq_operator.resources.cluster.cluster import Cluster, ClusterSpec
from orderlymq_operator.resources.meta import ObjectMeta
from orderlymq_operator.resources.workload import Resources

CONTAINER: Final = "backup"
COMPONENT: Final = "backup"
PROGRAM: Final = ("python", "-m", "orderlymq_backup")
WORK: Final = "/work"
# Attempts after the first one: Kubernetes waits 10, 20, 40 s between them, and a copy that a dead reader had left is
# gone after a minute.
_RETRIES: Final = 3
# The commands' code for a wrong usage, which another attempt would only repeat.
_WRONG_USAGE: Final = 2
# Of those that delete and look; the mark of a backup that is made is renewed for as long as it takes.
_DEADLINE_S: Final = 24 * 3600
# As of pods, 68 years. The Job controller counts in nanoseconds of 64 bits, so that 293 years are below zero.
_DEADLINE_MAX_S: Final = (1 << 31) - 1
# Logs of a Job that has ended, for people; its result is in the status by then.
_KEPT_S: Final = 24 * 3600
_JOB_NAME_MAX: Final = 63
_UID_PART: Final = 8
# Ends of the names of a Backup's Jobs; with its UID as a label they show which one it is.
CREATION: Final = "backup"
DELETION: Final = "delete"


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """Additions of the operator to a Job.

    Attributes:
        cluster: the Cluster whose image, user and nodes the pod has, None where nothing is known of it.
        pull_secrets: of the pod, where the Cluster names none.
    """

    image: str
    pull_policy: str
    cluster: Cluster | None = None
    pull_secrets: tuple[str, ...] = ()

    @property
    def image_form(self) -> str:
        """A text that differs when a pod gets its image in another way."""
        own = self.cluster.spec.image_pull_secrets if self.cluster is not None else []
        return fingerprint([self.image, self.pull_policy, *(own or self.pull_secrets)])


@dataclass(frozen=True, slots=True)
class _Work:
    """Task of a Job, and its inputs.

    Attributes:
        fills_node: whether it writes much to the disk of its node.
    """

    arguments: Sequence[str]
    place: Place
    labels: Mapping[str, str]
    resources: Resources
    variables: Sequence[Json] = ()
    volumes: Sequence[Mounted] = ()
    scratch: Scratch | None = None
    fills_node: bool = False
    deadline_s: int = _DEADLINE_S


# What a Cluster says of how such pods run.
_POD_SETTINGS: Final[dict[str, Any]] = {
    "image": True,
    "image_pull_policy": True,
    "image_pull_secrets": True,
    "placement": True,
    "pod_template": {"security_context": True},
}


def pod_settings(cluster: Cluster) -> str:
    """Return what *cluster* says of how its pods run, as JSON; empty when it says nothing."""
    said = cluster.spec.model_dump(
        mode="json", include=_POD_SETTINGS, exclude_defaults=True, by_alias=True
    )
    return json.dumps(said) if said else ""


def cluster_with(settings: str, meta: ObjectMeta) -> Cluster | None:
    """Return a Cluster that says what `pod_settings` returned; None where that cannot be used."""
    try:
        return Cluster(metadata=meta, spec=ClusterSpec.model_validate_json(settings))
    except ValidationError:
        return None


def creation_name(backup: Backup) -> str:
    """Return the name of the Job that makes a backup."""
    return _name(backup, CREATION)


def deletion_name(backup: Backup) -> str:
    """Return the name of the Job that deletes what is stored of a backup."""
    return _name(backup, DELETION)


def _name(backup: Backup, end: str) -> str:
    # Part of the UID, because a Job outlives a Backup; with it a long name is cut to what a pod's label may have.
    meta, own = backup.metadata, (backup.metadata.uid or "")[:_UID_PART]
    return f"{meta.name[: _JOB_NAME_MAX - len(own) - len(end) - 2]}-{own}-{end}"


def lookup_name(cluster: Cluster) -> str:
    """Return the name of the Job that looks for the backup that a Cluster begins with."""
    return f"{cluster.metadata.name}-restore"


def creation_job(
    backup: Backup, cluster: Cluster, groups: Sequence[str], environment: ToolEnvironment
) -> Json:
    """Return the Job that makes a backup of *cluster* with all of its broker *groups*; it goes with the Backup."""
    spec = backup.spec
    arguments = ["create", "--to", spec.destination.place, "--name-server", name_servers(cluster)]
    arguments += ["--groups", ",".join(groups)]
    if spec.verify:
        arguments += ["--verify", "--workdir", WORK]
    # The program of an earlier image, which the Cluster may pin, has no option against it, and minds no variable.
    verification = {"name": "ORDERLYMQ_BACKUP_VERIFY", "value": str(spec.verify).lower()}
    # An attempt whose pod is lost may have stored all, and the next one reports that backup.
    label = {"name": "ORDERLYMQ_BACKUP_LABEL", "value": backup.metadata.uid or ""}
    work = _Work(
        arguments,
        place_of(spec.destination),
        backup_labels(backup),
        spec.resources,
        [*access_variables(cluster), verification, label],
        tls_volumes(cluster),
        spec.scratch,
        fills_node=spec.verify and spec.scratch is None,
        deadline_s=min(max(1, spec.deadline.milliseconds // 1000), _DEADLINE_MAX_S),
    )
    return _job("Backup", backup.metadata, creation_name(backup), work, environment)


def deletion_job(backup: Backup, backup_id: str, environment: ToolEnvironment) -> Json:
    """Return the Job that deletes what is stored of a Backup that is being deleted.

    It has no owner: the garbage collector would end it together with the Backup, which waits for it.
    """
    spec = backup.spec
    arguments = ["delete", "--from", spec.destination.place, "--id", backup_id]
    place, labels = place_of(spec.destination), backup_labels(backup)
    work = _Work(arguments, place, labels, spec.resources)
    made = _job("Backup", backup.metadata, deletion_name(backup), work, environment)
    made["metadata"]["ownerReferences"] = []
    return made


def lookup_job(
    cluster: Cluster, destination: Destination, backup: str | None, environment: ToolEnvironment
) -> Json:
    """Return the Job that reports which backup a new Cluster begins with, and whether it fits."""
    groups = ",".join(cluster.group_names)
    arguments = ["show", "--from", destination.place, "--groups", groups]
    if backup is not None:
        arguments += ["--id", backup]
    labels = {**_labels(cluster.metadata.name), names.LABEL_RESTORE: cluster.metadata.name}
    work = _Work(arguments, place_of(destination), labels, BACKUP_RESOURCES)
    return _job("Cluster", cluster.metadata, lookup_name(cluster), work, environment)


def backup_labels(backup: Backup) -> dict[str, str]:
    """Return the labels by which the Jobs and pods of this very Backup are found."""
    name = backup.metadata.name
    uid = backup.metadata.uid or ""
    return {**_labels(name), names.LABEL_BACKUP: name, names.LABEL_BACKUP_UID: uid}


def _labels(instance: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "orderlymq",
        "app.kubernetes.io/instance": instance,
        "app.kubernetes.io/component": COMPONENT,
        "app.kubernetes.io/managed-by": "orderlymq-operator",
    }


def _job(
    owner_kind: str, owner: ObjectMeta, name: str, work: _Work, environment: ToolEnvironment
) -> Json:
    spec = {
        "backoffLimit": _RETRIES,
        "activeDeadlineSeconds": work.deadline_s,
        "ttlSecondsAfterFinished": _KEPT_S,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _rules(work)},
        "template": {
            "metadata": {"labels": dict(work.labels)},
            "spec": _pod(work, environment),
        },
    }
    made = owned(owner_kind, owner, JOBS, name, work.labels, spec=spec)
    made["metadata"]["annotations"] = {names.ANNOTATION_REVISION: environment.image_form}
    return made


def _rules(work: _Work) -> list[Json]:
    """Return which ends of a pod are no failed attempt."""
    wrong = {"containerName": CONTAINER, "operator": "In", "values": [_WRONG_USAGE]}
    found: list[Json] = [{"action": "FailJob", "onExitCodes": wrong}]
    if not work.fills_node:
        # A drained node is no failure of ours. A full one looks the same, and must not be followed by all others.
        disrupted = {"type": "DisruptionTarget", "status": "True"}
        found.append({"action": "Ignore", "onPodConditions": [disrupted]})
    return found


def _pod(work: _Work, environment: ToolEnvironment) -> Json:
    container = {
        "name": CONTAINER,
        "image": environment.image,
        "imagePullPolicy": environment.pull_policy,
        "command": [*PROGRAM, *work.arguments, "--report", names.TERMINATION_LOG],
        "env": [*work.variables, *work.place.variables],
        "resources": work.resources.model_dump(mode="json", exclude_none=True),
        "terminationMessagePath": names.TERMINATION_LOG,
        # One that was killed could not say why; its last lines may.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    scratch = _scratch(work.scratch), {"name": "work", "mountPath": WORK}
    volumes = [scratch, *work.volumes, *work.place.volumes]
    pod = locked_down_pod(container, environment.cluster, volumes)
    return {"restartPolicy": "Never", **pull_secrets(environment.pull_secrets), **pod}


def _scratch(scratch: Scratch | None) -> Json:
    if scratch is None:
        return {"name": "work", "emptyDir": {}}
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(scratch.size)}},
    }
    if scratch.class_name is not None:
        spec["storageClassName"] = scratch.class_name
    return {"name": "work", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
