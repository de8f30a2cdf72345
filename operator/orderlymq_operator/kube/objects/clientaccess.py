"""
How a pod of our own tools reaches a Cluster: its name servers, the operator's account, and TLS as the Cluster has it.

Pure. The pod is in the Cluster's namespace, where the Secrets are. Its program takes all of it from ORDERLYMQ_ variables.
"""

from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.pods import OPERATOR_KEY, SECRET_KEY, name_server_host
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.cluster.cluster import Cluster

TLS_FOLDER: Final = "/etc/orderlymq-tls"


def has_tls(cluster: Cluster) -> bool:
    """Whether brokers and name servers speak TLS."""
    tls = cluster.spec.tls
    return tls.mode != "Disabled" and tls.secret_name is not None


def name_servers(cluster: Cluster) -> str:
    """Return the addresses of all name servers."""
    return ";".join(
        f"{name_server_host(cluster, index)}:{names.NAME_SERVER_PORT}"
        for index in range(cluster.spec.name_servers.replicas)
    )


def access_variables(cluster: Cluster) -> list[Json]:
    """Return what a tool signs with, and its TLS towards brokers and name servers."""
    secret = {"name": names.operator_secret(cluster), "key": SECRET_KEY}
    found: list[Json] = [
        {"name": "ORDERLYMQ_ACCESS_KEY", "value": OPERATOR_KEY},
        {"name": "ORDERLYMQ_SECRET_KEY", "valueFrom": {"secretKeyRef": secret}},
    ]
    if has_tls(cluster):
        variables = {"TLS": "true", "TLS_VERIFY_HOST": "false", "TLS_CA": f"{TLS_FOLDER}/ca.crt"}
        if cluster.spec.tls.client_auth != "None":
            variables |= {
                "TLS_CERTIFICATE": f"{TLS_FOLDER}/tls.crt",
                "TLS_KEY": f"{TLS_FOLDER}/tls.key",
            }
        found += [
            {"name": f"ORDERLYMQ_{name}", "value": value} for name, value in variables.items()
        ]

    return found


def tls_volume(cluster: Cluster) -> list[Json]:
    """Return the volume with the certificates; none without TLS."""
    if not has_tls(cluster):
        return []
    source = {"secretName": cluster.spec.tls.secret_name, "defaultMode": 0o440}
    return [{"name": "tls", "secret": source}]


def tls_mount(cluster: Cluster) -> list[Json]:
    """Return where that volume is mounted."""
    return [{"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}] if has_tls(cluster) else []
