"""
Ports for the servers that tests start, never the same for two test processes of one machine.

A test process claims blocks of ports for as long as it lives. The claim is a socket with an
abstract name, which the kernel gives to one process only and takes back when that process ends.
All blocks lie below the ports that the kernel gives to outgoing connections. Ports are handed out
in rotation, so that a port that was just in use rests before the next test gets it.
"""

import socket
from contextlib import closing
from typing import Final

BLOCK: Final = 200
FIRST: Final = 12_000
END: Final = 32_600

# Enough that a port rests for some twenty groups of brokers, few enough for ten test processes.
BLOCKS_MAX: Final = 6

# RocketMQ's clients also connect to the port two below a broker's; its brokers take the next one, too.
STEP: Final = 5


def free_ports(count: int) -> list[int]:
    """Return *count* ports that nobody listens on; two below and one above each are free as well."""
    return [_PORTS.take(STEP) + 2 for _ in range(count)]


def free_row(count: int) -> int:
    """Return the first of *count* ports in a row that nobody listens on; at most ``BLOCK``."""
    return _PORTS.take(count)


def is_free(port: int) -> bool:
    """Return whether a server could listen there now."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class _Ports:
    """The blocks of this process, and where the next port is taken from."""

    def __init__(self) -> None:
        self._claims: list[socket.socket] = []
        self._blocks: list[int] = []
        self._turn = 0
        self._next = 0

    def take(self, count: int) -> int:
        """Return the first of *count* free ports in a row."""
        assert count <= BLOCK, f"a block has {BLOCK} ports"
        for _ in range(BLOCKS_MAX * BLOCK):
            base = self._advance(count)
            if all(map(is_free, range(base, base + count))):
                return base
        raise AssertionError("no free ports")

    def _advance(self, count: int) -> int:
        if not self._blocks or self._next + count > BLOCK:
            if len(self._blocks) < BLOCKS_MAX:
                self._blocks.append(self._claim())
            self._turn = (self._turn + 1) % len(self._blocks)
            self._next = 0
        base = self._blocks[self._turn] + self._next
        self._next += count
        return base

    def _claim(self) -> int:
        for base in range(FIRST, END, BLOCK):
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0orderlymq-test-ports-{base}")
            except OSError:
                claim.close()
                continue
            self._claims.append(claim)
            return base
        raise AssertionError("other test processes have all ports")


_PORTS: Final = _Ports()
