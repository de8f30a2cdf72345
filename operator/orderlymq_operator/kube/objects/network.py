"""
The NetworkPolicies of a Cluster: the peers that may reach brokers and name servers.

Pure. Rules: only brokers of the same Cluster may reach the raft port. Kubernetes always lets a node reach its own pods,
so probes need no rule. Outgoing traffic of pods is not restricted. A network plugin without support for policies
ignores them.
"""

import ipaddress
from collections.abc import Iterable

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.ownership import owned
from orderlymq_operator.kube.resources import NETWORK_POLICIES, Json
from orderlymq_operator.resources.cluster.canary import CANARY_COMPONENT, CANARY_PORT
from orderlymq_operator.resources.cluster.cluster import ANY_NAMESPACE, Cluster
from orderlymq_operator.resources.cluster.network import Peer

# Kubernetes gives every namespace this label.
_NAMESPACE = "kubernetes.io/metadata.name"
_OPERATOR_POD = {"app.kubernetes.io/component": "operator"}


def policy_objects(cluster: Cluster, operator_namespace: str) -> list[Json]:
    """Return the policies of brokers, of name servers and of the canary; empty if policies are switched off."""
    if not cluster.spec.network.policies:
        return []
    operator = _pods(operator_namespace, _OPERATOR_POD)
    clients = [operator, *_clients(cluster)]
    pages = [operator, *map(_peer, cluster.spec.network.monitoring)]
    replicas: list[Json] = [{"podSelector": {"matchLabels": names.selector(cluster, names.BROKER)}}]
    canary = [_policy(cluster, CANARY_COMPONENT, [_rule([CANARY_PORT], pages)])]
    return [
        *(canary if cluster.spec.canary.enabled else []),
        _policy(
            cluster,
            names.BROKER,
            [
                _rule([names.BROKER_PORT, names.OLD_CLIENT_PORT], clients),
                _rule([names.RAFT_PORT], replicas),
                _rule([names.HTTP_PORT], pages),
                *_outside(cluster),
            ],
        ),
        _policy(
            cluster,
            names.NAME_SERVER,
            [
                _rule([names.NAME_SERVER_PORT], clients),
                _rule([names.HTTP_PORT], pages),
                *_outside(cluster),
            ],
        ),
    ]


def _clients(cluster: Cluster) -> list[Json]:
    """Return the peers that may connect as clients: namespaces that may use the Cluster, and the listed peers."""
    allowed = cluster.spec.allowed_namespaces
    found: list[Json] = [{"podSelector": {}}]
    if ANY_NAMESPACE in allowed:
        found = [{"namespaceSelector": {}}]
    else:
        found += [_pods(namespace, None) for namespace in sorted(set(allowed))]
    return [*found, *map(_peer, cluster.spec.network.clients)]


def _outside(cluster: Cluster) -> list[Json]:
    """Return the rule of additional listeners: any peer, because nodes and balancers hide the clients' addresses."""
    ports = [listener.port for listener in cluster.spec.listeners]
    return [{"ports": _ports(ports)}] if ports else []


def _peer(peer: Peer) -> Json:
    if peer.cidr is not None:
        return {"ipBlock": {"cidr": _block(peer.cidr)}}
    labels = None if peer.pod_labels is None else dict(peer.pod_labels)
    if peer.namespace is None:
        return {"podSelector": {"matchLabels": labels} if labels else {}}
    return _pods(peer.namespace, labels)


def _block(cidr: str) -> str:
    """Return a network in a form that every Kubernetes version accepts: no host bits, no mapped IPv4 address."""
    found = ipaddress.ip_network(cidr, strict=False)
    inner = getattr(found.network_address, "ipv4_mapped", None)
    if inner is not None:
        found = ipaddress.ip_network((inner, found.prefixlen - 96))
    return str(found)


def _pods(namespace: str, labels: dict[str, str] | None) -> Json:
    found: Json = {"namespaceSelector": {"matchLabels": {_NAMESPACE: namespace}}}
    if labels:
        found["podSelector"] = {"matchLabels": labels}
    return found


def _rule(ports: Iterable[int], peers: list[Json]) -> Json:
    return {"from": peers, "ports": _ports(ports)}


def _ports(ports: Iterable[int]) -> list[Json]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def _policy(cluster: Cluster, component: str, ingress: list[Json]) -> Json:
    spec = {
        "podSelector": {"matchLabels": names.selector(cluster, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    name, labels = f"{cluster.metadata.name}-{component}", names.labels(cluster, component)
    return owned("Cluster", cluster.metadata, NETWORK_POLICIES, name, labels, spec=spec)
