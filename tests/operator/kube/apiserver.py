"""A small fake API server that speaks real HTTP and answers as a test says."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from tests.waiting import turns


@asynccontextmanager
async def serving_api(*routes: web.RouteDef) -> AsyncIterator[Api]:
    """Serve *routes* and nothing else; yield the client by which an operator reaches them."""
    application = web.Application()
    application.add_routes([*routes, web.route("*", "/{path:.*}", absent)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    with pytest.MonkeyPatch.context() as patch:
        # The system's authorities take 30 ms to read, and nothing here speaks TLS.
        patch.setenv("SSL_CERT_FILE", os.devnull)
        client = ApiClient(configuration=settings)
    try:
        async with Api(client, OperatorMetrics()) as api:
            yield api
    finally:
        await turns()
        await runner.cleanup()


async def absent(request: web.Request) -> web.Response:
    """Answer as for an object that does not exist."""
    return web.json_response({"message": "not found"}, status=404)
