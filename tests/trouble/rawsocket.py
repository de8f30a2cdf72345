"""A socket that sends bytes that no client would send, and measures of a process from outside."""

import socket
import time
from types import TracebackType
from typing import Self

import psutil

from orderlymq_protocol.frame.codec import ANSWER_HEADER_SIZE_MAX, FrameDecoder, encode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import LINGER_RESET

# A server that is silent for this long will not answer: it takes milliseconds, on a busy machine seconds.
ANSWER_TIMEOUT_S = 15.0


class RawSocket:
    """A blocking connection that sends bytes and receives commands.

    Life cycle: connected by the constructor; usable until `close`. *source* is the local address; crowds use one
    of their own, so that they take no port from the servers under test.
    """

    def __init__(self, port: int, *, source: str = "127.0.0.1", receive_buffer: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        # Ten thousand ports that stay in TIME_WAIT for a minute after each test would soon use up all ports.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        try:
            self._socket.bind((source, 0))
            self._socket.connect(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self._decoder = FrameDecoder(header_size_max=ANSWER_HEADER_SIZE_MAX)
        self._received: list[RemotingCommand] = []
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_some(self, data: bytes, *, timeout_s: float) -> int:
        """Send as much as the peer accepts within *timeout_s*; return the number of bytes."""
        self._socket.settimeout(timeout_s)
        sent = 0
        try:
            while sent < len(data):
                sent += self._socket.send(data[sent : sent + 65_536])
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(ANSWER_TIMEOUT_S)
        return sent

    def receive(self) -> RemotingCommand | None:
        """Return the next command, None if the peer has closed the connection.

        Raises:
            TimeoutError: no bytes came.
        """
        while not self._received:
            try:
                data = self._socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._received = self._decoder.receive_data(data)
        return self._received.pop(0)

    def call(self, command: RemotingCommand) -> RemotingCommand | None:
        """Send a request and return its answer, None if the peer closes the connection instead."""
        self._opaque += 1
        command.opaque = self._opaque
        self.send(encode(command))
        while True:
            answer = self.receive()
            if answer is None or (answer.is_response and answer.opaque == command.opaque):
                return answer

    def is_hung_up(self, within_s: float = ANSWER_TIMEOUT_S) -> bool:
        """Return whether the peer closes the connection within *within_s* without sending anything before."""
        self._socket.settimeout(within_s)
        try:
            return self.receive() is None
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        self._socket.close()


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(psutil.Process(pid).memory_info().rss)


def peak_memory_bytes(pid: int, while_s: float) -> int:
    """Return the largest resident memory of a process during *while_s* seconds."""
    peak = 0
    deadline = time.monotonic() + while_s
    while time.monotonic() < deadline:
        peak = max(peak, memory_bytes(pid))
        time.sleep(0.02)
    return peak
