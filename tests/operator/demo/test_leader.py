"""The demo kills a leader, which may be missing for a moment."""

from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_operator.demo.run import leader_of_first
from orderlymq_operator.local.control import ControlClient
from orderlymq_operator.local.directory import Contact, DataDirectory


async def test_an_election_is_waited_for(tmp_path: Path) -> None:
    """Law: a cluster without a leader, or with a restarting one, does not end the demo."""
    replicas = [{"node": 1, "pid": 11}, {"node": 2, "pid": None}]
    found = [
        {"name": "demo-0", "leader": None, "replicas": replicas},
        {"name": "demo-0", "leader": 2, "replicas": replicas},
        {"name": "demo-0", "leader": 1, "replicas": replicas},
    ]
    seen = iter(found)

    async def status(request: web.Request) -> web.Response:
        return web.json_response({"groups": [next(seen)]})

    application = web.Application()
    application.router.add_get("/status", status)
    async with TestServer(application) as server:
        directory = DataDirectory(tmp_path)
        directory.publish(Contact(1, server.host, server.port or 0, "token"))

        leader = await leader_of_first(ControlClient(directory), tmp_path / "log")

    assert leader == ("demo-0", 1, 11)
