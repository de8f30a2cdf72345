"""
A real API server with the chart's definitions and rights: only etcd and kube-apiserver, both on the PATH.

Tests with it are marked `needs_api_server` and skipped if the programs are missing.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest
from bench.apiload import OPERATOR, Kube, api_server, install
from kubernetes.aio.client import ApiClient, Configuration

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics

needs_api_server = pytest.mark.skipif(
    not (shutil.which("etcd") and shutil.which("kube-apiserver")),
    reason="etcd and kube-apiserver are not on the PATH",
)


@contextmanager
def real_api_server(folder: Path) -> Iterator[str]:
    """Run it with Services of both address families; yield its address."""
    with api_server(folder, services="10.96.0.0/16,fd00:96::/112") as address:

        async def begin() -> None:
            async with administrator(address) as kube:
                await kube.ready()
                await install(kube)

        asyncio.run(begin())
        yield address


@asynccontextmanager
async def administrator(address: str) -> AsyncIterator[Kube]:
    """Yield a client that may do everything."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        yield Kube(address, session)


@asynccontextmanager
async def operator(address: str) -> AsyncIterator[Api]:
    """Yield a client with the operator's rights from the chart."""
    settings = Configuration(host=address)
    settings.verify_ssl = False
    settings.api_key = {"BearerToken": OPERATOR}
    settings.api_key_prefix = {"BearerToken": "Bearer"}
    async with Api(ApiClient(configuration=settings), OperatorMetrics()) as api:
        yield api
