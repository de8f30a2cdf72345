"""
Appends to one queue, several in flight: over a long link, one at a time would copy one request per round trip.

Rule: appends start in order, and a broker stores copies only at the end of its queue. If one is refused or lost, all
later ones are therefore refused. Only a queue that never had a message may begin at any offset. There the first append
is sent alone, with the flag that it begins the queue. A late append has no such flag, so it never begins the queue of
a topic that was recreated meanwhile.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Final, Protocol

# Eight queues with 1 MiB requests use half of the unreplicated bytes that a broker group accepts.
UNDER_WAY_MAX: Final = 4


class Append(Protocol):
    """A function that starts to append a chunk; the result is the queue's end, or None if the queue ends elsewhere."""

    def __call__(self, chunk: bytes, /, *, begins: bool) -> "Future[int | None]":
        """Append the chunk; with *begins*, a queue that never had a message may begin there."""


def appended(chunks: Iterable[bytes], append: Append, *, is_empty: bool) -> Iterator[int]:
    """Append chunks; yield the queue's end after each stored chunk, and stop at the first one that is not stored.

    Args:
        chunks: the stored records, in order.
        append: starts to append one chunk.
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
