"""
Which object goes with which: the owner references that Kubernetes' garbage collector follows.

Pure. Rule: an object of a former Cluster or Pipeline of the same name has the former's UID, and nobody adopts it.
"""

from collections.abc import Mapping
from typing import Any

from orderlymq_operator.kube.resources import Json, Resource
from orderlymq_operator.resources.meta import API_VERSION, ObjectMeta


def owned(
    owner_kind: str,
    owner: ObjectMeta,
    resource: Resource,
    name: str,
    labels: Mapping[str, str],
    **content: Any,
) -> Json:
    """Return an object with *content* that goes with *owner*."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
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
        **content,
    }


def owners(found: Json, kind: str) -> set[str]:
    """Return the UIDs of what an object goes with, of one kind."""
    references = found["metadata"].get("ownerReferences") or []
    return {each["uid"] for each in references if each["kind"] == kind}


def is_former(owner: ObjectMeta, found: Json, kind: str = "Cluster") -> bool:
    """Return whether an object was made for another one of *kind*, which had the same name and is gone."""
    return bool(owners(found, kind) - {owner.uid})
