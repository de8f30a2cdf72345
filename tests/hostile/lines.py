"""
Many connections driven by one thread: bytes out, answers in, until each has its last answer or has hung up.

A case that cannot end a stream goes over a lasting connection; one that may has its own connection, which is closed
after it. Some of these are slow, and some of the slow ones never send the rest.
"""

import contextlib
import random
import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from orderlymq_protocol.frame.codec import ANSWER_HEADER_SIZE_MAX, FrameDecoder, FrameError
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import LINGER_RESET

_CHUNK: Final = 1 << 18
# The share of slow ones among the streams that a case may end, and their most bytes in one turn.
_SLOW_SHARE: Final = 0.01
_PACE_MAX: Final = 7
# More of a frame would delay its batch.
SLOW_BYTES_MAX: Final = 2_000


def answer_decoder() -> FrameDecoder:
    """Return a decoder of answers, whose headers may be larger than those of requests."""
    return FrameDecoder(header_size_max=ANSWER_HEADER_SIZE_MAX)


def paced(seed: int, number: int, frame: bytes) -> tuple[int, bytes]:
    """Return how many bytes of a case's stream to send per turn (0: no limit), and the part of its frame to send."""
    rng = random.Random((seed << 40) + number)
    if rng.random() >= _SLOW_SHARE:
        return 0, frame
    size = len(frame) if rng.random() < 0.5 else rng.randrange(len(frame) + 1)

    return rng.randint(1, _PACE_MAX), frame[: min(size, SLOW_BYTES_MAX)]


@dataclass(slots=True)
class Line:
    """One connection.

    Attributes:
        pace: how many bytes are sent in one turn; 0: as many as the other side takes.
        local_port: the port by which the log of a server names the connection.
        awaited: the opaque whose answer ends the wait for this connection; None if it waits for none.
        unread: why an answer could not be read; empty if all could.
    """

    port: int
    pace: int = 0
    sock: socket.socket = field(init=False)
    local_port: int = field(init=False)
    out: bytearray = field(default_factory=bytearray)
    awaited: int | None = None
    unread: str = ""
    is_open: bool = True
    _decoder: FrameDecoder = field(default_factory=answer_decoder)

    def __post_init__(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=5.0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.local_port = int(self.sock.getsockname()[1])

    @property
    def is_done(self) -> bool:
        return not self.is_open or (not self.out and self.awaited is None)

    def write(self) -> None:
        """Send what the other side takes now."""
        try:
            sent = self.sock.send(memoryview(self.out)[: self.pace or _CHUNK])
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        del self.out[:sent]

    def read(self) -> list[RemotingCommand]:
        """Return the received commands."""
        try:
            data = self.sock.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        try:
            commands = self._decoder.receive_data(data)
        except FrameError as error:
            self.unread = str(error)
            self.close()
            commands = error.commands
        for command in commands:
            if command.is_response and command.opaque == self.awaited:
                self.awaited = None
        return commands

    def close(self) -> None:
        """Hang up."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self.sock.close()


def exchange(lines: Iterable[Line], timeout_s: float) -> Iterator[tuple[Line, RemotingCommand]]:
    """Write and read on all *lines* until each is done or time is up; yield every received command."""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        waiting: dict[int, Line] = {}
        for line in lines:
            if not line.is_done:
                waiting[line.sock.fileno()] = line
                selector.register(line.sock, _events(line))
        while waiting and time.monotonic() < deadline:
            for key, mask in selector.select(0.5):
                line = waiting[key.fd]
                if mask & selectors.EVENT_READ:
                    for command in line.read():
                        yield line, command
                if mask & selectors.EVENT_WRITE and line.is_open:
                    line.write()
                if line.is_done:
                    del waiting[key.fd]
                    selector.unregister(key.fileobj)
                else:
                    selector.modify(line.sock, _events(line))


def _events(line: Line) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if line.out else 0)
