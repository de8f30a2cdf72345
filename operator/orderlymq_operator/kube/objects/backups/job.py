"""
Jobs that run one command of `orderlymq backup` in a pod: create, delete, show.

Pure. Rules: a Job has no rights in the API server. Its pod reports its result in its termination message. Kubernetes
repeats a failed command a few times, but a command with wrong usage only runs once. Two pods of a Job never run at the
same time.
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
# Attempts after the first one. Kubernetes waits 10, 20, 40 s between them. A copy that a dead reader left is removed
# after a minute.
_RETRIES: Final = 3
# The commands' exit code for wrong usage, which another attempt would only repeat.
_WRONG_USAGE: Final = 2
# The deadline of Jobs that delete or show. A Job that creates a backup has its own deadline.
_DEADLINE_S: Final = 24 * 3600
# 68 years, as for pods. The Job controller counts nanoseconds in 64 bits, so 293 years would overflow to below zero.
_DEADLINE_MAX_S: Final = (1 << 31) - 1
# How long an ended Job and its logs are kept, for people to read. The status has the result by then.
_KEPT_S: Final = 24 * 3600
_JOB_NAME_MAX: Final = 63
_UID_PART: Final = 8
# The last parts of the names of a Backup's Jobs. Together with the UID label, they identify a Job.
CREATION: Final = "backup"
DELETION: Final = "delete"


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """Additions of the operator to a Job.

    Attributes:
        cluster: the Cluster whose user, nodes and pull Secrets the pod gets; None if the Cluster is not known.
        pull_secrets: pull Secrets of the pod, if the Cluster names none.
    """

    image: str
    pull_policy: str
    cluster: Cluster | None = None
    pull_secrets: tuple[str, ...] = ()

    @property
    def image_form(self) -> str:
        """A text that changes when image, pull policy or pull Secrets change."""
        own = self.cluster.spec.image_pull_secrets if self.cluster is not None else []
        return fingerprint([self.image, self.pull_policy, *(own or self.pull_secrets)])


@dataclass(frozen=True, slots=True)
class _Work:
    """The task of a Job, and its inputs.

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


# The fields of a Cluster that decide how such pods run.
_POD_SETTINGS: Final[dict[str, Any]] = {
    "image": True,
    "image_pull_policy": True,
    "image_pull_secrets": True,
    "placement": True,
    "pod_template": {"security_context": True},
}


def pod_settings(cluster: Cluster) -> str:
    """Return the fields of *cluster* that decide how its pods run, as JSON; empty if all have their defaults."""
    said = cluster.spec.model_dump(
        mode="json", include=_POD_SETTINGS, exclude_defaults=True, by_alias=True
    )
    return json.dumps(said) if said else ""


def cluster_with(settings: str, meta: ObjectMeta) -> Cluster | None:
    """Return a Cluster with the fields that `pod_settings` returned; None if the text is invalid."""
    try:
        return Cluster(metadata=meta, spec=ClusterSpec.model_validate_json(settings))
    except ValidationError:
        return None


def creation_name(backup: Backup) -> str:
    """Return the name of the Job that makes a backup."""
    return _name(backup, CREATION)


def deletion_name(backup: Backup) -> str:
    """Return the name of the Job that deletes the stored data of a backup."""
    return _name(backup, DELETION)


def _name(backup: Backup, end: str) -> str:
    # Contains a part of the UID, because a Job may outlive its Backup. A long name is cut to the limit of a pod's
    # label.
    meta, own = backup.metadata, (backup.metadata.uid or "")[:_UID_PART]
    return f"{meta.name[: _JOB_NAME_MAX - len(own) - len(end) - 2]}-{own}-{end}"


def lookup_name(cluster: Cluster) -> str:
    """Return the name of the Job that finds the backup from which a Cluster is restored."""
    return f"{cluster.metadata.name}-restore"


def creation_job(
    backup: Backup, cluster: Cluster, groups: Sequence[str], environment: ToolEnvironment
) -> Json:
    """Return the Job that makes a backup of *cluster* with all of its broker *groups*; the Backup owns it."""
    spec = backup.spec
    arguments = ["create", "--to", spec.destination.place, "--name-server", name_servers(cluster)]
    arguments += ["--groups", ",".join(groups)]
    if spec.verify:
        arguments += ["--verify", "--workdir", WORK]
    # A variable, because an earlier image, which the Cluster may pin, has no option to disable this but ignores
    # variables.
    verification = {"name": "ORDERLYMQ_BACKUP_VERIFY", "value": str(spec.verify).lower()}
    # An attempt whose pod was lost may have stored everything; the next attempt then reports that backup.
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
    """Return the Job that deletes the stored data of a Backup that is being deleted.

    It has no owner. Otherwise the garbage collector would delete it together with the Backup, which waits for it.
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
    """Return the Job that reports from which backup a new Cluster is restored, and whether the backup fits."""
    groups = ",".join(cluster.group_names)
    arguments = ["show", "--from", destination.place, "--groups", groups]
    if backup is not None:
        arguments += ["--id", backup]
    labels = {**_labels(cluster.metadata.name), names.LABEL_RESTORE: cluster.metadata.name}
    work = _Work(arguments, place_of(destination), labels, BACKUP_RESOURCES)
    return _job("Cluster", cluster.metadata, lookup_name(cluster), work, environment)


def backup_labels(backup: Backup) -> dict[str, str]:
    """Return the labels by which the operator finds the Jobs and pods of exactly this Backup."""
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
    """Return the rules for failed pods that do not count as a normal failed attempt."""
    wrong = {"containerName": CONTAINER, "operator": "In", "values": [_WRONG_USAGE]}
    found: list[Json] = [{"action": "FailJob", "onExitCodes": wrong}]
    if not work.fills_node:
        # A drained node does not count as a failed attempt. A full node looks the same, so this rule is only for work
        # that does not fill nodes; otherwise attempts might fill one node after another.
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
        # A killed program cannot report the reason, but the last lines of its log may show it.
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
