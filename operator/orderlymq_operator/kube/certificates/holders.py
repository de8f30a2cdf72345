"""
Who gets a certificate in a Cluster, and what stands in it.

Pure. Rule: a replica is `orderlymq://CLUSTER/GROUP/NODE`; each part is quoted, so that no name is another's.
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
    """One replica.

    Attributes:
        name: of its files in a Secret, which is that of its pod.
        uri: who it is.
        hosts: DNS names under which it is called.
    """

    name: str
    uri: str
    hosts: tuple[str, ...] = ()


def uri_of(cluster: str, *parts: str) -> str:
    """Return the identity of a process of *cluster*."""
    return f"{SCHEME}://" + "/".join(quote(part, safe="") for part in (cluster, *parts))


def holders(cluster: Cluster, group: str) -> tuple[Holder, ...]:
    """Return who gets certificates in *group*: as many replicas as it may ever have.

    So one that joins needs no new Secret.
    """
    return tuple(
        Holder(
            names.pod_name(group, node),
            uri_of(cluster.metadata.name, group, str(node)),
            (replica_host(cluster, group, node),),
        )
        for node in range(1, NODES_MAX + 1)
    )
