"""
The owner references of objects, by which Kubernetes' garbage collector deletes objects together with their owner.

Pure. Rule: an object of a former Cluster or Pipeline of the same name has the former's UID, and the operator never
adopts it.
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
    """Return an object with *content* that *owner* owns."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": dict(labels),
            "annotations": {},
            # Never blocking, because the deletion of the owner must not wait for an action of the operator.
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
    """Return the UIDs of an object's owners of one kind."""
    references = found["metadata"].get("ownerReferences") or []
    return {each["uid"] for each in references if each["kind"] == kind}


def is_former(owner: ObjectMeta, found: Json, kind: str = "Cluster") -> bool:
    """Return whether an object has an owner of *kind* other than *owner*: a former one of the same name."""
    return bool(owners(found, kind) - {owner.uid})
