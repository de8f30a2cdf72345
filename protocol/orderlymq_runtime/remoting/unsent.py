"""
A limit for the answers that all peers of a table together have not taken.

Each connection may keep some megabytes for a peer that is slow; a crowd that asks and never reads would fill the memory with them.
When the sum is too large, connections end: first those that took nothing for a while, and of these the one with most. So a peer that
reads what it asked for stays, however much that is. The sum is looked at after so many bytes were written, which costs a write nothing.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

# Of a broker, whose pod has 1 GiB by default: a hundred peers at the limit of bytes above which they are served no more.
BROKER_BYTES_MAX: Final = 128 << 20
# Of a name server, whose pod has 256 MiB.
NAME_SERVER_BYTES_MAX: Final = 48 << 20
# A peer that reads takes something sooner, over any network.
STALLED_S: Final = 0.25

# Of the limit, between two looks.
_LOOK_SHARE: Final = 8


class Writer(Protocol):
    """A connection, and how many bytes it has sent since it began."""

    sent_bytes: int

    @property
    def write_buffer_size(self) -> int:
        """Bytes that the peer's kernel has not taken yet."""

    def take_back(self, reason: str) -> None:
        """Close, and forget what the peer has not taken."""


class Unsent:
    """The sum of one table; the bytes beyond *bytes_max* are at most an eighth of it and one answer.

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
        # What each had taken at the last look, and when that was seen first.
        self._taken: dict[Writer, tuple[int, float]] = {}

    def look(self) -> None:
        """Add up what is waiting, and close those that give way."""
        self.written = 0
        now = asyncio.get_running_loop().time()
        sizes = {each: size for each in self._writers() if (size := each.write_buffer_size)}
        before, self._taken = self._taken, {}
        for each, size in sizes.items():
            taken, seen_at = before.get(each, (-1, now))
            if each.sent_bytes - size != taken:
                taken, seen_at = each.sent_bytes - size, now
            self._taken[each] = taken, seen_at
        total = sum(sizes.values())
        while total > self._bytes_max:
            most = max(
                sizes, key=lambda each: (now - self._taken[each][1] >= STALLED_S, sizes[each])
            )
            size = sizes.pop(most)
            total -= size
            most.take_back(f"the peer does not read, and {total + size} bytes wait for such peers")
