"""
The pods in which the replicas of a new Cluster are restored: pods of brokers with another program.

Pure. Rules: the brokers' own StatefulSet makes the pods, so that they have the brokers' volumes, nodes and spreading,
but no broker runs in them. An init container restores the replica. The broker's container then only protects the backup
from deletion, because other replicas may still need it. The operator replaces the pods after it has recorded that every
replica is restored.
"""

from dataclasses import dataclass
from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.job import PROGRAM
from orderlymq_operator.kube.objects.backups.place import place_of
from orderlymq_operator.kube.objects.pods import SETTINGS_FLAG
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.backups.destination import Destination

# Used in place of a settings revision; no broker pod has this revision.
RESTORING: Final = "restoring"
CONTAINER: Final = "restore"
_OF_SERVERS: Final = ("ports", "startupProbe", "livenessProbe", "readinessProbe")


@dataclass(frozen=True, slots=True)
class Restore:
    """The backup from which every replica is restored."""

    destination: Destination
    backup_id: str
    groups: tuple[str, ...]


def restoring_pod(broker: Json, restore: Restore) -> Json:
    """Return a pod template that restores the data of the broker pod template *broker*, with the broker's settings."""
    meta, spec = broker["metadata"], broker["spec"]
    own = spec["containers"][0]
    settings = own["command"][own["command"].index(SETTINGS_FLAG) :]
    place = place_of(restore.destination)
    shared = {key: value for key, value in own.items() if key not in _OF_SERVERS}
    shared["env"] = list({each["name"]: each for each in (*own["env"], *place.variables)}.values())
    shared["volumeMounts"] = [*own["volumeMounts"], *(mount for _, mount in place.volumes)]
    backup = ("--from", restore.destination.place, "--id", restore.backup_id)
    init = {
        **shared,
        "name": CONTAINER,
        "command": [
            *(*PROGRAM, "restore", *backup),
            *settings,
            *("--groups", ",".join(restore.groups)),
            *("--resume", "--report", names.TERMINATION_LOG),
        ],
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {
        "metadata": {
            **meta,
            "annotations": {**meta["annotations"], names.ANNOTATION_REVISION: RESTORING},
        },
        "spec": {
            **spec,
            "initContainers": [init],
            "containers": [{**shared, "command": [*PROGRAM, "hold", *backup]}],
            "volumes": [*spec["volumes"], *(volume for volume, _ in place.volumes)],
        },
    }


def is_restoring(stateful_set: Json) -> bool:
    """Return whether the pods of a StatefulSet restore a backup; if so, no broker has run in them."""
    notes = stateful_set["spec"]["template"]["metadata"].get("annotations") or {}
    return bool(notes.get(names.ANNOTATION_REVISION) == RESTORING)
