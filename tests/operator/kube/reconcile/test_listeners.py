"""Further listeners of a Cluster, from the manifest to the status, with an API server."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from orderlymq_operator.kube.certificates.authority import make_authority
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.resources import (
    CLUSTERS,
    CONFIG_MAPS,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    TLS_ROUTES,
    Json,
)
from tests.operator.kube.samples import NAMESPACE
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

PUBLIC = {"name": "public", "type": "NodePort", "port": 9094, "nodePort": 31_000}
ROUTED = {
    "name": "sni",
    "type": "TLSRoute",
    "port": 9096,
    "tls": {"secretName": "sni-tls"},
    "advertisedHost": "{service}.mq.example.com",
    "gateway": {"name": "edge"},
}
BALANCED = {"name": "lb", "type": "LoadBalancer", "port": 9095}


def node(name: str, address: str) -> Json:
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr, listeners=[PUBLIC]) as made:
        made.server.put(NODES, node("worker", "10.0.0.1"))
        yield made


async def settle(small: SmallCluster) -> None:
    """Reconcile until nothing is written any more."""
    for _ in range(10):
        small.server.asked.clear()
        await small.reconciler.reconcile(KEY)
        if not small.server.writes():
            return
    await small.reconciler.reconcile(KEY)
    raise AssertionError(f"a reconcile writes again and again: {small.server.writes()}")


def told(small: SmallCluster) -> Json:
    config = small.server.find(CONFIG_MAPS, NAMESPACE, "demo-nameserver")
    assert config is not None
    found: Json = json.loads(config["data"]["addresses.json"])
    return found


def status(small: SmallCluster) -> Json:
    found = small.server.find(CLUSTERS, *KEY)
    assert found is not None
    return {each["name"]: each.get("bootstrap") for each in found["status"].get("listeners", [])}


async def test_name_servers_get_the_addresses_and_the_status_says_what_clients_need(
    small: SmallCluster,
) -> None:
    """Law: one reconcile gives the same addresses to the name servers and to the status."""
    await settle(small)

    assert told(small) == {"public": {"demo-0": "10.0.0.1:31001"}}
    assert status(small) == {"public": "10.0.0.1:31000"}
    assert small.condition("ListenersReady")["reason"] == "AddressesKnown"
    pod = small.server.find(PODS, NAMESPACE, "demo-nameserver-0")
    assert pod is not None
    assert names.ANNOTATION_ADDRESSES in pod["metadata"]["annotations"]


async def test_a_lost_node_moves_the_address_and_restarts_nothing(small: SmallCluster) -> None:
    """Law: if a node is lost, the status names another ready node, and no pod is replaced."""
    await settle(small)
    small.server.put(NODES, node("other", "10.0.0.2"))
    lost = node("worker", "10.0.0.1")
    lost["status"]["conditions"] = []
    small.server.put(NODES, lost)
    for each in (lost, node("other", "10.0.0.2")):
        assert small.reconciler.nodes.shown(each, gone=False)
    assert small.reconciler.seen.on_nodes() == [KEY]

    await small.reconciler.reconcile(KEY)
    assert told(small) == {"public": {"demo-0": "10.0.0.2:31001"}}
    assert not [each for each in small.server.writes() if each[1].endswith("/eviction")]
    assert not small.reconciler.nodes.shown(node("other", "10.0.0.2"), gone=False)


async def test_a_balancer_without_an_address_is_waited_for(small: SmallCluster) -> None:
    """Law: a load balancer without an address is waited for, by name in the condition,
    and published as soon as it has one.
    """
    small.change(listeners=[BALANCED])
    delay_s = await small.reconciler.reconcile(KEY)

    assert told(small) == {"lb": {}}
    assert status(small) == {"lb": None}
    assert delay_s is not None
    await small.reconciler.reconcile(KEY)
    report = small.condition("ListenersReady")
    assert (report["status"], report["reason"]) == ("False", "AddressMissing")
    assert "Service demo-0-lb" in report["message"]
    for name, address in (("demo-0-lb", "203.0.113.1"), ("demo-nameserver-lb", "203.0.113.2")):
        service = small.server.find(SERVICES, NAMESPACE, name)
        assert service is not None
        service["status"] = {"loadBalancer": {"ingress": [{"ip": address}]}}
        small.server.put(SERVICES, service)

    await settle(small)
    assert told(small) == {"lb": {"demo-0": "203.0.113.1:9095"}}
    assert status(small) == {"lb": "203.0.113.2:9095"}
    assert small.condition("ListenersReady")["status"] == "True"


async def test_what_no_listener_needs_any_more_goes(small: SmallCluster) -> None:
    """Law: Services that no listener needs are deleted; each would keep a port of every node."""
    await settle(small)
    assert small.server.find(SERVICES, NAMESPACE, "demo-0-public") is not None
    small.change(listeners=[])
    await settle(small)

    left = [path for path in small.server.objects if "/services/" in path]
    assert sorted(path.rpartition("/")[2] for path in left) == [
        "demo-0",
        "demo-0-replicas",
        "demo-nameserver",
    ]
    assert status(small) == {}
    assert small.condition("ListenersReady")["reason"] == "NoListeners"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([31_000], [31_001]),
        ([31_001], [31_000]),
        ([31_000, 31_010], [31_010, 31_000]),
        ([31_000, 31_002, 31_004], [31_002, 31_004, 31_000]),
        ([31_000], [None, 31_000]),
    ],
)
async def test_node_ports_move_in_one_reconcile(
    small: SmallCluster, before: list[int], after: list[int | None]
) -> None:
    """Law: node ports can be exchanged between Services in one reconcile, without a refusal because one is still in use."""

    def listeners(ports: list[Any]) -> list[Json]:
        found = [{**PUBLIC, "port": 9094 + 2 * i, "name": f"l{i}"} for i in range(len(ports))]
        return [one | {"nodePort": port} for one, port in zip(found, ports, strict=True) if port]

    small.change(listeners=listeners(before))
    await settle(small)
    small.change(listeners=listeners(after))
    await small.reconciler.reconcile(KEY)

    for i, port in enumerate(after):
        for name, wanted in ((f"demo-nameserver-l{i}", port), (f"demo-0-l{i}", port and port + 1)):
            found = small.server.find(SERVICES, NAMESPACE, name)
            assert (found and found["spec"]["ports"][0]["nodePort"]) == wanted
    assert not small.condition("Ready")["reason"].endswith("Refused")


async def test_a_listener_waits_for_its_key_pair(small: SmallCluster) -> None:
    """Law: a listener waits for its key pair, because pods could not start without it."""
    small.change(listeners=[PUBLIC | {"tls": {"secretName": "public-tls"}}])
    await small.reconciler.reconcile(KEY)

    ready = small.condition("Ready")
    assert ready["reason"] == "SecretMissing"
    assert "'public-tls', which listener public of spec.listeners names" in ready["message"]


async def test_a_paused_cluster_goes_on_saying_how_it_is_reached(small: SmallCluster) -> None:
    """Law: a pause changes no published address."""
    await settle(small)
    small.annotate(pause="true")
    await small.reconciler.reconcile(KEY)

    assert status(small) == {"public": "10.0.0.1:31000"}


# -- by a gateway --------------------------------------------------------------------------------


def route(small: SmallCluster, name: str, version: str = "v1") -> Json | None:
    served = replace(TLS_ROUTES, api_version=f"gateway.networking.k8s.io/{version}")
    return small.server.find(served, NAMESPACE, name)


def judge(small: SmallCluster, status: str, reason: str, **facts: Any) -> None:
    """Let the gateway accept or refuse each route."""
    for name in ("demo-0-sni", "demo-nameserver-sni"):
        found = route(small, name)
        assert found is not None
        told = {"type": "Accepted", "status": status, "reason": reason, "message": "", **facts}
        parent = {"parentRef": {"name": "edge"}, "conditions": [told]}
        small.server.put(TLS_ROUTES, {**found, "status": {"parents": [parent]}})


@pytest.fixture
async def routed(small: SmallCluster) -> SmallCluster:
    """A Cluster that is reached by a gateway, which has not yet looked at the routes."""
    made = make_authority("demo", datetime.now(UTC))
    pair = {"tls.crt": made.certificate, "tls.key": made.key}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in pair.items()}
    meta = {"name": "sni-tls", "namespace": NAMESPACE}
    small.server.put(SECRETS, {"kind": SECRETS.kind, "metadata": meta, "data": data})
    small.change(listeners=[ROUTED])
    return small


async def test_a_gateway_is_published_as_soon_as_it_has_accepted_the_routes(
    routed: SmallCluster,
) -> None:
    """Law: addresses of a gateway are published only after it has accepted the routes."""
    await routed.reconciler.reconcile(KEY)
    await settle(routed)
    report = routed.condition("ListenersReady")
    assert (report["status"], report["reason"]) == ("False", "RouteNotAccepted")
    assert "sni: TLSRoute demo-0-sni: no gateway has accepted it yet" in report["message"]
    assert (told(routed), status(routed)) == ({"sni": {}}, {"sni": None})

    judge(routed, "False", "NotAllowedByListeners", message="not from here")
    await settle(routed)
    assert "NotAllowedByListeners: not from here" in routed.condition("ListenersReady")["message"]

    judge(routed, "True", "Accepted")
    await settle(routed)
    assert told(routed) == {"sni": {"demo-0": "demo-0.mq.example.com:443"}}
    assert status(routed) == {"sni": "demo-nameserver.mq.example.com:443"}
    assert routed.condition("ListenersReady")["status"] == "True"


async def test_an_address_by_a_gateway_stays_while_the_gateway_is_replaced(
    routed: SmallCluster,
) -> None:
    """Law: while a gateway is replaced its address stays, and the condition says what is wrong."""
    await routed.reconciler.reconcile(KEY)
    judge(routed, "True", "Accepted")
    await settle(routed)
    judge(routed, "False", "NoMatchingParent")
    await settle(routed)

    assert routed.condition("ListenersReady")["reason"] == "RouteNotAccepted"
    assert told(routed) == {"sni": {"demo-0": "demo-0.mq.example.com:443"}}
    # A gateway's answer about another generation of a route does not count.
    judge(routed, "True", "Accepted", observedGeneration=77)
    await settle(routed)
    assert routed.condition("ListenersReady")["reason"] == "RouteNotAccepted"


async def test_without_gateway_api_the_listener_is_refused_by_name(routed: SmallCluster) -> None:
    """Law: without Gateway API the listener is refused by name and the rest works;
    routes follow when the definitions come.
    """
    routed.server.routes = ""
    await settle(routed)
    report = routed.condition("ListenersReady")
    assert (report["status"], report["reason"]) == ("False", "GatewayApiMissing")
    assert report["message"].startswith("sni: the API server has no TLSRoute; install Gateway API")
    assert report["message"].count("install Gateway API") == 1
    assert routed.server.find(SERVICES, NAMESPACE, "demo-0-sni") is not None
    assert status(routed) == {"sni": None}

    routed.server.routes = "v1alpha3"
    await settle(routed)
    assert route(routed, "demo-0-sni", "v1alpha3") is None
    routed.now[0] += 60
    await routed.reconciler.reconcile(KEY)
    assert route(routed, "demo-0-sni", "v1alpha3") is not None


@pytest.mark.parametrize("after", [[], [{**PUBLIC, "name": "sni"}]])
async def test_routes_go_with_their_listener(routed: SmallCluster, after: list[Json]) -> None:
    """Law: routes are deleted with their listener; they would lead clients to a wrong port."""
    await routed.reconciler.reconcile(KEY)
    judge(routed, "True", "Accepted")
    await settle(routed)
    assert route(routed, "demo-0-sni") is not None
    routed.change(listeners=after)
    await settle(routed)

    assert [path for path in routed.server.objects if "/tlsroutes/" in path] == []
    service = routed.server.find(SERVICES, NAMESPACE, "demo-0-sni")
    assert (service and service["spec"]["type"]) == (after[0]["type"] if after else None)


@pytest.mark.parametrize("after", [[], [{**PUBLIC, "name": "sni"}]])
async def test_a_route_that_may_not_go_yet_goes_later(
    routed: SmallCluster, after: list[Json]
) -> None:
    """Law: a route whose deletion was refused is deleted later, even by a new operator that knows only the Cluster's
    status.
    """
    await routed.reconciler.reconcile(KEY)
    judge(routed, "True", "Accepted")
    await settle(routed)
    routed.server.refused[f"{TLS_ROUTES.path(NAMESPACE)}/"] = (500, "the webhook does not answer")
    routed.change(listeners=after)
    for _ in range(4):
        await routed.reconciler.reconcile(KEY)
    assert route(routed, "demo-0-sni") is not None
    assert routed.condition("Ready")["reason"] != "Ready"

    routed.server.refused.clear()
    await settle(routed)

    assert [path for path in routed.server.objects if "/tlsroutes/" in path] == []
    assert list(status(routed)) == [each["name"] for each in after]


async def test_a_route_that_somebody_takes_away_comes_back_at_the_resync(
    routed: SmallCluster,
) -> None:
    """Law: a route that somebody deletes comes back at the next resync; routes are not watched, so it reads them."""
    await routed.reconciler.reconcile(KEY)
    judge(routed, "True", "Accepted")
    await settle(routed)
    await routed.reconciler.reconcile(KEY)
    assert [each for each in routed.server.asked if "/tlsroutes" in each[1]] == [
        ("GET", TLS_ROUTES.path(NAMESPACE))
    ]
    routed.server.drop(TLS_ROUTES, NAMESPACE, "demo-0-sni")
    await routed.reconciler.reconcile(KEY)

    assert route(routed, "demo-0-sni") is not None


async def test_a_cluster_without_such_a_listener_asks_for_no_routes(small: SmallCluster) -> None:
    """Law: a Cluster without such a listener never asks for routes, and needs no right for it."""
    small.server.routes = ""
    await settle(small)
    small.server.asked.clear()
    await small.reconciler.reconcile(KEY)

    assert [each for each in small.server.asked if "gateway" in each[1]] == []
