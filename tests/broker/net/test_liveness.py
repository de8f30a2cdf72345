"""A client is dead when its process is: a closed connection alone proves nothing."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from orderlymq_broker.net.liveness import (
    Liveness,
    Process,
    is_local,
    pid_of,
    proof_of_death,
    sockets_of,
)

# Connects, says so, and waits for its end.
CHILD = """
import socket, sys, time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
time.sleep(60)
"""


class Listener:
    """Accepts one connection and knows the other end."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.port = 0

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("peername")
        self.accepted.put_nowait((host, port))
        await reader.read()
        writer.close()


@pytest.fixture
async def child() -> AsyncIterator[tuple[asyncio.subprocess.Process, str, int]]:
    """Return a process and its end of a connection with us."""
    listener = Listener()
    server = await listener.start()
    arguments = (sys.executable, "-c", CHILD, str(listener.port))
    process = await asyncio.create_subprocess_exec(*arguments)
    host, port = await listener.accepted.get()
    yield process, host, port
    if process.returncode is None:
        process.kill()
    await process.wait()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("client_id", "pid"),
    [
        ("192.0.2.2@23913#1266485203808", 23913),
        ("192.0.2.2@23913", 23913),
        ("192.0.2.2@23913@unit", 23913),
        ("192.0.2.2@DEFAULT", None),
        ("192.0.2.2@host12", None),
        ("23913", None),
        ("", None),
    ],
)
def test_the_process_id_is_read_from_a_client_id(client_id: str, pid: int | None) -> None:
    """RocketMQ writes ip@PID#nanos, older clients ip@PID; anything else proves nothing."""
    assert pid_of(client_id) == pid


def test_only_loopback_is_this_machine() -> None:
    """A process id of another machine means nothing here."""
    assert [host for host in ("127.0.0.1", "::1", "192.0.2.1", "?") if is_local(host)] == [
        "127.0.0.1",
        "::1",
    ]


async def test_only_the_owner_of_the_socket_counts(
    child: tuple[asyncio.subprocess.Process, str, int],
) -> None:
    """A process id that somebody merely claims (a container's, say) is no identity."""
    process, host, port = child
    theirs = await asyncio.to_thread(sockets_of, process.pid)
    ours = await asyncio.to_thread(sockets_of, os.getpid())

    assert theirs is not None
    assert ours is not None
    assert theirs[0].pid == process.pid
    assert (host, port) in theirs[1]
    assert (host, port) not in ours[1]


def test_a_living_process_is_not_dead_and_a_later_one_is_another() -> None:
    """The start time tells two processes under one number apart."""
    me = Process(os.getpid(), psutil.Process().create_time())
    assert proof_of_death(me) is None
    assert "later process" in (proof_of_death(Process(os.getpid(), 0.0)) or "")
    assert "does not exist" in (proof_of_death(Process(2**22 + 1, 1.0)) or "")


async def test_a_killed_client_is_proven_dead(
    child: tuple[asyncio.subprocess.Process, str, int],
) -> None:
    """From the end of its connection to the proof it takes milliseconds."""
    process, host, port = child
    dead: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    liveness = Liveness(lambda client_id, proof: dead.put_nowait((client_id, proof)))
    name = f"127.0.0.1@{process.pid}#1"
    liveness.seen(1, [name], host, port)
    await settled(liveness)

    process.kill()
    liveness.lost(1)

    async with asyncio.timeout(3.0):
        client_id, proof = await dead.get()
    assert client_id == name
    assert f"process {process.pid}" in proof
    await liveness.close()


async def test_of_the_members_that_may_be_meant_only_the_owner_of_the_connection_counts(
    child: tuple[asyncio.subprocess.Process, str, int],
) -> None:
    """After a change of leader a client pulls before it says who it is; its process tells."""
    process, host, port = child
    dead: asyncio.Queue[str] = asyncio.Queue()
    liveness = Liveness(lambda client_id, proof: dead.put_nowait(client_id))
    mine, other = f"127.0.0.1@{process.pid}#1", f"127.0.0.1@{os.getpid()}#2"
    assert not liveness.knows(1)
    liveness.seen(1, [other, mine], host, port)
    await settled(liveness)
    assert liveness.knows(1)

    process.kill()
    liveness.lost(1)
    async with asyncio.timeout(3.0):
        assert await dead.get() == mine
    await settled(liveness)

    assert dead.empty()
    assert not liveness.knows(1)
    await liveness.close()


async def test_a_process_is_looked_at_once_for_all_its_clients() -> None:
    """Thousands of clients of one process, each with its socket, would cost the square of that otherwise."""
    liveness = Liveness(lambda client_id, proof: None)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for number in range(100):
            client = stack.enter_context(socket.create_connection(server.getsockname()))
            stack.enter_context(server.accept()[0])
            host, port = client.getsockname()
            liveness.seen(number, [f"127.0.0.1@{os.getpid()}#{number}"], host, port)

        await settled(liveness)

    assert liveness.looks == 1
    assert liveness._connected.total() == 100
    await liveness.close()


async def test_every_client_of_a_dead_process_is_proven_dead_once(
    child: tuple[asyncio.subprocess.Process, str, int],
) -> None:
    """Also the one whose connection was seen to break while another of the process still seemed to live."""
    process, host, port = child
    dead: list[str] = []
    liveness = Liveness(lambda client_id, proof: dead.append(client_id))
    names = [f"127.0.0.1@{process.pid}#{number}" for number in range(3)]
    for connection, name in enumerate(names):
        liveness.seen(connection, [name], host, port)
    await settled(liveness)

    process.kill()
    await process.wait()
    liveness.lost(0)
    await asyncio.sleep(0.05)
    before = list(dead)
    liveness.lost(1)
    liveness.lost(2)
    await settled(liveness)

    assert before == []
    assert dead == names


async def test_a_living_client_that_closed_its_connection_is_not(
    child: tuple[asyncio.subprocess.Process, str, int],
) -> None:
    """We look for a while and give up without proof."""
    process, host, port = child
    dead: list[str] = []
    liveness = Liveness(lambda client_id, proof: dead.append(client_id))
    liveness.seen(1, [f"127.0.0.1@{process.pid}#1"], host, port)
    await settled(liveness)

    liveness.lost(1)
    await asyncio.sleep(0.1)

    assert dead == []
    await liveness.close()


async def test_a_client_that_was_never_identified_is_not_judged() -> None:
    """A client id with a number that is not the socket's owner is never declared dead."""
    dead: list[str] = []
    liveness = Liveness(lambda client_id, proof: dead.append(client_id))
    liveness.seen(1, [f"127.0.0.1@{2**22 + 1}#1"], "127.0.0.1", 1)
    await settled(liveness)

    liveness.lost(1)
    await settled(liveness)

    assert dead == []
    await liveness.close()


async def settled(liveness: Liveness) -> None:
    """Wait until nothing is being looked up."""
    await asyncio.gather(*liveness._tasks)
