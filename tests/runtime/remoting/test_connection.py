"""Bytes, writes and limits of one connection, driven by hand without sockets."""

import asyncio
import errno
import logging
import math
from collections.abc import Iterable

import pytest

from orderlymq_protocol.frame.codec import FrameDecoder, encode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.closelog import CLOSES_LOGGED_MAX, CLOSES_PERIOD_S
from orderlymq_runtime.remoting.connection import Connection, FrameHandler
from orderlymq_runtime.remoting.connectiontable import ConnectionLimits, ConnectionTable
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.remoting.turns import GOODBYE_S
from orderlymq_runtime.sockets.inputbudget import InputBudget
from tests.runtime.peers import Recorder, echo, ignore


class StuckTransport(asyncio.Transport):
    """A transport whose peer never reads; it keeps and counts all writes."""

    def __init__(self, *, tls: object = None) -> None:
        super().__init__({"peername": ("192.0.2.7", 40_000), "sslcontext": tls})
        self.writes: list[bytes] = []
        self.is_reading_now = True
        self.has_eof = False
        self.is_aborted = False
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.writes.append(b"".join(list_of_data))
        if self.protocol is not None and self.get_write_buffer_size() > self.high:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def write_eof(self) -> None:
        self.has_eof = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        self.has_eof = True

    def abort(self) -> None:
        self.is_aborted = True
        self.writes.clear()

    @property
    def sent(self) -> list[RemotingCommand]:
        return FrameDecoder().receive_data(b"".join(self.writes))


def connect(
    handler: FrameHandler, limits: ConnectionLimits | None = None
) -> tuple[Connection, StuckTransport]:
    conn = Connection(handler, ConnectionTable(limits or ConnectionLimits(), Traffic()))
    transport = StuckTransport()
    conn.connection_made(transport)
    transport.protocol = conn
    return conn, transport


def feed(conn: Connection, data: bytes) -> None:
    view = conn.get_buffer(-1)
    view[: len(data)] = data
    conn.buffer_updated(len(data))


class Slow:
    """A clock that only requests move: opaque 1 takes 16 ms, others nothing; *served* has them by connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.served: list[tuple[int, int]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    def serve(self, conn: Connection, command: RemotingCommand) -> None:
        self.served.append((conn.id, command.code))
        self.now += 0.016 * command.opaque


def slow(*codes: int) -> bytes:
    return b"".join(encode(RemotingCommand(code, opaque=1)) for code in codes)


async def test_the_answers_to_the_commands_of_a_chunk_leave_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: the answers to all commands of one received chunk leave in one write."""
    Slow(monkeypatch)
    handler = Recorder(echo)
    conn, transport = connect(handler)
    commands = [RemotingCommand(10 + n, opaque=n, body=b"x" * n) for n in range(100)]

    feed(conn, b"".join(map(encode, commands)))

    assert handler.commands == commands
    assert len(transport.writes) == 1
    assert transport.sent == [
        command.reply(0, {"echo": str(command.code)}, command.body) for command in commands
    ]
    conn.connection_lost(None)


async def test_what_is_sent_between_two_reads_leaves_in_one_write() -> None:
    """Law: everything sent in one loop iteration leaves in one write, whether it answers a request or not."""
    conn, transport = connect(Recorder())

    for n in range(5):
        conn.send(RemotingCommand(40, opaque=n))
    before = list(transport.writes)
    await asyncio.sleep(0)

    assert before == []
    assert len(transport.writes) == 1
    assert [command.opaque for command in transport.sent] == [0, 1, 2, 3, 4]
    conn.connection_lost(None)


async def test_frames_cut_anywhere_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: frames are put together however the bytes are cut."""
    Slow(monkeypatch)
    handler = Recorder(ignore)
    conn, _ = connect(handler)
    commands = [RemotingCommand(310, opaque=n, body=bytes(7)) for n in range(3)]

    for octet in b"".join(map(encode, commands)):
        feed(conn, bytes([octet]))

    assert handler.commands == commands
    conn.connection_lost(None)


async def test_a_peer_that_does_not_read_is_not_read_from_either() -> None:
    """Law: above the soft write limit the connection stops reading, and below it reads on."""
    conn, transport = connect(Recorder())

    conn.pause_writing()
    paused = transport.is_reading_now
    conn.resume_writing()

    assert (paused, transport.is_reading_now) == (False, True)
    assert transport.high == ConnectionLimits().write_soft_max
    conn.connection_lost(None)


async def test_who_opened_a_connection_reads_while_it_writes() -> None:
    """Law: the end that opened a connection goes on reading while it writes much, so the two ends never block each other."""
    handler = Recorder()
    room: list[bool] = []
    table = ConnectionTable(ConnectionLimits(), Traffic())
    conn = Connection(handler, table, on_room=lambda: room.append(conn.has_room))
    transport = StuckTransport()
    conn.connection_made(transport)
    transport.protocol = conn

    conn.send(RemotingCommand(10, body=bytes(ConnectionLimits().write_soft_max)))
    paused = conn.has_room, transport.is_reading_now
    feed(conn, encode(RemotingCommand(40)))
    transport.writes.clear()
    conn.resume_writing()

    assert paused == (False, True)
    assert [command.code for command in handler.commands] == [40]
    assert room == [True]
    conn.connection_lost(None)


async def test_many_requests_of_one_chunk_are_served_as_the_peer_takes_the_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a peer gets all answers, however many requests it sent at once; they are served as it reads."""
    Slow(monkeypatch)
    limits = ConnectionLimits(write_soft_max=10_000, write_hard_max=200_000)

    def serve(conn: Connection, command: RemotingCommand) -> None:
        conn.send(command.reply(0, body=bytes(5_000)))

    conn, transport = connect(Recorder(serve), limits)
    taken: list[int] = []

    feed(conn, b"".join(encode(RemotingCommand(11, opaque=n)) for n in range(1_000)))
    while transport.writes:
        # The soft limit, and the answer that exceeded it.
        assert transport.get_write_buffer_size() < limits.write_soft_max + 6_000
        taken += [answer.opaque for answer in transport.sent]
        transport.writes.clear()
        conn.resume_writing()

    assert taken == list(range(1_000))
    assert not conn.is_closing
    assert transport.is_reading_now
    conn.connection_lost(None)


async def test_one_request_cannot_pile_up_more_than_the_hard_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: one request cannot fill more than the hard write limit, even in one handler call; it costs one log line."""
    limits = ConnectionLimits(write_soft_max=10_000, write_hard_max=100_000)
    sizes: list[int] = []

    def serve(conn: Connection, command: RemotingCommand) -> None:
        for _ in range(1_000):
            conn.send(command.reply(0, body=bytes(5_000)))
            sizes.append(conn.write_buffer_size)

    conn, transport = connect(Recorder(serve), limits)
    with caplog.at_level(logging.WARNING):
        feed(conn, encode(RemotingCommand(11)))

    assert transport.is_aborted
    assert max(sizes) <= limits.write_hard_max
    assert len(caplog.records) == 1
    assert "does not read" in caplog.text
    conn.connection_lost(None)


async def test_an_exception_of_the_handler_is_answered_with_code_1() -> None:
    """Law: a failing handler answers with code 1, and the connection stays."""

    def serve(conn: Connection, command: RemotingCommand) -> None:
        raise RuntimeError("no such thing")

    conn, transport = connect(Recorder(serve))

    feed(conn, encode(RemotingCommand(99, opaque=7)))
    feed(conn, encode(request(99, oneway=True)))

    (answer,) = transport.sent
    assert (answer.code, answer.opaque, answer.remark) == (1, 7, "RuntimeError: no such thing")
    assert not conn.is_closing
    conn.connection_lost(None)


async def test_an_exception_amid_several_requests_fails_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: if one of several requests fails, the others are answered normally."""
    Slow(monkeypatch)

    def serve(conn: Connection, command: RemotingCommand) -> None:
        if command.opaque == 2:
            raise RuntimeError("no such thing")
        echo(conn, command)

    conn, transport = connect(Recorder(serve))

    feed(conn, b"".join(encode(RemotingCommand(310, opaque=n)) for n in (1, 2, 3)))

    assert [(answer.opaque, answer.code) for answer in transport.sent] == [(1, 0), (2, 1), (3, 0)]
    conn.connection_lost(None)


async def test_long_work_of_one_chunk_lets_everything_else_come_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: after 15 ms of requests from one chunk the loop serves timers and other connections; each keeps its order."""
    work = Slow(monkeypatch)
    table = ConnectionTable(ConnectionLimits(), Traffic())
    first, second = (Connection(Recorder(work.serve), table) for _ in range(2))
    transports = StuckTransport(), StuckTransport()
    first.connection_made(transports[0])
    second.connection_made(transports[1])

    feed(first, slow(*range(40)) + encode(RemotingCommand(40))[:30])
    feed(second, slow(0))
    feed(second, slow(1))
    at_once = list(work.served)
    reads = [transport.is_reading_now for transport in transports]
    room = len(first.get_buffer(-1))
    turns: list[int] = []
    while len(work.served) < 42:
        await asyncio.sleep(0)
        turns.append(len(work.served))
    feed(first, encode(RemotingCommand(40))[30:])
    await asyncio.sleep(0)

    assert at_once == [(first.id, 0)]
    assert (reads, room) == ([False, False], 16 * 1024)
    assert turns == list(range(2, 43))
    assert work.served[:5] == [(1, 0), (1, 1), (2, 0), (1, 2), (2, 1)]
    assert [code for number, code in work.served if number == first.id] == list(range(41))
    assert all(transport.is_reading_now for transport in transports)
    first.connection_lost(None)
    second.connection_lost(None)


async def test_a_large_request_stands_in_the_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a large request is read completely although others wait, and only then waits for its turn."""
    work = Slow(monkeypatch)
    table = ConnectionTable(ConnectionLimits(), Traffic())
    busy, large = (Connection(Recorder(work.serve), table) for _ in range(2))
    ways = StuckTransport(), StuckTransport()
    busy.connection_made(ways[0])
    large.connection_made(ways[1])
    whole = encode(RemotingCommand(50, body=bytes(1 << 20)))

    feed(busy, slow(*range(10)))
    reads = []
    for at in range(0, len(whole), 16 * 1024):
        feed(large, whole[at : at + 16 * 1024])
        reads.append(ways[1].is_reading_now)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert reads == [True] * (len(reads) - 1) + [False]
    assert work.served == [(busy.id, 0), (busy.id, 1), (large.id, 50), (busy.id, 2)]
    assert ways[1].is_reading_now
    busy.connection_lost(None)
    large.connection_lost(None)


async def test_short_work_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: work that fits into a turn is done immediately, also after a pause for long work."""
    work = Slow(monkeypatch)
    conn, transport = connect(Recorder(work.serve))

    feed(conn, slow(0))
    work.now += 0.001
    feed(conn, b"".join(encode(RemotingCommand(code)) for code in range(1, 1_000)))

    assert [code for _, code in work.served] == list(range(1_000))
    assert transport.is_reading_now
    conn.connection_lost(None)


async def test_a_burst_of_short_requests_is_handed_over_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a burst of short requests (64 sends of 0.15 ms) is not split; each part would cost a log entry."""
    work = Slow(monkeypatch)

    def serve(conn: Connection, command: RemotingCommand) -> None:
        work.serve(conn, command)
        work.now += 0.00015

    conn, _ = connect(Recorder(serve))

    feed(conn, b"".join(encode(RemotingCommand(code)) for code in range(64)))

    assert [code for _, code in work.served] == list(range(64))
    conn.connection_lost(None)


async def test_a_broken_frame_behind_long_work_ends_the_connection_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a broken frame ends its connection only after the complete requests before it were served."""
    work = Slow(monkeypatch)
    broken, broken_transport = connect(Recorder(work.serve))
    gone, _ = connect(Recorder(work.serve))

    feed(broken, slow(0, 1) + b"\x7f\xff\xff\xff\x00\x00\x00\x02{}")
    feed(gone, slow(7, 8))
    was_open = not broken_transport.has_eof
    gone.connection_lost(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [code for _, code in work.served] == [0, 7, 1]
    assert was_open
    assert broken_transport.has_eof
    broken.connection_lost(None)


async def test_what_a_peer_sends_before_it_hangs_up_is_served_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: the last requests of a peer that hangs up are served immediately (TLS reports both together); slow ones are dropped."""
    work = Slow(monkeypatch)
    table = ConnectionTable(ConnectionLimits(), Traffic())
    busy, leaving = (Connection(Recorder(work.serve), table) for _ in range(2))
    for conn in (busy, leaving):
        conn.connection_made(StuckTransport())

    feed(busy, slow(0, 0))
    quick = b"".join(encode(RemotingCommand(code)) for code in range(40))
    feed(leaving, quick + slow(*range(40, 80)) + encode(RemotingCommand(80))[:30])
    leaving.eof_received()
    leaving.connection_lost(None)

    count = 40 + math.ceil(GOODBYE_S / 0.016)
    assert work.served == [(busy.id, 0), *((leaving.id, code) for code in range(count))]
    broken, way = connect(Recorder(work.serve))
    feed(broken, slow(0, 1) + b"\x7f\xff\xff\xff\x00\x00\x00\x02{}")
    broken.eof_received()
    assert (work.served[-1], way.has_eof) == ((broken.id, 1), True)
    busy.connection_lost(None)
    broken.connection_lost(None)


async def test_connections_that_hang_up_together_are_served_for_as_long_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: many connections that hang up in one iteration are together served no longer than one, so replicas still hear the leader."""
    work = Slow(monkeypatch)
    table = ConnectionTable(ConnectionLimits(), Traffic())
    leaving = [Connection(Recorder(work.serve), table) for _ in range(8)]
    for conn in leaving:
        conn.connection_made(StuckTransport())
        feed(conn, slow(*range(40)))

    for conn in leaving[:6]:
        conn.eof_received()
        conn.connection_lost(None)
    together = len(work.served)
    # The first one is in its turn, and each has the request that it began.
    assert together <= 1 + len(leaving) + math.ceil(GOODBYE_S / 0.016)

    await asyncio.sleep(0)
    await asyncio.sleep(0)
    before = len(work.served)
    leaving[6].eof_received()
    assert len(work.served) - before >= math.ceil(GOODBYE_S / 0.016) - 1
    for conn in leaving[6:]:
        conn.connection_lost(None)


async def test_good_commands_before_a_broken_frame_are_served(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: complete commands before a broken frame are answered, then the connection ends."""
    Slow(monkeypatch)
    conn, transport = connect(Recorder(echo))

    with caplog.at_level(logging.WARNING):
        feed(conn, encode(RemotingCommand(10, opaque=1)) + b"\x7f\xff\xff\xff\x00\x00\x00\x02{}")

    assert [answer.opaque for answer in transport.sent] == [1]
    assert transport.has_eof
    assert len(caplog.records) == 1
    conn.connection_lost(None)


async def test_an_answer_that_cannot_be_sent_becomes_code_1() -> None:
    """Law: an answer that is too large to be sent is replaced by code 1."""
    conn, transport = connect(Recorder())
    too_large = RemotingCommand(11, opaque=3).reply(0, body=bytes(16_777_216))

    conn.send(too_large)
    await asyncio.sleep(0)

    (answer,) = transport.sent
    assert (answer.code, answer.opaque, answer.is_response) == (1, 3, True)
    assert "cannot be sent" in (answer.remark or "")
    conn.connection_lost(None)


async def test_half_a_frame_is_waited_for_30_s_and_silence_for_120_s() -> None:
    """Law: half a frame is waited for 30 s, and a silent connection 120 s, since the last progress; in virtual time."""
    loop = asyncio.get_running_loop()
    half, half_transport = connect(Recorder())
    idle, idle_transport = connect(Recorder())
    feed(half, encode(RemotingCommand(10))[:20])
    now = loop.time()

    half.close_if_overdue(now + 29)
    idle.close_if_overdue(now + 119)
    before = (half_transport.has_eof, idle_transport.has_eof)
    half.close_if_overdue(now + 31)
    idle.close_if_overdue(now + 121)

    assert before == (False, False)
    assert (half_transport.has_eof, idle_transport.has_eof) == (True, True)
    half.connection_lost(None)
    idle.connection_lost(None)


async def test_sending_on_a_closed_connection_does_nothing() -> None:
    """Law: sending on a closed connection does nothing."""
    conn, transport = connect(Recorder())
    conn.close()

    conn.send(RemotingCommand(40))
    conn.close()
    await asyncio.sleep(0)
    conn.connection_lost(None)
    conn.send(RemotingCommand(40))
    conn.close(orderly=False)

    assert transport.writes == []


def closes_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition("closed: ")[2] for record in caplog.records]


async def test_a_close_by_the_owner_leaves_one_line_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a close by this end has one log line and is counted, however often it is requested."""
    caplog.set_level(logging.INFO)
    table = ConnectionTable(ConnectionLimits(), Traffic())
    conn = Connection(Recorder(), table)
    conn.connection_made(StuckTransport())

    conn.close(kind="leader_changed", orderly=False)
    conn.close(kind="shutdown")
    conn.connection_lost(None)

    assert closes_logged(caplog) == ["leader changed"]
    assert table.traffic.errors == {"leader_changed": 1}


async def test_who_is_idle_is_closed_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Law: an idle connection is closed with a log line that names the limit."""
    caplog.set_level(logging.INFO)
    conn, _ = connect(Recorder())

    conn.close_if_overdue(asyncio.get_running_loop().time() + 121)

    assert closes_logged(caplog) == ["no traffic for 120 s"]
    conn.connection_lost(None)


async def test_who_acknowledges_nothing_is_closed_with_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: if the peer acknowledges nothing and the kernel gives up, there is a line; a reset by the peer has none."""
    caplog.set_level(logging.INFO)
    ours, _ = connect(Recorder())
    theirs, _ = connect(Recorder())

    ours.connection_lost(OSError(errno.ETIMEDOUT, "timed out"))
    theirs.connection_lost(ConnectionResetError(errno.ECONNRESET, "reset"))

    assert closes_logged(caplog) == ["the peer does not acknowledge any data"]


async def test_many_closes_of_one_kind_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: many closes of one kind have a limited number of log lines per period, but all are counted."""
    caplog.set_level(logging.INFO)
    seconds = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: seconds)
    table = ConnectionTable(ConnectionLimits(), Traffic())
    kinds = ["leader_lost"] * 3 * CLOSES_LOGGED_MAX + ["idle"]

    for kind in kinds:
        conn = Connection(Recorder(), table)
        conn.connection_made(StuckTransport())
        conn.close(kind=kind)
        conn.connection_lost(None)
    told = len(caplog.records)
    seconds = CLOSES_PERIOD_S
    conn = Connection(Recorder(), table)
    conn.connection_made(StuckTransport())
    conn.close(kind="leader_lost")
    conn.connection_lost(None)

    # Each one, one that says that more are only counted, and one of another kind.
    assert told == CLOSES_LOGGED_MAX + 2
    assert len(caplog.records) == told + 1
    assert table.traffic.errors == {"leader_lost": 3 * CLOSES_LOGGED_MAX + 1, "idle": 1}


async def test_requests_of_a_peer_that_does_not_read_are_kept_as_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: requests of a peer that does not read are kept as bytes, within the budget, not as decoded commands."""
    Slow(monkeypatch)
    budget = InputBudget()
    limits = ConnectionLimits(write_soft_max=10_000)
    table = ConnectionTable(limits, Traffic(), budget=budget)
    conn = Connection(
        Recorder(lambda conn, command: conn.send(command.reply(body=bytes(20_000)))), table
    )
    transport = StuckTransport()
    conn.connection_made(transport)
    transport.protocol = conn
    chunk = encode(RemotingCommand(219)) * 2_000

    feed(conn, chunk)

    assert len(transport.sent) == 1
    assert not transport.is_reading_now
    assert 0 < budget.clients.held < len(chunk) + 100_000
    conn.connection_lost(None)
    assert budget.clients.held == 0
