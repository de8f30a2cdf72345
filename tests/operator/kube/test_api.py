"""Requests to a small API server of our own, by real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from orderlymq_operator.kube.api import IN_CLUSTER, Api
from orderlymq_operator.kube.errors import RetryLaterError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.lister import Lister
from orderlymq_operator.kube.resources import LEASES, MADE, PODS, SERVICES, Json
from orderlymq_operator.kube.watch import ApiServerConnection
from orderlymq_runtime.security.tls import server_context
from tests.operator.kube.apiserver import serving_api
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE
from tests.runtime.certificates import make_authority, make_certificate


def made(name: str) -> Json:
    return {"metadata": {"name": name, "namespace": NAMESPACE}}


async def test_who_has_lost_the_lease_in_the_middle_of_a_reconcile_changes_nothing_more() -> None:
    """Law: an operator that loses its lease during a reconcile changes nothing more, because another one acts by then."""
    server = ObjectServer()
    async with server.serving() as api:
        await api.create(SERVICES, NAMESPACE, made("before"))
        api.acts = lambda: False

        with pytest.raises(RetryLaterError, match="is no longer the leader"):
            await api.create(SERVICES, NAMESPACE, made("after"))
        with pytest.raises(RetryLaterError, match="is no longer the leader"):
            await api.delete(SERVICES, NAMESPACE, "before", uid="uid-1")
        assert server.find(SERVICES, NAMESPACE, "before") is not None
        assert server.find(SERVICES, NAMESPACE, "after") is None
        await api.create(LEASES, NAMESPACE, made("lease"))


class Busy:
    """An API server that answers only requests for the lease until it is released; its client has two connections.

    Attributes:
        begun: requests that a client has begun, without those for the lease.
    """

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.asked = 0
        self.begun = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any request."""
        if f"/{LEASES.plural}" not in request.path:
            self.asked += 1
            await self.released.wait()
        return web.json_response({"items": [], "metadata": {}})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Api]:
        """Serve, and return the operator's client."""
        busy = self

        class Client(ApiClient):
            async def call_api(self, *args: Any, **kwargs: Any) -> Any:
                busy.begun += 1
                return await super().call_api(*args, **kwargs)

        application = web.Application()
        application.router.add_route("*", "/{path:.+}", self.answer)
        async with TestServer(application) as server:
            settings = Configuration(host=str(server.make_url("")).rstrip("/"))
            settings.connection_pool_maxsize = 2
            async with Api(Client(configuration=settings), OperatorMetrics()) as api:
                yield api


async def test_a_slow_api_server_takes_the_lease_from_nobody() -> None:
    """Law: a slow API server does not cost the lease: it waits for no other request,
    and time-outs begin with the connection.
    """
    busy = Busy()
    async with busy.serving() as api, asyncio.timeout(60):
        lists = [asyncio.create_task(api.list(SERVICES, NAMESPACE)) for _ in range(5)]
        while busy.asked < 2:  # noqa: ASYNC110 - what a server is asked signals nothing
            await asyncio.sleep(0)
        found = await api.get(LEASES, NAMESPACE, "lease")
        begun = busy.begun
        busy.released.set()
        answers = await asyncio.gather(*lists)

    assert found is not None
    assert begun == 2
    assert answers == [[]] * 5


async def test_who_has_lost_the_lease_while_it_waited_for_a_connection_changes_nothing() -> None:
    """Law: an operator that loses its lease while it waits for a connection changes nothing."""
    busy = Busy()
    async with busy.serving() as api, asyncio.timeout(60):
        lists = [asyncio.create_task(api.list(SERVICES, NAMESPACE)) for _ in range(2)]
        while busy.asked < 2:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0)
        late = asyncio.create_task(api.create(SERVICES, NAMESPACE, made("late")))
        await asyncio.sleep(0)
        api.acts = lambda: False
        busy.released.set()
        await asyncio.gather(*lists)
        with pytest.raises(RetryLaterError, match="is no longer the leader"):
            await late

    assert busy.asked == 2


async def test_one_reconcile_leaves_connections_to_others() -> None:
    """Law: one owner asks for only some lists at a time, which leaves connections to others; all are read in the end."""
    server, under_way, most = ObjectServer(), 0, 0

    async def count() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1

    server.slow = count
    async with server.serving() as api:
        found = await Lister(api, lambda: 0.0).read("demo", "1", NAMESPACE, "", MADE)

    assert found.keys() == set(MADE)
    assert 0 < most <= 3


async def test_a_reading_that_failed_leaves_no_list_behind() -> None:
    """Law: if a reading fails, its caller hears the first failure only after all its requests have ended."""
    server, released = ObjectServer(), asyncio.Event()

    async def released_only() -> None:
        await released.wait()

    server.slow = released_only
    server.refused[PODS.path(NAMESPACE)] = 503, "etcd is away"
    async with server.serving() as api:
        with pytest.raises(RetryLaterError, match="etcd is away"):
            await Lister(api, lambda: 0.0).read("demo", "1", NAMESPACE, "", [PODS, *MADE])

        left = [each for each in asyncio.all_tasks() if "Lister.read" in repr(each)]
        released.set()

    assert left == []


@pytest.mark.parametrize("text", ["<html>starting</html>", "", "[]", "null"])
async def test_an_answer_of_somebody_else_is_no_answer(text: str) -> None:
    """Law: an answer of a proxy instead of the API server does not end the operator; the request is made again."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text)

    async with serving_api(web.route("*", "/{path:.+}", answer)) as api:
        with pytest.raises(RetryLaterError, match="no API server answered"):
            await api.list(SERVICES, NAMESPACE)
        with pytest.raises(RetryLaterError, match="no API server answered"):
            await api.get(LEASES, NAMESPACE, "lease")


def _use_kubeconfig(
    folder: Path, url: str, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let KUBECONFIG name one API server."""
    monkeypatch.delenv(IN_CLUSTER, raising=False)
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(folder / "config")
    )
    cluster = {"server": url, "certificate-authority": str(authority)}
    (folder / "config").write_bytes(
        orjson.dumps(
            {
                "clusters": [{"name": "one", "cluster": cluster}],
                "users": [{"name": "one", "user": {"token": "token"}}],
                "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
                "current-context": "one",
            }
        )
    )


async def test_a_new_authority_of_the_api_server_is_trusted_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a new authority of the API server is trusted without a restart; an unusable file changes nothing."""
    shown, port = tmp_path / "ca.crt", 0
    api: Api | None = None

    def show(content: bytes) -> None:
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(shown)

    for name in ("former", "next"):
        authority = make_authority(tmp_path / name)
        show(authority.read_bytes())
        server = TestServer(web.Application(), port=port or None)
        await server.start_server(ssl=server_context(make_certificate(authority, "server")))
        port = server.port or 0
        async with server:
            if api is None:
                _use_kubeconfig(tmp_path, f"https://127.0.0.1:{port}", shown, monkeypatch)
                api = await Api.connect(OperatorMetrics())
            assert await api.get(SERVICES, NAMESPACE, "absent") is None
            show(b"half a certificate")
            assert await api.get(SERVICES, NAMESPACE, "absent") is None
    assert api is not None
    async with api:
        pass


async def test_an_authority_without_key_usage_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: an authority without key usage is trusted, as by kubectl, although Python 3.13 is stricter."""
    authority = make_authority(tmp_path)
    server = TestServer(web.Application())
    await server.start_server(ssl=server_context(make_certificate(authority, "server")))
    url = f"https://127.0.0.1:{server.port}"
    _use_kubeconfig(tmp_path, url, authority, monkeypatch)
    context = ApiServerConnection(server=url, ca_path=authority).as_ssl_context()
    async with server, aiohttp.ClientSession() as session:
        async with session.get(url, ssl=context) as answer:
            assert answer.status == 404
        async with await Api.connect(OperatorMetrics()) as api:
            assert await api.get(SERVICES, NAMESPACE, "absent") is None


async def test_the_time_of_the_api_server_is_that_of_its_last_answer() -> None:
    """Law: the API server's time is that of its last answer; it is unknown before."""
    async with ObjectServer().serving() as api:
        before = api.server_time()
        await api.list(PODS, NAMESPACE)
        said = api.server_time()

    assert before is None
    assert said is not None
    assert abs(said - datetime.now(UTC)) < timedelta(seconds=10)
