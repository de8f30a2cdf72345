"""
The console of a Cluster as Kubernetes objects: a Deployment, a Service, the right to list Pipelines, and an Ingress where one is wanted.

Pure. Rules: one pod, because sessions and what it remembers are its memory. It signs as the operator's account and speaks TLS as
the Cluster does, towards brokers and towards browsers. Of the API server it asks one thing, the Pipelines of its namespace, and its
token is good for nothing else.
"""

from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.clientaccess import (
    TLS_FOLDER,
    access_variables,
    has_tls,
    name_servers,
    tls_mount,
    tls_volume,
)
from orderlymq_operator.kube.objects.placement import node_choice
from orderlymq_operator.kube.objects.pods import account_token, owned, pod_user, probe
from orderlymq_operator.kube.objects.podtemplate import locked_down
from orderlymq_operator.kube.resources import (
    DEPLOYMENTS,
    INGRESSES,
    PIPELINES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    Json,
    Resource,
)
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.pod.template import PodTemplate

COMPONENT: Final = "console"
PORT: Final = 9870
# The account goes last: what runs with it is gone then.
KINDS: Final = (DEPLOYMENTS, SERVICES, INGRESSES, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS)
_ACCOUNTS: Final = "/etc/orderlymq-accounts"


def console_objects(cluster: Cluster, *, image: str, pull_policy: str) -> list[Json]:
    """Return the objects of the console; none where it is not enabled."""
    console = cluster.spec.console
    if not console.enabled:
        return []
    deployment = _deployment(cluster, image=image, pull_policy=pull_policy)
    found = [*_rights(cluster), _service(cluster), deployment]
    if console.ingress is not None:
        found.append(_ingress(cluster))

    return found


def console_name(cluster: Cluster) -> str:
    """Return the name of all objects of the console."""
    return f"{cluster.metadata.name}-{COMPONENT}"


def _rights(cluster: Cluster) -> list[Json]:
    """Return the account of its pod, which may list the Pipelines of the namespace."""
    name = console_name(cluster)
    account, role, binding = (
        _object(cluster, resource) for resource in (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS)
    )
    # Its process asks for the token by a projected volume.
    account["automountServiceAccountToken"] = False
    group = PIPELINES.api_version.partition("/")[0]
    role["rules"] = [{"apiGroups": [group], "resources": [PIPELINES.plural], "verbs": ["list"]}]
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    binding["subjects"] = [
        {"kind": "ServiceAccount", "name": name, "namespace": cluster.metadata.namespace}
    ]

    return [account, role, binding]


def _deployment(cluster: Cluster, *, image: str, pull_policy: str) -> Json:
    spec, template = cluster.spec, cluster.spec.pod_template or PodTemplate()
    scheme = "https" if has_tls(cluster) else "http"
    token, mounted_token = account_token()
    container = {
        "name": COMPONENT,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": _command(cluster),
        "env": access_variables(cluster),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": spec.console.resources.model_dump(mode="json", exclude_none=True),
        "startupProbe": probe("/healthz", scheme=scheme, period_s=1, timeout_s=2, failures=60),
        "livenessProbe": probe("/healthz", scheme=scheme, period_s=10, timeout_s=2, failures=6),
        "readinessProbe": probe("/healthz", scheme=scheme, period_s=5, timeout_s=2, failures=3),
        "securityContext": locked_down(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of the container
            {"name": "accounts", "mountPath": _ACCOUNTS, "readOnly": True},
            mounted_token,
            *tls_mount(cluster),
        ],
    }
    pod: Json = {
        "serviceAccountName": console_name(cluster),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_user(template.security_context),
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            token,
            _accounts(cluster),
            *tls_volume(cluster),
        ],
        **node_choice(spec.placement),
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    made = _object(cluster, DEPLOYMENTS)
    made["spec"] = {
        "replicas": 1,
        # Of two consoles each would know its own sessions only.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": names.selector(cluster, COMPONENT)},
        "template": {"metadata": {"labels": names.labels(cluster, COMPONENT)}, "spec": pod},
    }

    return made


def _command(cluster: Cluster) -> list[str]:
    console = cluster.spec.console
    assert console.accounts is not None, "a console without accounts is no valid Cluster"
    name, namespace = console_name(cluster), cluster.metadata.namespace
    hosts = [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", *console.hosts]
    if console.ingress is not None:
        hosts.append(console.ingress.host)
    found = ["python", "-m", "orderlymq_console", "--name-server", name_servers(cluster)]
    found += ["--listen", f"0.0.0.0:{PORT}", "--accounts", f"{_ACCOUNTS}/{console.accounts.key}"]
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

    return found


def _accounts(cluster: Cluster) -> Json:
    accounts = cluster.spec.console.accounts
    assert accounts is not None
    items = [{"key": accounts.key, "path": accounts.key}]
    source = {"secretName": accounts.secret_name, "defaultMode": 0o440, "items": items}

    return {"name": "accounts", "secret": source}


def _service(cluster: Cluster) -> Json:
    made = _object(cluster, SERVICES)
    made["spec"] = {
        "type": "ClusterIP",
        "selector": names.selector(cluster, COMPONENT),
        "ports": [{"name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
    }

    return made


def _ingress(cluster: Cluster) -> Json:
    wanted = cluster.spec.console.ingress
    assert wanted is not None
    backend = {"service": {"name": console_name(cluster), "port": {"name": "http"}}}
    made = _object(cluster, INGRESSES)
    made["metadata"]["annotations"] = dict(wanted.annotations)
    made["spec"] = {
        "rules": [
            {
                "host": wanted.host,
                "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
            }
        ],
    }
    if wanted.class_name is not None:
        made["spec"]["ingressClassName"] = wanted.class_name
    if wanted.tls_secret_name is not None:
        made["spec"]["tls"] = [{"hosts": [wanted.host], "secretName": wanted.tls_secret_name}]

    return made


def _object(cluster: Cluster, resource: Resource) -> Json:
    return owned(
        "Cluster",
        cluster.metadata,
        resource.api_version,
        resource.kind,
        console_name(cluster),
        names.labels(cluster, COMPONENT),
    )
