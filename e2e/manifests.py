"""Custom resources of scenarios that use no example."""

import yaml

from e2e.space import Json


def made(kind: str, name: str, **spec: object) -> str:
    """Return a manifest of one of our kinds."""
    return yaml.safe_dump(
        {
            "apiVersion": "orderlymq.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
    )


def small(name: str, **spec: object) -> str:
    """Return a Cluster that starts quickly: one broker and one name server, unless *spec* says otherwise."""
    least: Json = {"groups": 1, "replicasPerGroup": 1, "nameServers": {"replicas": 1}}
    return made("Cluster", name, **{**least, **spec})


def part(kind: str, name: str, cluster: str, **spec: object) -> str:
    """Return a Topic, ConsumerGroup or User of a Cluster."""
    return made(kind, name, clusterRef={"name": cluster}, **spec)


def secret(name: str, texts: dict[str, str]) -> str:
    """Return a Secret."""
    return yaml.safe_dump(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": texts}
    )


def storage_class(name: str, like: Json, *, expandable: bool) -> str:
    """Return a StorageClass with the provisioner of another one."""
    return yaml.safe_dump(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": like["provisioner"],
            "volumeBindingMode": like.get("volumeBindingMode", "Immediate"),
            "reclaimPolicy": "Delete",
            "allowVolumeExpansion": expandable,
        }
    )
