"""Addresses for clients of other networks."""

from typing import Any

import pytest

from orderlymq_operator.kube.objects.cluster import listener_objects
from orderlymq_operator.kube.observe.listeners import (
    OutsideView,
    outside_view,
    published_addresses,
    ready_hosts,
)
from orderlymq_operator.kube.observe.nodes import NodeFacts, node_facts
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.samples import cluster

PUBLIC = {"name": "public", "type": "NodePort", "port": 9094}
BALANCED = {"name": "lb", "type": "LoadBalancer", "port": 9095}
NODES = [NodeFacts(f"n{n}", internal=(f"10.0.0.{n}",), ready=True) for n in range(1, 6)]


def services(made: Cluster, ingress: Json | None = None) -> dict[str, Json]:
    """Return the Services as Kubernetes completes them: node ports from 31000 on, and balancers' addresses."""
    found: dict[str, Json] = {}
    for number, each in enumerate(listener_objects(made)):
        each["spec"]["ports"][0].setdefault("nodePort", 31_000 + number)
        if ingress is not None and each["spec"]["type"] == "LoadBalancer":
            each["status"] = {"loadBalancer": {"ingress": [ingress]}}
        found[each["metadata"]["name"]] = each
    return found


def see(
    made: Cluster,
    nodes: list[NodeFacts] | None = None,
    present: dict[str, dict[str, str]] | None = None,
    **more: Any,
) -> OutsideView:
    found = services(made, **more)
    return outside_view(
        made, lambda _, name: found.get(name), NODES if nodes is None else nodes, present or {}
    )


def host(address: str) -> str:
    return address.rpartition(":")[0]


def test_groups_are_spread_over_nodes_and_keep_their_ports() -> None:
    """Law: each broker group is published at one node, spread over nodes; name servers have three,
    because clients try the next.
    """
    view = see(cluster(groups=64, listeners=[PUBLIC]))

    found = view.addresses["public"]
    assert [found[f"demo-{n}"].rpartition(":")[2] for n in (0, 1)] == ["31001", "31002"]
    assert {host(each) for each in found.values()} == {f"10.0.0.{n}" for n in range(1, 6)}
    bootstrap = view.bootstrap["public"].split(";")
    assert len({host(each) for each in bootstrap}) == 3
    assert {each.rpartition(":")[2] for each in bootstrap} == {"31000"}
    assert view.condition().status == "True"


def test_only_groups_of_a_lost_node_get_another_address() -> None:
    """Law: a published address stays while its node is ready, also when nodes come; only a lost node's groups move."""
    made = cluster(groups=16, listeners=[PUBLIC])
    before = see(made).addresses
    lost = host(before["public"]["demo-3"])
    left = [node for node in NODES if node.internal[0] != lost]
    after = see(made, left, before).addresses
    back = see(made, [*NODES, NodeFacts("n9", internal=("10.0.0.9",), ready=True)], after).addresses

    changed = {group for group, each in before["public"].items() if after["public"][group] != each}
    assert changed == {group for group, each in before["public"].items() if host(each) == lost}
    assert back == after


def test_external_addresses_come_before_internal_ones() -> None:
    """Law: external node addresses come first; if there are any, a node without one is not published."""
    nodes = [
        NodeFacts("a", external=("203.0.113.1",), internal=("10.0.0.1",), ready=True),
        NodeFacts("b", internal=("10.0.0.2",), ready=True),
        NodeFacts("c", external=("203.0.113.3",), ready=False),
    ]

    assert ready_hosts(nodes) == ["203.0.113.1"]
    assert ready_hosts(nodes[1:2]) == ["10.0.0.2"]
    # An address that may answer again is better than a refusal.
    assert ready_hosts(nodes[2:]) == ["203.0.113.3"]
    # It is also better than one that leads nowhere from outside and that clients would keep.
    assert ready_hosts(nodes[1:]) == ["203.0.113.3"]


def test_a_given_host_is_published_in_place_of_what_is_found() -> None:
    """Law: a host given in the manifest is published instead of node addresses."""
    made = cluster(
        listeners=[
            PUBLIC | {"advertisedHost": "mq.example.com"},
            BALANCED | {"advertisedHost": "{service}.mq.example.com"},
        ]
    )
    view = see(made, [])

    assert view.addresses == {
        "public": {"demo-0": "mq.example.com:31001"},
        "lb": {"demo-0": "demo-0.mq.example.com:9095"},
    }
    assert view.bootstrap == {
        "public": "mq.example.com:31000",
        "lb": "demo-nameserver.mq.example.com:9095",
    }


@pytest.mark.parametrize(
    ("ingress", "address"),
    [
        ({"ip": "203.0.113.7"}, "203.0.113.7:9095"),
        ({"hostname": "lb.example.com"}, "lb.example.com:9095"),
        ({"ip": "2001:db8::7"}, "[2001:db8::7]:9095"),
    ],
)
def test_a_balancer_says_its_own_address(ingress: Json, address: str) -> None:
    """Law: a balancer's own address is published; IPv6 is in brackets."""
    view = see(cluster(listeners=[BALANCED]), ingress=ingress)

    assert (view.addresses["lb"], view.bootstrap["lb"]) == ({"demo-0": address}, address)


def test_what_has_no_address_yet_is_named_and_not_reported() -> None:
    """Law: a missing address is named, and none is published meanwhile."""
    made = cluster(groups=2, listeners=[PUBLIC, BALANCED])
    view = see(made, [])
    nothing = outside_view(made, lambda *_: None, NODES, {})

    assert view.addresses == {"public": {}, "lb": {}}
    assert view.bootstrap == {}
    assert view.condition() == ConditionReport(
        "False",
        "AddressMissing",
        "public: no ready node has an address for Service demo-0-public; "
        "public: no ready node has an address for Service demo-1-public; "
        "public: no ready node has an address for Service demo-nameserver-public; "
        "lb: the balancer of Service demo-0-lb has no address yet; "
        "lb: the balancer of Service demo-1-lb has no address yet; and 1 more",
    )
    assert nothing.missing[0].text == "public: Service demo-0-public does not exist yet"


def test_a_node_shows_its_addresses_by_their_types() -> None:
    """Law: of a dual-stack node's addresses of one type the first is published."""
    found = {
        "metadata": {"name": "n"},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "2001:db8::1"},
                {"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "Hostname", "address": "n"},
            ],
            "conditions": [{"type": "Ready", "status": "Unknown"}],
        },
    }

    assert node_facts(found) == NodeFacts("n", (), ("2001:db8::1", "10.0.0.1"), ready=False)


@pytest.mark.parametrize("text", ["", "[]", '{"public": 1}', "{", "[" * 4096])
def test_a_config_map_that_somebody_broke_counts_as_empty(text: str) -> None:
    """Law: a broken ConfigMap counts as empty and is written again."""
    assert published_addresses({"data": {"addresses.json": text}}) == {}
    assert published_addresses(None) == {}
