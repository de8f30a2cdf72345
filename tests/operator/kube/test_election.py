"""The Lease stands in a small API server of our own, with resource versions and conflicts; HTTP is real."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.election import LEASE_S, NAME, Election
from orderlymq_operator.kube.metrics import OperatorMetrics


class Leases:
    """One Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.writes = 0

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            if self.lease is None:
                return web.json_response({"message": "not found"}, status=404)
            return web.json_response(self.lease)
        made = orjson.loads(await request.read())
        version = made["metadata"].get("resourceVersion")
        present = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if version != present:
            return web.json_response({"message": "conflict"}, status=409)
        self.writes += 1
        made["metadata"]["resourceVersion"] = str(self.writes)
        self.lease = made
        return web.json_response(made)


@pytest.fixture
async def leases() -> Leases:
    return Leases()


@pytest.fixture
async def api(leases: Leases) -> AsyncIterator[Api]:
    application = web.Application()
    path = "/apis/coordination.k8s.io/v1/namespaces/ops/leases"
    application.router.add_post(path, leases.answer)
    application.router.add_route("*", path + "/" + NAME, leases.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with Api(ApiClient(configuration=settings), OperatorMetrics()) as found:
        yield found
    await runner.cleanup()


async def _lead(election: Election, changed: asyncio.Event) -> asyncio.Task[None]:
    task = asyncio.create_task(election.run())
    async with asyncio.timeout(10):
        await changed.wait()
    return task


def _election(api: Api, name: str) -> tuple[Election, asyncio.Event]:
    changed = asyncio.Event()
    return Election(api, "ops", name, lambda leads: changed.set() if leads else None), changed


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_one_leads_and_gives_the_lease_back_with_a_higher_token(
    api: Api, leases: Leases
) -> None:
    """A successor of a process that ended in good order waits for nothing."""
    first, led = _election(api, "a")
    task = await _lead(first, led)
    token = first.token
    assert first.leads

    await _end(task)
    second, led = _election(api, "b")
    task = await _lead(second, led)

    assert second.token > token
    await _end(task)


async def test_the_lease_of_a_living_process_is_left_alone(api: Api, leases: Leases) -> None:
    """Two operators by mistake: one of them stands by."""
    first, led = _election(api, "a")
    task = await _lead(first, led)
    second, _ = _election(api, "b")

    other = asyncio.create_task(second.run())
    await asyncio.sleep(0.3)

    assert (first.leads, second.leads) == (True, False)
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == "a"
    assert leases.lease["spec"]["leaseDurationSeconds"] == LEASE_S
    await _end(other)
    await _end(task)


async def test_a_lease_that_was_deleted_begins_above_every_former_token(
    api: Api, leases: Leases
) -> None:
    """Brokers refuse smaller tokens for good."""
    first, led = _election(api, "a")
    await _end(await _lead(first, led))
    leases.lease = None

    second, led = _election(api, "a")
    task = await _lead(second, led)

    assert second.token >= first.token
    assert second.token > 1_000_000
    await _end(task)


async def test_a_process_that_crashed_takes_its_own_lease_again_with_a_higher_token(
    api: Api, leases: Leases
) -> None:
    """Calls of the former process may still be under way: they carry the smaller one."""
    first, led = _election(api, "a")
    task = await _lead(first, led)
    second, led = _election(api, "a")

    successor = await _lead(second, led)

    assert second.token == first.token + 1
    await _end(successor)
    await _end(task)
