"""Random changes of the manifests of one Cluster, allowed and forbidden ones."""

import copy
from collections.abc import Mapping
from random import Random
from typing import Any, Final

Json = dict[str, Any]
Name = tuple[str, str]
"""Kind and name of an object."""

BEGINNING: Final[Json] = {
    "replicasPerGroup": 3,
    "nameServers": {"replicas": 1},
    "storage": {"size": "20Gi"},
}
_LABELS: Final = {"metadata": {"labels": {"team": "mq"}}}
_LISTENER: Final[Json] = {"name": "outside", "type": "LoadBalancer", "port": 9095}
_RESOURCES: Final[Json] = {
    "requests": {"cpu": "500m", "memory": "512Mi"},
    "limits": {"memory": "2Gi"},
}
# Values for fields of a Cluster; None removes the field. The last values of some are refused.
_CLUSTER: Final[Mapping[str, list[Any]]] = {
    "groups": [1, 2, 2, 3, 0],
    "replicasPerGroup": [1, 3, 3, 5, 2],
    "nameServers.replicas": [1, 2, 3],
    "nameServers.resources": [None, _RESOURCES, {"requests": {"cpu": "1"}}],
    "storage.size": ["20Gi", "30Gi", "40Gi", "10Gi"],
    "storage.deleteClaim": ["Retain", "Delete", "Keep"],
    "storage.autoGrow": [None, {"limit": "100Gi", "step": "10Gi"}, {"limit": "1Gi"}],
    "storage.className": [None, "fast"],
    "retention.time": [None, "24h", "96h", "soon"],
    "retention.size": [None, "8Gi", "4Gi"],
    "lock.leaseSeconds": [None, 90, 1],
    "lock.takeover": [None, "LeaseExpiry", "ConfirmedPodDeath"],
    "flushDiskType": [None, "ASYNC_FLUSH", "SYNC_FLUSH"],
    "config.logLevel": [None, "DEBUG", "LOUD"],
    "config.tailCacheSize": [None, "128Mi"],
    "config.maxMessageSize": [None, "1Mi"],
    "config.aclEnable": [None, True],
    "config.dedupWindowCount": [None, 1000, -1],
    "config.autoCreateTopicEnable": [None, True, False],
    "network.policies": [None, False],
    "network.clients": [None, [{"cidr": "10.0.0.0/8"}], [{"cidr": "10.0.0.0"}]],
    "listeners": [None, [_LISTENER], [_LISTENER, _LISTENER], [{**_LISTENER, "port": 10911}]],
    "canary": [None, {"enabled": True}],
    "console": [None, {"enabled": True}],
    "podTemplate": [None, _LABELS, {"spec": {"hostNetwork": True}}],
    "placement.priorityClassName": [None, "system-cluster-critical"],
    "image": [None, "orderlymq:2"],
    "imagePullPolicy": [None, "Always"],
    "imagePullSecrets": [None, [{"name": "pull"}], ["pull"]],
    "resources": [None, _RESOURCES, {"limits": {"memory": "4Gi"}}],
    "update.mode": [None, None, "Paused"],
    "scaleDown.policy": [None, "Drain", "Drain"],
    "security.internalTls": [None, "Disabled"],
    "allowedNamespaces": [None, ["team"], [""]],
    "addressQuotas": [None, {"connections": 100}],
    "tls.mode": ["Disabled", "Disabled", "Enforcing"],
}
_TOPIC: Final[Mapping[str, list[Any]]] = {
    "queues": [1, 4, 8, 0],
    "permission": ["ReadOnly", "ReadWrite", "WriteOnly"],
    "type": ["Ordered", "Normal"],
    "deletionPolicy": ["Retain", "Delete"],
    "queueChangePolicy": [None, "Reject", "Expand"],
    "topicName": [None, "renamed"],
}
_GROUP: Final[Mapping[str, list[Any]]] = {
    "enabled": [True, False],
    "ordering": [None, "Ordered", "Concurrent"],
    "onDeadLetter": [None, "HoldKey"],
    "concurrency": [None, "Key"],
    "consumeTimeout": [None, "5m", "now"],
    "deletionPolicy": ["Retain", "Delete"],
    "startFrom": [None, "Latest"],
}
_USER: Final[Mapping[str, list[Any]]] = {
    "admin": [True, False],
    "defaultTopicPermission": [None, "SUB", "ALL"],
    "topics": [None, [{"name": "a", "permission": "PUB"}]],
    "quotas": [None, {"requestsPerSecond": 100}],
    "accessKey": [None, "another-key"],
}
_FIELDS: Final = {"Cluster": _CLUSTER, "Topic": _TOPIC, "ConsumerGroup": _GROUP, "User": _USER}
_NAMES: Final = {
    "Topic": ("a", "b", "c", "d"),
    "ConsumerGroup": ("x", "y", "z"),
    "User": ("account-u", "account-v"),
}


def change(present: Mapping[Name, Json], chance: Random) -> dict[Name, Json]:
    """Return the changed specs, of the Cluster, of other objects or of both."""
    found: dict[Name, Json] = {}
    for _ in range(chance.choice([1, 1, 2, 3])):
        kind = chance.choice(["Cluster", "Cluster", "Topic", "Topic", "ConsumerGroup", "User"])
        name = "demo" if kind == "Cluster" else chance.choice(_NAMES[kind])
        known = found.get((kind, name), present.get((kind, name)))
        spec = {"clusterRef": {"name": "demo"}} if known is None else copy.deepcopy(known)
        for _ in range(chance.choice([1, 1, 2])):
            path = chance.choice(list(_FIELDS[kind]))
            _set(spec, path, copy.deepcopy(chance.choice(_FIELDS[kind][path])))
        found[kind, name] = spec
    return found


def _set(spec: Json, path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for each in folders:
        spec = spec.setdefault(each, {})
    spec.pop(last, None)
    if value is not None:
        spec[last] = value
