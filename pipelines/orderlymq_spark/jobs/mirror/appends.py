"""
The appends of one queue, several under way at a time: over a long link one at a time would copy one request per round trip.

Rule: they begin in order, and a broker stores copies only where its queue ends. So where one is refused or lost, those behind it are
refused, too. Only a queue that has never had a message begins anywhere: there the first append is alone, and says that it begins the
queue. A late append does not, so it never begins the queue of a topic that was created again meanwhile.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Final, Protocol

# With eight queues of 1 MiB requests, half of what a broker group takes before it is replicated.
UNDER_WAY_MAX: Final = 4


class Append(Protocol):
    """Begins to append a chunk; the result is the queue's end, None where the queue ends elsewhere."""

    def __call__(self, chunk: bytes, /, *, begins: bool) -> "Future[int | None]":
        """Append it; with *begins* a queue that has never had a message may begin there."""


def appended(chunks: Iterable[bytes], append: Append, *, is_empty: bool) -> Iterator[int]:
    """Append chunks; yield the queue's end after each one that is stored, up to the first one that is not.

    Args:
        chunks: the stored records, in order.
        append: begins to append one.
        is_empty: the queue may never have had a message.
    """
    under_way: deque[Future[int | None]] = deque()
    try:
        for chunk in chunks:
            under_way.append(append(chunk, begins=is_empty))
            while len(under_way) >= (1 if is_empty else UNDER_WAY_MAX):
                if (end := under_way.popleft().result()) is None:
                    return
                is_empty = False
                yield end
        while under_way:
            if (end := under_way.popleft().result()) is None:
                return
            yield end
    finally:
        for each in under_way:
            each.cancel()
