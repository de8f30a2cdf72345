"""One port serves plain connections and TLS, by policy; certificates change without a restart."""

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import uvloop
from prometheus_client import CollectorRegistry

from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.pages.server import HealthServer
from orderlymq_runtime.pages.token import PageGuard
from orderlymq_runtime.remoting import closelog
from orderlymq_runtime.remoting.client import ConnectFailed, RemotingClient, RemotingError
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from orderlymq_runtime.security.tls import (
    ClientAuth,
    ServerTls,
    TlsError,
    TlsFiles,
    TlsMode,
    TlsSettings,
    client_context,
    following_client,
    server_context,
)
from tests.runtime.certificates import make_authority, make_certificate

BODY_SIZE = 3_000_000


class Echo:
    """Answers each request with its body."""

    def connection_made(self, conn: Connection) -> None:
        pass

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        conn.send(command.reply(body=command.body))

    def connection_lost(self, conn: Connection) -> None:
        pass


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificate(make_authority(tmp_path_factory.mktemp("tls")), "server")


@asynccontextmanager
async def serving(
    files: TlsFiles, mode: TlsMode = "permissive", auth: ClientAuth = "none"
) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(Echo(), tls=ServerTls(files, mode, auth))
    host, port = await server.listen("127.0.0.1", 0)
    try:
        yield server, f"{host}:{port}"
    finally:
        await server.close()


async def ask(address: str, tls: ssl.SSLContext | None, body: bytes = b"hello") -> bytes:
    client = RemotingClient(tls=None if tls is None else lambda: tls)
    try:
        return (await client.invoke(address, request(1, body=body), 5)).body
    finally:
        await client.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_one_port_serves_both(run: Callable[..., object], files: TlsFiles) -> None:
    """Law: one port serves plain clients, TLS clients that trust the CA, and those that trust anybody,
    on both event loops.
    """

    async def main() -> None:
        big = os.urandom(BODY_SIZE)
        trusting = client_context(TlsFiles(ca=files.ca))
        async with serving(files) as (server, address):
            for tls in (None, trusting, client_context(TlsFiles())):
                assert await ask(address, tls, big) == big
            assert server.traffic.errors["tls"] == 0

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_large_requests_with_large_answers_pass_each_other(
    run: Callable[..., object], files: TlsFiles
) -> None:
    """Law: large requests and large answers at the same time do not block each other under TLS."""
    bodies = [bytes([n]) * BODY_SIZE for n in range(16)]
    trusting = client_context(TlsFiles(ca=files.ca))

    async def scenario() -> None:
        async with serving(files) as (_, address):
            client = RemotingClient(tls=lambda: trusting)
            calls = (client.invoke(address, request(1, body=body), 10) for body in bodies)
            answers = await asyncio.gather(*calls)
            await client.close()

        assert [answer.body for answer in answers] == bodies

    run(scenario())


async def test_what_the_policy_forbids_is_closed(files: TlsFiles) -> None:
    """Law: Enforcing closes plain connections and Disabled closes TLS ones, while others are served."""
    async with serving(files, "enforcing") as (server, address):
        with pytest.raises(RemotingError):
            await ask(address, None)
        assert await ask(address, client_context(TlsFiles())) == b"hello"
        assert server.traffic.errors["tls"] == 1
    async with serving(files, "disabled") as (_, address):
        assert await ask(address, None) == b"hello"
        with pytest.raises(RemotingError):
            await ask(address, client_context(TlsFiles()))


async def test_strangers_do_not_fill_the_log(
    files: TlsFiles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: failed handshakes have a limited number of log lines per period, but all are counted."""
    monkeypatch.setattr(closelog, "CLOSES_PERIOD_S", 3_600.0)
    caplog.set_level(logging.INFO)
    count = closelog.CLOSES_LOGGED_MAX + 5
    async with serving(files, "enforcing") as (server, address):
        host, _, port = address.partition(":")
        for _ in range(count):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"a plain greeting")
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

        assert server.traffic.errors["tls"] == count
    assert caplog.text.count("a plain connection") == closelog.CLOSES_LOGGED_MAX + 1


async def test_a_client_checks_who_serves(files: TlsFiles, tmp_path: Path) -> None:
    """Law: a client refuses a server with another authority or another name than the certificate's."""
    foreign = client_context(TlsFiles(ca=make_authority(tmp_path, "other")))
    async with serving(files) as (_, address):
        with pytest.raises(ConnectFailed, match=r"(?i)certificate.verify.failed"):
            await ask(address, foreign)


async def test_an_expired_certificate_is_refused_by_that_word(tmp_path: Path) -> None:
    """Law: an expired certificate is refused with just that reason; a client that trusts every server is still served."""
    expired = make_certificate(make_authority(tmp_path), "server", days=-1)
    async with serving(expired, "permissive") as (_, address):
        with pytest.raises(ConnectFailed, match=r"(?i)certificate has expired"):
            await ask(address, client_context(TlsFiles(ca=expired.ca)))
        assert await ask(address, None) == b"hello"


async def test_clients_may_have_to_show_a_certificate(files: TlsFiles, tmp_path: Path) -> None:
    """Law: with mutual TLS a client without a certificate of the CA is not served."""
    assert files.ca is not None
    own = make_certificate(files.ca, "client")
    async with serving(files, "enforcing", "required") as (_, address):
        assert await ask(address, client_context(own)) == b"hello"
        with pytest.raises(RemotingError):
            await ask(address, client_context(TlsFiles(ca=files.ca)))


async def test_a_new_certificate_counts_from_the_next_handshake(tmp_path: Path) -> None:
    """Law: a new certificate is used from the next handshake, without a restart; a broken file changes nothing."""
    first = make_certificate(make_authority(tmp_path / "a"), "server")
    second = make_certificate(make_authority(tmp_path / "b"), "server")
    assert first.certificate is not None
    assert first.key is not None
    assert second.certificate is not None
    assert second.key is not None
    async with serving(first, "enforcing") as (_, address):
        assert await ask(address, client_context(TlsFiles(ca=first.ca))) == b"hello"
        first.certificate.write_text("no certificate")
        assert await ask(address, client_context(TlsFiles(ca=first.ca))) == b"hello"
        first.key.write_bytes(second.key.read_bytes())
        first.certificate.write_bytes(second.certificate.read_bytes())
        assert await ask(address, client_context(TlsFiles(ca=second.ca))) == b"hello"


async def test_a_caller_reads_its_renewed_files_for_the_next_connection(tmp_path: Path) -> None:
    """Law: a client reads its renewed certificate and authority at its next connection."""
    ca = make_authority(tmp_path)
    server, own = make_certificate(ca, "server"), make_certificate(ca, "own", days=-1)
    tls = TlsSettings("enforcing", own.certificate, own.key, ca)
    client = RemotingClient(tls=tls.peer_contexts())
    async with serving(server, "enforcing", "required") as (_, address):
        with pytest.raises(RemotingError):
            await client.invoke(address, request(1), 5)
        make_certificate(ca, "own")
        assert (await client.invoke(address, request(1, body=b"renewed"), 5)).body == b"renewed"
    ca_of_before = ca.read_bytes()
    other = make_authority(tmp_path / "other")
    async with serving(make_certificate(other, "server"), "enforcing") as (_, address):
        with pytest.raises(RemotingError, match="certificate verify failed"):
            await client.invoke(address, request(1), 5)
        ca.write_bytes(ca_of_before + other.read_bytes())
        assert (await client.invoke(address, request(1, body=b"trusted"), 5)).body == b"trusted"
    await client.close()


async def test_half_a_handshake_disturbs_nobody(files: TlsFiles) -> None:
    """Law: incomplete handshakes (garbage, silence, an immediate close) do not disturb other clients."""
    async with serving(files, "enforcing") as (_, address):
        host, port = address.split(":")
        streams = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        streams[0][1].write(b"\x16garbage that is no handshake" * 10)
        streams[1][1].close()

        assert await ask(address, client_context(TlsFiles())) == b"hello"
        assert await streams[0][0].read() is not None
        for _, writer in streams:
            writer.close()


async def test_closing_delivers_what_was_sent(files: TlsFiles) -> None:
    """Law: a closing server delivers its last answers, under TLS too."""
    big = os.urandom(BODY_SIZE)
    server = RemotingServer(Echo(), tls=ServerTls(files, "enforcing"))
    host, port = await server.listen("127.0.0.1", 0)
    client = RemotingClient(tls=following_client(TlsFiles()))
    assert (await client.invoke(f"{host}:{port}", request(1, body=big), 5)).body == big

    await asyncio.wait_for(server.close(), 5)

    assert server.connections == []
    await client.close()


def test_files_that_cannot_be_used_are_named(files: TlsFiles, tmp_path: Path) -> None:
    """Law: unusable TLS files are named at the start, with what to do."""
    with pytest.raises(TlsError, match="needs a certificate"):
        server_context(TlsFiles())
    with pytest.raises(TlsError, match=r"missing\.pem"):
        server_context(TlsFiles(tmp_path / "missing.pem", files.key))
    with pytest.raises(TlsError, match="only with a CA"):
        server_context(TlsFiles(files.certificate, files.key), "required")


async def test_the_http_pages_follow_the_policy(files: TlsFiles) -> None:
    """Law: HTTP pages follow the same policy: plain and TLS on one port, or TLS alone if enforced."""
    trusting = client_context(TlsFiles(ca=files.ca))
    for mode, plain_is_served in (("permissive", True), ("enforcing", False)):
        server = HealthServer(
            "127.0.0.1",
            0,
            ready=lambda: (True, "ready"),
            status=dict,
            registry=CollectorRegistry(),
            guard=PageGuard(
                TlsSettings(mode, files.certificate, files.key, files.ca, "required").pages()  # type: ignore[arg-type] # one of two literals
            ),
        )
        host, port = await server.start()
        try:
            assert await page(f"https://{host}:{port}/readyz", trusting) == "ready\n"
            if plain_is_served:
                assert await page(f"http://{host}:{port}/readyz") == "ready\n"
            else:
                with pytest.raises(aiohttp.ClientError):
                    await page(f"http://{host}:{port}/readyz")
        finally:
            await server.close()


async def page(url: str, context: ssl.SSLContext | None = None) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=context if context is not None else True) as answer,
    ):
        return await answer.text()
