"""The HTTP pages of a process."""

import asyncio
import json
import re
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orderlymq_runtime.pages.server import HealthServer
from orderlymq_runtime.pages.trafficmetrics import TrafficCollector
from orderlymq_runtime.remoting.server import PortInUseError
from orderlymq_runtime.remoting.traffic import Traffic
from tests.runtime.pages.turns import Turns


async def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    # A connection per request: a pooled one would outlive the test.
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(f"http://{address[0]}:{address[1]}{path}") as response,
    ):
        return response.status, await response.text()


async def test_the_pages_show_health_readiness_metrics_and_status() -> None:
    """Law: a process has four pages (health, readiness, metrics, status) with codes that probes understand."""
    traffic = Traffic(connections=3, frames_in=7)
    traffic.errors["frame"] += 2
    registry = CollectorRegistry()
    registry.register(TrafficCollector({"server": traffic}))
    ready: list[tuple[bool, str]] = [(False, "no leader is known")]
    server = HealthServer(
        "127.0.0.1",
        0,
        ready=lambda: ready[-1],
        status=lambda: {"role": "leader", "replicas": {1: "active"}},
        registry=registry,
    )
    address = await server.start()
    try:
        assert await get(address, "/healthz") == (200, "ok\n")
        assert await get(address, "/readyz") == (503, "no leader is known\n")
        ready.append((True, "ready"))
        assert await get(address, "/readyz") == (200, "ready\n")
        code, text = await get(address, "/status")
        assert (code, json.loads(text)) == (200, {"role": "leader", "replicas": {"1": "active"}})
        code, text = await get(address, "/metrics")
        assert code == 200
        assert 'orderlymq_remoting_connections{role="server"} 3.0' in text
        assert 'orderlymq_remoting_frames_total{direction="in",role="server"} 7.0' in text
        assert 'orderlymq_remoting_errors_total{kind="frame",role="server"} 2.0' in text
        assert (await get(address, "/nowhere"))[0] == 404
    finally:
        await server.close()
        await server.close()

    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection(*address)


async def test_a_status_may_have_a_brief_page() -> None:
    """Law: `/status?brief` has only the part whose length clients cannot influence;
    without such a part it is the whole status.
    """
    whole, brief = {"role": "leader", "rows": ["x" * 100]}, {"role": "leader"}
    for given, expected in ((lambda: brief, brief), (None, whole)):
        server = HealthServer(
            "127.0.0.1",
            0,
            ready=lambda: (True, "ready"),
            status=lambda: whole,
            brief=given,
            registry=CollectorRegistry(),
        )
        address = await server.start()
        try:
            assert json.loads((await get(address, "/status?brief"))[1]) == expected
            assert json.loads((await get(address, "/status"))[1]) == whole
        finally:
            await server.close()


async def test_a_page_that_fails_says_why_and_the_server_goes_on() -> None:
    """Law: a status page that fails is a 500 with its reason, and the server goes on."""

    def status() -> dict[str, object]:
        raise RuntimeError("no tables")

    server = HealthServer(
        "127.0.0.1", 0, ready=lambda: (True, "ready"), status=status, registry=CollectorRegistry()
    )
    address = await server.start()
    try:
        assert await get(address, "/status") == (500, "RuntimeError: no tables\n")
        assert await get(address, "/healthz") == (200, "ok\n")
    finally:
        await server.close()


async def test_however_many_ask_at_once_the_loop_turns_between_two_pages() -> None:
    """Law: with many requests at once the loop answers one page per iteration, and answers all."""
    turns = Turns()

    def status() -> dict[str, object]:
        turns.note()
        return {}

    server = HealthServer(
        "127.0.0.1", 0, ready=lambda: (True, "ready"), status=status, registry=CollectorRegistry()
    )
    address = await server.start()
    try:
        turns.start()
        callers = [await asyncio.open_connection(*address) for _ in range(8)]
        for _, writer in callers:
            writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
        for reader, writer in callers:
            for _ in range(4):
                await reader.readuntil(b"{}\n")
            writer.close()
    finally:
        await server.close()

    assert len(turns.noted) == len(set(turns.noted)) == 32


async def test_the_loop_turns_between_two_metrics() -> None:
    """Law: a long metrics page is sent in parts with loop turns between them, complete and in order."""
    turns = Turns()

    class Wide(Collector):
        def collect(self) -> Iterator[Metric]:
            for number in range(5):
                turns.note()
                yield GaugeMetricFamily(f"wide_{number}", "text", value=number)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Wide())
    turns.noted.clear()
    server = HealthServer(
        "127.0.0.1", 0, ready=lambda: (True, "ready"), status=dict, registry=registry
    )
    address = await server.start()
    try:
        turns.start()
        _, text = await get(address, "/metrics")
    finally:
        await server.close()

    assert len(turns.noted) == len(set(turns.noted)) == 5
    assert re.findall(r"^wide_\d", text, re.MULTILINE) == [f"wide_{each}" for each in range(5)]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_probe_waits_for_no_scrape(path: str) -> None:
    """Law: a probe is answered while a long metrics page is made; otherwise a busy broker would seem dead."""
    began = asyncio.Event()

    class Wide(Collector):
        def collect(self) -> Iterator[Metric]:
            for number in range(1_000):
                began.set()
                yield GaugeMetricFamily(f"wide_{number}", "text", value=number)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Wide())
    began.clear()
    server = HealthServer(
        "127.0.0.1", 0, ready=lambda: (True, "ready"), status=dict, registry=registry
    )
    address = await server.start()
    try:
        scrape = asyncio.create_task(get(address, "/metrics"))
        await began.wait()
        code, _ = await get(address, path)
        assert (code, scrape.done()) == (200, False)
        assert "wide_999 " in (await scrape)[1]
    finally:
        await server.close()


async def test_a_port_in_use_is_named() -> None:
    """Law: the error names the port and the next step."""

    def make(port: int) -> HealthServer:
        return HealthServer(
            "127.0.0.1",
            port,
            ready=lambda: (True, "ready"),
            status=dict,
            registry=CollectorRegistry(),
        )

    first = make(0)
    _, port = await first.start()
    try:
        with pytest.raises(PortInUseError, match=f"port {port} of 127.0.0.1 is in use"):
            await make(port).start()
    finally:
        await first.close()
