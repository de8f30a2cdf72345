"""Services, settings and network policies of further listeners."""

import json
from dataclasses import replace
from typing import Any

import pytest

from orderlymq_broker.settings import BrokerSettings
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import (
    RaftGroupFacts,
    group_set,
    kube_revision,
    listener_objects,
    name_server_revision,
    name_server_set,
    route_objects,
    settings_objects,
)
from orderlymq_operator.kube.objects.network import policy_objects
from orderlymq_operator.kube.resources import TLS_ROUTES, Json, resource_of
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.samples import IMAGE, cluster, environment

PUBLIC = {"name": "public", "type": "NodePort", "port": 9094, "nodePort": 31_000}
BALANCED = {
    "name": "lb",
    "type": "LoadBalancer",
    "port": 9095,
    "tls": {"secretName": "lb-tls", "clientAuth": "Required"},
    "annotations": {"external-dns/hostname": "{service}.mq.example.com"},
}


ROUTED = {
    "name": "sni",
    "type": "TLSRoute",
    "port": 9096,
    "tls": {"secretName": "sni-tls"},
    "advertisedHost": "{service}.mq.example.com",
    "annotations": {"external-dns/hostname": "{service}.mq.example.com"},
    "gateway": {"name": "edge", "namespace": "ingress", "sectionName": "passthrough"},
}


def both(**spec: Any) -> Cluster:
    return cluster(groups=2, listeners=[PUBLIC, BALANCED], **spec)


def services() -> dict[str, Json]:
    return {made["metadata"]["name"]: made for made in listener_objects(both())}


def test_each_listener_leads_to_name_servers_and_to_the_leader_of_each_group() -> None:
    """Law: each listener has a Service for name servers and one per broker group that leads to its leader only."""
    found = services()

    assert sorted(found) == sorted(
        f"{target}-{listener}"
        for target in ("demo-0", "demo-1", "demo-nameserver")
        for listener in ("public", "lb")
    )
    for name, made in found.items():
        leads = made["spec"]["selector"].get(names.LABEL_ROLE)
        assert leads == (None if "nameserver" in name else names.LEADER)
    assert found["demo-1-public"]["spec"]["selector"][names.LABEL_GROUP] == "1"


def test_node_ports_follow_each_other_when_one_is_given() -> None:
    """Law: given one node port, the others follow it, because a firewall needs to know them."""
    found = services()

    def port(name: str) -> Json:
        (made,) = found[name]["spec"]["ports"]
        return dict(made)

    ports = [port(f"{name}-public")["nodePort"] for name in ("demo-nameserver", "demo-0", "demo-1")]
    assert ports == [31_000, 31_001, 31_002]
    assert port("demo-0-lb") == {
        "name": "remoting",
        "port": 9095,
        "targetPort": 9095,
        "protocol": "TCP",
    }


@pytest.mark.parametrize("version", ["v1", "v1alpha3", "v1alpha2"])
def test_a_gateway_has_a_route_to_the_leader_of_each_group(version: str) -> None:
    """Law: a gateway has a route per broker group to its Service in the cluster, in the served API version."""
    made = cluster(groups=2, listeners=[ROUTED])
    served = replace(TLS_ROUTES, api_version=f"gateway.networking.k8s.io/{version}")
    found = route_objects(made, environment(made, routes=served))
    services = {each["metadata"]["name"]: each for each in listener_objects(made)}

    assert [each["metadata"]["name"] for each in found] == list(services)
    assert {each["apiVersion"] for each in found} == {f"gateway.networking.k8s.io/{version}"}
    assert {each["spec"]["type"] for each in services.values()} == {"ClusterIP"}
    assert found[1]["spec"] == {
        "parentRefs": [
            {
                "group": "gateway.networking.k8s.io",
                "kind": "Gateway",
                "name": "edge",
                "namespace": "ingress",
                "sectionName": "passthrough",
            }
        ],
        "hostnames": ["demo-0.mq.example.com"],
        "rules": [
            {
                "backendRefs": [
                    {
                        "group": "",
                        "kind": "Service",
                        "name": "demo-0-sni",
                        "port": 9096,
                        "weight": 1,
                    }
                ]
            }
        ],
    }
    notes = found[1]["metadata"]["annotations"]
    assert notes["external-dns/hostname"] == "demo-0.mq.example.com"
    assert "external-dns/hostname" not in services["demo-0-sni"]["metadata"]["annotations"]
    assert resource_of(found[0]) == served


def test_no_route_is_made_without_gateway_api_or_for_another_type() -> None:
    """Law: no route is made without Gateway API or for another type of listener."""
    made = cluster(listeners=[ROUTED])
    assert route_objects(made, environment(made)) == []
    assert route_objects(both(), environment(both(), routes=TLS_ROUTES)) == []


def test_another_gateway_restarts_nothing() -> None:
    """Law: another gateway restarts no pod."""
    revisions = set()
    for gateway in ({"name": "edge"}, {"name": "other", "port": 8443}):
        made = cluster(listeners=[{**ROUTED, "gateway": gateway}])
        revisions.add((kube_revision(made, IMAGE), name_server_revision(made, IMAGE)))
    assert len(revisions) == 1


def test_annotations_name_what_the_service_leads_to() -> None:
    """Law: annotations may name what the Service leads to, so that external-dns makes a name for each balancer."""
    notes = services()["demo-1-lb"]["metadata"]["annotations"]

    assert notes == {"external-dns/hostname": "demo-1.mq.example.com"}


def _first(config: Json) -> str:
    """Return the settings file of the first replica."""
    return next(str(text) for file, text in config["data"].items() if file.startswith("demo-0-0."))


def test_the_settings_are_those_that_brokers_and_name_servers_read() -> None:
    """Law: the settings files have keys that brokers and name servers know, and the file of addresses is read again."""
    made = both()
    form = environment(made, addresses={"public": {"demo-0": "203.0.113.1:31001"}})
    servers, group, _ = settings_objects(made, form)
    broker = json.loads(_first(group))
    server = json.loads(servers["data"]["settings.json"])

    assert [each["port"] for each in broker["listeners"]] == [9094, 9095]
    assert server["listeners"] == broker["listeners"]
    assert broker["listeners"][1]["tls"] == {
        "mode": "enforcing",
        "certificate": "/etc/orderlymq-listeners/lb/tls.crt",
        "key": "/etc/orderlymq-listeners/lb/tls.key",
        "ca": "/etc/orderlymq-listeners/lb/ca.crt",
        "client_auth": "required",
    }
    assert json.loads(servers["data"]["addresses.json"]) == form.addresses
    assert set(broker) <= set(BrokerSettings.__struct_fields__)
    assert set(server) <= set(NameServerSettings.__struct_fields__)


def test_pods_have_the_ports_and_the_key_pair_of_each_listener() -> None:
    """Law: pods have each listener's port, with a name of at most 15 characters, and its key pair."""
    made = both()
    form = environment(made)
    for workload in (group_set(made, "demo-0", form), name_server_set(made, form)):
        spec = workload["spec"]["template"]["spec"]
        ports = {each["name"]: each["containerPort"] for each in spec["containers"][0]["ports"]}
        assert (ports["outside-9094"], ports["outside-9095"]) == (9094, 9095)
        assert all(len(name) <= 15 for name in ports)
        volumes = {each["name"]: each for each in spec["volumes"]}
        assert volumes["listener-lb"]["secret"]["secretName"] == "lb-tls"
        assert "listener-public" not in volumes


def test_policies_let_everybody_come_to_the_ports_of_listeners_alone() -> None:
    """Law: network policies open only the listeners' ports to everybody, because nodes and balancers hide the clients."""
    for policy in policy_objects(both(), "operators"):
        (open_to_all,) = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
        assert [each["port"] for each in open_to_all["ports"]] == [9094, 9095]
    for policy in policy_objects(cluster(), "operators"):
        assert all("from" in rule for rule in policy["spec"]["ingress"])


def test_a_new_address_restarts_no_pod() -> None:
    """Law: an advertised address is in no revision and no pod template, so a new one restarts no pod."""
    before = cluster(listeners=[PUBLIC])
    after = cluster(listeners=[PUBLIC | {"advertisedHost": "mq.example.com", "nodePort": 31_500}])
    moved = cluster(listeners=[PUBLIC | {"port": 9096}])

    for revision in (kube_revision, name_server_revision):
        assert revision(before, IMAGE) == revision(after, IMAGE)
        assert revision(before, IMAGE) != revision(moved, IMAGE)
        assert revision(before, IMAGE) != revision(cluster(), IMAGE)
    told = environment(before, addresses={"public": {"demo-0": "203.0.113.1:31001"}})
    made = [name_server_set(before, told), name_server_set(after, environment(after))]
    assert made[0]["spec"] == made[1]["spec"]


def test_a_cluster_without_listeners_is_as_it_was() -> None:
    """Law: a Cluster without listeners has unchanged objects."""
    made = cluster()
    servers, group = settings_objects(made, environment(made))

    assert listener_objects(made) == []
    assert set(servers["data"]) == {"settings.json"}
    assert "listeners" not in servers["data"]["settings.json"]
    assert "listeners" not in _first(group)


@pytest.mark.parametrize("policy", ["PreferDualStack", "RequireDualStack"])
def test_a_listener_of_both_families_listens_at_addresses_of_both(policy: str) -> None:
    """Law: a listener with both address families listens in both; other ports of the pods stay."""
    before = cluster(listeners=[PUBLIC])
    made = cluster(listeners=[PUBLIC | {"ipFamilyPolicy": policy}])
    servers, group = settings_objects(made, environment(made))

    assert {each["spec"]["ipFamilyPolicy"] for each in listener_objects(made)} == {policy}
    assert {each["spec"]["ipFamilyPolicy"] for each in listener_objects(before)} == {"SingleStack"}
    for text in (servers["data"]["settings.json"], _first(group)):
        found = json.loads(text)
        assert [each["host"] for each in found["listeners"]] == ["::"]
        assert found["listen"]["host"] == "0.0.0.0"
    assert kube_revision(made, IMAGE) != kube_revision(before, IMAGE)
    single = cluster(listeners=[PUBLIC | {"ipFamilyPolicy": "SingleStack"}])
    assert kube_revision(single, IMAGE) == kube_revision(before, IMAGE)


def test_pods_of_a_cluster_with_ipv6_listen_at_every_address() -> None:
    """Law: pods of a Cluster with IPv6 Services listen in all families; with IPv4 nothing changes."""
    made = both()
    six = environment(made, groups={"demo-0": RaftGroupFacts(3, 3, "20Gi", "fd00::7")})
    four = environment(made, groups={"demo-0": RaftGroupFacts(3, 3, "20Gi", "10.96.0.7")})

    for form, every in ((six, "::"), (four, "0.0.0.0")):
        servers, group = settings_objects(made, form)
        for text in (servers["data"]["settings.json"], _first(group)):
            found = json.loads(text)
            assert {found["listen"]["host"], found["http"]["host"]} == {every}
            assert {each["host"] for each in found["listeners"]} == {every}
