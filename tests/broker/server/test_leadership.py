"""A former leader lets its clients go when they are quiet, and a planned move fails no request."""

import asyncio

import pytest

from orderlymq_broker.server.leadership import DISCONNECTED_MAX, FAREWELL_S, FOLLOWER_CLIENT_S
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.broker.server.router import Client, World, ask, move, moved, told

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE


def never() -> bool:
    return False


async def let_go(client: Client) -> None:
    """Wait until a client's connection is reset, which happens a moment after its answer."""
    async with asyncio.timeout(10.0):
        while not client.closed:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.01)
    assert client.closed == "reset"


async def test_a_quiet_client_is_let_go_and_pulls_again() -> None:
    """Law: a client that only waits is asked to pull again and reset, so that it finds the leader."""
    world = moved()
    client = world.connect(1)
    move(world)
    world.routers[2].holds = {PULL}
    world.ask(1, client, ask(PULL, 1, queueOffset="42"))
    world.pass_time(0.5)
    assert told(client) == []

    world.pass_time(1.0)
    (answer,) = client.told
    assert (answer.code, answer.ext["nextBeginOffset"]) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "42",
    )
    await let_go(client)


@pytest.mark.parametrize(
    "always_open", [False, True], ids=["of the former leader", "of a follower"]
)
async def test_many_quiet_clients_are_let_go_in_parts(always_open: bool) -> None:
    """Law: many quiet clients are let go in parts, so that the replica still answers its peers."""
    world = World(always_open=always_open)
    if not always_open:
        world.routers[1].lead(1)
    clients = [world.connect(1, number) for number in range(1, 2_001)]
    move(world)
    world.routers[2].holds = {PULL}
    for client in clients:
        world.ask(1, client, ask(PULL, 1, queueOffset="42"))
    world.pass_time(0.1)

    world.pass_time(FOLLOWER_CLIENT_S + 0.1)
    first = sum(bool(client.told) for client in clients)
    for _ in range(4):
        world.pass_time(0.1)

    assert 0 < first <= DISCONNECTED_MAX
    assert all(len(client.told) == 1 for client in clients)
    await asyncio.sleep(2 * FAREWELL_S)
    assert {client.closed for client in clients} == {"reset"}


async def test_a_client_of_a_replica_that_knows_no_leader_is_let_go() -> None:
    """Law: a client of a replica that knows no leader is let go, because that replica may have been removed."""
    world = World(always_open=True)
    world.routers[1].follow(None, 2)
    client = world.connect(1)
    world.ask(1, client, ask(RequestCode.HEART_BEAT, 1))
    assert told(client) == [(1, 0, "node 1")]

    world.pass_time(1.0)
    assert client.closed == ""
    world.pass_time(2 * FOLLOWER_CLIENT_S)
    await let_go(client)


async def test_the_pulls_of_a_client_that_cannot_leave_yet_stay_at_the_leader() -> None:
    """Law: a client at a follower over a slow link still gets answers to its pulls from the leader until it can be let go."""
    world = World(always_open=True)
    world.routers[2].lead(1)
    world.routers[1].follow(2, 1)
    world.routers[2].holds = {PULL, SEND}
    client = world.connect(1)
    world.ask(1, client, ask(PULL, 1), ask(SEND, 2))
    world.pass_time(0.1)
    world.pass_time(2 * FOLLOWER_CLIENT_S)
    await asyncio.sleep(0.03)
    assert (told(client), client.closed) == ([], "")

    connection = world.routers[2].clients.connections()[0]
    world.routers[2].clients.send(connection.id, ask(SEND, 2).reply(remark="node 2"))
    world.pass_time(0.1)

    await let_go(client)
    assert [each.opaque for each in client.told] == [2, 1]


async def test_a_busy_client_is_let_go_between_two_requests() -> None:
    """Law: a busy client is forwarded for ten seconds, then reset when it waits for nothing."""
    world = moved()
    client = world.connect(1)
    move(world)
    for number in range(24):
        world.ask(1, client, ask(SEND, number))
        world.pass_time(0.4)
    await asyncio.sleep(0.03)
    assert client.closed == ""

    for number in range(24, 27):
        world.ask(1, client, ask(SEND, number))
        world.pass_time(0.4)
    await let_go(client)
    assert told(client) == [(number, 0, "node 2") for number in range(27)]


async def test_a_client_that_asks_in_the_last_moment_gets_its_answer() -> None:
    """Law: a client that sends a request just before its reset still gets the answer."""
    world = moved()
    client = world.connect(1)
    move(world)
    world.routers[2].holds = {SEND}
    world.pass_time(1.5)

    world.ask(1, client, ask(SEND, 1))
    await asyncio.sleep(0.03)

    assert client.closed == ""


async def test_a_planned_move_holds_requests_back() -> None:
    """Law: during a planned move requests wait, so that none enters a log that may not take it."""
    world = moved()
    client = world.connect(1)

    def transfer() -> None:
        world.ask(1, client, ask(SEND, 1))
        assert told(client) == []
        move(world)

    assert await world.routers[1].leadership.move(
        settled=lambda: True, transfer=transfer, given_up=never, timeout_s=1.0
    )
    assert told(client) == [(1, 0, "node 2")]


async def test_a_move_begins_when_nothing_is_under_way() -> None:
    """Law: a move waits for requests that are not in the log yet, because they would be refused."""
    world = moved()
    looks: list[bool] = []

    def settled() -> bool:
        looks.append(len(looks) == 3)
        return looks[-1]

    def transfer() -> None:
        assert looks == [False, False, False, True]
        move(world)

    assert await world.routers[1].leadership.move(
        settled=settled, transfer=transfer, given_up=never, timeout_s=1.0
    )


async def test_a_move_that_fails_serves_on() -> None:
    """Law: if a move fails, the waiting requests are answered here."""
    world = moved()
    client = world.connect(1)

    moved_on = await world.routers[1].leadership.move(
        settled=lambda: True,
        transfer=lambda: world.ask(1, client, ask(SEND, 1)),
        given_up=never,
        timeout_s=0.01,
    )

    assert not moved_on
    assert told(client) == [(1, 0, "node 1")]


async def test_a_move_that_raft_gives_up_holds_nobody_back_any_longer() -> None:
    """Law: if raft gives up a transfer, waiting requests go on after one election time-out,
    not after the whole time of the move.
    """
    world = moved()
    client = world.connect(1)
    looks = iter([False, False, True])

    async with asyncio.timeout(30):
        moved_on = await world.routers[1].leadership.move(
            settled=lambda: True,
            transfer=lambda: world.ask(1, client, ask(SEND, 1)),
            given_up=lambda: next(looks),
            timeout_s=600.0,
        )

    assert not moved_on
    assert told(client) == [(1, 0, "node 1")]
    assert client.closed == ""


async def test_who_comes_during_a_planned_move_waits_like_everybody() -> None:
    """Law: a leader during a planned move answers nobody by itself, also new clients.

    The simulator found this (seed 235): cut off during a move, it gave a new client an old offset.
    """
    world = World(always_open=True)
    router = world.routers[1]
    router.lead(1)
    clients = []

    def transfer() -> None:
        router.certain = False
        clients.append(world.connect(1))
        world.ask(1, clients[0], ask(PULL, 1))

    assert not await router.leadership.move(
        settled=lambda: True, transfer=transfer, given_up=never, timeout_s=0.01
    )
    assert told(clients[0]) == []
    router.certain = True
    router.leadership.tick()
    assert told(clients[0]) == [(1, 0, "node 1")]
