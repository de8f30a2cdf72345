"""The pod behind a holder's address: named if one list has it, otherwise unknown with a reason; no page waits for it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq.admin.client import AdminClient, QueueLock
from orderlymq_console.apiserver import ApiServer
from orderlymq_console.cluster import PODS_WAIT_S, ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.models import Pod
from orderlymq_console.pages.blocked import blocked
from orderlymq_console.pages.groups import group
from orderlymq_console.parameters import Parameters
from orderlymq_console.pods import KEPT_S, PodNames, Pods, PodsUnread
from orderlymq_protocol.body.clients import Connection, ConsumerConnection
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import OffsetWrapper
from tests.console.pages.test_unknown import words
from tests.console.readings import ROW, Readings, told

COLUMNS = ("Name", "Ready", "Status", "Restarts", "Age", "IP", "Node")
QUEUE = MessageQueue("orders", "broker-a", 0)


def table(*pods: tuple[str, str], rest: str = "") -> dict[str, Any]:
    """Return pods as an API server answers when it is asked for a table."""
    return {
        "kind": "Table",
        "metadata": {"continue": rest},
        "columnDefinitions": [{"name": each, "type": "string"} for each in COLUMNS],
        "rows": [{"cells": [name, "1/1", "Running", 0, "2d", ip, "n"]} for name, ip in pods],
    }


class Server:
    """An API server with an answer that the test gives."""

    def __init__(self) -> None:
        self.status = 200
        self.body: Any = table(("shop-7f", "10.0.0.1"), ("a", "10.0.0.9"), ("b", "10.0.0.9"))
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        assert request.headers["Accept"].startswith("application/json;as=Table")
        # A pod on its node's network shares its address with all such pods there, in any namespace.
        assert request.query["fieldSelector"] == "status.phase=Running,spec.hostNetwork=false"
        assert request.query["includeObject"] == "None"
        await self.answers.wait()
        return web.json_response(self.body, status=self.status)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Server, Pods]]:
    served = Server()
    application = web.Application()
    application.router.add_get("/api/v1/namespaces/shop/pods", served.handle)
    (folder / "token").write_text("token")
    async with TestServer(application) as server:
        yield served, Pods("shop", ApiServer(str(server.make_url("")).rstrip("/"), folder))
        served.answers.set()


@pytest.mark.parametrize(
    ("address", "name", "unknown"),
    [
        ("10.0.0.1:40000", "shop-7f", ""),
        ("[::ffff:10.0.0.1]:40000", "shop-7f", ""),
        ("10.0.0.9:1", "", "2 pods have this address"),
        (
            "10.0.0.2:1",
            "",
            "no pod of shop has this address as its own; pods of other namespaces, and pods on the network of a node, "
            "are not listed",
        ),
        ("", None, ""),
    ],
)
async def test_an_address_names_its_pod_or_nobody(
    tmp_path: Path, address: str, name: str | None, unknown: str
) -> None:
    """Law: an address names its only pod, or nobody: not if several have it, or it may be another namespace's or a node's."""
    async with serving(tmp_path) as (_, pods):
        names = PodNames(await pods.read(), "", 2.04)

    expected = None if name is None else Pod(name=name, unknown=unknown, age_seconds=2)
    assert names.at(address) == expected


async def test_more_pods_than_are_listed_are_said(tmp_path: Path) -> None:
    """Law: if there are more pods than are listed, an unknown address says so."""
    async with serving(tmp_path) as (server, pods):
        server.body = table(("a", "10.0.0.1"), rest="more")
        found = PodNames(await pods.read(), "", 0).at("10.0.0.2:1")

    assert found is not None
    assert "more than 2,000 pods" in found.unknown


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (403, {}, r"may not list the pods of shop \(403\)"),
        (500, {}, r"refuses to list pods \(500\)"),
        (200, [], "cannot be read"),
        (200, {"columnDefinitions": [], "rows": []}, "cannot be read"),
        (200, {**table(), "rows": [{"cells": ["a"]}]}, "cannot be read"),
    ],
)
async def test_a_refusal_is_said(tmp_path: Path, status: int, body: Any, said: str) -> None:
    async with serving(tmp_path) as (server, pods):
        server.status, server.body = status, body
        with pytest.raises(PodsUnread, match=said):
            await pods.read()


async def test_no_page_waits_for_the_api_server(tmp_path: Path) -> None:
    """Law: no page waits for the API server: a young list is used, and asked for once for all viewers."""
    now_s = 100.0
    collector = Collector(clock=lambda: now_s)
    async with serving(tmp_path) as (server, pods):
        reader = ClusterReader(AdminClient("127.0.0.1:1"), collector, None, pods)
        found = [await reader.pods() for _ in range(10)]
        assert {each is not None and each.listed is not None for each in found} == {True}
        assert server.asked == 1

        server.answers.clear()
        now_s += KEPT_S - 1
        began = time.monotonic()
        kept = await reader.pods()
        assert time.monotonic() - began < 20 * PODS_WAIT_S
        assert kept is not None
        assert (kept.listed is not None, kept.age_s) == (True, KEPT_S - 1)

        now_s += 2
        late = await reader.pods()
        assert late == PodNames(None, "the API server has not answered yet", 0)
        await collector.close()


async def test_pages_name_the_pod_beside_holder_and_member(tmp_path: Path) -> None:
    """Law: pages name the pod beside holder and member; outside of Kubernetes no pod is mentioned."""
    reader = Readings(told({**ROW, "holder": "alice"}))
    lock = QueueLock(QUEUE, "alice", "10.0.0.1:5", 1, 30_000, 1)
    reader.answers = {
        "groups": {"shipping": SubscriptionGroupConfig("shipping", consume_message_orderly=True)},
        "connections": [ConsumerConnection((Connection("alice", "10.0.0.1:5", "PYTHON", 1),))],
        "progress": {QUEUE: OffsetWrapper(10, 7)},
        "locks": {QUEUE: lock},
        "lanes": LaneTable(),
        "parked": [],
    }
    shipping = Parameters({"group": "shipping"})
    without = await group(reader, shipping)
    async with serving(tmp_path) as (server, pods):
        reader.use_pods(pods)
        page, standing = await group(reader, shipping), await blocked(reader, shipping)
        server.status = 403
        reader.use_pods(pods)
        refused = await group(reader, shipping)
    await reader.collector.close()

    rows = (page.queues[0].pod, page.members[0].pod, standing.rows[0].holder_pod)
    assert [each.name for each in rows if each is not None] == ["shop-7f"] * 3
    assert words(page).count("shop-7f") == 3
    assert "pod" not in words(without)
    assert refused.members[0].pod is not None
    assert "unknown</span>: the console may not list the pods of shop (403)" in words(refused)
