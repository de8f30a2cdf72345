"""A token protects the HTTP pages: `/status` shows members, addresses and terms, `/metrics` topics and groups."""

import json
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from orderlymq_broker import settings as broker_settings_file
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_operator.brokers.status import PageAccess, read_status
from orderlymq_operator.kube.objects.cluster import kube_revision, name_server_revision
from orderlymq_operator.kube.objects.pods import (
    access_by,
    broker_pod,
    broker_settings,
    http_scheme,
    name_server_pod,
    name_server_settings,
)
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_runtime.pages.server import HealthServer
from orderlymq_runtime.pages.token import PageGuard, PageToken, PageTokenError
from orderlymq_runtime.security.tls import ServerTls, TlsFiles, TlsSettings, client_context
from orderlymq_runtime.settingsfile import ServerSettings, SettingsError, read_settings
from tests.operator.kube.observe.test_credentials import Secrets, access, secrets
from tests.operator.kube.samples import IMAGE, cluster
from tests.runtime.certificates import make_authority, make_certificate
from tests.waiting import turns

__all__ = ["access", "secrets"]  # fixtures

TOKEN = "0123456789abcdef"
GUARDED: dict[str, Any] = {
    "tls": {"mode": "Permissive", "secretName": "pair"},
    "security": {"pagesToken": {"secretName": "pages"}},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificate(make_authority(tmp_path_factory.mktemp("tls")), "server")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@asynccontextmanager
async def pages(guard: PageGuard) -> AsyncIterator[str]:
    server = HealthServer(
        "127.0.0.1",
        0,
        ready=lambda: (True, "ready"),
        status=lambda: {"role": "leader"},
        registry=CollectorRegistry(),
        guard=guard,
    )
    host, port = await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.close()


async def ask(
    url: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=tls if tls is not None else True) as answer,
    ):
        await answer.read()
        return answer.status


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (None, 401),
        ("", 401),
        (TOKEN, 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN}0", 401),
        ("Bearer \u00e4\u00f6", 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
    ],
)
async def test_status_and_metrics_need_the_token(
    token: Path, authorization: str | None, expected: int
) -> None:
    """The token is needed for the whole page and for the form that Prometheus requests; probes need none."""
    headers = {} if authorization is None else {"Authorization": authorization}
    async with pages(PageGuard(token=PageToken(token))) as address:
        found = {
            page: await ask(f"http://{address}/{page}", headers)
            for page in ("status", "metrics", "healthz", "readyz")
        }

    assert found == {"status": expected, "metrics": expected, "healthz": 200, "readyz": 200}


def test_a_token_that_came_in_the_clear_opens_nothing(token: Path) -> None:
    """The network may have read such a token; the refusal says how to send the next one."""
    guard = PageToken(token)

    found = guard.objection(f"Bearer {TOKEN}", is_protected=False)

    assert found == (403, "this page requires a token; use https\n")
    assert guard.objection(f"Bearer {TOKEN}", is_protected=True) is None


async def test_without_a_token_all_pages_are_open() -> None:
    """Without a token in the settings, all pages are open, as before."""
    async with pages(PageGuard()) as address:
        assert await ask(f"http://{address}/status") == 200


def test_a_new_token_counts_from_the_next_request(token: Path) -> None:
    """A Secret is replaced without a restart; an unusable file leaves the former token valid."""
    guard = PageToken(token)
    token.write_text("short")
    os.utime(token, ns=(1, 1))
    assert guard.is_in(f"Bearer {TOKEN}")
    token.write_text("fedcba9876543210")
    os.utime(token, ns=(2, 2))

    assert not guard.is_in(f"Bearer {TOKEN}")
    assert guard.is_in("Bearer fedcba9876543210")
    token.unlink()
    assert guard.is_in("Bearer fedcba9876543210")


def test_a_token_in_the_clear_is_refused_at_the_start(token: Path, files: TlsFiles) -> None:
    """The error names the settings that help."""
    plain = ServerSettings(pages_token_file=token)
    tls = TlsSettings("permissive", files.certificate, files.key)

    with pytest.raises(PageTokenError, match=r"unencrypted; set tls\.mode"):
        plain.pages("0.0.0.0")
    assert plain.pages("127.0.0.1").token is not None
    assert ServerSettings(pages_token_file=token, tls=tls).pages("0.0.0.0").token is not None
    assert ServerSettings().pages("0.0.0.0").token is None


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"short", "holds 5 bytes")])
def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(PageTokenError, match=f"pages_token_file {path}.*{said}|{said}"):
        PageToken(path)


async def test_the_operator_shows_the_token_to_its_own_cluster_alone(
    token: Path, files: TlsFiles, tmp_path: Path
) -> None:
    """The operator sends the token only over TLS, to a certificate of the Cluster's own authority."""
    heard: list[str] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    guard = PageGuard(ServerTls(files, "permissive"), PageToken(token))
    own = client_context(TlsFiles(ca=files.ca), verify_host=False)
    foreign = client_context(TlsFiles(ca=make_authority(tmp_path, "other")), verify_host=False)
    async with pages(guard) as address, aiohttp.ClientSession() as session:
        url = f"https://{address}/status"
        assert await ask(url, {"Authorization": f"Bearer {TOKEN}"}, own) == 200
        assert await read_status(session, url, PageAccess("https", TOKEN, foreign)) is None

    application = web.Application()
    application.router.add_get("/status", listen)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as session:
        await read_status(session, f"http://{host}:{port}", PageAccess("http", TOKEN))
    await turns()
    await runner.cleanup()
    assert heard == [""]


# -- Kubernetes ------------------------------------------------------------------------------------


def test_pods_get_the_token_as_a_file() -> None:
    """Pods of brokers and name servers both get the token, and are asked by https, so that nobody on the network reads it."""
    guarded, usual = cluster(**GUARDED), cluster(tls=GUARDED["tls"])
    settings = [
        broker_settings(guarded, "demo-0", 1, address="a", first=1, replicas=1),
        name_server_settings(guarded),
    ]
    pods = [
        broker_pod(guarded, "demo-0", image=IMAGE, pull_policy="Always", revision="r"),
        name_server_pod(guarded, image=IMAGE, pull_policy="Always", revision="r"),
    ]

    assert {each["pages_token_file"] for each in settings} == {"/etc/orderlymq-pages/token"}
    for pod in pods:
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "pages-token"]
        assert volume["secret"] == {
            "secretName": "pages",
            "defaultMode": 0o440,
            "items": [{"key": "token", "path": "token"}],
        }
    assert (http_scheme(guarded), http_scheme(usual)) == ("https", "http")


def test_only_a_change_of_the_token_s_place_restarts_pods() -> None:
    """A new token in the same place restarts no pod; Clusters without a token keep their revisions."""
    guarded, usual = cluster(**GUARDED), cluster(tls=GUARDED["tls"])

    assert kube_revision(guarded, IMAGE) != kube_revision(usual, IMAGE)
    assert name_server_revision(guarded, IMAGE) != name_server_revision(usual, IMAGE)


@pytest.mark.parametrize(
    "tls",
    [
        {"mode": "Disabled"},
        {"mode": "Enforcing", "certificateFile": "a.pem", "keyFile": "a.key"},
    ],
)
def test_a_token_needs_tls(tls: dict[str, str]) -> None:
    """Certificate files are refused, too: `orderlymq up` uses them on loopback, and has no Secrets."""
    spec = {**GUARDED, "tls": tls}

    with pytest.raises(ValidationError, match=r"pagesToken needs tls\.mode"):
        Cluster.model_validate({"metadata": {"name": "demo"}, "spec": spec})


async def test_a_missing_token_is_reported(
    access: Credentials, secrets: Secrets, files: TlsFiles
) -> None:
    """Without this report the pods would wait for the Secret without any notice."""
    assert files.ca is not None
    assert files.certificate is not None
    assert files.key is not None
    guarded = cluster(**GUARDED)
    secrets.texts["pair"] = {
        "tls.crt": files.certificate.read_text(),
        "tls.key": files.key.read_text(),
        "ca.crt": files.ca.read_text(),
    }

    assert "Secret 'pages'" in await access.missing_secret(guarded)
    secrets.texts["pages"] = {"token": "short"}
    assert "16 to 1024 bytes under 'token'" in await access.missing_secret(guarded)
    secrets.texts["pages"] = {"token": f"{TOKEN}\n"}
    assert await access.missing_secret(guarded) == ""
    found = (await access.pages(guarded))[access_by(guarded)]
    assert (found.scheme, found.token, found.tls is not None) == ("https", TOKEN, True)
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    "load", [broker_settings_file.load, partial(read_settings, kind=NameServerSettings)]
)
def test_settings_that_cannot_guard_their_pages_are_refused(
    tmp_path: Path, load: Callable[[Path], object]
) -> None:
    """The error is one sentence that begins with the file, as for every other setting."""
    missing = {"pages_token_file": str(tmp_path / "missing")}
    http = {"host": "127.0.0.1", "port": 1}
    own = {"cluster": "C", "group": "g", "node_id": 1, "peers": {"1": http}, "address": http}
    is_broker = load is broker_settings_file.load
    file = tmp_path / "settings.json"
    file.write_text(
        json.dumps({**missing, "http": http, **({**own, "data_dir": "d"} if is_broker else {})})
    )

    with pytest.raises(SettingsError, match=f"{file}: pages_token_file .*missing: No such file"):
        load(file)
