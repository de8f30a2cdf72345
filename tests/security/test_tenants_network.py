"""Which callers reach the ports of a Cluster's pods, by its NetworkPolicies as Kubernetes evaluates them."""

import ipaddress
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import kube_revision
from orderlymq_operator.kube.objects.network import policy_objects
from orderlymq_operator.kube.resources import NETWORK_POLICIES, Json
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster
from tests.operator.kube.smallcluster import KEY, small_cluster

OPERATOR = "ops"
BROKER_PORTS = (names.BROKER_PORT, names.OLD_CLIENT_PORT)
CLIENT_PORTS = (*BROKER_PORTS, names.NAME_SERVER_PORT)


@dataclass
class Caller:
    """A pod, or an address outside the pod network."""

    namespace: str = NAMESPACE
    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""


def _matches(selector: Json, labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _is(peer: Json, caller: Caller, home: str) -> bool:
    if "ipBlock" in peer:
        inside = bool(caller.address)
        return inside and ipaddress.ip_address(caller.address) in ipaddress.ip_network(
            peer["ipBlock"]["cidr"]
        )
    if caller.address:
        return False
    space = {"kubernetes.io/metadata.name": caller.namespace}
    if "namespaceSelector" in peer:
        near = _matches(peer["namespaceSelector"], space)
    else:
        near = caller.namespace == home
    return near and _matches(peer.get("podSelector", {}), caller.labels)


def reaches(made: Cluster, caller: Caller, component: str, port: int) -> bool:
    """Return whether *caller* may open *port* of a pod of *component*."""
    pod = names.labels(made, component, f"{made.metadata.name}-0")
    policies = [
        each["spec"]
        for each in policy_objects(made, OPERATOR)
        if _matches(each["spec"]["podSelector"], pod)
    ]
    if not policies:
        return True  # a pod that no policy selects accepts all callers
    return any(
        port in [each["port"] for each in rule["ports"]]
        and any(_is(peer, caller, NAMESPACE) for peer in rule["from"])
        for policy in policies
        for rule in policy["ingress"]
    )


def component_of(port: int) -> str:
    return names.NAME_SERVER if port == names.NAME_SERVER_PORT else names.BROKER


def test_raft_is_for_brokers_of_the_same_cluster_alone() -> None:
    """Clients, the operator, and brokers of another Cluster or of one with the same name elsewhere cannot connect."""
    made = cluster()
    other = Cluster.model_validate({"metadata": {"name": "other", "namespace": NAMESPACE}})
    own = names.labels(made, names.BROKER, "demo-1")

    def raft(caller: Caller) -> bool:
        return reaches(made, caller, names.BROKER, names.RAFT_PORT)

    assert raft(Caller(labels=own))
    assert not raft(Caller(labels=names.labels(other, names.BROKER, "other-0")))
    assert not raft(Caller(labels=names.labels(made, names.NAME_SERVER)))
    assert not raft(Caller("elsewhere", own))
    assert not raft(Caller())
    assert not raft(Caller(OPERATOR, {"app.kubernetes.io/component": "operator"}))
    assert not raft(Caller(address="10.0.0.1"))


@pytest.mark.parametrize("port", CLIENT_PORTS)
def test_clients_come_from_namespaces_that_may_use_the_cluster(port: int) -> None:
    """Only the namespaces in `allowedNamespaces` may connect."""
    listed = cluster(allowedNamespaces=["sales"])

    assert reaches(listed, Caller(), component_of(port), port)
    assert reaches(listed, Caller("sales"), component_of(port), port)
    assert not reaches(listed, Caller("evil"), component_of(port), port)
    assert reaches(cluster(allowedNamespaces=["*"]), Caller("evil"), component_of(port), port)
    operator = Caller(OPERATOR, {"app.kubernetes.io/component": "operator"})
    assert reaches(cluster(), operator, component_of(port), port)
    assert not reaches(cluster(), Caller(OPERATOR), component_of(port), port)


def test_further_clients_are_pods_or_addresses() -> None:
    """Further clients reach the ports for clients and no others."""
    clients = [
        {"namespace": "edge", "podLabels": {"app": "gateway"}},
        {"cidr": "192.0.2.0/24"},
    ]
    made = cluster(network={"clients": clients})
    gateway, node = Caller("edge", {"app": "gateway"}), Caller(address="192.0.2.7")

    for caller in (gateway, node):
        assert all(reaches(made, caller, component_of(port), port) for port in CLIENT_PORTS)
        assert not reaches(made, caller, names.BROKER, names.RAFT_PORT)
        assert not reaches(made, caller, names.BROKER, names.HTTP_PORT)
    assert not reaches(made, Caller("edge", {"app": "other"}), names.BROKER, names.BROKER_PORT)
    assert not reaches(made, Caller(address="198.51.100.7"), names.BROKER, names.BROKER_PORT)


@pytest.mark.parametrize("component", [names.BROKER, names.NAME_SERVER])
def test_pages_are_for_the_operator_and_monitoring(component: str) -> None:
    """Pods of the Cluster's own namespace must be listed, too."""
    made = cluster(network={"monitoring": [{"namespace": "monitoring"}]})

    def pages(caller: Caller) -> bool:
        return reaches(made, caller, component, names.HTTP_PORT)

    assert pages(Caller(OPERATOR, {"app.kubernetes.io/component": "operator"}))
    assert pages(Caller("monitoring"))
    assert not pages(Caller())
    assert not pages(Caller(OPERATOR))


def test_who_listens_to_everybody_is_said_by_the_user() -> None:
    """Without policies Kubernetes lets all callers in; a change of policies does not restart brokers."""
    off = cluster(network={"policies": False})

    assert policy_objects(off, OPERATOR) == []
    assert kube_revision(off, IMAGE) == kube_revision(cluster(), IMAGE)
    assert kube_revision(cluster(allowedNamespaces=["x"]), IMAGE) == kube_revision(cluster(), IMAGE)


@pytest.mark.parametrize(
    "peer",
    [
        {},
        {"cidr": "10.0.0.0/8", "namespace": "edge"},
        {"cidr": "10.0.0.0/8", "podLabels": {"app": "x"}},
        {"cidr": "10.0.0.0/33"},
        {"cidr": "everything"},
        {"podLabels": {"not a label": "x"}},
    ],
)
def test_a_peer_that_means_nothing_or_two_things_is_refused(peer: dict[str, Any]) -> None:
    """To Kubernetes an empty peer would mean all callers."""
    with pytest.raises(ValidationError):
        cluster_with(peer)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.1.2.3/32", "10.1.2.3/32"),
        ("2001:DB8::ff/64", "2001:db8::/64"),
        ("::ffff:a01:203/104", "10.0.0.0/8"),
        ("::ffff:a01:203/90", "::ffc0:0:0/90"),
    ],
)
def test_a_network_is_written_as_every_version_of_kubernetes_takes_it(
    text: str, written: str
) -> None:
    """Law: Kubernetes 1.36 refuses host bits, which earlier versions ignore, and IPv4 addresses in IPv6."""
    network = {"ipBlock": {"cidr": written}}
    (brokers, *_) = policy_objects(cluster_with({"cidr": text}), OPERATOR)

    assert any(network in rule["from"] for rule in brokers["spec"]["ingress"])


def cluster_with(peer: dict[str, Any]) -> Cluster:
    spec = {"network": {"clients": [peer]}}
    return Cluster.model_validate({"metadata": {"name": "demo"}, "spec": spec})


async def test_policies_are_made_with_the_cluster_and_go_when_they_are_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator treats policies as its other objects: it repairs them, and the Cluster owns them."""
    async with small_cluster(monkeypatch.setattr) as world:
        await world.reconciler.reconcile(KEY)
        found = [each for each in world.server.objects.values() if _is_policy(each)]
        assert {each["metadata"]["name"] for each in found} == {"demo-broker", "demo-nameserver"}
        assert all(each["metadata"]["ownerReferences"][0]["name"] == "demo" for each in found)

        world.change(network={"policies": False})
        await world.reconciler.reconcile(KEY)

        assert not any(_is_policy(each) for each in world.server.objects.values())


def _is_policy(found: Json) -> bool:
    return bool(found["kind"] == NETWORK_POLICIES.kind)
