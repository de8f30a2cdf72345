"""Objects as the API server sends them, for tests."""

from typing import Any

from orderlymq_operator.kube.objects.cluster import Environment, RaftGroupFacts, kube_revision
from orderlymq_operator.kube.observe.inventory import Item, read_item
from orderlymq_operator.kube.resources import CLUSTERS, OWN_KINDS, Json
from orderlymq_operator.resources.kinds import Cluster

NAMESPACE = "shop"
IMAGE = "orderlymq:1"
_BY_KIND = {resource.kind: resource for resource in OWN_KINDS}


def custom(kind: str, name: str, namespace: str = NAMESPACE, **facts: Any) -> Json:
    """A custom resource; `spec`, `status`, and facts of its metadata by their JSON names."""
    spec = facts.pop("spec", {})
    if kind != "Cluster":
        spec = {"clusterRef": {"name": "demo", "namespace": NAMESPACE}, **spec}
    return {
        "apiVersion": "orderlymq.io/v1alpha1",
        "kind": kind,
        "spec": spec,
        "status": facts.pop("status", {}),
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **facts,
        },
    }


def item(kind: str, name: str, namespace: str = NAMESPACE, **facts: Any) -> Item:
    return read_item(_BY_KIND[kind], custom(kind, name, namespace, **facts))


def cluster(**spec: Any) -> Cluster:
    made = read_item(CLUSTERS, custom("Cluster", "demo", spec=spec)).manifest
    assert isinstance(made, Cluster)
    return made


def environment(made: Cluster, **facts: Any) -> Environment:
    count = made.spec.replicas_per_group
    form = RaftGroupFacts(count, count, str(made.spec.storage.size), "10.96.0.7")
    return Environment(
        IMAGE,
        "IfNotPresent",
        kube_revision(made, IMAGE),
        **{"groups": dict.fromkeys(made.group_names, form), **facts},
    )


def pod(name: str = "consumer", uid: str = "one", **status: Any) -> Json:
    """A running pod with one container; *status* replaces parts of its status."""
    container = {
        "name": "main",
        "image": "app:1",
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid},
        "spec": {"nodeName": "worker"},
        "status": {
            "phase": "Running",
            "podIP": "10.244.1.9",
            "containerStatuses": [container],
            **status,
        },
    }


def started(at: str) -> Json:
    return {"name": "main", "restartCount": 1, "state": {"running": {"startedAt": at}}}


def killing(
    container: str = "main",
    uid: str = "one",
    at: str = "2026-01-01T00:09:00Z",
    component: str = "kubelet",
    reason: str = "Killing",
) -> Json:
    """The event of a kubelet that ends a container."""
    return {
        "involvedObject": {"uid": uid, "fieldPath": f"spec.containers{{{container}}}"},
        "reason": reason,
        "source": {"component": component},
        "lastTimestamp": at,
    }
