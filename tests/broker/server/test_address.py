"""The broker group's address is bound by the leader and released immediately by a former one."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orderlymq_broker.server.address import Endpoint, LeaderAddress, endpoints_of
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from tests.ports import free_ports


class Silent:
    """A handler that ignores everything."""

    def connection_made(self, conn: Connection) -> None: ...
    def received(self, conn: Connection, command: RemotingCommand) -> None: ...
    def connection_lost(self, conn: Connection) -> None: ...


def both(address: Address) -> list[Endpoint]:
    """Return where the replica of a broker group with this address listens."""
    other = Address("127.0.0.1", 1)
    return endpoints_of(
        BrokerSettings(
            cluster="C",
            group="g",
            node_id=1,
            peers={1: other},
            address=address,
            http=other,
            data_dir=Path("data"),
        )
    )


@pytest.fixture
async def replicas() -> AsyncIterator[tuple[LeaderAddress, LeaderAddress]]:
    """Return the address objects of two replicas."""
    address = Address("127.0.0.1", free_ports(1)[0])
    servers = [RemotingServer(Silent(), linger_reset=True) for _ in range(2)]
    one, two = (LeaderAddress(server, both(address)) for server in servers)
    yield one, two
    for each, server in zip((one, two), servers, strict=True):
        await each.close()
        await server.close()


async def reachable(address: LeaderAddress) -> list[int]:
    """Return which of the ports (0 the first, 1 the second) accept connections."""
    found = []
    for number, each in enumerate(address._endpoints):
        try:
            _, writer = await asyncio.open_connection(each.host, each.port)
        except OSError:
            continue
        writer.close()
        found.append(number)
    return found


def test_old_clients_find_the_port_two_below() -> None:
    """Law: the broker also listens two ports below, because clients up to 4.4 send there."""
    assert both(Address("h", 10911)) == [Endpoint("h", 10911), Endpoint("h", 10909)]
    assert both(Address("h", 2)) == [Endpoint("h", 2)]


async def test_the_leader_binds_both_ports_and_releases_both(
    replicas: tuple[LeaderAddress, LeaderAddress],
) -> None:
    """Law: the leader binds both ports; a release closes both."""
    one, _ = replicas
    one.acquire()
    await one.wait()
    assert await reachable(one) == [0, 1]

    one.release()
    await one.wait()
    assert await reachable(one) == []


async def test_the_next_leader_binds_as_soon_as_the_former_lets_go(
    replicas: tuple[LeaderAddress, LeaderAddress],
) -> None:
    """Law: the next leader tries to bind every ten milliseconds until the former one releases the port."""
    one, two = replicas
    one.acquire()
    await one.wait()
    two.acquire()
    await asyncio.sleep(0.03)
    assert not two.bound

    one.release()
    async with asyncio.timeout(30.0):
        await two.wait()
    assert two.bound


async def test_the_last_word_counts(replicas: tuple[LeaderAddress, LeaderAddress]) -> None:
    """Law: after quick changes of leadership, the address is in the state of the last one."""
    one, two = replicas
    two.acquire()
    await two.wait()
    for _ in range(3):
        one.acquire()
        one.release()
    two.release()
    await one.wait()
    await two.wait()
    assert await reachable(one) == []

    one.release()
    one.acquire()
    async with asyncio.timeout(30.0):
        await one.wait()
    assert await reachable(one) == [0, 1]


async def test_a_leader_that_cannot_bind_says_so_and_asks_to_be_replaced() -> None:
    """Law: a leader that cannot bind its port reports it and asks to be replaced."""
    address = Address("127.0.0.1", free_ports(1)[0])
    server = RemotingServer(Silent())
    given_up = asyncio.Event()
    leader = LeaderAddress(server, both(address), unreachable=given_up.set, give_up_after_s=0.05)
    with socket.create_server((address.host, address.port)):
        leader.acquire()
        async with asyncio.timeout(30.0):
            await given_up.wait()

        assert not leader.bound
        assert "in use" in leader.complaint

    await leader.wait()
    assert (leader.bound, leader.complaint) == (True, "")
    await leader.close()


async def test_an_address_that_is_not_of_this_machine_is_complained_about() -> None:
    """Law: an address that this machine lacks is reported and tried again, because an interface may appear."""
    given_up = asyncio.Event()
    leader = LeaderAddress(
        RemotingServer(Silent()),
        both(Address("192.0.2.1", 10911)),
        unreachable=given_up.set,
        give_up_after_s=0.05,
    )
    leader.acquire()
    async with asyncio.timeout(30.0):
        await given_up.wait()

    assert "192.0.2.1" in leader.complaint
    leader.release()
    assert leader.complaint == ""
    await leader.close()


async def test_a_group_is_served_though_old_clients_have_no_port() -> None:
    """Law: if the port for old clients is taken, the broker serves on its own port."""
    address = Address("127.0.0.1", free_ports(1)[0])
    leader = LeaderAddress(RemotingServer(Silent()), both(address), give_up_after_s=0.05)
    with socket.create_server((address.host, address.port - 2)):
        leader.acquire()
        async with asyncio.timeout(30.0):
            await leader.wait()

        assert leader.bound
    await leader.close()


async def test_a_port_that_is_taken_keeps_no_other_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a taken port does not delay other addresses; the log names those at which clients are served."""
    ports = [Endpoint("127.0.0.1", port) for port in free_ports(3)]
    server = RemotingServer(Silent())
    leader = LeaderAddress(server, ports, give_up_after_s=60.0)
    caplog.set_level(logging.INFO)
    with socket.create_server(ports[1][:2]):
        leader.acquire()
        async with asyncio.timeout(10.0):
            while len(server._listeners) < 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)

        leader.release()
        await leader.wait()
    served = [each for each in caplog.messages if each.startswith("clients are served")]
    assert served == [f"clients are served at {each}" for each in (ports[0], ports[2])]
    assert server._listeners == []
    await leader.close()


async def test_a_leader_that_has_its_own_port_can_be_reached() -> None:
    """Law: a leader that waits for the port of old clients is ready and reports no problem."""
    address = Address("127.0.0.1", free_ports(1)[0])
    leader = LeaderAddress(RemotingServer(Silent()), both(address), give_up_after_s=60.0)
    with socket.create_server((address.host, address.port - 2)):
        leader.acquire()
        async with asyncio.timeout(30.0):
            while not leader.bound:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)

        assert await reachable(leader) == [0, 1]  # Another process has the second port.
        assert (leader.bound, leader.complaint) == (True, "")
        assert not leader.failures
    await leader.close()
