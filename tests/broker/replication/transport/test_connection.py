"""One connection between replicas, with real kernel time-outs."""

import asyncio
import socket

import pytest

from orderlymq_broker.replication.transport import connection
from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.frames import FrameKind, encode_frame

# More than the kernel buffers at both ends.
FRAMES, SIZE = 64, 1 << 20


@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such time-out"
)
@pytest.mark.parametrize("waits", [True, False])
async def test_a_peer_may_wait_for_its_disk_where_it_takes_files(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a peer that reads nothing for a while loses the raft connection, but keeps the one for snapshots."""
    monkeypatch.setitem(connection._TCP_OPTIONS, "TCP_USER_TIMEOUT", 100)
    loop, read, whole = asyncio.get_running_loop(), 0, asyncio.Event()

    def take(*_: object) -> None:
        nonlocal read
        read += 1
        if read == FRAMES:
            whole.set()

    receiver = FrameConnection(take, lambda _: None)
    server = await loop.create_server(lambda: receiver, "127.0.0.1", 0)
    _, sender = await loop.create_connection(
        lambda: FrameConnection(lambda *_: None, lambda _: None),
        *server.sockets[0].getsockname(),
    )
    if waits:
        sender.wait_for_disk(30.0)
    # Immediately, before the first frames are read.
    receiver.pause_reading()
    sender.send(encode_frame(FrameKind.ORIGIN_CLOSED, 0, [bytes(SIZE)]) * FRAMES)
    if waits:
        loop.call_later(1.0, receiver.resume_reading)
        async with asyncio.timeout(30):
            await whole.wait()
        assert sender.is_open
    else:
        async with asyncio.timeout(30):
            await sender.closed
    for each in (sender, receiver):
        each.abort()
    server.close()
