"""Processes that hold, share or forward a connection to this process, which acts as the broker."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

# Connects as often as its argument says and waits for its end; code may be added behind it.
CLIENT = """
import ctypes, os, signal, socket, sys, threading, time

def fork(*mine):
    # It closes what is not its own, which the first process waits for, and lives for a minute at most.
    closed, closing = os.pipe()
    if os.fork():
        os.close(closing)
        os.read(closed, 1)
        os.close(closed)
        return
    signal.alarm(60)
    os.close(closed)
    for each in mine:
        each.close()
    os.close(closing)
    while True:
        time.sleep(60)

port = int(sys.argv[1])
socks = [socket.create_connection((sys.argv[2], port)) for _ in range(int(sys.argv[3]))]
"""
# Connects to the broker and to another port from one local port; {} is the other port.
# Both ends are bound before either connects, because only then every kernel lets them share the port.
SAME_PORT_CLIENT = """
import socket, sys, time

broker, other = socket.socket(), socket.socket()
for each in (broker, other):
    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
broker.bind((sys.argv[2], 0))
other.bind(broker.getsockname())
broker.connect((sys.argv[2], int(sys.argv[1])))
other.connect((sys.argv[2], {}))
"""
WAIT = "\ntime.sleep(60)\n"


@dataclass
class Broker:
    """Listens, and knows the remote ends of its connections."""

    listener: socket.socket
    ends: list[tuple[str, int]] = field(default_factory=list)
    accepted: list[socket.socket] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def ours(self) -> tuple[str, int]:
        """Our end of the first connection."""
        host, port, *_ = self.accepted[0].getsockname()
        return host, port

    def accept(self) -> tuple[str, int]:
        """Return the remote end of the next connection."""
        sock, peer = self.listener.accept()
        self.accepted.append(sock)
        self.ends.append((peer[0], peer[1]))
        return self.ends[-1]

    def close(self) -> None:
        for each in (*self.accepted, self.listener):
            each.close()


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[Broker]:
    """Serve as a broker; `::` accepts both address families."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server(
        (host, 0), family=family, dualstack_ipv6=host == "::", backlog=1000
    )
    listener.settimeout(10)
    broker = Broker(listener)
    try:
        yield broker
    finally:
        broker.close()


@contextlib.contextmanager
def client(
    broker: Broker,
    more: str = "",
    *,
    host: str = "127.0.0.1",
    connections: int = 1,
    stdin: int = subprocess.DEVNULL,
    connect: str = CLIENT,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client program and accept its connections; *more* is code that runs after *connect*."""
    program = connect + more + "\nprint('ready', flush=True)" + WAIT
    words = (sys.executable, "-c", program, str(broker.port), host, str(connections))
    with subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE) as process:
        try:
            for _ in range(connections):
                broker.accept()
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def killed_during_a_look(
    process: subprocess.Popen[bytes], then: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Kill a client after a look has found it and goes on to the next process, then call *then*."""
    listdir, found = os.listdir, False

    def listed(folder: str | os.PathLike[str]) -> list[str]:
        nonlocal found
        name = os.fspath(folder)
        if found and process.returncode is None and name.endswith("/fd"):
            process.kill()
            process.wait()
            then()
        found = found or name == f"/proc/{process.pid}/fd"
        return listdir(folder)

    with mock.patch("os.listdir", listed):
        yield
