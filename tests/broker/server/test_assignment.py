"""QUERY_ASSIGNMENT: routes come from real name servers on loopback; clients are in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from orderlymq_broker.server.assignment import Assigning
from orderlymq_broker.settings import Address
from orderlymq_broker.state.records import MemberSeen
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import QueueData, TopicRouteData
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from tests.broker.server.router import World
from tests.broker.state.entries import Replica

REQUEST = {
    "topic": "orders",
    "consumerGroup": "billing",
    "clientId": "c1",
    "strategyName": "AVG",
    "messageModel": "CLUSTERING",
}


@dataclass
class NameServer:
    """A name server that knows one route and counts the requests."""

    route: TopicRouteData
    asked: int = 0
    on_asked: Callable[[], None] = lambda: None

    def connection_made(self, conn: Connection) -> None: ...

    def connection_lost(self, conn: Connection) -> None: ...

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        self.asked += 1
        self.on_asked()
        conn.send(command.reply(body=self.route.to_json()))


class Asking:
    """A leader with these members of a consumer group, and the answers that a client got."""

    def __init__(self, members: list[str], name_servers: list[Address]) -> None:
        self.replica = Replica()
        if members:
            self.replica.take(*(MemberSeen("billing", member, "h:1") for member in members))
        self.world = World()
        router = self.world.routers[1]
        router.lead(1)
        self.client = self.world.connect(1)
        self.assigning = Assigning(router.clients, lambda: self.replica.state, name_servers)

    async def ask(self, body: bytes) -> RemotingCommand:
        """Send one request and wait for its answer."""
        before = len(self.client.told)
        command = request(RequestCode.QUERY_ASSIGNMENT, {}, body)
        self.world.ask(1, self.client, command)
        async with asyncio.timeout(30):
            # The name server is a real socket, so only the answer can be waited for.
            while len(self.client.told) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return self.client.told[-1]


def asked(client: str = "c1", strategy: str = "AVG") -> bytes:
    return fastjson.dumps({**REQUEST, "clientId": client, "strategyName": strategy})


@pytest.fixture
async def name_server() -> AsyncIterator[tuple[NameServer, Address]]:
    """A name server that knows orders: two readable queues in each of two broker groups, and one without read permission."""
    route = TopicRouteData(
        (QueueData("b", 2, 2, 6), QueueData("a", 2, 4, 6), QueueData("c", 8, 8, 2)), ()
    )
    known = NameServer(route)
    server = RemotingServer(known, linger_reset=False)
    host, port = await server.listen("127.0.0.1", 0)
    yield known, Address(host, port)
    await server.close()


async def test_members_share_the_queues_of_all_groups(
    name_server: tuple[NameServer, Address],
) -> None:
    """Law: members share the readable queues of all broker groups; the route is asked for once."""
    known, address = name_server
    asking = Asking(["c1", "c2", "c3"], [address])

    shares = [queues(await asking.ask(asked(client))) for client in ("c1", "c2", "c3")]
    await asking.assigning.close()

    assert shares == [["a0", "a1"], ["b0"], ["b1"]]
    assert known.asked == 1


def queues(answer: RemotingCommand) -> list[str]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = fastjson.loads(answer.body)
    each = [item["messageQueue"] for item in found["messageQueueAssignments"]]
    return [f"{queue['brokerName']}{queue['queueId']}" for queue in each]


async def test_the_second_name_server_is_asked_when_the_first_is_away(
    name_server: tuple[NameServer, Address],
) -> None:
    """Law: if the first name server is away, the second is asked."""
    asking = Asking(["c1"], [Address("127.0.0.1", 1), name_server[1]])

    share = queues(await asking.ask(asked()))
    await asking.assigning.close()

    assert share == ["a0", "a1", "b0", "b1"]


async def test_without_a_route_the_client_learns_so_and_keeps_what_it_has() -> None:
    """Law: without a route the answer is an error, not an empty assignment, on which a client would drop its queues."""
    asking = Asking(["c1"], [Address("127.0.0.1", 1)])

    answer = await asking.ask(asked())
    await asking.assigning.close()

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no route of topic orders is known now" in (answer.remark or "")


async def test_a_route_without_end_is_not_followed(
    name_server: tuple[NameServer, Address],
) -> None:
    """Law: a route with an impossible number of queues, such as 2^31, is refused; it would block the event loop for hours."""
    known, address = name_server
    known.route = TopicRouteData((QueueData("z", 2**31 - 1, 4, 6),), ())
    asking = Asking(["c1"], [address])

    answer = await asking.ask(asked())
    await asking.assigning.close()

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "2147483647 is not between 0 and 16384" in (answer.remark or "")


async def test_what_cannot_be_answered_is_refused_with_the_reason(
    name_server: tuple[NameServer, Address],
) -> None:
    """Law: an unreadable body and an unknown strategy are refused with the reason."""
    asking = Asking(["c1"], [name_server[1]])

    answers = [await asking.ask(b"?"), await asking.ask(asked(strategy="MACHINE_ROOM_NEARBY"))]
    await asking.assigning.close()

    assert [answer.code for answer in answers] == [1, 1]
    assert "AVG" in (answers[1].remark or "")


async def test_who_may_not_consume_does_not_learn_the_division(
    name_server: tuple[NameServer, Address],
) -> None:
    """Law: access control applies to requests that the process answers without the core, such as this one."""
    asking = Asking(["c1"], [name_server[1]])
    asking.world.routers[1].refused.add(asking.client.id)

    answer = await asking.ask(asked())
    await asking.assigning.close()

    assert (answer.code, answer.remark) == (1, "no right")
    assert name_server[0].asked == 0


async def test_only_who_leads_divides_the_queues(name_server: tuple[NameServer, Address]) -> None:
    """Law: a follower forwards the request, because its own member table may lack the member,
    which would then drop its queues.
    """
    leader, follower = Replica(), Replica()
    leader.take(MemberSeen("billing", "c1", "h:1"))
    world = World(always_open=True)
    world.routers[2].lead(1)
    world.routers[1].follow(2, 1)
    answering = [
        Assigning(world.routers[2].clients, lambda: leader.state, [name_server[1]]),
        Assigning(world.routers[1].clients, lambda: follower.state, [name_server[1]]),
    ]
    client = world.connect(1)

    world.ask(1, client, request(RequestCode.QUERY_ASSIGNMENT, {}, asked()))
    async with asyncio.timeout(30):
        while not client.told:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for each in answering:
        await each.close()

    assert queues(client.told[0]) == ["a0", "a1", "b0", "b1"]


async def test_nobody_divides_the_queues_while_nobody_is_known_to_lead(
    name_server: tuple[NameServer, Address],
) -> None:
    """Law: without a known leader the request waits, and ends with its connection."""
    replica = Replica()
    world = World(always_open=True)
    world.routers[1].follow(None, 1)
    assigning = Assigning(world.routers[1].clients, lambda: replica.state, [name_server[1]])
    client = world.connect(1)

    world.ask(1, client, request(RequestCode.QUERY_ASSIGNMENT, {}, asked()))
    world.pass_time(0.1)
    world.pass_time(2.0)
    await assigning.close()

    assert (client.told, client.closed, name_server[0].asked) == ([], "reset", 0)


async def test_who_was_deposed_while_it_asked_for_the_route_does_not_divide(
    name_server: tuple[NameServer, Address],
) -> None:
    """Law: a leader deposed while it asks for the route does not answer; the next leader does."""
    known, address = name_server
    deposed, leader = Replica(), Replica()
    leader.take(MemberSeen("billing", "c1", "h:1"), MemberSeen("billing", "c2", "h:2"))
    deposed.take(MemberSeen("billing", "c1", "h:1"))
    world = World(always_open=True)
    first, second = world.routers[1], world.routers[2]
    first.lead(1)
    answering = [
        Assigning(first.clients, lambda: deposed.state, [address]),
        Assigning(second.clients, lambda: leader.state, [address]),
    ]

    def depose() -> None:
        first.follow(2, 2)
        second.lead(2)

    known.on_asked = depose
    client = world.connect(1)
    world.ask(1, client, request(RequestCode.QUERY_ASSIGNMENT, {}, asked()))
    async with asyncio.timeout(30):
        while not (client.told or client.closed):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for each in answering:
        await each.close()

    assert client.closed or queues(client.told[0]) == ["a0", "a1"]


async def test_without_a_lease_each_answer_is_confirmed_after_the_route_is_known(
    name_server: tuple[NameServer, Address],
) -> None:
    """Law: without a lease, the answer is sent when a majority has confirmed the leader after the route is known."""
    asking = Asking(["c1"], [name_server[1]])
    router = asking.world.routers[1]
    router.certain = False

    asking.world.ask(1, asking.client, request(RequestCode.QUERY_ASSIGNMENT, {}, asked()))
    for confirmed in (1, 2):
        async with asyncio.timeout(30):
            while router.asked < confirmed:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert asking.client.told == []
        router.confirmed = confirmed
        router.clients.retry()
    await asking.assigning.close()

    assert queues(asking.client.told[0]) == ["a0", "a1", "b0", "b1"]


async def test_who_is_no_member_learns_nothing(name_server: tuple[NameServer, Address]) -> None:
    """Law: a client that is no member gets null, which RocketMQ 5 ignores.

    On an empty list it would drop all queues; after an error it never asks again.
    """
    for members in ([], ["c2"]):
        asking = Asking(members, [name_server[1]])
        answer = await asking.ask(asked())
        await asking.assigning.close()

        assert answer.code == ResponseCode.SUCCESS
        assert fastjson.loads(answer.body) == {"messageQueueAssignments": None}
