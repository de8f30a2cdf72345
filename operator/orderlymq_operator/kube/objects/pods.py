"""
The pods of brokers and name servers, and their settings files.

Pure. Rules: no process runs as root or writes to its root file system. "Alive" means that the event loop runs. "Ready"
means that the replica leads or follows. Only the leader knows whether a replica has the whole log, and only the planner
asks it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from orderlymq_operator.kube.certificates.record import Issued
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.listeners import (
    ADDRESSES_FILE,
    container_ports,
    listener_settings,
    tls_volumes,
)
from orderlymq_operator.kube.objects.placement import placement
from orderlymq_operator.kube.objects.podtemplate import (
    Mounted,
    locked_down,
    mounted,
    pod_field,
    pod_user,
    probe,
    pull_secrets,
    secret_source,
    with_template,
)
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.settings import address_setting, broker_options
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.pod.template import PodTemplate
from orderlymq_operator.resources.workload import Resources
from orderlymq_protocol.names import OPERATOR_ACCOUNT
from orderlymq_runtime.sockets.addresses import join_address

NODES_MAX: Final = 10  # nodes of one raft group while it replaces five replicas by five others
_DATA: Final = "/var/lib/orderlymq"
SETTINGS: Final = "/etc/orderlymq"
NAME_SERVER_FILE: Final = "settings"
SETTINGS_FLAG: Final = "--settings"
TLS_FOLDER: Final = "/etc/orderlymq-tls"
_PAGES: Final = "/etc/orderlymq-pages"
_TLS_VOLUME: Final = "tls"
_PAGES_VOLUME: Final = "pages-token"
_SECRET: Final = "/etc/orderlymq-operator"  # noqa: S105 - a folder
_TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a folder
SECRET_KEY: Final = "secretKey"  # noqa: S105 - the name of a key
_INTERNAL_TLS: Final = "/etc/orderlymq-internal-tls"
_IDENTITY: Final = "/etc/orderlymq-identity"
IDENTITY_KEY: Final = "secret"
# The keys in the Secret of a Cluster's key pair, as in Secrets of cert-manager.
TLS_KEYS: Final = ("tls.crt", "tls.key", "ca.crt")

# Time for a leader to hand over, answer waiting requests and flush. A process that hangs ends itself much earlier
# (`SERVER_CLOSE_MAX_MS`).
GRACE_S: Final = 30
# A process answers only after it has opened its store; a large store replays for minutes after a crash.
_START_S: Final = 600
_TOKEN_S: Final = 3607  # Kubernetes' own lifetime for mounted tokens


def broker_settings(
    cluster: Cluster,
    group: str,
    node: int,
    *,
    address: str,
    first: int,
    replicas: int,
    certificates: Issued | None = None,
) -> dict[str, Any]:
    """Return the settings file of one replica.

    A first member starts with the first members as voters; a replica that joins needs the addresses of all replicas.
    After a raft group has grown, no replica starts as a first member: a replica that lost its disk would form a new
    raft group.
    """
    namespace = cluster.metadata.namespace
    join = max(replicas, node) > first
    peers = range(1, max(replicas, node, first) + 1)
    options = broker_options(cluster)
    every = every_address(address)
    return {
        **options,
        # Set even without access control, because the operator's requests are always signed with its account.
        "access": {
            **options["access"],
            "operator_key": OPERATOR_ACCOUNT,
            "operator_secret_file": f"{_SECRET}/{SECRET_KEY}",
        },
        "cluster_secret_file": f"{_IDENTITY}/{IDENTITY_KEY}",
        "tls": _tls(cluster),
        **_pages(cluster),
        **_internal_tls(certificates),
        "group": group,
        "node_id": node,
        "peers": {
            str(peer): address_setting(replica_host(cluster, group, peer), names.RAFT_PORT)
            for peer in peers
        },
        "address": address_setting(address, names.BROKER_PORT),
        "listen": address_setting(every, names.BROKER_PORT),
        **listener_settings(cluster, every),
        "raft_listen": address_setting(every, names.RAFT_PORT),
        "http": address_setting(every, names.HTTP_PORT),
        "data_dir": f"{_DATA}/replica",
        "name_servers": [
            address_setting(name_server_host(cluster, index), names.NAME_SERVER_PORT)
            for index in range(cluster.spec.name_servers.replicas)
        ],
        "bind": "always",
        "join": join,
        "pod": {
            "namespace": namespace,
            "name": names.pod_name(group, node),
            "siblings": [
                names.pod_name(group, other)
                for other in range(1, max(replicas, first) + 1)
                if other != node
            ],
        },
    }


def replica_host(cluster: Cluster, group: str, node: int) -> str:
    """Return the DNS name by which other replicas reach a replica."""
    service = names.replica_service(group)
    return f"{names.pod_name(group, node)}.{service}.{cluster.metadata.namespace}.svc"


def name_server_host(cluster: Cluster, index: int) -> str:
    """Return the DNS name of a name server."""
    name = names.name_server_set(cluster)
    return f"{name}-{index}.{name}.{cluster.metadata.namespace}.svc"


def has_tls(cluster: Cluster) -> bool:
    """Return whether brokers and name servers use TLS."""
    tls = cluster.spec.tls
    return tls.mode != "Disabled" and tls.secret_name is not None


def tls_variables(cluster: Cluster) -> list[Json]:
    """Return TLS variables for commands and the SDK in a pod with the Cluster's certificates; empty without TLS."""
    if not has_tls(cluster):
        return []
    variables = {"TLS": "true", "TLS_VERIFY_HOST": "false", "TLS_CA": f"{TLS_FOLDER}/ca.crt"}
    if cluster.spec.tls.client_auth != "None":
        variables |= {
            "TLS_CERTIFICATE": f"{TLS_FOLDER}/tls.crt",
            "TLS_KEY": f"{TLS_FOLDER}/tls.key",
        }
    return [{"name": f"ORDERLYMQ_{name}", "value": value} for name, value in variables.items()]


def _command_variables(cluster: Cluster) -> list[Json]:
    """Return the variables for `orderlymq` commands in the pod: TLS, and one DNS name for all name servers."""
    host = f"{names.name_server_set(cluster)}.{cluster.metadata.namespace}.svc"
    address = join_address(host, names.NAME_SERVER_PORT)
    return [{"name": "ORDERLYMQ_NAME_SERVER", "value": address}, *tls_variables(cluster)]


def every_address(address: str) -> str:
    """Return the listen address of a pod whose raft group has *address*; with IPv6, it covers both families."""
    return "::" if ":" in address else "0.0.0.0"  # noqa: S104 - it is a pod


def name_server_settings(cluster: Cluster, every: str = every_address("")) -> dict[str, Any]:
    """Return the settings file of a name server, which listens at *every* address."""
    spec = cluster.spec
    return {
        "listen": address_setting(every, names.NAME_SERVER_PORT),
        "http": address_setting(every, names.HTTP_PORT),
        "kv_path": f"{_DATA}/kv.json",
        **listener_settings(cluster, every),
        **({"outside_addresses": f"{SETTINGS}/{ADDRESSES_FILE}"} if spec.listeners else {}),
        "cluster_secret_file": f"{_IDENTITY}/{IDENTITY_KEY}",
        "tls": _tls(cluster),
        **_pages(cluster),
        "log_level": spec.config.log_level,
        "log_format": spec.config.log_format,
    }


def settings_form(revision: str, certificates: Issued | None = None) -> str:
    """Return a text that changes when settings need other mounts."""
    return revision if certificates is None else f"{revision}-{certificates.mode}"


def settings_file(process: str, form: str) -> str:
    """Return the name of a settings file; files of an earlier version have no form in their name."""
    return f"{process}.{form}.json" if form else f"{process}.json"


def form_of(file: str) -> str:
    """Return the form in the name of a settings file."""
    return file.removesuffix(".json").partition(".")[2]


def _internal_tls(certificates: Issued | None) -> dict[str, Any]:
    if certificates is None:
        return {}
    return {
        "internal_tls": {
            "certificate_file": f"{_INTERNAL_TLS}/tls.crt",
            "key_file": f"{_INTERNAL_TLS}/tls.key",
            "ca_file": f"{_INTERNAL_TLS}/ca.crt",
            "mode": certificates.mode,
        }
    }


def http_scheme(cluster: Cluster) -> str:
    """Return the scheme of the HTTP pages of the Cluster's pods."""
    mode = _tls(cluster)["mode"]
    if cluster.spec.security.pages_token is not None and mode == "permissive":
        return "https"  # the token must not be sent in plain text
    return "https" if mode == "enforcing" else "http"


@dataclass(frozen=True, slots=True)
class Access:
    """How to connect to a process: the scheme of its pages, the Secret of its key pair, Secret and key of its token."""

    scheme: str
    tls_secret: str | None = None
    token: tuple[str, str] | None = None


def access_by(cluster: Cluster) -> Access:
    """Return how to connect to a pod that is made from the spec of *cluster*."""
    token = cluster.spec.security.pages_token
    return Access(
        http_scheme(cluster),
        cluster.spec.tls.secret_name,
        None if token is None else (token.secret_name, token.key),
    )


def access_to(pod: Json) -> Access | None:
    """Return how to connect to an existing pod; None if its annotations do not tell."""
    scheme = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_SCHEME)
    if scheme is None:
        return None
    volumes = {each["name"]: each.get("secret") or {} for each in pod["spec"].get("volumes") or []}
    token = volumes.get(_PAGES_VOLUME, {})
    keys = [each["key"] for each in token.get("items") or []]
    return Access(
        scheme,
        volumes.get(_TLS_VOLUME, {}).get("secretName"),
        (token["secretName"], keys[0]) if keys else None,
    )


def tls_mode_of(pod: Json) -> str:
    """Return the TLS mode of an existing pod; without its annotation, infer the mode from scheme and volumes."""
    access = access_to(pod)
    if access is None or access.tls_secret is None:
        guess = "Disabled"
    else:
        guess = "Enforcing" if access.scheme == "https" else "Permissive"
    return str((pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_TLS_MODE, guess))


def _pages(cluster: Cluster) -> dict[str, Any]:
    token = cluster.spec.security.pages_token
    return {} if token is None else {"pages_token_file": f"{_PAGES}/{token.key}"}


def _tls(cluster: Cluster) -> dict[str, Any]:
    tls = cluster.spec.tls
    named = tls.secret_name is not None
    return {
        "mode": tls.mode.lower() if named else "disabled",
        "certificate": f"{TLS_FOLDER}/tls.crt" if named else None,
        "key": f"{TLS_FOLDER}/tls.key" if named else None,
        "ca": f"{TLS_FOLDER}/ca.crt" if named else None,
        "client_auth": tls.client_auth.lower(),
    }


def broker_pod(
    cluster: Cluster,
    group: str,
    *,
    image: str,
    pull_policy: str,
    revision: str,
    certificates: Issued | None = None,
) -> Json:
    """Return the pod template of a raft group."""
    form = settings_form(revision, certificates)
    file = f"{SETTINGS}/{settings_file('$(POD_NAME)', form)}"
    container = _container(
        "broker",
        ["python", "-m", "orderlymq_broker", SETTINGS_FLAG, file],
        {
            "remoting": names.BROKER_PORT,
            "remoting-old": names.OLD_CLIENT_PORT,
            "raft": names.RAFT_PORT,
            "http": names.HTTP_PORT,
            **container_ports(cluster),
        },
        image=image,
        pull_policy=pull_policy,
        resources=cluster.spec.resources,
        scheme=http_scheme(cluster),
    )
    volumes = [
        mounted("settings", SETTINGS, {"configMap": {"name": group}}),
        account_token(),
        mounted("operator", _SECRET, secret_source(names.operator_secret(cluster))),
    ]
    if certificates is not None:
        volumes.append(_own_certificate(group, certificates.made.number))
    pod = _pod(cluster, container, volumes, names.BROKER, group)
    if certificates is not None:
        pod["metadata"]["annotations"][names.ANNOTATION_CERTIFICATES] = certificates.text()
    pod["spec"]["serviceAccountName"] = names.broker_account(cluster)
    notes = {names.ANNOTATION_REVISION: revision, names.ANNOTATION_SETTINGS: form}
    pod["metadata"]["annotations"] |= notes
    return pod


def name_server_pod(cluster: Cluster, *, image: str, pull_policy: str, revision: str) -> Json:
    """Return the pod template of the name servers."""
    form = settings_form(revision)
    file = f"{SETTINGS}/{settings_file(NAME_SERVER_FILE, form)}"
    container = _container(
        "name-server",
        ["python", "-m", "orderlymq_nameserver", SETTINGS_FLAG, file],
        {
            "remoting": names.NAME_SERVER_PORT,
            "http": names.HTTP_PORT,
            **container_ports(cluster),
        },
        image=image,
        pull_policy=pull_policy,
        resources=cluster.spec.name_servers.resources,
        scheme=http_scheme(cluster),
    )
    source = {"configMap": {"name": names.name_server_set(cluster)}}
    pod = _pod(cluster, container, [mounted("settings", SETTINGS, source)], names.NAME_SERVER, None)
    notes = {names.ANNOTATION_REVISION: revision, names.ANNOTATION_SETTINGS: form}
    pod["metadata"]["annotations"] |= notes
    return pod


def _container(
    name: str,
    command: list[str],
    ports: Mapping[str, int],
    *,
    image: str,
    pull_policy: str,
    resources: Resources,
    scheme: str,
) -> Json:
    own_probe = partial(probe, scheme=scheme, timeout_s=2)
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": command,
        "env": [pod_field("POD_NAME", "metadata.name")],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
        ],
        "resources": resources.model_dump(mode="json", exclude_none=True),
        "startupProbe": own_probe("/healthz", period_s=1, failures=_START_S),
        # A process that hangs for a minute will not recover. A slow process must not be killed.
        "livenessProbe": own_probe("/healthz", period_s=10, failures=6),
        # Frequent, because after an outage of a whole raft group its address works only when a pod is ready.
        "readinessProbe": own_probe("/readyz", period_s=1, failures=3),
        "securityContext": locked_down(),
    }


def _pod(
    cluster: Cluster,
    container: Json,
    volumes: list[Mounted],
    component: str,
    group: str | None,
) -> Json:
    spec, template = cluster.spec, cluster.spec.pod_template or PodTemplate()
    identity = secret_source(names.identity_secret(cluster))
    volumes = [*volumes, mounted("identity", _IDENTITY, identity), *tls_volumes(cluster)]
    if spec.tls.secret_name is not None:
        volumes.append(mounted(_TLS_VOLUME, TLS_FOLDER, secret_source(spec.tls.secret_name)))
    if (token := spec.security.pages_token) is not None:
        source = secret_source(token.secret_name, [{"key": token.key, "path": token.key}])
        volumes.append(mounted(_PAGES_VOLUME, _PAGES, source))
    made, mounts = [source for source, _ in volumes], [mount for _, mount in volumes]
    container["env"] += _command_variables(cluster)
    container["volumeMounts"] = [
        {"name": "data", "mountPath": _DATA},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of the container
        *mounts,
    ]
    pod: Json = {
        "automountServiceAccountToken": False,
        # A variable for every Service would make the environment too large in a namespace with many Services.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_user(template.security_context),
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *made],
        **placement(cluster, component, group),
    }
    pod |= pull_secrets(spec.image_pull_secrets)
    whole: Json = {
        "metadata": {
            "labels": names.labels(cluster, component, group),
            "annotations": {
                names.ANNOTATION_SCHEME: http_scheme(cluster),
                names.ANNOTATION_TLS_MODE: str(_tls(cluster)["mode"]).capitalize(),
            },
        },
        "spec": pod,
    }
    return with_template(whole, template)


def _own_certificate(group: str, number: int) -> Mounted:
    """Return the volume with the certificates of a raft group, and the mount of the pod's own certificate.

    The template is the same for all pods of the raft group, so the name of the pod selects the folder. Kubernetes does
    not update such a mount, but the Secret never changes anyway.
    """
    items = [{"key": "ca.crt", "path": f"{pod}/ca.crt"} for pod in _pods_of(group)]
    for pod in _pods_of(group):
        items += [{"key": f"{pod}.{end}", "path": f"{pod}/tls.{end}"} for end in ("crt", "key")]
    source = secret_source(names.certificates_secret(group, number), items)
    volume, mount = mounted("internal-tls", _INTERNAL_TLS, source)
    return volume, mount | {"subPathExpr": "$(POD_NAME)"}


def _pods_of(group: str) -> list[str]:
    return [names.pod_name(group, node) for node in range(1, NODES_MAX + 1)]


def account_token() -> Mounted:
    """Return volume and mount of the API server's token, as in an automatic mount, for the container that needs it."""
    source = {
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_S}},
                {
                    "configMap": {
                        "name": "kube-root-ca.crt",
                        "items": [{"key": "ca.crt", "path": "ca.crt"}],
                    }
                },
            ]
        }
    }
    return mounted("token", _TOKEN, source)
