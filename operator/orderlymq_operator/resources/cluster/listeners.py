"""
Additional listeners of a Cluster: ports for clients outside its network to reach brokers and name servers.

The listener for pods and Services, with `spec.tls`, always exists and is not listed. Each listener here has its own
port, TLS and advertised addresses (ADR 25); only Kubernetes applies them.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from orderlymq_operator.resources.meta import Model, Name, rule, rule_of_whole, rules
from orderlymq_operator.resources.pod.ownership import OWN_PORTS
from orderlymq_operator.resources.pod.template import PodTemplate

LISTENERS_MAX: Final = 8  # the most that a name server accepts
# The placeholder in a host or an annotation for the target of a Service: a broker group, or the name servers.
SERVICE: Final = "{service}"
# A broker group's node port is nodePort + 1 + its index.
NODE_PORT_MAX: Final = 65_535 - 64

_TAKEN: Final = (
    f"the ports {', '.join(map(str, OWN_PORTS))} are already used in the pods; choose another port"
)
_TEMPLATE: Final = (
    "advertisedHost of a LoadBalancer or TLSRoute must contain {service}, because the name servers and each group have their "
    'own balancer or host; write for example "{service}.mq.example.com"'
)
_GATEWAY: Final = "type TLSRoute needs gateway; other types must not have one"
_ROUTE_TLS: Final = (
    "type TLSRoute needs tls: the gateway routes by the host name in the TLS handshake and passes the "
    "encrypted data through"
)
_ROUTE_HOST: Final = 'type TLSRoute needs advertisedHost, by which the gateway routes; write for example "{service}.mq.example.com"'
# The suffix of another Service of a broker group.
RESERVED: Final = "replicas"
_RESERVED: Final = f"the Services of a listener named {RESERVED} would have the name of another Service; choose another name"
_NODE_PORT: Final = "nodePort is for type NodePort"
_APART: Final = (
    "the node ports of two listeners overlap: each uses nodePort for the name servers and the following ports for the groups; "
    "choose nodePorts that are further apart"
)
_UNIQUE: Final = "two listeners have the same name or port; choose different ones"

ListenerName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=15)
]
Host = Annotated[
    str,
    StringConstraints(
        pattern=r"^([0-9a-fA-F:]*:[0-9a-fA-F:.]*|[-a-z0-9.]*(\{service\})?[-a-z0-9.]*)$",
        min_length=1,
        max_length=200,
    ),
]
AnnotationKey = Annotated[
    str, StringConstraints(pattern=r"^[-._a-zA-Z0-9/]+$", min_length=1, max_length=317)
]
AnnotationValue = Annotated[str, StringConstraints(max_length=1024)]


IpFamilyPolicy = Literal["SingleStack", "PreferDualStack", "RequireDualStack"]
SINGLE_STACK: Final = "SingleStack"


class ListenerTls(Model):
    """TLS of one listener; connections without TLS are closed."""

    secret_name: Name = Field(
        description="Secret with tls.crt and tls.key that are valid for the advertised hosts, and with ca.crt for clientAuth."
    )
    client_auth: Literal["None", "Optional", "Required"] = Field(
        default="None", description="Whether clients may or must present a certificate of ca.crt."
    )


class Gateway(Model):
    """The Gateway through which clients reach a listener."""

    name: Name = Field(description="Name of the Gateway.")
    namespace: Name | None = Field(
        default=None, description="Namespace of the Gateway. Defaults to that of the Cluster."
    )
    section_name: Name | None = Field(
        default=None,
        description="Name of a listener of the Gateway with protocol TLS and mode Passthrough. Defaults to all listeners that "
        "fit.",
    )
    port: Annotated[int, Field(ge=1, le=65535)] = Field(
        default=443, description="Port of that listener, to which clients connect."
    )


class Listener(Model):
    """A port of brokers and name servers for clients in another network."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(f"!(self.port in {list(OWN_PORTS)})", _TAKEN),
            rule(f"self.name != '{RESERVED}'", _RESERVED),
            rule("self.type == 'NodePort' || !has(self.nodePort)", _NODE_PORT),
            rule(
                "self.type == 'NodePort' || !has(self.advertisedHost) || self.advertisedHost.contains('{service}')",
                _TEMPLATE,
            ),
            rule("(self.type == 'TLSRoute') == has(self.gateway)", _GATEWAY),
            rule("self.type != 'TLSRoute' || has(self.tls)", _ROUTE_TLS),
            rule("self.type != 'TLSRoute' || has(self.advertisedHost)", _ROUTE_HOST),
        )
    )

    name: ListenerName = Field(
        description='Name of the listener; part of the names of its Services. Unique in the Cluster, and not "replicas".'
    )
    type: Literal["NodePort", "LoadBalancer", "TLSRoute"] = Field(
        description="How clients reach the leader of each group and the name servers. NodePort: through a port of each node. "
        "LoadBalancer: through one load balancer for each group and one for the name servers. TLSRoute: through one Gateway, "
        "which routes by the host name in the TLS handshake; it needs Gateway API, gateway, tls and advertisedHost."
    )
    port: Annotated[int, Field(ge=1024, le=65535)] = Field(
        description="Port in the pods of brokers and name servers, and port of the load balancers."
    )
    ip_family_policy: IpFamilyPolicy = Field(
        default=SINGLE_STACK,
        description="SingleStack: Services have an address of Kubernetes' first IP family. PreferDualStack, RequireDualStack: "
        "Services have addresses of both families, and pods listen on both; RequireDualStack is refused if Kubernetes has "
        "only one family.",
    )
    tls: ListenerTls | None = Field(
        default=None,
        description="TLS of this listener. If absent, the listener uses no TLS, regardless of spec.tls.",
    )
    advertised_host: Host | None = Field(
        default=None,
        description='Host that clients connect to. Defaults to the address of a node or of the load balancer. "{service}" in '
        "it is replaced by the name of the group, or of the name servers (<cluster>-nameserver).",
    )
    node_port: Annotated[int, Field(ge=1024, le=NODE_PORT_MAX)] | None = Field(
        default=None,
        description="Node port of the name servers; group i has nodePort + 1 + i. If absent, Kubernetes chooses the ports.",
    )
    gateway: Gateway | None = Field(
        default=None, description="The Gateway for the routes of type TLSRoute."
    )
    annotations: Annotated[dict[AnnotationKey, AnnotationValue], Field(max_length=16)] = Field(
        default={},
        description="Annotations of the Services (type TLSRoute: of the routes), for a load balancer or external-dns; "
        '"{service}" is replaced as in advertisedHost.',
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.name == RESERVED:
            raise ValueError(_RESERVED)
        if self.port in OWN_PORTS:
            raise ValueError(_TAKEN)
        if self.type != "NodePort":
            if self.node_port is not None:
                raise ValueError(_NODE_PORT)
            if self.advertised_host is not None and SERVICE not in self.advertised_host:
                raise ValueError(_TEMPLATE)
        if (self.type == "TLSRoute") != (self.gateway is not None):
            raise ValueError(_GATEWAY)
        if self.type == "TLSRoute":
            if self.tls is None:
                raise ValueError(_ROUTE_TLS)
            if self.advertised_host is None:
                raise ValueError(_ROUTE_HOST)
        return self

    @property
    def is_dual(self) -> bool:
        """Whether clients may connect by IPv4 and by IPv6."""
        return self.ip_family_policy != SINGLE_STACK

    def host_of(self, service: str) -> str | None:
        """Return the advertised host of a broker group or of the name servers; None if it must be discovered."""
        return None if self.advertised_host is None else named(self.advertised_host, service)


class ListenerStatus(Model):
    """How clients reach a Cluster through one listener."""

    name: ListenerName = Field(description="Name of the listener.")
    type: Annotated[str, StringConstraints(max_length=32)] = Field(description="Its type.")
    bootstrap: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None,
        description="Name server address for clients; absent until it is known.",
    )


Listeners = Annotated[list[Listener], Field(max_length=LISTENERS_MAX)]
# The same rules on the list, for the API server.
LIST_RULES: Final = rules(
    rule(
        "self.all(one, self.filter(other, other.name == one.name || other.port == one.port).size() == 1)",
        _UNIQUE,
    )
)

# How many of the 63 characters of <cluster>-nameserver-<listener> are left for the names of Cluster and listener.
NAMES_MAX: Final = 63 - len("-nameserver-")
_LONG: Final = (
    f"the names of the Cluster and of a listener have more than {NAMES_MAX} characters together, too long for the names of "
    "Services; choose a shorter name for the listener"
)
# The same rule on the object, which has the name.
NAMES_RULE: Final = rule_of_whole(
    f"self.spec.listeners.all(one, self.metadata.name.size() + one.name.size() <= {NAMES_MAX})",
    _LONG,
    unless_kept="spec.listeners",
)

# The same rule on the spec, which has the number of broker groups.
NODE_PORT_RULE: Final = rule(
    "self.listeners.all(one, !has(one.nodePort) || self.listeners.all(other, other.name == one.name || "
    "!has(other.nodePort) || other.nodePort < one.nodePort || other.nodePort > one.nodePort + self.groups))",
    _APART,
    field=".listeners",
)


def named(template: str, service: str) -> str:
    """Return *template* with *service* in place of the placeholder."""
    return re.sub(re.escape(SERVICE), service, template)


def listener_problems(
    listeners: Sequence[Listener], pods: PodTemplate | None, groups: int
) -> Iterator[str]:
    """Yield the problems of several listeners together, and of ports that sidecars share with them."""
    first = sorted(each.node_port for each in listeners if each.node_port is not None)
    if any(after - before <= groups for before, after in pairwise(first)):
        yield _APART
    names, ports = {each.name for each in listeners}, {each.port for each in listeners}
    if len(names) < len(listeners) or len(ports) < len(listeners):
        yield _UNIQUE
    for sidecar in pods.sidecars if pods is not None else ():
        for taken in ports.intersection(each.container_port for each in sidecar.ports):
            yield (
                f"port {taken} of sidecar {sidecar.name!r} is also the port of a listener in spec.listeners; choose another "
                "port for one of them"
            )


def check_names(cluster: str, listeners: Sequence[Listener]) -> None:
    """Raise ValueError if a Service of a listener of *cluster* would have too long a name."""
    if any(len(cluster) + len(each.name) > NAMES_MAX for each in listeners):
        raise ValueError(_LONG)


def roll_facts(listeners: Sequence[Listener]) -> list[dict[str, Any]]:
    """Return the facts of listeners whose change replaces pods.

    How clients reach the listeners and what is advertised are left out.
    """
    kept = {"name", "port", "tls"}
    return [
        each.model_dump(
            mode="json",
            by_alias=True,
            # Leave out the default, so that pods of earlier versions keep their revision.
            include=kept | ({"ip_family_policy"} if each.is_dual else set()),
        )
        for each in listeners
    ]
