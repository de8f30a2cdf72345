"""The leader's label on its pod, with a small API server of the test: resource versions, conflicts, outages, real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_broker.server import podlabel
from orderlymq_broker.server.podlabel import LEADER, ROLE, TERM, ApiServer, PodLabel
from orderlymq_broker.settings import PodSettings
from orderlymq_runtime.security.tls import server_context
from tests.runtime.certificates import make_authority, make_certificate
from tests.waiting import turns, until


class Pods:
    """The pods of a namespace over HTTP; the first *failures* requests fail, and *denied* methods are refused."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.failures = 0
        self.denied: frozenset[str] = frozenset()
        self.asked = 0
        self.writes = 0
        self.url = ""

    def add(self, name: str, *, term: int | None = None) -> None:
        labels = {} if term is None else {ROLE: LEADER}
        notes = {} if term is None else {TERM: str(term)}
        self.pods[name] = {
            "name": name,
            "resourceVersion": "1",
            "labels": labels,
            "annotations": notes,
        }

    def leaders(self) -> list[str]:
        return sorted(name for name, pod in self.pods.items() if ROLE in pod["labels"])

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            return web.json_response({"message": "etcd is away"}, status=500)
        if request.method in self.denied:
            return web.json_response({"message": "pods are forbidden"}, status=403)
        if request.headers["Authorization"] != "Bearer token":
            return web.json_response({"message": "who?"}, status=401)
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return web.json_response({"message": "not found"}, status=404)
        if request.method == "PATCH":
            change = orjson.loads(await request.read())["metadata"]
            if change.pop("resourceVersion", pod["resourceVersion"]) != pod["resourceVersion"]:
                return web.json_response({"message": "has changed"}, status=409)
            self.writes += 1
            for part, values in change.items():
                merged = {**pod[part], **values}
                pod[part] = {key: value for key, value in merged.items() if value is not None}
            pod["resourceVersion"] = str(int(pod["resourceVersion"]) + 1)
        return web.json_response({"metadata": pod})


@pytest.fixture
async def pods() -> AsyncIterator[Pods]:
    found = Pods()
    application = web.Application()
    application.router.add_route("*", "/api/v1/namespaces/shop/pods/{name}", found.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await turns()
    await runner.cleanup()


def _label(pods: Pods, folder: Path, term: int, name: str = "demo-0-0") -> PodLabel:
    (folder / "token").write_text("token\n", encoding="utf-8")
    siblings = [other for other in ("demo-0-0", "demo-0-1", "demo-0-2") if other != name]
    settings = PodSettings(namespace="shop", name=name, siblings=siblings)
    return PodLabel(settings, ApiServer(pods.url, folder), lambda: term)


async def test_a_new_leader_takes_the_label_from_its_predecessor(
    pods: Pods, tmp_path: Path
) -> None:
    """Law: a new leader removes the label from its predecessor, whose machine may be gone."""
    pods.add("demo-0-0")
    pods.add("demo-0-1", term=3)
    label = _label(pods, tmp_path, 4)

    label.serving_began()
    await label.wait()
    await label.close()

    assert pods.leaders() == ["demo-0-0"]
    assert pods.pods["demo-0-0"]["annotations"] == {TERM: "4"}


async def test_a_late_leader_does_not_strip_its_successor(pods: Pods, tmp_path: Path) -> None:
    """Law: a late leader with a lower term does not remove the label of its successor."""
    pods.add("demo-0-0")
    pods.add("demo-0-1", term=5)
    label = _label(pods, tmp_path, 4)

    label.serving_began()
    await label.wait()
    await label.close()

    assert "demo-0-1" in pods.leaders()


@pytest.mark.parametrize("term", ["", "²", "-5", "1_0", "9" * 5_000])
async def test_a_note_that_is_no_term_keeps_nobody(pods: Pods, tmp_path: Path, term: str) -> None:
    """Law: an annotation that is no term does not stop the labelling."""
    pods.add("demo-0-0")
    pods.add("demo-0-1", term=5)
    pods.pods["demo-0-1"]["annotations"] = {TERM: term}
    label = _label(pods, tmp_path, 4)

    label.serving_began()
    await label.wait()
    await label.close()

    assert pods.leaders() == ["demo-0-0"]


async def test_an_api_server_that_is_away_is_asked_again(pods: Pods, tmp_path: Path) -> None:
    """Law: while the API server fails, the requests are repeated; a sibling pod that does not exist is skipped."""
    pods.add("demo-0-0")
    pods.failures = 3
    label = _label(pods, tmp_path, 1)

    label.serving_began()
    async with asyncio.timeout(10):
        await label.wait()
    await label.close()

    assert (pods.leaders(), pods.failures) == (["demo-0-0"], 0)


@pytest.mark.parametrize("denied", [{"PATCH"}, {"GET", "PATCH"}])
async def test_a_leader_whose_pod_is_refused_the_label_says_so(
    pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: set[str]
) -> None:
    """Law: a leader whose label is refused is not ready until it is set, because clients do not find it."""
    monkeypatch.setattr(podlabel, "COMPLAIN_AFTER_S", 0.1)
    monkeypatch.setattr(podlabel, "FAREWELL_S", 0.0)
    pods.add("demo-0-0")
    label = _label(pods, tmp_path, 4)
    label.serving_ended()  # As at the start of the process.
    await label.wait()
    pods.denied = frozenset(denied)

    label.serving_began()
    assert label.complaint == ""
    await until(lambda: "pods are forbidden" in label.complaint)
    label.serving_ended()
    assert label.complaint == ""
    label.serving_began()
    await until(lambda: "pods are forbidden" in label.complaint)
    pods.denied = frozenset()
    await label.wait()
    await label.close()

    assert (label.complaint, pods.leaders()) == ("", ["demo-0-0"])


@pytest.mark.parametrize("case", ["has the label", "unknown", "silence"])
async def test_a_leader_that_may_have_the_label_says_nothing(
    pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Law: if the API server does not answer, the leader stays ready, because a Service would drop it otherwise."""
    monkeypatch.setattr(podlabel, "COMPLAIN_AFTER_S", 0.0)
    monkeypatch.setattr(podlabel, "FAREWELL_S", 0.0)
    pods.add("demo-0-0", term=3 if case == "has the label" else None)
    label = _label(pods, tmp_path, 4)
    if case == "silence":
        label.serving_ended()
        await label.wait()
        pods.failures = 100
    else:
        pods.denied = frozenset({"PATCH"} if case == "has the label" else {"GET", "PATCH"})

    label.serving_began()
    asked = pods.asked
    await until(lambda: pods.asked > asked + 4)
    await label.close()

    assert label.complaint == ""


async def test_who_serves_no_longer_gives_the_label_up(
    pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a leader that ends removes the label a little later, without a write if a successor already did or it never
    had it.
    """
    monkeypatch.setattr(podlabel, "FAREWELL_S", 0.0)
    pods.add("demo-0-0", term=2)
    label = _label(pods, tmp_path, 2)

    label.serving_ended()
    await label.wait()
    assert (pods.leaders(), pods.writes) == ([], 1)
    label.serving_ended()
    await label.wait()
    await label.close()

    assert pods.writes == 1


async def test_leading_again_overtakes_giving_up(
    pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: only the last request counts: leading again cancels the removal."""
    monkeypatch.setattr(podlabel, "FAREWELL_S", 0.05)
    pods.add("demo-0-0")
    label = _label(pods, tmp_path, 2)

    for _ in range(3):
        label.serving_began()
        label.serving_ended()
    label.serving_began()
    await label.wait()
    await asyncio.sleep(0.1)
    await label.close()

    assert pods.leaders() == ["demo-0-0"]


async def test_an_authority_without_key_usage_is_trusted(tmp_path: Path) -> None:
    """Law: an authority without key usage is trusted, as by Kubernetes' clients; Python 3.13 alone would refuse it."""
    authority = make_authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes(authority.read_bytes())
    (tmp_path / "token").write_text("token")
    server = TestServer(web.Application())
    await server.start_server(ssl=server_context(make_certificate(authority, "server")))
    asked = ApiServer(f"https://127.0.0.1:{server.port}", tmp_path)
    async with server:
        assert await asked.pod("demo", "broker-a-0") is None
        await asked.close()


async def test_a_new_authority_of_the_api_server_is_trusted_without_a_restart(
    tmp_path: Path,
) -> None:
    """Law: the API server's authority file is read again, so that a new one is trusted without a restart."""
    (tmp_path / "token").write_text("token")
    port = 0
    asked: ApiServer | None = None
    for name in ("former", "next"):
        authority = make_authority(tmp_path / name)
        (tmp_path / "new").write_bytes(authority.read_bytes())
        (tmp_path / "new").replace(tmp_path / "ca.crt")
        server = TestServer(web.Application(), port=port or None)
        await server.start_server(ssl=server_context(make_certificate(authority, "server")))
        port = server.port or 0
        asked = asked or ApiServer(f"https://127.0.0.1:{port}", tmp_path)

        async with server:
            assert await asked.pod("demo", "broker-a-0") is None
    assert asked is not None
    await asked.close()
