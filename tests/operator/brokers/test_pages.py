"""Pages of programs in pods: whatever they answer, the operator reads little and follows no redirect."""

import gzip

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_operator.brokers.pages import SIZE_MAX, read_page
from orderlymq_operator.brokers.status import read_status

PAGE = b'{"role": "leader", "term": 7, "leader": 1}'
# More than aiohttp buffers of an answer that nobody reads.
ENDLESS = b" " * (4 * SIZE_MAX)
COMPRESSED = gzip.compress(ENDLESS + PAGE)


async def serve(request: web.Request) -> web.StreamResponse:
    match request.path:
        case "/whole/status":
            # The parts come in separate packets.
            parts = web.StreamResponse()
            await parts.prepare(request)
            for byte in PAGE:
                await parts.write(bytes([byte]))
            return parts
        case "/endless/status":
            return web.Response(body=ENDLESS + PAGE)
        case "/compressed/status":
            assert request.headers["Accept-Encoding"] == "identity"
            return web.Response(body=COMPRESSED, headers={"Content-Encoding": "gzip"})
        case _:
            raise web.HTTPFound("/whole/status")


@pytest.mark.parametrize("path", ["whole", "endless", "compressed", "elsewhere"])
async def test_no_answer_of_a_pod_takes_much_or_leads_elsewhere(path: str) -> None:
    """Law: of any answer at most 1 MiB and a packet is read, undecoded and from the asked address only."""
    application = web.Application()
    application.router.add_get("/{rest:.*}", serve)

    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        url = str(server.make_url(f"/{path}"))
        page = await read_page(session, f"{url}/status", 1.0)
        status = await read_status(session, url)

    assert len(page) <= 2 * SIZE_MAX
    assert (page == PAGE, status is not None) == (
        (True, True) if path == "whole" else (False, False)
    )
    if path == "compressed":
        assert page == COMPRESSED


async def test_findings_about_messages_do_not_hide_a_leader() -> None:
    """Law: the operator asks for the brief page, which is short however many findings a leader has."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=PAGE if "brief" in request.query else ENDLESS + PAGE)

    application = web.Application()
    application.router.add_get("/status", answer)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        status = await read_status(session, str(server.make_url("")).rstrip("/"))

    assert status is not None
    assert status.leads
