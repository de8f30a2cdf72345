"""
The shared part of a Cluster's console and canary: a Deployment of one pod that uses the operator's account.

Pure. Rules: the pod signs with the operator's account and uses the Cluster's TLS (`clientaccess`). It has a token for
the API server only if it sends requests there. Two such pods never run at the same time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.clientaccess import access_variables, tls_volumes
from orderlymq_operator.kube.objects.ownership import owned
from orderlymq_operator.kube.objects.placement import node_choice
from orderlymq_operator.kube.objects.pods import account_token
from orderlymq_operator.kube.objects.podtemplate import (
    Mounted,
    locked_down,
    pod_user,
    probe,
    pull_secrets,
)
from orderlymq_operator.kube.resources import DEPLOYMENTS, Json, Resource
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.pod.template import PodTemplate
from orderlymq_operator.resources.workload import Resources


@dataclass(frozen=True, slots=True)
class ClientPod:
    """The pod of the console or the canary.

    Attributes:
        component: its label, and the part of its name after the Cluster's name.
        scheme: the scheme of its HTTP pages.
        variables: variables of its program, in addition to those for the access to the Cluster.
        account: its ServiceAccount; empty if the pod sends no requests to the API server.
        notes: its annotations.
    """

    component: str
    command: tuple[str, ...]
    port: int
    resources: Resources
    scheme: str = "http"
    variables: tuple[Json, ...] = ()
    volumes: tuple[Mounted, ...] = ()
    account: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


def client_deployment(cluster: Cluster, pod: ClientPod, *, image: str, pull_policy: str) -> Json:
    """Return the Deployment of *pod*."""
    alive = "/healthz"
    token = [account_token()] if pod.account else []
    container = {
        "name": pod.component,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": list(pod.command),
        "env": [*access_variables(cluster), *pod.variables],
        "ports": [{"name": "http", "containerPort": pod.port, "protocol": "TCP"}],
        "resources": pod.resources.model_dump(mode="json", exclude_none=True),
        "startupProbe": probe(alive, scheme=pod.scheme, period_s=1, timeout_s=2, failures=60),
        "livenessProbe": probe(alive, scheme=pod.scheme, period_s=10, timeout_s=2, failures=6),
        "readinessProbe": probe(alive, scheme=pod.scheme, period_s=5, timeout_s=2, failures=3),
    }
    made = locked_down_pod(container, cluster, [*pod.volumes, *token, *tls_volumes(cluster)])
    if pod.account:
        made["serviceAccountName"] = pod.account
    meta: Json = {"labels": names.labels(cluster, pod.component)}
    if pod.notes:
        meta["annotations"] = dict(pod.notes)
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": names.selector(cluster, pod.component)},
        "template": {"metadata": meta, "spec": made},
    }
    return client_object(cluster, pod.component, DEPLOYMENTS, spec=spec)


def locked_down_pod(container: Json, cluster: Cluster | None, volumes: Sequence[Mounted]) -> Json:
    """Return a pod of one container with the Cluster's user and nodes; it writes only to /tmp and its volumes."""
    tmp = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - of the container
    mounts = [tmp, *(mount for _, mount in volumes)]
    template = (cluster.spec.pod_template if cluster else None) or PodTemplate()
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_user(template.security_context),
        "containers": [{**container, "securityContext": locked_down(), "volumeMounts": mounts}],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *(made for made, _ in volumes)],
    }
    if cluster is not None:
        pod |= node_choice(cluster.spec.placement)
        pod |= pull_secrets(cluster.spec.image_pull_secrets)
    return pod


def client_name(cluster: Cluster, component: str) -> str:
    """Return the name of all objects of a component."""
    return f"{cluster.metadata.name}-{component}"


def client_object(cluster: Cluster, component: str, resource: Resource, **content: Any) -> Json:
    """Return an object of a component."""
    name, labels = client_name(cluster, component), names.labels(cluster, component)
    return owned("Cluster", cluster.metadata, resource, name, labels, **content)
