"""The listeners that a Cluster may have."""

from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_operator.resources.cluster.cluster import ClusterSpec
from orderlymq_operator.resources.cluster.listeners import Listener, roll_facts

PUBLIC = {"name": "public", "type": "NodePort", "port": 9094}
ROUTED: dict[str, Any] = {
    "type": "TLSRoute",
    "tls": {"secretName": "public-tls"},
    "advertisedHost": "{service}.mq.example.com",
    "gateway": {"name": "edge"},
}
STRICT = {
    "security": {"profile": "Strict", "internalTls": "Enabled"},
    "tls": {"mode": "Enforcing", "secretName": "t"},
    "config": {"aclEnable": True, "signedAdministration": True},
}


def listener(**changes: Any) -> Listener:
    return Listener.model_validate(PUBLIC | changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"port": 10911}, "are already used in the pods"),
        ({"port": 80}, "greater than or equal to 1024"),
        ({"name": "a" * 16}, "at most 15"),
        ({"name": "A"}, "should match pattern"),
        ({"name": "replicas"}, "name of another Service"),
        ({"type": "Ingress"}, "'NodePort', 'LoadBalancer' or 'TLSRoute'"),
        ({"type": "LoadBalancer", "nodePort": 30000}, "nodePort is for type NodePort"),
        ({"type": "LoadBalancer", "advertisedHost": "mq.example.com"}, "must contain {service}"),
        ({"advertisedHost": "a b"}, "should match pattern"),
        ({"advertisedHost": "{group}.example.com"}, "should match pattern"),
        ({"tls": {}}, "secretName"),
        ({"tls": {"secretName": "s", "mode": "Permissive"}}, "Extra inputs"),
        ({"nodePort": 65_500}, "less than or equal"),
        ({"gateway": {"name": "edge"}}, "needs gateway; other types must not have one"),
        (ROUTED | {"gateway": None}, "needs gateway; other types must not have one"),
        (ROUTED | {"tls": None}, "needs tls: the gateway routes by the host name"),
        (ROUTED | {"advertisedHost": None}, "needs advertisedHost, by which the gateway"),
        (ROUTED | {"advertisedHost": "mq.example.com"}, "must contain {service}"),
        (ROUTED | {"nodePort": 30_000}, "nodePort is for type NodePort"),
        (ROUTED | {"gateway": {"name": "edge", "port": 0}}, "greater than or equal to 1"),
        ({"annotations": {str(n): "" for n in range(17)}}, "at most 16"),
    ],
)
def test_what_cannot_be_served_is_refused(changes: dict[str, Any], problem: str) -> None:
    """Law: a listener that cannot be served is refused with a sentence that names the field."""
    with pytest.raises(ValidationError, match=problem):
        listener(**changes)


@pytest.mark.parametrize("other", [{"name": "other"}, {"port": 9095}])
def test_listeners_share_neither_name_nor_port(other: dict[str, Any]) -> None:
    """Law: two listeners have different names and ports, because they share pods."""
    with pytest.raises(ValidationError, match="same name or port"):
        ClusterSpec.model_validate({"listeners": [PUBLIC, PUBLIC | other]})


@pytest.mark.parametrize(
    ("other", "overlaps"),
    [(30_002, True), (30_000, True), (29_998, True), (30_003, False), (29_997, False)],
)
def test_node_ports_of_two_listeners_are_apart(other: int, overlaps: bool) -> None:
    """Law: the node ports of two listeners do not overlap; each uses one for name servers and one per group."""
    two = [PUBLIC | {"nodePort": 30_000}, {**PUBLIC, "name": "b", "port": 9095, "nodePort": other}]
    spec = {"groups": 2, "listeners": two}
    if overlaps:
        with pytest.raises(ValidationError, match="node ports of two listeners overlap"):
            ClusterSpec.model_validate(spec)
    else:
        ClusterSpec.model_validate(spec)


def test_a_sidecar_keeps_off_the_ports_of_listeners() -> None:
    """Law: a sidecar cannot have a listener's port, because both are in one pod."""
    sidecar = {
        "name": "proxy",
        "image": "proxy:1",
        "ports": [{"name": "proxy", "containerPort": 9094}],
    }
    pods = {"sidecars": [sidecar]}
    with pytest.raises(
        ValidationError, match="port 9094 of sidecar 'proxy' is also the port of a listener"
    ):
        ClusterSpec.model_validate({"listeners": [PUBLIC], "podTemplate": pods})

    ClusterSpec.model_validate({"listeners": [PUBLIC | {"port": 9095}], "podTemplate": pods})


def test_strict_needs_tls_of_each_listener() -> None:
    """Law: the Strict profile needs TLS on each listener."""
    with pytest.raises(ValidationError, match="tls for each of listeners; public has none"):
        ClusterSpec.model_validate(STRICT | {"listeners": [PUBLIC]})

    ClusterSpec.model_validate(STRICT | {"listeners": [PUBLIC | {"tls": {"secretName": "s"}}]})


def test_a_host_names_what_its_service_leads_to() -> None:
    """Law: `{service}` in an advertised host becomes the Service's name; an address stays as it is."""
    made = listener(type="LoadBalancer", advertisedHost="{service}.mq.example.com")

    assert made.host_of("shop-0") == "shop-0.mq.example.com"
    assert listener(advertisedHost="2001:db8::1").host_of("shop-0") == "2001:db8::1"
    assert listener().host_of("shop-0") is None


def test_what_is_advertised_needs_no_other_pods() -> None:
    """Law: a changed address, balancer or node port replaces no pod; a changed port or key pair does."""
    same = [
        listener(),
        listener(type="LoadBalancer"),
        listener(advertisedHost="mq.example.com"),
        listener(nodePort=31_000),
        listener(annotations={"a": "b"}),
    ]
    others = [listener(port=9095), listener(name="p"), listener(tls={"secretName": "s"})]

    assert all(roll_facts([each]) == roll_facts(same[:1]) for each in same)
    assert all(roll_facts([each]) != roll_facts(same[:1]) for each in others)
