"""
Lists of everything that a broker group has: topics, groups, offsets, locks, clients.

The rules: a list is written some milliseconds at a time, because there may be tens of thousands of rows, and others elect a leader
that is silent for a fifth of a second; one list is written at a time, and of others that are not short some rows; one that
would not fit a frame ends as soon as that is known. A change while a list is written may be in it or not. Who answers
with one: ``answer_list`` in ``responses.py``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from orderlymq_broker.core.effects import Effect, Later, Now
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.declaration import JsonModel
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.codec import FRAME_SIZE_MAX

# What is written before others have their turn, at some 6 us each: a row is 1, and so are eight members of it.
STEP_WORK_MAX: Final = 2_048
_MEMBERS: Final = 8
# A queue in an offset table.
QUEUE_WORK: Final = 2
# A list that is no more than this waits for no longer one: how far one group is, who its members are.
SHORT_WORK_MAX: Final = 64
# Tools ask for one or two.
WAITING_MAX: Final = 64
# Beside it a frame has a header.
BODY_SIZE_MAX: Final = FRAME_SIZE_MAX - (64 << 10)

T = TypeVar("T")

# The text of a list piece by piece, each with the work that it was.
Pieces: TypeAlias = Iterator[tuple[bytes, int]]
Rows: TypeAlias = Iterator[tuple[str | MessageQueue, Any]]
# Is given the text, or None when it is too long.
Then: TypeAlias = Callable[[bytes | None], list[Effect]]


@dataclass(slots=True)
class _Listing:
    """A list that is being written, or waits for it."""

    pieces: Pieces
    then: Then
    written: list[bytes] = field(default_factory=list)
    size: int = 0


class Listings:
    """Writes one list after the other."""

    def __init__(self) -> None:
        self._queue: deque[_Listing] = deque()
        self._goes_on = False

    def write(self, pieces: Pieces, then: Then) -> list[Effect] | None:
        """Write a list of which nothing was read yet, and call *then*; return None when too many wait."""
        listing = _Listing(pieces, then)
        if self._goes_on:
            _, is_over = _write_on(listing, SHORT_WORK_MAX)
            if is_over:
                return _reply(listing)
        if len(self._queue) >= WAITING_MAX:
            return None
        self._queue.append(listing)

        return [] if self._goes_on else self._work()

    def _go_on(self, _: Now) -> list[Effect]:
        self._goes_on = False
        return self._work()

    def _work(self) -> list[Effect]:
        effects: list[Effect] = []
        room = STEP_WORK_MAX
        while self._queue and room > 0:
            # Out of the queue first: one that cannot be written must not stand before the others for ever.
            listing = self._queue.popleft()
            room, is_over = _write_on(listing, room)
            if is_over:
                effects += _reply(listing)
            else:
                self._queue.appendleft(listing)
        if self._queue:
            self._goes_on = True
            effects.append(Later(self._go_on))

        return effects


def _reply(listing: _Listing) -> list[Effect]:
    """Give a list that is over to who asked for it."""
    whole = listing.size <= BODY_SIZE_MAX

    return listing.then(b"".join(listing.written) if whole else None)


def _write_on(listing: _Listing, room: int) -> tuple[int, bool]:
    """Write on while there is room; return what is left of it, and whether the list is whole, or too long."""
    for piece, work in listing.pieces:
        listing.written.append(piece)
        listing.size += len(piece)
        room -= work
        if listing.size > BODY_SIZE_MAX:
            return room, True
        if room <= 0:
            return room, False

    return room, True


def table(name: str, rows: Rows, **beside: Any) -> Pieces:
    """Write a JSON object that has the table *name* of *rows*, and *beside*."""
    start = fastjson.dumps(beside)[:-1]
    comma = b"," if beside else b""
    yield start + comma + fastjson.dumps(name) + b":{", 0
    comma = b""
    for key, value in rows:
        work = 1 + (len(value) // _MEMBERS if isinstance(value, Mapping) else 0)
        yield comma + fastjson.dumps({key: value})[1:-1], work
        comma = b","
    yield b"}}", 0


def offset_table(
    queues: Iterable[tuple[MessageQueue, JsonModel]], end: Callable[[], Mapping[str, Any]]
) -> Pieces:
    """Write a JSON object that has the offset table of *queues*, and what *end* returns when they are written."""
    start = b'{"offsetTable":{'
    for queue, offsets in queues:
        yield start + fastjson.dumps({queue: offsets})[1:-1], QUEUE_WORK
        start = b","
    yield (b"" if start == b"," else start) + b"}," + fastjson.dumps(end())[1:], 1


def rows_of(by_name: Mapping[str, T], shown: Callable[[T], Any]) -> Rows:
    """Yield what is *shown* of each by its name, in order; what goes meanwhile is left out."""
    for name in sorted(by_name):
        found = by_name.get(name)
        if found is not None:
            yield name, shown(found)


def array(name: str, rows: Iterator[Any]) -> Pieces:
    """Write a JSON object that has the list *name* of *rows*."""
    return filled(fastjson.dumps({name: []}), fastjson.dumps(name) + b":[", rows)


def filled(empty: bytes, begin: bytes, rows: Iterator[Any]) -> Pieces:
    """Write the JSON text *empty* with *rows* behind the bracket that *begin* ends with; None is work without a row."""
    before, bracket, after = empty.partition(begin)
    assert bracket, f"there is no {begin!r} in {empty!r}"
    yield before + bracket, 0
    comma = b""
    for row in rows:
        if row is None:
            yield b"", 1
            continue
        yield comma + fastjson.dumps(row), 1
        comma = b","
    yield after, 0
