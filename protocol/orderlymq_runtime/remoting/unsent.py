"""
A limit for the answers that all peers of a table together have not taken.

Each connection may keep some megabytes for a peer that is slow; a crowd that asks and never reads would fill the memory with them.
When the sum is too large, those end that were seen to take nothing for a while, the one with most first. One message may go to all
consumers at the same moment: so a peer that reads what it asked for stays, and ends only beyond a second bound. The sum is looked at
after so many bytes were written, which costs a write nothing, and while it is too large from time to time.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from orderlymq_runtime.sockets.streamtransport import StreamTransport

# Of a broker, whose pod has 1 GiB by default: a hundred peers at the limit of bytes above which they are served no more.
BROKER_BYTES_MAX: Final = 128 << 20
# Of a name server, whose pod has 256 MiB.
NAME_SERVER_BYTES_MAX: Final = 32 << 20
# With what peers have that read, or may still be seen to: so often as much, which is half of such a pod. The rest serves.
READERS_FACTOR: Final = 4
# Between two judgements. A peer that reads takes something sooner, over any network.
STALLED_S: Final = 0.25

# Of the limit, between two looks.
_LOOK_SHARE: Final = 8

# Bytes that go into TLS in one piece.
SLICE_SIZE: Final = 64 << 10


def write_slices(
    transport: StreamTransport, parts: list[bytes], is_paused: Callable[[], bool]
) -> list[bytes]:
    """Write *parts* until writing is paused, and return the rest.

    A TLS transport does not report what the transport below has, which takes all that it is given.
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
    """A connection, and how many bytes it has sent since it began."""

    sent_bytes: int

    @property
    def write_buffer_size(self) -> int:
        """Bytes that the peer's kernel has not taken yet."""

    def take_back(self, reason: str) -> None:
        """Close, and forget what the peer has not taken."""


class Unsent:
    """The sum of one table; beyond *bytes_max*, or `READERS_FACTOR` of it where peers read, are at most an eighth of it and one answer.

    Attributes:
        written: bytes since the last look; who writes adds to it.
        look_at: at how many it is time for the next.
    """

    def __init__(self, bytes_max: int, writers: Callable[[], Iterable[Writer]]) -> None:
        self._bytes_max = bytes_max
        self._writers = writers
        # Plain fields, for the writer compares them with each write.
        self.written = 0
        self.look_at = bytes_max // _LOOK_SHARE
        # What each had taken when it was judged last. Only while too much is waiting.
        self._taken: dict[Writer, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Add up what is waiting: beyond the first bound peers are judged soon, beyond the second they end."""
        self.written = 0
        sizes = {each: size for each in self._writers() if (size := each.write_buffer_size)}
        total = self._close(sizes, sum(sizes.values()), READERS_FACTOR * self._bytes_max)
        if total <= self._bytes_max:
            self._taken = {}
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STALLED_S, self.judge)

    def judge(self) -> None:
        """Close who took nothing since the last time.

        Between two times the loop has come to every socket. Between two looks it may not have: one call may send for longer.
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
            each.take_back(f"{total} bytes wait for all peers together, {sizes[each]} for this")
            total -= sizes[each]
        return total
