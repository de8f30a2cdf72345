"""The routes of listeners at a real API server with Gateway API's own definition of TLSRoute."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench.apiload import NAMESPACE

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import RetryLaterError
from orderlymq_operator.kube.objects import drift
from orderlymq_operator.kube.objects.cluster import listener_objects, route_objects
from orderlymq_operator.kube.observe.gateway import GatewayApi
from orderlymq_operator.kube.resources import CLUSTERS, SERVICES, TLS_ROUTES, Json, Resource
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.realapi import (
    administrator,
    needs_api_server,
    operator,
    real_api_server,
)
from tests.operator.kube.samples import cluster, environment

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROUTED: dict[str, Any] = {
    "name": "sni",
    "type": "TLSRoute",
    "port": 9096,
    "tls": {"secretName": "sni-tls"},
    "advertisedHost": "{service}.mq.example.com",
    "gateway": {"name": "edge", "namespace": "ingress", "sectionName": "passthrough"},
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), needs_api_server]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_api_server(tmp_path_factory.mktemp("api")) as found:
        yield found


def routed(**changes: Any) -> Cluster:
    return cluster(groups=2, listeners=[ROUTED | changes])


async def test_routes_are_made_with_the_charts_rights_and_stay_as_they_are(address: str) -> None:
    """Law: routes are made with the chart's rights, and the API server's defaults are no drift."""
    made = routed()
    async with operator(address) as api, administrator(address) as kube:
        before = await GatewayApi(api).routes()
        definition = yaml.safe_load((Path(__file__).parent / "tlsroutes.yaml").read_text())
        await kube.call("POST", DEFINITIONS, definition)
        gateway = GatewayApi(api)
        while (served := await gateway.routes()) is None:
            gateway = GatewayApi(api)
        wanted = route_objects(made, environment(made, routes=served))
        for each in drift.changes(wanted, []):
            await _make(api, each)
        live = await api.list(served, NAMESPACE)
        last = live[-1]["metadata"]
        await api.delete(served, NAMESPACE, last["name"], uid=last["uid"])

        assert before is None
        assert served == TLS_ROUTES
        assert len(live) == 3
        assert drift.changes(wanted, live) == []
        assert len(await api.list(served, NAMESPACE)) == 2


async def test_a_service_changes_its_type_and_gives_its_node_port_back(address: str) -> None:
    """Law: an edit of a Service's `type` works without deleting it by hand, and gives the node port back."""
    types = []
    async with operator(address) as api:
        for kind in ("NodePort", "TLSRoute", "LoadBalancer"):
            made = routed(type=kind) if kind == "TLSRoute" else routed(type=kind, gateway=None)
            wanted = listener_objects(made)
            for each in drift.changes(wanted, await api.list(SERVICES, NAMESPACE)):
                await api.apply(each)
            live = await api.list(SERVICES, NAMESPACE)
            assert drift.changes(wanted, live) == []
            found = next(each["spec"] for each in live if each["metadata"]["name"] == "demo-0-sni")
            types.append((found["type"], "nodePort" in found["ports"][0]))

    assert types == [("NodePort", True), ("ClusterIP", False), ("LoadBalancer", True)]


async def test_a_service_gets_addresses_of_both_families_and_gives_one_back(address: str) -> None:
    """Law: so does an edit of `ipFamilyPolicy`."""
    found = []
    async with operator(address) as api:
        for policy in ("SingleStack", "RequireDualStack", "SingleStack", "PreferDualStack"):
            wanted = listener_objects(routed(name="dual", ipFamilyPolicy=policy))
            for each in drift.changes(wanted, await api.list(SERVICES, NAMESPACE)):
                await api.apply(each)
            live = await api.list(SERVICES, NAMESPACE)
            assert drift.changes(wanted, live) == []
            spec = next(each["spec"] for each in live if each["metadata"]["name"] == "demo-0-dual")
            found.append([":" in each for each in spec["clusterIPs"]])

    assert found == [[False], [False, True], [False], [False, True]]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gateway": None}, "type TLSRoute needs gateway"),
        ({"type": "NodePort"}, "other types must not have one"),
        ({"tls": None}, "type TLSRoute needs tls"),
        ({"advertisedHost": None}, "type TLSRoute needs advertisedHost"),
        ({"advertisedHost": "mq.example.com"}, "must contain {service}"),
    ],
)
async def test_the_api_server_refuses_what_the_model_refuses(
    address: str, changes: dict[str, Any], problem: str
) -> None:
    """Law: the API server refuses a listener with the same sentence as the model."""
    listener = {key: value for key, value in (ROUTED | changes).items() if value is not None}
    async with administrator(address) as kube:
        with pytest.raises(RuntimeError, match=problem):
            await kube.call("POST", place(CLUSTERS), custom_resource(listener))


async def test_the_api_server_takes_a_listener_by_a_gateway(address: str) -> None:
    """Law: the API server accepts a listener by gateway, with the model's defaults."""
    async with administrator(address) as kube:
        found = await kube.call("POST", place(CLUSTERS), custom_resource(ROUTED))

    assert found["spec"]["listeners"][0]["gateway"]["port"] == 443


async def _make(api: Api, made: Json) -> None:
    """Create an object as soon as the API server serves its definition; until then it asks to try again."""
    while True:
        try:
            await api.make(made)
        except RetryLaterError:
            await asyncio.sleep(0.1)
        else:
            return


def place(resource: Resource) -> str:
    return resource.path(NAMESPACE)


def custom_resource(listener: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": {"name": "routed"},
        "spec": {"listeners": [listener]},
    }
