"""
The addresses at which clients of other networks reach a Cluster's listeners, from Services, nodes and the manifest.

Pure. Rules: an address is published only if all of it is known. A broker group keeps its node while the node is ready,
because clients must look up the address again after each change. Its first node depends on its name, which spreads the
broker groups.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.listeners import (
    ADDRESSES_FILE,
    Addresses,
    target_name,
)
from orderlymq_operator.kube.observe.gateway import refusal_of
from orderlymq_operator.kube.observe.nodes import NodeFacts
from orderlymq_operator.kube.resources import SERVICES, TLS_ROUTES, Json, Resource
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_operator.resources.cluster.listeners import Listener
from orderlymq_runtime.sockets.addresses import join_address, split_address

# The number of nodes to publish as name servers; a client tries the next address if one does not answer.
BOOTSTRAP_NODES_MAX: Final = 3
_MISSING_SHOWN: Final = 5
Find = Callable[[Resource, str], Json | None]


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a target has no address: a sentence, and the reason of the condition."""

    text: str
    reason: str = "AddressMissing"


@dataclass(slots=True)
class OutsideView:
    """Observed addresses.

    Attributes:
        addresses: the address of each broker group, by listener.
        bootstrap: the name server addresses for clients, by listener.
        missing: why targets have no address yet.
    """

    addresses: dict[str, dict[str, str]] = field(default_factory=dict)
    bootstrap: dict[str, str] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    def condition(self) -> ConditionReport:
        """Return the condition ListenersReady."""
        if self.missing:
            texts = list(dict.fromkeys(each.text for each in self.missing))
            more = len(texts) - _MISSING_SHOWN
            text = "; ".join(texts[:_MISSING_SHOWN])
            return ConditionReport(
                "False", self.missing[0].reason, f"{text}; and {more} more" if more > 0 else text
            )
        if not self.addresses:
            return ConditionReport(
                "True", "NoListeners", "there are no listeners for clients in other networks"
            )
        return ConditionReport(
            "True", "AddressesKnown", "name servers give the clients of each listener its addresses"
        )


def outside_view(
    cluster: Cluster,
    find: Find,
    nodes: Sequence[NodeFacts],
    present: Addresses,
    *,
    routes: bool = False,
) -> OutsideView:
    """Return the addresses of the name servers and of each broker group, for each listener.

    *find* returns an object by its name. *present* has the addresses that are published now. *routes* is True if the
    API server serves TLSRoutes.
    """
    view = OutsideView()
    hosts = ready_hosts(nodes)

    def places_of(listener: Listener, group: str | None, published: str) -> list[str] | Missing:
        if listener.type == "TLSRoute":
            return _routed(cluster, listener, group, find if routes else None)
        found = _places(cluster, listener, group, find, hosts, published)
        return Missing(f"{listener.name}: {found}") if isinstance(found, str) else found

    for listener in cluster.spec.listeners:
        published = present.get(listener.name, {})
        found = view.addresses[listener.name] = {}
        for group in cluster.group_names:
            places = places_of(listener, group, published.get(group, ""))
            if isinstance(places, list):
                found[group] = places[0]
                continue
            view.missing.append(places)
            if listener.type == "TLSRoute" and published.get(group) == _route_place(
                listener, group
            ):
                # A gateway that is being replaced may still serve this address, so the published address stays.
                found[group] = published[group]
        places = places_of(listener, None, "")
        if isinstance(places, Missing):
            view.missing.append(places)
        else:
            view.bootstrap[listener.name] = ";".join(places)
    return view


def needs_nodes(cluster: Cluster) -> bool:
    """Return whether a listener publishes addresses of nodes."""
    return any(
        each.type == "NodePort" and each.advertised_host is None for each in cluster.spec.listeners
    )


def ready_hosts(nodes: Sequence[NodeFacts]) -> list[str]:
    """Return one address of each ready node; if any node has an external address, only external addresses.

    If no such node is ready, all of them count: an address that may work again is better than none, and better than an
    internal address, which clients outside cannot reach.
    """
    outer = [node for node in nodes if node.external]
    ready = [node for node in outer or nodes if node.ready] or outer or nodes
    return [each[0] for node in ready if (each := node.external or node.internal)]


def _places(
    cluster: Cluster,
    listener: Listener,
    group: str | None,
    find: Find,
    hosts: Sequence[str],
    present: str,
) -> list[str] | str:
    """Return the addresses of a broker group, or of the name servers, best first; a sentence if there is none."""
    target = target_name(cluster, group)
    name = names.listener_service(target, listener.name)
    service = find(SERVICES, name)
    if service is None:
        return f"Service {name} does not exist yet"
    host = listener.host_of(target)
    if listener.type == "LoadBalancer":
        if host is None:
            host = _ingress(service)
        if host is None:
            return f"the balancer of Service {name} has no address yet"
        return [join_address(host, listener.port)]
    port = service["spec"]["ports"][0].get("nodePort")
    if not port:
        return f"Service {name} has no node port yet"
    if host is not None:
        return [join_address(host, port)]
    if not hosts:
        return f"no ready node has an address for Service {name}"
    chosen = _ranked(hosts, target)
    kept = _host_of(present)
    if kept in hosts:
        chosen = [kept]
    return [join_address(each, port) for each in chosen[:BOOTSTRAP_NODES_MAX]]


def _routed(
    cluster: Cluster,
    listener: Listener,
    group: str | None,
    find: Find | None,
) -> list[str] | Missing:
    """Return the single address at which a gateway serves a broker group, or the name servers."""
    if find is None:
        text = "the API server has no TLSRoute; install Gateway API, or choose another type"
        return Missing(f"{listener.name}: {text}", "GatewayApiMissing")
    target = target_name(cluster, group)
    name = names.listener_service(target, listener.name)
    route = find(TLS_ROUTES, name)
    if route is None:
        return Missing(f"{listener.name}: TLSRoute {name} does not exist yet")
    refusal = refusal_of(route)
    if refusal is not None:
        return Missing(f"{listener.name}: TLSRoute {name}: {refusal}", "RouteNotAccepted")
    return [_route_place(listener, target)]


def _route_place(listener: Listener, target: str) -> str:
    host, gateway = listener.host_of(target), listener.gateway
    assert host is not None, "the model asks for it"
    assert gateway is not None, "likewise"
    return join_address(host, gateway.port)


def _ingress(service: Json) -> str | None:
    balancer = (service.get("status") or {}).get("loadBalancer") or {}
    for each in balancer.get("ingress") or []:
        if found := each.get("hostname") or each.get("ip"):
            return str(found)
    return None


def _host_of(address: str) -> str:
    try:
        return split_address(address)[0]
    except ValueError:
        return ""


def _ranked(hosts: Sequence[str], target: str) -> list[str]:
    """Return *hosts* in an order that depends on *target* and stays the same when hosts are added or removed."""
    return sorted(
        hosts, key=lambda host: hashlib.sha256(f"{target} {host}".encode()).digest(), reverse=True
    )


def published_addresses(config: Json | None) -> Addresses:
    """Return the addresses in the ConfigMap of the name servers."""
    text = ((config or {}).get("data") or {}).get(ADDRESSES_FILE, "{}")
    try:
        return {
            str(listener): {str(group): str(address) for group, address in table.items()}
            for listener, table in json.loads(text).items()
        }
    except (ValueError, AttributeError, RecursionError):
        return {}  # a person edited it; the operator will overwrite it
