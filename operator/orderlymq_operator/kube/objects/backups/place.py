"""
A pod's access to the place of backups: a mounted claim, or the variables of an object store's tools.

Pure. The operator only names Secrets and never reads them: the kubelet gives them to the container.
"""

from dataclasses import dataclass
from typing import Final

from orderlymq_operator.kube.objects.podtemplate import Mounted
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.backups.destination import (
    MOUNT,
    Destination,
    ObjectStoreDestination,
)

_VOLUME: Final = "backups"
# `orderlymq backup` reads this variable; earlier versions ignore it.
_GROUP_ACCESS: Final = "ORDERLYMQ_BACKUP_GROUP_ACCESS"
# Name of the variable, and whether the Secret must have it.
_CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": True,
    "AWS_SECRET_ACCESS_KEY": True,
    "AWS_SESSION_TOKEN": False,
}


@dataclass(frozen=True, slots=True)
class Place:
    """The variables and volumes by which a container reaches a destination."""

    variables: tuple[Json, ...] = ()
    volumes: tuple[Mounted, ...] = ()


def place_of(destination: Destination) -> Place:
    """Return the access of a pod to *destination*."""
    if destination.object_store is not None:
        return Place(variables=tuple(_variables(destination.object_store)))
    assert destination.pvc is not None, "one of both is there"
    volume = {
        "name": _VOLUME,
        "persistentVolumeClaim": {"claimName": destination.pvc.claim_name},
    }
    return Place(
        # Files are readable by the user group: the pods of another Cluster may run as another user of the same user
        # group.
        variables=({"name": _GROUP_ACCESS, "value": "true"},),
        volumes=((volume, {"name": _VOLUME, "mountPath": MOUNT}),),
    )


def _variables(store: ObjectStoreDestination) -> list[Json]:
    found: list[Json] = [{"name": "AWS_REGION", "value": store.region}]
    if store.endpoint is not None:
        found.append({"name": "AWS_ENDPOINT_URL", "value": store.endpoint})
    if store.credentials_secret_ref is not None:
        secret = store.credentials_secret_ref.name
        for name, needed in _CREDENTIALS.items():
            source: Json = {"name": secret, "key": name}
            if not needed:
                source["optional"] = True
            found.append({"name": name, "valueFrom": {"secretKeyRef": source}})
    return found
