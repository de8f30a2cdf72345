"""
Objects for additional listeners of a Cluster: Services, settings of brokers and name servers, ports, key pairs.

Pure. The Services of a listener select the name servers, and the leader of each broker group, by the same label as the
broker group's own Service: clients have one address for each broker group (ADR 4). `observe.listeners` finds the
addresses.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.podtemplate import Mounted, mounted, secret_source
from orderlymq_operator.kube.resources import SERVICES, TLS_ROUTES, Json
from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_operator.resources.cluster.listeners import Listener, named
from orderlymq_runtime.sockets.listener import EVERY_ADDRESS

# A key in the name servers' ConfigMap, and therefore a file in their settings folder.
ADDRESSES_FILE: Final = "addresses.json"
_TLS: Final = "/etc/orderlymq-listeners"

# `host:port` by listener and broker group.
Addresses = Mapping[str, Mapping[str, str]]


def targets(cluster: Cluster) -> list[str | None]:
    """Return the targets of a listener's Services: the name servers (None), and each broker group."""
    return [None, *cluster.group_names]


def target_name(cluster: Cluster, group: str | None) -> str:
    """Return the value of the placeholder `{service}`."""
    return names.name_server_set(cluster) if group is None else group


def node_port(listener: Listener, group: str | None) -> int | None:
    """Return the desired node port; None lets Kubernetes choose it."""
    if listener.node_port is None or group is None:
        return listener.node_port
    return listener.node_port + 1 + int(group.rpartition("-")[2])


def service_spec(cluster: Cluster, listener: Listener, group: str | None) -> Json:
    """Return the spec of a listener's Service for the leader of *group*, or for the name servers (None)."""
    if group is None:
        chosen = names.selector(cluster, names.NAME_SERVER)
    else:
        chosen = names.selector(cluster, names.BROKER, group) | {names.LABEL_ROLE: names.LEADER}
    port: Json = {
        "name": "remoting",
        "port": listener.port,
        "targetPort": listener.port,
        "protocol": "TCP",
    }
    wanted = node_port(listener, group)
    if wanted is not None:
        port["nodePort"] = wanted
    kind = "ClusterIP" if listener.type == "TLSRoute" else listener.type
    return {
        "type": kind,
        "selector": chosen,
        "ports": [port],
        # Always set, because the API server keeps the previous value if the field is missing.
        "ipFamilyPolicy": listener.ip_family_policy,
    }


def route_spec(cluster: Cluster, listener: Listener, group: str | None) -> Json:
    """Return the spec of the TLSRoute to such a Service, with defaults, because lists are compared as a whole."""
    gateway, target = listener.gateway, target_name(cluster, group)
    assert gateway is not None, "the model asks for it"
    parent = {
        "group": TLS_ROUTES.api_version.partition("/")[0],
        "kind": "Gateway",
        "name": gateway.name,
    }
    if gateway.namespace is not None:
        parent["namespace"] = gateway.namespace
    if gateway.section_name is not None:
        parent["sectionName"] = gateway.section_name
    backend = {
        "group": "",
        "kind": SERVICES.kind,
        "name": names.listener_service(target, listener.name),
        "port": listener.port,
        "weight": 1,
    }
    return {
        "parentRefs": [parent],
        "hostnames": [listener.host_of(target)],
        "rules": [{"backendRefs": [backend]}],
    }


def in_turn(
    wanted: Sequence[Json], live: Mapping[tuple[str, str], Json]
) -> tuple[list[Json], list[str]]:
    """Return the objects in an order in which each Service's node port is free, and the Services to delete for that.

    A node port belongs to one Service at a time, so Services that exchange their node ports would wait for each other.
    """
    waiting = {(made["kind"], made["metadata"]["name"]): made for made in wanted}
    holders = {
        port: key
        for key in waiting
        if key in live and (port := _own_node_port(live[key])) is not None
    }
    order, stuck = [], []
    while waiting:
        free = [
            key
            for key, made in waiting.items()
            if holders.get(_own_node_port(made) or 0, key) == key
        ]
        if not free:
            first = next(iter(waiting.values()))
            stuck.append(holders.pop(_own_node_port(first) or 0)[1])
        order += [waiting.pop(key) for key in free]
        holders = {port: key for port, key in holders.items() if key in waiting}
    return order, stuck


def _own_node_port(made: Json) -> int | None:
    """Return the node port of a listener's Service; None if it has none or is another kind of object."""
    if made["kind"] != SERVICES.kind:
        return None
    port: int | None = made["spec"]["ports"][0].get("nodePort")
    return port


def annotations(cluster: Cluster, listener: Listener, group: str | None) -> dict[str, str]:
    """Return the annotations of a listener's Service, or of the route to it."""
    name = target_name(cluster, group)
    return {key: named(value, name) for key, value in listener.annotations.items()}


def listener_settings(cluster: Cluster, every: str) -> dict[str, Any]:
    """Return the setting of the listeners; empty without listeners, because earlier versions do not know it."""
    made = [
        {
            "name": each.name,
            "host": EVERY_ADDRESS if each.is_dual else every,
            "port": each.port,
            "tls": _tls(each),
        }
        for each in cluster.spec.listeners
    ]
    return {"listeners": made} if made else {}


def container_ports(cluster: Cluster) -> dict[str, int]:
    """Return the additional ports of a container, by name."""
    return {f"outside-{each.port}": each.port for each in cluster.spec.listeners}


def tls_volumes(cluster: Cluster) -> list[Mounted]:
    """Return the volume and mount of each listener's key pair."""
    return [
        mounted(f"listener-{each.name}", f"{_TLS}/{each.name}", secret_source(each.tls.secret_name))
        for each in cluster.spec.listeners
        if each.tls is not None
    ]


def _tls(listener: Listener) -> dict[str, Any]:
    if listener.tls is None:
        return {"mode": "disabled"}
    folder, auth = f"{_TLS}/{listener.name}", listener.tls.client_auth.lower()
    return {
        "mode": "enforcing",
        "certificate": f"{folder}/tls.crt",
        "key": f"{folder}/tls.key",
        "ca": None if auth == "none" else f"{folder}/ca.crt",
        "client_auth": auth,
    }
