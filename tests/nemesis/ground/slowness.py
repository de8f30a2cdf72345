"""
Slow and lossy links without the kernel's help: packets between slowed replicas pass through this process.

Every replica's namespace has a TUN device, "slow". While two replicas are slowed, their routes to each other lead
there (``ground.py``). A thread reads the packets, holds each back for its delay and writes it to the other end. Other
packets never come here.
"""

import ctypes
import fcntl
import heapq
import os
import random
import selectors
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_CLONE_NEWNET: Final = 0x40000000
_PACKET_MAX: Final = 65_535
# More than a second of a slowed link at our load; above it packets are lost, as in a full router.
_HELD_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class _Link:
    delay_s: float
    jitter_s: float
    loss: float


class Slowness:
    """Carries packets between TUN devices, later or never."""

    def __init__(self) -> None:
        self.carried = 0
        self.lost = 0
        self._devices: dict[str, int] = {}
        self._links: dict[frozenset[str], _Link] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._held: list[tuple[float, int, int, bytes]] = []
        self._choose = random.Random(0)
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, host: str, namespace: str) -> None:
        """Make the device "slow" in a namespace, for packets to and from *host*."""
        device = _in_namespace(namespace)
        os.set_blocking(device, False)
        self._devices[host] = device
        self._selector.register(device, selectors.EVENT_READ)

    def set(self, one: str, other: str, *, delay_s: float, jitter_s: float, loss: float) -> None:
        """Set the delay and loss of packets between two hosts; *loss* is a probability."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry, name="slowness", daemon=True)
            self._thread.start()
        self._links[frozenset((one, other))] = _Link(delay_s, jitter_s, loss)

    def clear(self) -> None:
        """Let late packets through without delay."""
        self._links.clear()

    def close(self) -> None:
        """Stop carrying."""
        self._closed = True
        os.write(self._woken, b"x")
        if self._thread is not None:
            self._thread.join(2.0)
        for device in self._devices.values():
            os.close(device)

    def _carry(self) -> None:
        while not self._closed:
            wait_s = self._held[0][0] - time.monotonic() if self._held else None
            for key, _ in self._selector.select(wait_s if wait_s is None else max(wait_s, 0.0)):
                if key.fd != self._wake:
                    self._read(key.fd)
            now = time.monotonic()
            while self._held and self._held[0][0] <= now:
                _, _, device, packet = heapq.heappop(self._held)
                self._write(device, packet)

    def _read(self, device: int) -> None:
        while True:
            try:
                packet = os.read(device, _PACKET_MAX)
            except BlockingIOError:
                return
            source, target = _ends(packet)
            to = self._devices.get(target)
            if to is None:
                continue
            link = self._links.get(frozenset((source, target)), _Link(0.0, 0.0, 0.0))
            if self._choose.random() < link.loss or len(self._held) >= _HELD_MAX:
                self.lost += 1
                continue
            due = time.monotonic() + link.delay_s + self._choose.uniform(0, link.jitter_s)
            self.carried += 1
            # The number keeps packets of one instant in order.
            heapq.heappush(self._held, (due, self.carried, to, packet))

    def _write(self, device: int, packet: bytes) -> None:
        try:
            os.write(device, packet)
        except OSError:
            self.lost += 1  # a full queue; TCP sends it again


def _ends(packet: bytes) -> tuple[str, str]:
    """Return source and destination of an IPv4 packet, empty texts for any other packet."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return "", ""
    source, target = struct.unpack_from("!4s4s", packet, 12)
    return ".".join(map(str, source)), ".".join(map(str, target))


def _in_namespace(path: str) -> int:
    """Return a TUN device "slow" in the network namespace *path*."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(path, os.O_RDONLY)
    try:
        # Namespaces belong to threads, so only this thread of the process moves.
        if libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"slow", _IFF_TUN | _IFF_NO_PI))
        finally:
            libc.setns(own, _CLONE_NEWNET)
    finally:
        os.close(own)
        os.close(there)
    return device
