"""
The access of the operator's tool pods to a Cluster: its name servers, the operator's account, and the Cluster's TLS.

Pure. The pod is in the Cluster's namespace, where the Secrets are. Its program reads all settings from ORDERLYMQ_
variables.
"""

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.pods import (
    SECRET_KEY,
    TLS_FOLDER,
    has_tls,
    name_server_host,
    tls_variables,
)
from orderlymq_operator.kube.objects.podtemplate import Mounted, mounted, secret_source
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_protocol.names import OPERATOR_ACCOUNT


def name_servers(cluster: Cluster) -> str:
    """Return the addresses of all name servers."""
    return ";".join(
        f"{name_server_host(cluster, index)}:{names.NAME_SERVER_PORT}"
        for index in range(cluster.spec.name_servers.replicas)
    )


def access_variables(cluster: Cluster) -> list[Json]:
    """Return the variables with the account that a tool signs with, and with its TLS settings."""
    secret = {"name": names.operator_secret(cluster), "key": SECRET_KEY}
    return [
        {"name": "ORDERLYMQ_ACCESS_KEY", "value": OPERATOR_ACCOUNT},
        {"name": "ORDERLYMQ_SECRET_KEY", "valueFrom": {"secretKeyRef": secret}},
        *tls_variables(cluster),
    ]


def tls_volumes(cluster: Cluster) -> list[Mounted]:
    """Return the volume with the certificates, and its mount; empty without TLS."""
    secret = cluster.spec.tls.secret_name if has_tls(cluster) else None
    return [] if secret is None else [mounted("tls", TLS_FOLDER, secret_source(secret))]
