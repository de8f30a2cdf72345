"""
Who may reach the pods of a Cluster, by NetworkPolicies, in a Kubernetes whose network enforces them.

`kube.objects.network` makes the policies. Pods of the Cluster's own namespace and of `spec.allowedNamespaces` always
reach the clients' ports.
"""

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from orderlymq_operator.resources.meta import Model, Name, rule, rules
from orderlymq_operator.resources.workload import LabelKey, LabelValue

PEERS_MAX: Final = 32
_ONE_FORM: Final = "set either cidr, or namespace and podLabels"


_NO_NETWORK: Final = (
    "write a network such as 10.0.0.0/8 or fd00::/8, without leading zeros and without an IPv4 address in an IPv6 one: those "
    "are ambiguous, and Kubernetes from 1.36 on refuses them"
)
# Exactly the valid networks: a value that the API server accepts must not be refused here.
_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_V4: Final = rf"{_OCTET}([.]{_OCTET}){{3}}/(3[0-2]|[12]?[0-9])"
_WORD: Final = "[0-9a-fA-F]{1,4}"
_SHORT: Final = "|".join(
    f"({_WORD}:){{1,{before}}}(:{_WORD}){{1,{7 - before}}}" for before in range(1, 7)
)
_V6: Final = (
    f"(({_WORD}:){{7}}{_WORD}|({_WORD}:){{1,7}}:|:((:{_WORD}){{1,7}}|:)|{_SHORT})"
    "/(12[0-8]|1[01][0-9]|[1-9]?[0-9])"
)
_NETWORK: Final = f"^({_V4}|{_V6})$"


def _is_network(text: str) -> str:
    if not re.fullmatch(_NETWORK, text):
        raise ValueError(_NO_NETWORK)
    return text


Cidr = Annotated[
    str,
    StringConstraints(max_length=43),
    Field(json_schema_extra={"pattern": _NETWORK}),
    AfterValidator(_is_network),
]


class Peer(Model):
    """A set of pods, or of addresses."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.cidr) != (has(self.__namespace__) || has(self.podLabels))", _ONE_FORM)
        )
    )

    namespace: Name | None = Field(
        default=None, description="Namespace of the pods. Defaults to the Cluster's own."
    )
    pod_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] | None = Field(
        default=None, description="Labels that the pods must have. Defaults to all pods."
    )
    cidr: Cidr | None = Field(
        default=None,
        description="Addresses instead of pods, such as 10.0.0.0/8: nodes, load balancers, other networks. Without leading "
        "zeros, and without an IPv4 address in an IPv6 one.",
    )

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.cidr is None) == (self.namespace is None and self.pod_labels is None):
            raise ValueError(_ONE_FORM)
        return self


Peers = Annotated[list[Peer], Field(max_length=PEERS_MAX)]


class Network(Model):
    """Who may reach the pods; egress is not restricted."""

    policies: bool = Field(
        default=True,
        description="Create NetworkPolicies for brokers and name servers: raft ports only for brokers of the Cluster, client "
        "ports for its own and the allowed namespaces, HTTP pages for the operator and monitoring.",
    )
    clients: Peers = Field(
        default=[], description="Further pods and addresses that may reach the client ports."
    )
    monitoring: Peers = Field(
        default=[],
        description="Pods and addresses that may read the HTTP pages, such as Prometheus.",
    )
