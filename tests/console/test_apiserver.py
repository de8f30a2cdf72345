"""The API server as a pod uses it: its address, the token, and how much of an answer is read."""

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_console.apiserver import ApiServer, ApiServerSilent
from orderlymq_runtime.security.tls import server_context
from tests.runtime.certificates import make_authority, make_certificate


def test_a_pod_knows_its_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a pod finds its API server by Kubernetes' variables, for IPv4 and IPv6."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")

    assert ApiServer.in_pod()._url == "https://[fd00::1]:6443"


async def test_the_token_is_read_again_and_an_answer_has_a_limit(tmp_path: Path) -> None:
    """Law: the token is read again, since Kubernetes replaces it; an answer is read only up to a limit."""
    tokens = []

    async def handle(request: web.Request) -> web.Response:
        tokens.append(request.headers["Authorization"])
        return web.Response(body=b"x" * 1_000_000)

    application = web.Application()
    application.router.add_get("/long", handle)
    async with TestServer(application) as server:
        asked = ApiServer(str(server.make_url("")).rstrip("/"), tmp_path)
        with pytest.raises(ApiServerSilent, match="cannot be asked"):
            await asked.get("/long", size_max=10)  # There is no token yet.
        for token in ("one", "two"):
            (tmp_path / "token").write_text(f"{token}\n")
            status, body = await asked.get("/long", size_max=1_000)
            assert (status, 1_000 < len(body) < 1_000_000) == (200, True)

    assert tokens == ["Bearer one", "Bearer two"]


async def test_an_authority_without_key_usage_is_trusted(tmp_path: Path) -> None:
    """Law: an authority without key usage is trusted, as by Kubernetes' own clients, although Python 3.13 is stricter."""
    authority = make_authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes(authority.read_bytes())
    (tmp_path / "token").write_text("one")
    server = TestServer(web.Application())
    await server.start_server(ssl=server_context(make_certificate(authority, "server")))
    async with server:
        status, _ = await ApiServer(f"https://127.0.0.1:{server.port}", tmp_path).get(
            "/", size_max=9
        )

    assert status == 404
