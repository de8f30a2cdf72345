"""
The console of a Cluster as Kubernetes objects: Deployment, Service, optional Ingress, rights to list objects.

Pure. Rules: one pod, because sessions and other state are in its memory. It uses the Cluster's TLS with brokers and
with browsers. From the API server it requests two lists, the Pipelines and the pods of its namespace; its token permits
nothing else. `clientpod` makes the pod.
"""

from functools import partial
from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.clientaccess import name_servers
from orderlymq_operator.kube.objects.clientpod import (
    ClientPod,
    client_deployment,
    client_name,
    client_object,
)
from orderlymq_operator.kube.objects.pods import TLS_FOLDER, every_address, has_tls
from orderlymq_operator.kube.objects.podtemplate import mounted, secret_source
from orderlymq_operator.kube.objects.rights import account_with_rights
from orderlymq_operator.kube.resources import (
    DEPLOYMENTS,
    INGRESSES,
    PIPELINES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    Json,
)
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_runtime.sockets.addresses import join_address

COMPONENT: Final = "console"
PORT: Final = 9870
# The account is deleted last, when nothing runs with it any more.
KINDS: Final = (DEPLOYMENTS, SERVICES, INGRESSES, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS)
_ACCOUNTS: Final = "/etc/orderlymq-accounts"


def console_objects(
    cluster: Cluster, *, image: str, pull_policy: str, every: str = every_address("")
) -> list[Json]:
    """Return the objects of the console, which listens at *every* address; empty if it is not enabled."""
    console = cluster.spec.console
    if not console.enabled:
        return []
    deployment = _deployment(cluster, every, image=image, pull_policy=pull_policy)
    found = [*_rights(cluster), _service(cluster), deployment]
    if console.ingress is not None:
        found.append(_ingress(cluster))

    return found


def console_name(cluster: Cluster) -> str:
    """Return the name of all objects of the console."""
    return client_name(cluster, COMPONENT)


def _rights(cluster: Cluster) -> list[Json]:
    """Return the pod's account, which may list the Pipelines and the pods of the namespace, to name consumers' pods."""
    group = PIPELINES.api_version.partition("/")[0]
    rules = [
        {"apiGroups": [group], "resources": [PIPELINES.plural], "verbs": ["list"]},
        {"apiGroups": [""], "resources": [PODS.plural], "verbs": ["list"]},
    ]
    make = partial(client_object, cluster, COMPONENT)
    return account_with_rights(make, console_name(cluster), cluster.metadata.namespace, rules)


def _deployment(cluster: Cluster, every: str, *, image: str, pull_policy: str) -> Json:
    console, accounts = cluster.spec.console, cluster.spec.console.accounts
    assert accounts is not None, "a Cluster with a console but without accounts is not valid"
    items = [{"key": accounts.key, "path": accounts.key}]
    pod = ClientPod(
        COMPONENT,
        _command(cluster, accounts.key, every),
        PORT,
        console.resources,
        _scheme(cluster),
        _variables(cluster),
        volumes=(mounted("accounts", _ACCOUNTS, secret_source(accounts.secret_name, items)),),
        account=console_name(cluster),
    )
    return client_deployment(cluster, pod, image=image, pull_policy=pull_policy)


def _command(cluster: Cluster, accounts: str, every: str) -> tuple[str, ...]:
    console = cluster.spec.console
    name, namespace = console_name(cluster), cluster.metadata.namespace
    hosts = [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", *console.hosts]
    if console.ingress is not None:
        hosts.append(console.ingress.host)
    found = ["python", "-m", "orderlymq_console", "--name-server", name_servers(cluster)]
    found += ["--listen", join_address(every, PORT), "--accounts", f"{_ACCOUNTS}/{accounts}"]
    found += ["--pipelines-of", f"{namespace}/{cluster.metadata.name}"]
    for host in dict.fromkeys(hosts):
        found += ["--host", host]
    if has_tls(cluster):
        found += [
            "--tls-certificate",
            f"{TLS_FOLDER}/tls.crt",
            "--tls-key",
            f"{TLS_FOLDER}/tls.key",
        ]
    if console.read_only:
        found.append("--read-only")

    return tuple(found)


def _scheme(cluster: Cluster) -> str:
    return "https" if has_tls(cluster) else "http"


def _variables(cluster: Cluster) -> tuple[Json, ...]:
    """Return settings as variables, not options: an earlier console image, which may stay, fails on unknown options."""
    ingress = cluster.spec.console.ingress
    if ingress is None or not ingress.tls_secret_name:
        return ()
    return ({"name": "ORDERLYMQ_CONSOLE_HTTPS_HOSTS", "value": ingress.host},)


def _service(cluster: Cluster) -> Json:
    """Return the Service; proxies such as Traefik and Istio take the protocol from the name of its port."""
    spec = {
        "type": "ClusterIP",
        "selector": names.selector(cluster, COMPONENT),
        "ports": [
            {"name": _scheme(cluster), "port": PORT, "targetPort": PORT, "protocol": "TCP"},
        ],
    }
    return client_object(cluster, COMPONENT, SERVICES, spec=spec)


def _ingress(cluster: Cluster) -> Json:
    wanted = cluster.spec.console.ingress
    assert wanted is not None
    backend = {"service": {"name": console_name(cluster), "port": {"name": _scheme(cluster)}}}
    spec: Json = {
        "rules": [
            {
                "host": wanted.host,
                "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
            }
        ],
    }
    if wanted.class_name is not None:
        spec["ingressClassName"] = wanted.class_name
    if wanted.tls_secret_name is not None:
        spec["tls"] = [{"hosts": [wanted.host], "secretName": wanted.tls_secret_name}]
    made = client_object(cluster, COMPONENT, INGRESSES, spec=spec)
    made["metadata"]["annotations"] = dict(wanted.annotations)
    return made
