"""
What pods of brokers, name servers and Spark drivers have in common, and the frame of every object that is owned.

Pure. Rules: nothing runs as root or writes to its root file system; what the operator makes goes with the resource
that it was made for.
"""

from collections.abc import Mapping
from typing import Final

from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.meta import API_VERSION, ObjectMeta
from orderlymq_operator.resources.workload import Placement

_USER: Final = 10_001


def owned(
    owner_kind: str,
    owner: ObjectMeta,
    api_version: str,
    kind: str,
    name: str,
    labels: Mapping[str, str],
) -> Json:
    """Return an object without content that goes with *owner*."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": dict(labels),
            "annotations": {},
            # Never blocking: a deletion must not wait for anything that the operator would have to do.
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": owner_kind,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
    }


def user() -> Json:
    """Return as whom the containers of a pod run."""
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def locked_down() -> Json:
    """Return what a container may not do."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def nodes(wish: Placement) -> Json:
    """Return on which nodes a pod may run and how it is ranked there; spreading is the caller's."""
    found: Json = {}
    if wish.node_selector:
        found["nodeSelector"] = dict(wish.node_selector)
    if wish.tolerations:
        found["tolerations"] = [
            toleration.model_dump(mode="json", exclude_none=True) for toleration in wish.tolerations
        ]
    if wish.priority_class_name is not None:
        found["priorityClassName"] = wish.priority_class_name
    return found


def field(name: str, path: str) -> Json:
    """Return a variable that tells a container something of its pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def probe(path: str, *, scheme: str, period_s: int, timeout_s: int, failures: int) -> Json:
    """Return a look at a page of the container's port "http"."""
    return {
        "httpGet": {"path": path, "port": "http", "scheme": scheme.upper()},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
