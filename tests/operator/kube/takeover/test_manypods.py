"""Many pods end at the same time, most without a consumer; HTTP and remoting are real."""

import asyncio

import pytest
from aiohttp import web

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.takeover.clients import Target
from orderlymq_operator.kube.takeover.handover import Takeover
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.process.supervisor import end_tasks
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.kube.apiserver import serving_api
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, killing, pod
from tests.operator.kube.takeover.leaders import (
    CLIENT,
    NOBODY,
    OUT_OF_SERVICE_NODE,
    Holder,
    Survivor,
    end_others,
    taking_over,
)
from tests.operator.scripted import Answer, serving


async def test_heartbeats_of_a_node_cost_nothing_whatever_taints_it_has() -> None:
    """Law: heartbeats of a tainted node cost nothing; a dedicated pool always has its taint, and its pods live."""
    server = ObjectServer()
    tainted = {**OUT_OF_SERVICE_NODE, "spec": {"taints": [{"key": "dedicated", "value": "batch"}]}}
    async with server.serving() as api:
        takeover = Takeover(api, OperatorMetrics(), list, lambda: True)
        for number in range(100):
            takeover.pod_shown(pod(f"app-{number}", uid=f"{number}"), gone=False)
        for node in (OUT_OF_SERVICE_NODE, tainted, tainted):
            takeover.node_shown(node)
        await end_tasks(takeover._checks.values())
        server.asked.clear()
        takeover.node_shown(tainted)
        takeover.pod_shown(pod("app-7", uid="7"), gone=False)

        assert not takeover._checks
    assert server.asked == []


async def test_a_lost_machine_with_many_pods_leaves_connections_to_others() -> None:
    """Law: the pods of a lost machine are looked up some at a time, so connections stay free,
    and each is looked up in the end.
    """
    under_way = most = 0
    names = set()

    async def pod_there(request: web.Request) -> web.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1
        names.add(request.match_info["name"])
        return web.json_response(pod(request.match_info["name"]))

    answers: dict[int, Answer] = {RequestCode.ORDERLYMQ_LOCK_TABLE: Survivor().locks}
    async with (
        serving_api(web.get("/api/v1/namespaces/{namespace}/pods/{name}", pod_there)) as api,
        asyncio.timeout(60),
        taking_over(api, answers) as takeover,
    ):
        for number in range(50):
            takeover.pod_shown(pod(f"app-{number}", uid=f"{number}"), gone=False)
        takeover.node_shown(OUT_OF_SERVICE_NODE)
        while len(names) < 51:  # noqa: ASYNC110 - what a server is asked signals nothing
            await asyncio.sleep(0.02)

    assert 0 < most <= 4


async def test_pods_without_consumers_cost_some_requests_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: pods without consumers share a few requests; a large Job fills no connections and asks not once per group."""
    monkeypatch.setattr("orderlymq_operator.kube.takeover.handover._SURE_S", 0.1)
    server, client = ObjectServer(), RemotingClient()
    async with (
        asyncio.timeout(60),
        server.serving() as api,
        serving(NOBODY) as (scripted, address),
    ):
        target = Target((NAMESPACE, "demo"), Admin(client), (address,), True)
        takeover = Takeover(api, OperatorMetrics(), lambda: [target], lambda: True)
        ended = [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]
        for number in range(200):
            place = {"uid": f"{number}", "podIP": f"10.244.7.{number}"}
            takeover.pod_shown(pod(f"job-{number}", **place), gone=False)
            made = pod(f"job-{number}", **place, phase="Succeeded", containerStatuses=ended)
            takeover.pod_shown(made, gone=False)
        assert len(takeover._checks) == 200
        await asyncio.gather(*takeover._checks.values())
    await client.close()

    assert len(server.asked) < 20
    assert {(code, *ext) for code, ext, _ in scripted.asked} == {(code,) for code in NOBODY}
    assert len(scripted.asked) < 40


async def test_a_consumer_that_ends_among_many_pods_waits_behind_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a consumer that ends among many pods is handled first, because its client is known; it waits for no broker."""
    monkeypatch.setattr("orderlymq_operator.kube.takeover.handover.BIND_S", 0.05)
    leader, asked = Holder(), list[str]()

    async def node_there(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": "worker"}, "spec": {}})

    async def pod_there(request: web.Request) -> web.Response:
        asked.append(request.match_info["name"])
        raise web.HTTPNotFound

    async def events_there(request: web.Request) -> web.Response:
        return web.json_response({"items": [killing()], "metadata": {}})

    def locks(request: RemotingCommand) -> RemotingCommand | None:
        return leader.locks(request) if leader.connected or asked else None

    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    async with (
        asyncio.timeout(20),
        serving_api(
            web.get("/api/v1/nodes/{name}", node_there),
            web.get("/api/v1/namespaces/{namespace}/pods/{name}", pod_there),
            web.get("/api/v1/namespaces/{namespace}/events", events_there),
        ) as api,
        taking_over(api, answers) as takeover,
    ):
        running = asyncio.create_task(takeover.run())
        await leader.several_looks()
        await end_tasks([running])
        leader.connected = False

        end_others(takeover, 100)
        takeover.pod_shown(pod(), gone=True)

        while not leader.buried:  # noqa: ASYNC110 - the leader signals it to nobody
            await asyncio.sleep(0.01)
    assert leader.buried == [CLIENT]
    assert set(asked) == {"consumer"}
