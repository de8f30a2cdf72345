"""
Strangers that begin much input and finish none cost at most the process's budget for unfinished input.

Before the budget existed, each connection could keep 16 MiB of a frame, 1024 TLS greetings could keep 128 KiB each in
addition to the limit of connections, and the pages read any body that was posted to them.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.server.router import WAITING_BYTES_MAX
from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_protocol.body.catalogue import REGISTRATION_SIZE_MAX, RegisterBrokerBody
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.codec import FRAME_SIZE_MAX, encode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.pages.server import CONNECTIONS_MAX, HealthServer
from orderlymq_runtime.pages.trafficmetrics import InputBudgetCollector
from orderlymq_runtime.remoting.connection import TLS_CONNECTION_BYTES, Connection
from orderlymq_runtime.remoting.connectiontable import (
    READ_BUFFER_SIZE,
    ConnectionLimits,
    ConnectionTable,
)
from orderlymq_runtime.remoting.server import RemotingServer
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.security.tls import HANDSHAKE_BYTES, ServerTls, TlsFiles
from orderlymq_runtime.sockets.inputbudget import InputBudget
from tests.broker.server.router import World
from tests.nameserver.registrations import GROUP_A, register_request
from tests.runtime.certificates import make_authority, make_certificate
from tests.runtime.peers import PATIENCE_S, Recorder, echo, listening
from tests.runtime.remoting.test_connection import StuckTransport, feed
from tests.security.test_accounts_reading import READER, _guarded

MIB = 1 << 20


class Holding:
    """A holder of memory."""

    def __init__(self) -> None:
        self.ended = False

    def give_up(self, reason: str) -> None:
        self.ended = True


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 40), st.booleans()), max_size=60),
)
def test_the_budget_is_kept_and_strangers_give_way_first(
    steps: list[tuple[int, int, bool]],
) -> None:
    """The budget is compared with a simple model that sums what each holder has until it is ended."""
    budget = InputBudget(bytes_max=100, strangers_max=40)
    everybody = [Holding() for _ in range(8)]
    held: dict[int, tuple[int, bool]] = {}

    for who, size, is_client in steps:
        holder = everybody[who]
        holder.ended = False
        clients_before = {each for each, (_, client) in held.items() if client}
        if size:
            budget.hold(holder, size, "half_frame", is_client=is_client)
            held[who] = size, is_client
        else:
            budget.release(holder)
            held.pop(who, None)
        gone = {each for each in held if everybody[each].ended}
        for each in gone:
            del held[each]
        strangers = sum(size for size, client in held.values() if not client)
        clients = sum(size for size, client in held.values() if client)

        assert (budget.strangers.held, budget.clients.held) == (strangers, clients)
        assert strangers <= 40
        assert strangers + clients <= 100
        if gone & (clients_before - {who}) and not is_client:
            raise AssertionError("a stranger took what a client held")
        if gone & (clients_before - {who}):
            assert strangers == 0


def _table(budget: InputBudget) -> ConnectionTable:
    return ConnectionTable(
        ConnectionLimits(),
        Traffic(),
        budget=budget,
        is_client=lambda conn: conn.peer[0] == "client",
    )


def _half(size: int) -> bytes:
    """Return the first *size* bytes of the largest frame."""
    return struct.pack(">II", FRAME_SIZE_MAX - 4, 2) + b"{}" + bytes(size - 10)


async def test_ten_thousand_strangers_cost_a_bounded_sum_and_no_client() -> None:
    """Each stranger begins the largest frame, and the large frame that a client has begun is still finished and served."""
    budget = InputBudget(bytes_max=64 * MIB, strangers_max=16 * MIB)
    table = _table(budget)
    handler = Recorder(echo)
    client, transport = Connection(handler, table), StuckTransport()
    client.connection_made(transport)
    client.peer = ("client", 1)
    feed(client, encode(request(1)))
    frame = encode(request(2, body=bytes(8 * MIB - 4_000)))
    middle = len(frame) // 2
    for start in range(0, middle, READ_BUFFER_SIZE):
        feed(client, frame[start : min(start + READ_BUFFER_SIZE, middle)])

    strangers = [Connection(handler, table) for _ in range(10_000)]
    most = 0
    for stranger in strangers:
        stranger.connection_made(StuckTransport())
        feed(stranger, _half(64 * 1024))
        most = max(most, budget.strangers.held + budget.clients.held)
    for start in range(middle, len(frame), READ_BUFFER_SIZE):
        feed(client, frame[start : start + READ_BUFFER_SIZE])

    assert most <= 16 * MIB + 5 * MIB
    assert sum(conn._decoder.buffered_bytes for conn in strangers) <= 16 * MIB
    assert [command.code for command in handler.commands] == [1, 2]
    assert [stranger.is_closing for stranger in strangers] == [True] * 9_744 + [False] * 256
    assert table.traffic.errors["input_budget"] == budget.refusals["half_frame"] == 9_744
    for conn in [client, *strangers]:
        conn.connection_lost(None)
    assert (budget.strangers.held, budget.clients.held) == (0, 0)


async def test_a_whole_frame_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that arrives in one read does not use the budget, so usual requests cost nothing."""
    budget = InputBudget(bytes_max=2, strangers_max=1)
    handler = Recorder(echo)
    conn = Connection(handler, _table(budget))
    conn.connection_made(StuckTransport())

    # The clock stands still, because frames left for the next turn of the loop would be charged to the budget.
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 100.0)
    feed(conn, encode(request(1)) * 40)

    assert len(handler.commands) == 40
    assert budget.refusals == {}
    conn.connection_lost(None)


async def test_clients_take_back_what_strangers_use() -> None:
    """A client's frame that needs the whole budget ends connections of strangers, and never its own."""
    budget = InputBudget(bytes_max=4 * MIB, strangers_max=2 * MIB)
    table = _table(budget)
    handler = Recorder(echo)
    stranger, client = Connection(handler, table), Connection(handler, table)
    for conn in (stranger, client):
        conn.connection_made(StuckTransport())
    client.peer = ("client", 1)
    for _ in range(7):
        feed(stranger, _half(READ_BUFFER_SIZE))
    frame = encode(request(2, body=bytes(4 * MIB - 10_000)))
    feed(client, encode(request(1)))
    for start in range(0, len(frame), READ_BUFFER_SIZE):
        feed(client, frame[start : start + READ_BUFFER_SIZE])

    assert [command.code for command in handler.commands] == [1, 2]
    assert (stranger.is_closing, client.is_closing) == (True, False)
    for conn in (stranger, client):
        conn.connection_lost(None)


def test_a_client_is_who_was_admitted() -> None:
    """With access control, a connection counts as a client's from its first admitted request until it ends."""
    shell = _guarded()
    access = shell.core.access
    fields = {"topic": "orders", "queueId": "0", "AccessKey": READER[0], "Signature": "no"}

    assert shell.call(RequestCode.GET_MAX_OFFSET, fields).code == 1
    assert access.admitted == set()
    del fields["Signature"]
    fields["Signature"] = signature(fields, b"", READER[1])
    assert shell.call(RequestCode.GET_MAX_OFFSET, fields).code == 0
    (connection,) = access.admitted
    shell.core.connection_closed(connection)
    assert access.admitted == set()


def test_nobody_becomes_a_client_at_a_replica_that_does_not_lead() -> None:
    """A follower forwards requests unchecked, so a request there must not make a stranger count as a client."""
    shell = _guarded()
    fields = {"topic": "orders", "queueId": "0", "AccessKey": READER[0]}
    fields["Signature"] = signature(fields, b"", READER[1])
    shell.call(RequestCode.GET_MAX_OFFSET, fields)
    (client,) = shell.core.access.admitted
    stranger = client + 1

    shell.follow()
    at_follower = [shell.core.is_client(each) for each in (client, stranger)]
    shell.lead()

    assert at_follower == [True, False]
    assert [shell.core.is_client(each) for each in (client, stranger)] == [True, False]


# -- greetings -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificate(make_authority(tmp_path_factory.mktemp("tls")), "server")


@pytest.fixture
async def sockets() -> AsyncIterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


async def _call(port: int, sockets: list[socket.socket], said: bytes = b"") -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sockets.append(sock)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    if said:
        await loop.sock_sendall(sock, said)
    return sock


async def _is_hung_up(sock: socket.socket) -> bool:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"], ids=["silent", "half"]
)
async def test_greetings_count_as_connections(
    files: TlsFiles, sockets: list[socket.socket], said: bytes
) -> None:
    """Of connections that send nothing or half a greeting, the oldest is closed to make room for the third."""
    server = RemotingServer(Recorder(echo), connections_max=2, tls=ServerTls(files, "permissive"))
    async with listening(server) as port:
        first = await _call(port, sockets, said)
        for _ in range(2):
            await _call(port, sockets, said)

        assert await _is_hung_up(first)

        assert server.traffic.errors["too_many_connections"] == 0


async def test_a_crowd_that_is_accepted_together_is_counted(sockets: list[socket.socket]) -> None:
    """All connections wait in the kernel when the loop accepts them, and no more than the limit are kept."""
    handler = Recorder(echo)
    server = RemotingServer(handler, connections_max=3, limits=ConnectionLimits(close_drain_s=0.1))
    async with listening(server) as port:
        for _ in range(20):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setblocking(False)
            sockets.append(sock)
        turned_away = ("too_many_connections", "crowded_out")
        await handler.until(lambda: sum(server.traffic.errors[each] for each in turned_away) == 17)
        await handler.until(lambda: len(handler.made) - len(handler.lost) == 3)

        assert len(server.connections) == 3


async def test_handshakes_draw_on_the_budget(files: TlsFiles, sockets: list[socket.socket]) -> None:
    """The oldest connection in its TLS handshake is closed; a client with TLS can still connect."""
    budget = InputBudget(bytes_max=9 * HANDSHAKE_BYTES, strangers_max=4 * HANDSHAKE_BYTES)
    server = RemotingServer(Recorder(echo), tls=ServerTls(files, "enforcing"), budget=budget)
    async with listening(server) as port:
        half = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
        crowd = [await _call(port, sockets, half) for _ in range(8)]
        for sock in crowd[:4]:
            assert await _is_hung_up(sock)
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(encode(request(1)))
        assert await reader.read(4)
        assert budget.strangers.held <= 3 * HANDSHAKE_BYTES
        writer.transport.abort()

    assert budget.refusals["tls_handshake"] >= 4
    assert server.traffic.errors["tls"] >= 4


async def test_a_tls_connection_draws_until_it_is_served(files: TlsFiles) -> None:
    """A client that finishes its handshake and then sends nothing still holds memory."""
    budget = InputBudget()
    server = RemotingServer(Recorder(echo), tls=ServerTls(files, "enforcing"), budget=budget)
    async with listening(server) as port:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        async with asyncio.timeout(PATIENCE_S):
            while budget.strangers.held != TLS_CONNECTION_BYTES:  # noqa: ASYNC110 - the events of sockets
                await asyncio.sleep(0.001)
        writer.write(encode(request(1)))
        assert await reader.read(4)
        assert (budget.strangers.held, budget.clients.held) == (0, 0)
        writer.transport.abort()


async def test_a_greeting_of_128_kib_is_not_read(
    files: TlsFiles, sockets: list[socket.socket]
) -> None:
    """OpenSSL would collect all of it, so the server reads the length at its start and closes the connection."""
    server = RemotingServer(Recorder(echo), tls=ServerTls(files, "enforcing"))
    async with listening(server) as port:
        head = b"\x16\x03\x01\x40\x00\x01" + (128 * 1024 - 4).to_bytes(3)

        assert await _is_hung_up(await _call(port, sockets, head))

        assert server.traffic.errors["tls"] == 1


# -- pages -----------------------------------------------------------------------------------------


async def test_pages_take_no_body_and_few_connections(sockets: list[socket.socket]) -> None:
    """If there are too many callers, the oldest are disconnected, and a probe is still answered."""
    budget = InputBudget()
    server = HealthServer(
        "127.0.0.1",
        0,
        ready=lambda: (True, "ready"),
        status=dict,
        registry=CollectorRegistry(),
        budget=budget,
    )
    host, port = await server.start()
    try:
        crowd = [
            await _call(port, sockets, b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            for _ in range(CONNECTIONS_MAX + 10)
        ]
        for sock in crowd[:10]:
            assert await _is_hung_up(sock)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{host}:{port}/healthz") as answer:
                assert answer.status == 200
            async with session.get(f"http://{host}:{port}/status", data=bytes(MIB)) as answer:
                assert answer.status == 413
        assert 0 < budget.strangers.held <= budget.strangers_max
    finally:
        await server.close()
    assert budget.strangers.held == 0


# -- bodies ----------------------------------------------------------------------------------------


def test_a_body_that_inflates_makes_room_first() -> None:
    """Strangers give up room for the inflated body before it is inflated."""
    budget = InputBudget(bytes_max=REGISTRATION_SIZE_MAX + 10, strangers_max=20)
    stranger = Holding()
    budget.hold(stranger, 20, "half_frame")
    server = NameServerCore(KvTable({}), expiry_ms=1_000, make_room=budget.make_room)

    reply = server.handle(register_request(GROUP_A, RegisterBrokerBody(), compressed=True), 1, 0)

    assert (reply.code, stranger.ended) == (0, True)


def test_requests_that_wait_for_a_leader_are_bounded_in_bytes() -> None:
    """Any client may send such requests, and a limit on their number alone would permit 256 GiB."""
    world = World()
    client = world.connect(1)
    large = RemotingCommand(RequestCode.SEND_MESSAGE_V2, body=bytes(8 * MIB - 4_000))

    for _ in range(WAITING_BYTES_MAX // len(large.body)):
        world.ask(1, client, large)
    assert client.closed == ""
    world.ask(1, client, large)

    assert client.closed == "reset"


def test_the_budget_is_measured() -> None:
    """The metrics show the bytes held, their limits, and the number of refusals by use."""
    budget = InputBudget(bytes_max=100, strangers_max=40)
    registry = CollectorRegistry()
    registry.register(InputBudgetCollector(budget))
    for _ in range(2):
        budget.hold(Holding(), 30, "tls_handshake")

    text = generate_latest(registry).decode()

    assert 'orderlymq_input_bytes{peers="strangers"} 30.0' in text
    assert 'orderlymq_input_bytes_max{peers="all"} 100.0' in text
    assert 'orderlymq_input_refusals_total{use="tls_handshake"} 1.0' in text
