"""Hand-overs of queues, with a small API server and leader of our own that use real HTTP and remoting."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.answers import LockHolder
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.kube.takeover.clients import Target
from orderlymq_operator.kube.takeover.handover import Takeover, merged
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.process.supervisor import end_tasks
from orderlymq_runtime.remoting import connection
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.remoting.server import RemotingServer
from orderlymq_runtime.sockets.addresses import join_address
from tests.operator.kube.apiserver import serving_api
from tests.operator.kube.samples import NAMESPACE, killing, pod, started
from tests.operator.kube.takeover.leaders import (
    BEHIND_A_PROXY,
    CLIENT,
    LOCK,
    OUT_OF_SERVICE_NODE,
    Holder,
    Survivor,
    end_others,
    taking_over,
)
from tests.operator.scripted import Answer, serving


@pytest.fixture(params=[0, 5], ids=["alone", "with-others"])
def others(request: pytest.FixtureRequest) -> int:
    """How many pods of other applications end at the same time."""
    return int(request.param)


class Leader:
    """A leader with one lock; the first report of a client's death is lost with this leader.

    Attributes:
        buried: clients that were reported dead, in order.
    """

    def __init__(self) -> None:
        self.buried: list[str] = []
        self._blank_looks = 0

    def locks(self, request: RemotingCommand) -> RemotingCommand:
        """Show the lock, except for two looks after the loss: the next leader does not know it yet."""
        self._blank_looks -= 1
        held = len(self.buried) < 2 and self._blank_looks < 0
        return request.reply(body=json.dumps({"locks": [LOCK] if held else []}).encode())

    def expire(self, request: RemotingCommand) -> RemotingCommand:
        """Answer as a leader that does not know the client."""
        self.buried.append(request.ext["clientId"])
        self._blank_looks = 2
        return request.reply()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """An API server without any objects."""
    async with serving_api() as found:
        yield found


class Silent:
    """A leader on a lost node: connections stand, but nothing is answered."""

    def connection_made(self, conn: connection.Connection) -> None:
        pass

    def connection_lost(self, conn: connection.Connection) -> None:
        pass

    def received(self, conn: connection.Connection, command: RemotingCommand) -> None:
        pass


@pytest.fixture
async def lost() -> AsyncIterator[Api]:
    """An API server whose node is out of service while its pods still show as running."""

    async def pod_there(request: web.Request) -> web.Response:
        return web.json_response(pod())

    async def node_there(request: web.Request) -> web.Response:
        return web.json_response(OUT_OF_SERVICE_NODE)

    pods = "/api/v1/namespaces/{namespace}/pods/{name}"
    async with serving_api(
        web.get(pods, pod_there), web.get("/api/v1/nodes/{name}", node_there)
    ) as found:
        yield found


async def test_a_client_that_was_not_bound_before_its_node_was_lost_is_let_go(
    lost: Api, others: int
) -> None:
    """Law: a client on a lost node is released even without an earlier binding; its pod still shows as running,
    so the address is surely its own.
    """
    leader = Survivor()
    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: leader.locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    async with taking_over(lost, answers) as takeover:
        end_others(takeover, others)
        takeover.node_shown(OUT_OF_SERVICE_NODE)

        async with asyncio.timeout(10):
            while not leader.buried:  # noqa: ASYNC110 - the leader signals it to nobody
                await asyncio.sleep(0.02)
    assert leader.buried == [CLIENT]


async def test_leaders_that_do_not_answer_keep_no_queue_of_another_cluster(lost: Api) -> None:
    """Law: silent leaders of one Cluster do not delay the queues of another one."""
    leader = Survivor()
    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: leader.locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }

    client = RemotingClient()
    silent = [RemotingServer(Silent()) for _ in range(4)]
    lost_ones = [join_address(*await each.listen("127.0.0.1", 0)) for each in silent]
    async with serving(answers) as (_, address):
        places = {"one": tuple(lost_ones[:2]), "two": tuple(lost_ones[2:]), "demo": (address,)}
        targets = [
            Target((NAMESPACE, name), Admin(client), at, True) for name, at in places.items()
        ]
        takeover = Takeover(lost, OperatorMetrics(), lambda: targets, lambda: True)
        takeover.pod_shown(pod(), gone=False)
        began = asyncio.get_running_loop().time()
        takeover.node_shown(OUT_OF_SERVICE_NODE)
        async with asyncio.timeout(20):
            while not leader.buried:  # noqa: ASYNC110 - the leader signals it to nobody
                await asyncio.sleep(0.02)
        took_s = asyncio.get_running_loop().time() - began
        await end_tasks(takeover._checks.values())
    await client.close()
    for each in silent:
        await each.close()

    assert leader.buried[0] == CLIENT
    assert took_s < 1


async def test_a_pod_that_is_shown_after_its_lost_node_is_looked_at(lost: Api) -> None:
    """Law: an operator that begins may see nodes and pods in any order; each client of a lost node is expired."""
    leader = Survivor()
    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: leader.locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    client = RemotingClient()
    async with serving(answers) as (_, address), asyncio.timeout(20):
        target = Target((NAMESPACE, "demo"), Admin(client), (address,), True)
        takeover = Takeover(lost, OperatorMetrics(), lambda: [target], lambda: True)
        takeover.node_shown(OUT_OF_SERVICE_NODE)
        takeover.pod_shown(pod(), gone=False)

        while not leader.buried:  # noqa: ASYNC110 - the leader signals it to nobody
            await asyncio.sleep(0.02)
        await end_tasks(takeover._checks.values())
    await client.close()
    assert leader.buried == [CLIENT]


async def test_a_member_whose_locks_have_ended_leaves_its_group_with_its_node(
    lost: Api, others: int
) -> None:
    """Law: a member without locks also leaves its group with its node; otherwise queues would be kept for it."""
    leader = Survivor()

    def members(request: RemotingCommand) -> RemotingCommand:
        if leader.buried:
            return request.reply(body=b'{"members": []}')
        member = (CLIENT, "10.244.1.9:4711")
        other = ("10.244.2.2@1#1", "10.244.2.2:4711")
        behind = (BEHIND_A_PROXY, "10.244.1.9:4712")
        return request.reply(body=json.dumps({"members": (other, behind, member)}).encode())

    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_GROUP_MEMBERS: members,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    async with taking_over(lost, answers) as takeover:
        end_others(takeover, others)
        takeover.node_shown(OUT_OF_SERVICE_NODE)

        async with asyncio.timeout(10):
            while not leader.buried:  # noqa: ASYNC110 - the leader signals it to nobody
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
    assert leader.buried == [CLIENT]


async def test_a_living_pod_that_has_the_address_by_now_keeps_its_client(
    api: Api, others: int
) -> None:
    """Law: if a living pod now has the address of a deleted one, its client is kept: that pod may be the client."""
    leader = Survivor()
    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: leader.locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    async with taking_over(api, answers) as takeover:
        end_others(takeover, others)
        takeover.pod_shown(pod(uid="another"), gone=False)

        takeover.pod_shown(pod(), gone=True)

        await asyncio.sleep(1)
    assert leader.buried == []


async def test_a_death_that_was_lost_with_a_leader_is_reported_again(api: Api, others: int) -> None:
    """Law: a death that was reported to a lost leader is reported again to the next one; one empty answer proves nothing."""
    leader = Leader()
    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: leader.locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    async with taking_over(api, answers) as takeover:
        end_others(takeover, others)
        takeover.pod_shown(pod(), gone=True)

        async with asyncio.timeout(20):
            while len(leader.buried) < 2:  # noqa: ASYNC110 - the leader signals it to nobody
                await asyncio.sleep(0.02)
    assert leader.buried == [CLIENT, CLIENT]


class Restarts:
    """A container of a consumer whose client id survives its restarts."""

    def __init__(self, takeover: Takeover) -> None:
        self.found = pod()
        self._takeover = takeover

    def restart(self, at: str) -> None:
        """Let the kubelet report that the container was started again."""
        self.found = pod(containerStatuses=[started(at)])
        self._takeover.pod_shown(self.found, gone=False)


@pytest.fixture
async def restarts(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Restarts, Holder]]:
    """A consumer in a container, bound to it by an operator that goes on looking."""
    monkeypatch.setattr("orderlymq_operator.kube.takeover.handover.BIND_S", 0.05)
    monkeypatch.setattr("orderlymq_operator.kube.takeover.handover._SURE_S", 0.1)
    leader = Holder()

    async def pod_there(request: web.Request) -> web.Response:
        return web.json_response(found.found)

    async def node_there(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": "worker"}, "spec": {}})

    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: leader.locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    pods = "/api/v1/namespaces/{namespace}/pods/{name}"
    async with (
        asyncio.timeout(10),
        serving_api(web.get(pods, pod_there), web.get("/api/v1/nodes/{name}", node_there)) as api,
        taking_over(api, answers) as takeover,
    ):
        found = Restarts(takeover)
        running = asyncio.create_task(takeover.run())
        await leader.several_looks()
        yield found, leader
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("seen", [False, True])
async def test_the_next_process_of_a_container_keeps_its_locks_when_another_leader_comes(
    restarts: tuple[Restarts, Holder], seen: bool
) -> None:
    """Law: the next process of a container keeps its locks after a change of leader; it has the old client id,
    and no connection yet.
    """
    container, leader = restarts
    leader.address = "10.244.1.9:5555"
    container.restart("2026-01-01T00:10:00Z")
    if seen:
        await leader.several_looks()

    leader.connected = False

    await leader.several_looks()
    assert leader.buried == []


async def test_the_end_of_the_next_process_of_a_container_is_found_too(
    restarts: tuple[Restarts, Holder],
) -> None:
    """Law: the end of a container's next process is found as well, although the binding named the former process."""
    container, leader = restarts
    leader.address = "10.244.1.9:5555"
    container.restart("2026-01-01T00:10:00Z")
    await leader.several_looks()
    await asyncio.sleep(2)  # The look after the first one ends.

    leader.connected = False
    container.restart("2026-01-01T00:20:00Z")

    while not leader.buried:  # noqa: ASYNC110 - the leader signals it to nobody
        await asyncio.sleep(0.02)
    assert (leader.buried, leader.ends) == ([CLIENT], leader.address)


@pytest.mark.parametrize("seen", [False, True])
async def test_the_end_of_a_proxys_pod_proves_nothing_about_who_is_behind_it(
    restarts: tuple[Restarts, Holder], seen: bool
) -> None:
    """Law: a proxy's end does not prove the end of clients behind it: they have its address, and live on."""
    proxy, leader = restarts
    leader.client = BEHIND_A_PROXY
    if seen:
        await leader.several_looks()

    leader.connected = False
    proxy.restart("2026-01-01T00:10:00Z")

    await leader.several_looks()
    assert leader.buried == []


async def test_a_pod_that_was_deleted_by_force_keeps_its_queues_until_its_kubelet_reports(
    others: int,
) -> None:
    """Law: a pod deleted by force keeps its queues until its kubelet reports; its processes may run on while connected."""
    leader, events, asked = Holder(), list[Json](), asyncio.Event()

    async def node_there(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": "worker"}, "spec": {}})

    async def events_there(request: web.Request) -> web.Response:
        if request.query["fieldSelector"] == "involvedObject.uid=one,reason=Killing":
            asked.set()
        return web.json_response({"items": events, "metadata": {}})

    async def several_looks() -> None:
        for _ in range(3):
            asked.clear()
            await asked.wait()

    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: leader.locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    async with (
        asyncio.timeout(15),
        serving_api(
            web.get("/api/v1/nodes/{name}", node_there),
            web.get("/api/v1/namespaces/{namespace}/events", events_there),
        ) as api,
        taking_over(api, answers) as takeover,
    ):
        end_others(takeover, others)
        leader.connected = False
        takeover.pod_shown(pod(), gone=True)
        await several_looks()
        assert leader.buried == []

        leader.connected = True
        events.append(killing())
        seen = leader.looks
        while leader.looks < seen + 5:  # noqa: ASYNC110 - the leader signals it to nobody
            await asyncio.sleep(0.02)
        assert leader.buried == []

        leader.connected = False
        while not leader.buried:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.02)
    assert leader.buried == [CLIENT]


def test_a_client_that_one_raft_group_has_a_connection_with_is_connected() -> None:
    """Law: a client counts as connected if one raft group has a connection; another group may only know an old address."""
    places = frozenset({"10.244.1.9:4711"}), frozenset({"10.244.1.7:4711"})
    here = LockHolder("10.244.1.9:4711", True, places[0])
    there = LockHolder("10.244.1.7:4711", False, places[1])

    for found in (merged(here, there), merged(there, here)):
        assert (found.address, found.connected) == (here.address, True)
        assert found.addresses == places[0] | places[1]
    assert not merged(there, there).connected


async def test_a_process_that_outlives_its_pod_and_becomes_a_consumer_is_found(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the end of a process that outlives its force-deleted pod is found, even if it became a consumer only then."""
    monkeypatch.setattr("orderlymq_operator.kube.takeover.handover._SURE_S", 0.05)
    leader, events, looks = Survivor(), list[Json](), 0

    async def node_there(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": "worker"}, "spec": {}})

    async def events_there(request: web.Request) -> web.Response:
        return web.json_response({"items": events, "metadata": {}})

    def locks(request: RemotingCommand) -> RemotingCommand:
        nonlocal looks
        looks += 1
        return leader.locks(request) if events else request.reply(body=b'{"locks": []}')

    answers: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: locks,
        RequestCode.ORDERLYMQ_CLIENT_DEAD: leader.expire,
    }
    async with (
        asyncio.timeout(20),
        serving_api(
            web.get("/api/v1/nodes/{name}", node_there),
            web.get("/api/v1/namespaces/{namespace}/events", events_there),
        ) as api,
        taking_over(api, answers) as takeover,
    ):
        end_others(takeover, others)
        takeover.pod_shown(pod(), gone=True)
        await asyncio.sleep(1)
        events.append(killing())

        while not leader.buried:  # noqa: ASYNC110 - the leader signals it to nobody
            await asyncio.sleep(0.02)
    assert leader.buried == [CLIENT]
    assert looks
