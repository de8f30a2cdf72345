"""
Who gets a certificate in a Cluster, and what stands in it.

Pure. Rules: a replica is `orderlymq://CLUSTER/GROUP/NODE`, a name server `orderlymq://CLUSTER/nameserver`, the operator
`orderlymq://CLUSTER/operator`. Groups are called after their Cluster, so that none of the three names is another's.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.pods import NODES_MAX, name_server_host, replica_host
from orderlymq_operator.resources.cluster import NAME_SERVERS_MAX, Cluster

SCHEME: Final = "orderlymq"
NAME_SERVER: Final = "nameserver"
OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class Holder:
    """One process, or several that are one to others.

    Attributes:
        name: of its files in a Secret; that of the pod where a pod has its own.
        uri: who it is.
        hosts: DNS names under which it is called.
    """

    name: str
    uri: str
    hosts: tuple[str, ...] = ()


def uri_of(cluster: str, *parts: str) -> str:
    """Return the identity of a process of *cluster*."""
    return f"{SCHEME}://" + "/".join(quote(part, safe="") for part in (cluster, *parts))


def holders(cluster: Cluster) -> dict[str, tuple[Holder, ...]]:
    """Return who gets certificates, by the name of what their pods are made of.

    A group has them for as many replicas as it may ever have, so that one that joins needs no new Secret.
    """
    name, namespace = cluster.metadata.name, cluster.metadata.namespace
    servers = names.name_server_set(cluster)
    found: dict[str, tuple[Holder, ...]] = {
        servers: (
            Holder(
                NAME_SERVER,
                uri_of(name, NAME_SERVER),
                (
                    f"{servers}.{namespace}.svc",
                    *(name_server_host(cluster, index) for index in range(NAME_SERVERS_MAX)),
                ),
            ),
        ),
        f"{name}-{OPERATOR}": (Holder(OPERATOR, uri_of(name, OPERATOR)),),
    }
    for group in cluster.group_names:
        found[group] = tuple(
            Holder(
                names.pod_name(group, node),
                uri_of(name, group, str(node)),
                (
                    f"{group}.{namespace}.svc",
                    f"{names.replica_service(group)}.{namespace}.svc",
                    replica_host(cluster, group, node),
                ),
            )
            for node in range(1, NODES_MAX + 1)
        )
    return found
