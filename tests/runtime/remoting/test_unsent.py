"""Bytes that peers have not taken: how many there may be, and which peer is closed; driven by hand, without sockets."""

import asyncio

from orderlymq_protocol.frame.codec import FrameDecoder
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.connectiontable import ConnectionLimits, ConnectionTable
from orderlymq_runtime.remoting.traffic import Traffic
from tests.runtime.peers import PATIENCE_S, Recorder
from tests.runtime.remoting.test_connection import StuckTransport


async def test_who_does_not_read_gives_way_when_all_together_keep_too_much() -> None:
    """Law: if all unsent bytes together exceed the bound, the peer that takes nothing and has most is closed;
    readers stay.
    """
    table = ConnectionTable(ConnectionLimits(unsent_max=1_000_000), Traffic())
    idle, reader, *silent = (Connection(Recorder(), table) for _ in range(31))
    ways = [StuckTransport() for _ in range(31)]
    for conn, way in zip([idle, reader, *silent], ways, strict=True):
        conn.connection_made(way)

    def send(conn: Connection, size: int) -> None:
        conn.send(RemotingCommand(11, body=bytes(size)))
        conn._flush()

    sums: list[int] = []
    for number, conn in enumerate(silent):
        ways[1].writes[:1] = []  # It takes what was sent before the last.
        send(reader, 400_000)
        send(conn, 100_000 + number)
        table.unsent.judge()
        sums.append(sum(way.get_write_buffer_size() for way in ways))

    closed = [way.is_aborted for way in ways]
    assert max(sums) < 1_000_000 + 1_000_000 // 8 + 500_000
    assert closed[:2] == [False, False]
    assert closed.count(True) > 20
    assert table.traffic.errors["output_budget"] == closed.count(True)
    for conn in (idle, reader, *silent):
        conn.connection_lost(None)


async def test_what_a_tls_peer_does_not_take_is_kept_where_it_is_counted() -> None:
    """Law: TLS gets bytes in slices until it pauses, because it does not show its backlog; everything leaves in order."""
    conn = Connection(Recorder(), ConnectionTable(ConnectionLimits(), Traffic()))
    way = StuckTransport(tls=object())
    conn.connection_made(way)
    way.protocol = conn
    bodies = [bytes([n]) * 1_000_000 for n in range(3)]
    taken, given = bytearray(), []

    for number, body in enumerate(bodies):
        conn.send(RemotingCommand(11, opaque=number, body=body))
        conn._flush()
    kept = conn.write_buffer_size
    for _ in range(8):
        given.append(way.get_write_buffer_size())
        taken += b"".join(way.writes)
        way.writes.clear()
        conn.resume_writing()
    left = len(taken) + conn.write_buffer_size
    conn.close()
    taken += b"".join(way.writes)

    assert conn.write_buffer_size == way.get_write_buffer_size()
    assert kept == left == conn.sent_bytes > 3_000_000
    assert max(given) <= 2 * 64 * 1024
    assert [each.body for each in FrameDecoder().receive_data(taken)] == bodies
    assert way.has_eof
    conn.connection_lost(None)


async def test_who_reads_stays_when_one_message_goes_to_all() -> None:
    """Law: readers stay when a message goes to all; only above the second bound a peer is closed that was not yet seen to
    be stuck.
    """
    table = ConnectionTable(ConnectionLimits(unsent_max=1_000_000), Traffic())
    conns = [Connection(Recorder(), table) for _ in range(38)]
    ways = [StuckTransport() for _ in conns]
    for conn, way in zip(conns, ways, strict=True):
        conn.connection_made(way)

    def send(size: int) -> None:
        for conn in conns:
            conn.send(RemotingCommand(11, body=bytes(size)))
            conn._flush()

    send(50_000)
    send(50_000)
    at_once = [conn for conn in conns if conn.is_closing]
    async with asyncio.timeout(PATIENCE_S):
        while not conns[8].is_closing:
            for way in ways[:8]:
                way.writes[0] = way.writes[0][1:]  # It takes a byte.
            await asyncio.sleep(0.05)
    closed = [conn.is_closing for conn in conns]
    send(500_000)

    assert at_once == []
    assert closed[:8] == [False] * 8
    assert 24 < closed.count(True) < 30
    assert sum(way.get_write_buffer_size() for way in ways) < 4_000_000 + 1_000_000
    assert table.traffic.errors["output_budget"] > closed.count(True)
    for conn in conns:
        conn.connection_lost(None)
