"""Requests that waited or were forwarded are served in turns, so that the event loop runs timers and peers between them."""

import asyncio

import pytest

from orderlymq_broker.server.router import WAITING_MAX, ClientConnection
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.turns import Turns
from tests.broker.server.router import Client, World, ask, told

SEND = RequestCode.SEND_MESSAGE_V2


class Busy:
    """A world in which node 1 needs 16 ms per request and ends its turns; *served* lists the requests by connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.served: list[tuple[tuple[str, int], int]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        self.world = World()
        self.clients = self.world.routers[1].clients
        self.clients.turns = Turns()
        self.clients.watch(frozenset({SEND}), handled=self._handled, lost=lambda connection: None)

    def _handled(self, connection: ClientConnection, command: RemotingCommand) -> None:
        self.served.append((connection.peer, command.opaque))
        self.now += 0.016

    def passed_on(self) -> tuple[Client, Client]:
        """Let node 1 lead; return two clients whose requests node 2 forwards."""
        self.world.routers[1].lead(1)
        self.world.routers[2].follow(1, 1)
        return self.world.connect(2, 1), self.world.connect(2, 2)

    async def by_iteration(self, count: int) -> list[int]:
        """Return how many requests were served after each iteration of the loop, until *count* are."""
        seen = []
        while len(self.served) < count:
            await asyncio.sleep(0)
            seen.append(len(self.served))
        return seen


async def test_what_is_passed_on_lets_everything_else_come_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: forwarded requests are served in turns; each client keeps its order and waits for at most one request of
    others.
    """
    busy = Busy(monkeypatch)
    world = busy.world
    first, second = busy.passed_on()
    first.peer, second.peer = ("192.0.2.7", 1), ("192.0.2.7", 2)

    for number in range(10):
        world.ask(2, first, ask(SEND, number))
    world.ask(2, second, ask(SEND, 50))
    at_once = len(busy.served)
    iterations = await busy.by_iteration(11)

    assert (at_once, iterations) == (1, list(range(2, 12)))
    assert [number for _, number in busy.served[:4]] == [0, 1, 50, 2]
    assert [opaque for opaque, _, _ in told(first)] == list(range(10))
    assert told(second) == [(50, 0, "node 1")]


async def test_what_waited_for_a_leader_lets_everything_else_come_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a new leader serves waiting requests in turns, before those that came later."""
    busy = Busy(monkeypatch)
    world = busy.world
    early, late = world.connect(1, 1), world.connect(1, 2)
    world.ask(1, early, *(ask(SEND, number) for number in range(10)))

    world.routers[1].lead(1)
    at_once = len(busy.served)
    world.ask(1, late, ask(SEND, 50))
    busy.clients.retry()
    iterations = await busy.by_iteration(11)

    assert (at_once, iterations) == (1, list(range(2, 12)))
    assert [number for _, number in busy.served] == [*range(10), 50]


async def test_who_floods_through_a_follower_is_closed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a client that floods through a follower is closed; others are not."""
    busy = Busy(monkeypatch)
    world = busy.world
    flood, other = busy.passed_on()

    world.ask(2, flood, ask(SEND, 0))
    world.ask(2, other, ask(SEND, 1))
    for number in range(WAITING_MAX + 1):
        world.ask(2, flood, ask(SEND, number))
    await busy.by_iteration(2)

    assert (flood.closed, other.closed) == ("reset", "")
    assert told(other) == [(1, 0, "node 1")]
    assert len(busy.served) == 2


async def test_a_client_that_goes_leaves_no_request_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: when a client ends, its unserved requests are dropped; another client with its number is served."""
    busy = Busy(monkeypatch)
    world = busy.world
    gone, other = busy.passed_on()
    for number in range(3):
        world.ask(2, gone, ask(SEND, number))

    world.routers[2].clients.connection_lost(gone)
    for _ in range(5):
        await asyncio.sleep(0)
    busy.now += 1.0
    world.ask(2, other, ask(SEND, 7))

    assert [number for _, number in busy.served] == [0, 7]


async def test_who_is_answered_faster_than_the_link_takes_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: if answers fill the link to a follower, that client's requests wait in order,
    so that other clients are answered.
    """
    busy = Busy(monkeypatch)
    world = busy.world
    client, _ = busy.passed_on()
    direct = world.connect(1, 3)
    world.ask(2, client, ask(SEND, 0), ask(SEND, 1))
    world.slow.add(2)
    world.ask(2, client, ask(SEND, 2))
    for _ in range(3):
        await asyncio.sleep(0)
    busy.now += 1.0
    world.ask(1, direct, ask(SEND, 3))
    world.pass_time(0.1)
    assert (told(client), told(direct)) == ([(0, 0, "node 1")], [(3, 0, "node 1")])

    world.slow.clear()
    busy.now += 1.0
    world.ask(2, client, ask(SEND, 4))
    await busy.by_iteration(5)

    assert [opaque for opaque, _, _ in told(client)] == [0, 1, 2, 4]


def test_what_waits_for_a_slow_link_costs_its_sender_the_connection() -> None:
    """Law: requests that wait for a slow link are limited as well; beyond the limit their sender is closed."""
    world = World()
    world.routers[1].lead(1)
    world.routers[2].follow(1, 1)
    flood, other = world.connect(2, 1), world.connect(2, 2)
    world.slow.add(2)
    world.ask(2, other, ask(SEND, 0))
    world.ask(2, flood, *(ask(SEND, number) for number in range(WAITING_MAX)))
    assert flood.closed == "reset"

    world.slow.clear()
    world.pass_time(0.1)

    assert (flood.told, told(other)) == ([], [(0, 0, "node 1")])
