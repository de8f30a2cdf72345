"""
A limit for the answers that all peers of a table together have not taken.

Each connection may keep some megabytes for a slow peer; many peers that ask and never read would fill the memory with them.
If the sum is too large, peers that have taken nothing for a while are closed, the one with the most bytes first. One message may go to
all consumers at the same moment, so a peer that reads its answers stays, and is closed only beyond a second limit. The sum is computed
after a number of bytes was written, which costs a write nothing, and from time to time while it is too large.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from orderlymq_runtime.sockets.streamtransport import StreamTransport

# For a broker, whose pod has 1 GiB by default: a hundred peers at the limit of bytes above which they are not served any more.
BROKER_BYTES_MAX: Final = 128 << 20
# For a name server, whose pod has 256 MiB.
NAME_SERVER_BYTES_MAX: Final = 32 << 20
# The second limit, which includes peers that read or may still be seen to read: this many times as much, half of such a pod.
READERS_FACTOR: Final = 4
# The time between two judgements. A peer that reads takes something in it, over any network.
STALLED_S: Final = 0.25

# The part of the limit that may be written between two looks: one in this many.
_LOOK_SHARE: Final = 8

# Bytes that are passed to TLS in one piece.
SLICE_SIZE: Final = 64 << 10


def write_slices(
    transport: StreamTransport, parts: list[bytes], is_paused: Callable[[], bool]
) -> list[bytes]:
    """Write *parts* until writing is paused, and return the rest.

    A TLS transport takes everything that it is given, and does not report what the transport below it still has.
    """
    slices = [
        part[at : at + SLICE_SIZE] for part in parts for at in range(0, len(part), SLICE_SIZE)
    ]
    for place, each in enumerate(slices):
        if is_paused():
            return slices[place:]
        transport.write(each)
    return []


class Writer(Protocol):
    """A connection, and how many bytes it has sent since it was made."""

    sent_bytes: int

    @property
    def write_buffer_size(self) -> int:
        """Bytes that the peer's kernel has not taken yet."""

    def take_back(self, reason: str) -> None:
        """Close, and drop what the peer has not taken."""


class Unsent:
    """The unsent bytes of one table: at most *bytes_max*, or `READERS_FACTOR` of it if peers read, plus an eighth of it and one answer.

    Attributes:
        written: bytes written since the last look; each writer adds to it.
        look_at: number of written bytes at which the next look is due.
    """

    def __init__(self, bytes_max: int, writers: Callable[[], Iterable[Writer]]) -> None:
        self._bytes_max = bytes_max
        self._writers = writers
        # Plain fields, because each write compares them.
        self.written = 0
        self.look_at = bytes_max // _LOOK_SHARE
        # The bytes that each peer had taken at the last judgement; kept only while too much is waiting.
        self._taken: dict[Writer, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Add up what is waiting: beyond the first limit peers are judged soon, beyond the second they are closed."""
        self.written = 0
        sizes = {each: size for each in self._writers() if (size := each.write_buffer_size)}
        total = self._close(sizes, sum(sizes.values()), READERS_FACTOR * self._bytes_max)
        if total <= self._bytes_max:
            self._taken = {}
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STALLED_S, self.judge)

    def judge(self) -> None:
        """Close the peers that have taken nothing since the last judgement.

        Between two judgements the loop has come to every socket. Between two looks it may not have, because one call may send for longer.
        """
        self._timer = None
        sizes = {each: size for each in self._writers() if (size := each.write_buffer_size)}
        before = self._taken
        self._taken = {each: each.sent_bytes - size for each, size in sizes.items()}
        stalled = {
            each: sizes[each] for each, taken in self._taken.items() if taken == before.get(each)
        }
        self._close(stalled, sum(sizes.values()), self._bytes_max)
        self.look()

    def _close(self, sizes: dict[Writer, int], total: int, bytes_max: int) -> int:
        for each in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if total <= bytes_max:
                break
            each.take_back(
                f"{total} bytes wait for all peers in total, {sizes[each]} of them for this peer"
            )
            total -= sizes[each]
        return total
