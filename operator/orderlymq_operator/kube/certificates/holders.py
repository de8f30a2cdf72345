"""
The holders of certificates in a Cluster, and the identity in each certificate.

Pure. Rule: the URI of a replica is `orderlymq://CLUSTER/GROUP/NODE`. Each part is quoted, so that URIs are unique.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.pods import NODES_MAX, replica_host
from orderlymq_operator.resources.kinds import Cluster

SCHEME: Final = "orderlymq"


@dataclass(frozen=True, slots=True)
class Holder:
    """A replica that holds a certificate.

    Attributes:
        name: the name of its files in a Secret, which is the name of its pod.
        uri: its identity.
        hosts: DNS names that its peers connect to.
    """

    name: str
    uri: str
    hosts: tuple[str, ...] = ()


def uri_of(cluster: str, *parts: str) -> str:
    """Return the identity of a process of *cluster*."""
    return f"{SCHEME}://" + "/".join(quote(part, safe="") for part in (cluster, *parts))


def holders(cluster: Cluster, group: str) -> tuple[Holder, ...]:
    """Return the holders of certificates in a broker group: as many replicas as it may ever have.

    A replica that joins therefore needs no new Secret.
    """
    return tuple(
        Holder(
            names.pod_name(group, node),
            uri_of(cluster.metadata.name, group, str(node)),
            (replica_host(cluster, group, node),),
        )
        for node in range(1, NODES_MAX + 1)
    )
