"""
The local cache of one queue: messages that were pulled and are not yet done.

Rules: messages leave in the order of their offsets, the cache holds each offset once, and `put`, `take`, `commit`,
`rollback` and `again` lose no message. For ordered consumption, `take` moves messages from the waiting ones to those
taken and not committed. For concurrent consumption, `remove` takes messages out one by one, and the commit offset is
the lowest that is left. The content is that of RocketMQ's ProcessQueue, without its locks and clocks.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from orderlymq.message import ReceivedMessage

NOTHING = -1
"""The value that operations return in place of an offset if there is none."""


@dataclass(slots=True)
class ProcessQueue:
    """Cache of one queue under one assignment; a new assignment begins with a new cache.

    `count` and `size_bytes` cover waiting and taken messages. Flow control counts both, so that a listener that never
    commits cannot fill the memory.
    """

    count: int = 0
    size_bytes: int = 0
    _messages: dict[int, ReceivedMessage] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)  # sorted offsets
    _taken: list[int] = field(default_factory=list)  # sorted offsets
    _end: int = 0  # one more than the highest offset that was ever put

    def put(self, messages: Iterable[ReceivedMessage]) -> None:
        """Add pulled messages; an offset that is in the cache already is ignored."""
        for message in messages:
            offset = message.queue_offset
            if offset in self._messages:
                continue
            self._messages[offset] = message
            if self._waiting and offset < self._waiting[-1]:
                insort(self._waiting, offset)
            else:
                self._waiting.append(offset)
            self._end = max(self._end, offset + 1)
            self.count += 1
            self.size_bytes += message.size_bytes

    def take(self, limit: int) -> tuple[ReceivedMessage, ...]:
        """Move up to *limit* messages with the lowest offsets to the taken ones and return them.

        An unreadable message is taken alone, so that it fails alone.
        """
        found = self.peek(limit)
        self._waiting = self._waiting[len(found) :]
        for message in found:
            insort(self._taken, message.queue_offset)
        return found

    def peek(self, limit: int) -> tuple[ReceivedMessage, ...]:
        """Return the messages that `take` would return, without moving them."""
        found = tuple(self._messages[offset] for offset in self._waiting[:limit])
        end = next((n for n, message in enumerate(found) if message.unreadable), len(found))
        return found[: max(1, end)]

    def commit(self) -> int:
        """Drop the taken messages before the first waiting one; return the offset to commit, NOTHING if there were none."""
        end = bisect_left(self._taken, self._waiting[0]) if self._waiting else len(self._taken)
        if not end:
            return NOTHING
        done, self._taken = self._taken[:end], self._taken[end:]
        for offset in done:
            self._forget(offset)
        return done[-1] + 1

    def rollback(self, keep: Collection[int] = ()) -> None:
        """Make all taken messages wait again, except the offsets in *keep* (dead letters)."""
        self.again(offset for offset in self._taken if offset not in keep)

    def again(self, offsets: Iterable[int]) -> None:
        """Make these taken messages wait again, in their places; other offsets are ignored."""
        back = set(offsets).intersection(self._taken)
        if not back:
            return
        self._taken = [offset for offset in self._taken if offset not in back]
        self._waiting = sorted([*self._waiting, *back])

    def remove(self, offsets: Iterable[int]) -> int:
        """Drop finished messages, waiting or taken; return the offset to commit.

        That is the lowest offset in the cache. It is one more than the highest offset ever put if the cache is empty,
        and NOTHING if the cache never had a message.
        """
        for offset in offsets:
            if offset in self._messages:
                # Nearly always taken; the waiting ones are searched only if it was not.
                _discard(self._taken, offset) or _discard(self._waiting, offset)
                self._forget(offset)
        return self.commit_offset

    @property
    def commit_offset(self) -> int:
        """The lower edge of the sliding window: see `remove`."""
        if not self._end:
            return NOTHING
        lowest = self.min_offset
        return self._end if lowest == NOTHING else lowest

    @property
    def min_offset(self) -> int:
        """The lowest offset in the cache, NOTHING if it is empty."""
        heads = [offsets[0] for offsets in (self._waiting, self._taken) if offsets]
        return min(heads, default=NOTHING)

    @property
    def max_offset(self) -> int:
        """The highest offset in the cache, NOTHING if it is empty."""
        tails = [offsets[-1] for offsets in (self._waiting, self._taken) if offsets]
        return max(tails, default=NOTHING)

    @property
    def span(self) -> int:
        """Distance from the lowest offset in the cache to the highest ever put; 0 if the cache is empty.

        RocketMQ counts only cached messages, so a queue may run ahead of one stuck message without limit; all those
        messages would be delivered again after a crash.
        """
        return self._end - 1 - self.min_offset if self.count else 0

    @property
    def waiting_count(self) -> int:
        """The number of messages that wait to be taken."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> int:
        """The offset that `take` returns next, NOTHING if none waits."""
        return self._waiting[0] if self._waiting else NOTHING

    @property
    def waiting(self) -> tuple[ReceivedMessage, ...]:
        """The waiting messages in order."""
        return tuple(self._messages[offset] for offset in self._waiting)

    @property
    def taken(self) -> tuple[ReceivedMessage, ...]:
        """The taken messages in order."""
        return tuple(self._messages[offset] for offset in self._taken)

    def check(self) -> None:
        """Assert the invariants; used by tests."""
        assert self._waiting == sorted(set(self._waiting))
        assert self._taken == sorted(set(self._taken))
        assert not set(self._waiting) & set(self._taken)
        assert set(self._messages) == {*self._waiting, *self._taken}
        assert self.count == len(self._messages)
        assert self.size_bytes == sum(message.size_bytes for message in self._messages.values())

    def _forget(self, offset: int) -> None:
        message = self._messages.pop(offset)
        self.count -= 1
        self.size_bytes -= message.size_bytes


def _discard(offsets: list[int], offset: int) -> bool:
    """Remove *offset* from a sorted list; return whether it was there."""
    at = bisect_left(offsets, offset)
    if at < len(offsets) and offsets[at] == offset:
        del offsets[at]
        return True
    return False
