"""
The local cache of one queue: messages that were pulled and are not yet done.

Rules: messages leave in the order of their offsets, each offset is there once, and none is lost between
`put`, `take`, `commit`, `rollback` and `again`. For ordered consumption `take` moves messages to a second
place (taken, not committed); for concurrent consumption `remove` takes them out one by one and the commit
offset is the lowest that is left. Same content as RocketMQ's ProcessQueue, without its locks and clocks.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from orderlymq.message import ReceivedMessage

NOTHING = -1
"""What offset-returning operations say when there is no offset."""


@dataclass(slots=True)
class ProcessQueue:
    """Cache of one queue under one assignment; a new assignment begins with a new cache.

    `count` and `size_bytes` cover waiting and taken messages: flow control counts both, so that a
    listener that never commits cannot fill the memory.
    """

    count: int = 0
    size_bytes: int = 0
    _messages: dict[int, ReceivedMessage] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)  # sorted offsets
    _taken: list[int] = field(default_factory=list)  # sorted offsets
    _end: int = 0  # one past the highest offset that was ever put

    def put(self, messages: Iterable[ReceivedMessage]) -> None:
        """Add pulled messages; an offset that is already there is ignored."""
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

        One that is unreadable fails alone: it is not taken together with others.
        """
        found = self.peek(limit)
        self._waiting = self._waiting[len(found) :]
        for message in found:
            insort(self._taken, message.queue_offset)
        return found

    def peek(self, limit: int) -> tuple[ReceivedMessage, ...]:
        """Return what `take` would, and leave it where it is."""
        found = tuple(self._messages[offset] for offset in self._waiting[:limit])
        end = next((n for n, message in enumerate(found) if message.unreadable), len(found))
        return found[: max(1, end)]

    def commit(self) -> int:
        """Forget taken messages before the first waiting one; return the offset to commit, NOTHING when there were none."""
        end = bisect_left(self._taken, self._waiting[0]) if self._waiting else len(self._taken)
        if not end:
            return NOTHING
        done, self._taken = self._taken[:end], self._taken[end:]
        for offset in done:
            self._forget(offset)
        return done[-1] + 1

    def rollback(self, keep: Collection[int] = ()) -> None:
        """Make everything taken wait again, except the offsets in *keep* (dead letters)."""
        self.again(offset for offset in self._taken if offset not in keep)

    def again(self, offsets: Iterable[int]) -> None:
        """Make these taken messages wait again, in their places; others are ignored."""
        back = set(offsets).intersection(self._taken)
        if not back:
            return
        self._taken = [offset for offset in self._taken if offset not in back]
        self._waiting = sorted([*self._waiting, *back])

    def remove(self, offsets: Iterable[int]) -> int:
        """Forget finished messages, wherever they are; return the offset to commit.

        The lowest offset that is still here; one past the highest ever seen when nothing is left;
        NOTHING when nothing was ever here.
        """
        for offset in offsets:
            if offset in self._messages:
                # Nearly always taken; the other place is looked at only when it was not.
                _discard(self._taken, offset) or _discard(self._waiting, offset)
                self._forget(offset)
        return self.commit_offset

    @property
    def commit_offset(self) -> int:
        """The sliding window's lower edge: see `remove`."""
        if not self._end:
            return NOTHING
        lowest = self.min_offset
        return self._end if lowest == NOTHING else lowest

    @property
    def min_offset(self) -> int:
        """The lowest offset here, NOTHING when empty."""
        heads = [offsets[0] for offsets in (self._waiting, self._taken) if offsets]
        return min(heads, default=NOTHING)

    @property
    def max_offset(self) -> int:
        """The highest offset here, NOTHING when empty."""
        tails = [offsets[-1] for offsets in (self._waiting, self._taken) if offsets]
        return max(tails, default=NOTHING)

    @property
    def span(self) -> int:
        """Distance from the lowest offset here to the highest ever put; 0 when empty.

        RocketMQ looks at what is cached only, and so lets a queue run ahead of one stuck message without
        end; all of that would be delivered again after a crash.
        """
        return self._end - 1 - self.min_offset if self.count else 0

    @property
    def waiting_count(self) -> int:
        """How many messages wait to be taken."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> int:
        """The offset that `take` gives next, NOTHING when none waits."""
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
        """Assert the invariants; tests call it."""
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
