"""The console's port with TLS: which connections it keeps, and which certificate it shows."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import orderlymq_console.app
from orderlymq_console.app import Console
from orderlymq_console.settings import Account, ConsoleSettings
from tests.runtime.certificates import make_authority, make_certificate


@asynccontextmanager
async def _console(folder: Path) -> AsyncIterator[Console]:
    """Run a console with certificate tls.crt and tls.key of *folder*, of the authority ca.pem there."""
    found = make_certificate(make_authority(folder), "one")
    assert found.certificate is not None
    assert found.key is not None
    settings = ConsoleSettings(
        name_servers="127.0.0.1:1",
        port=0,
        accounts=(Account("ann", "act", "a" * 24),),
        certificate=found.certificate.rename(folder / "tls.crt"),
        key=found.key.rename(folder / "tls.key"),
    )
    async with Console(settings) as console:
        yield console


async def _page(console: Console, ca: Path) -> tuple[object, bytes]:
    """Return the certificate's serial number and the answer to a probe."""
    context = ssl.create_default_context(cafile=ca)
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(console), ssl=context)
    serial = writer.get_extra_info("peercert")["serialNumber"]
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return serial, answer.partition(b"\r\n")[0]


def _port(console: Console) -> int:
    return int(console.url.rpartition(":")[2])


async def test_a_renewed_certificate_is_shown_from_the_next_handshake_on(tmp_path: Path) -> None:
    """Law: a renewed certificate is shown from the next handshake, without a restart; cert-manager replaces the files."""
    ca = tmp_path / "ca.pem"
    async with _console(tmp_path) as console:
        former, _ = await _page(console, ca)
        renewed = make_certificate(ca, "two")
        assert renewed.certificate is not None
        assert renewed.key is not None
        renewed.certificate.replace(tmp_path / "tls.crt")
        renewed.key.replace(tmp_path / "tls.key")

        serial, status = await _page(console, ca)

    assert status == b"HTTP/1.1 200 OK"
    assert serial != former


async def test_callers_that_say_nothing_give_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Law: with TLS the number of kept connections is limited as without it, including those before their handshake."""
    monkeypatch.setattr(orderlymq_console.app, "CONNECTIONS_MAX", 3)
    async with _console(tmp_path) as console:
        silent = [await asyncio.open_connection("127.0.0.1", _port(console)) for _ in range(4)]

        async with asyncio.timeout(5):
            assert await silent[0][0].read() == b""
        _, status = await _page(console, tmp_path / "ca.pem")
        for _, writer in silent:
            writer.close()

    assert status == b"HTTP/1.1 200 OK"
