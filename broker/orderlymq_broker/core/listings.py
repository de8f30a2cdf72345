"""
Lists of everything that a broker group has: topics, consumer groups, offsets, locks, clients, accounts.

The rules: a list is written a few milliseconds at a time. It may have tens of thousands of rows, and the
other replicas replace a leader that is silent for a fifth of a second. One list is written at a time; of each
other list only the first rows are, which completes the short ones. A list that would not fit a frame ends as
soon as that is known. Askers take turns. If all places are taken, the asker with most lists gives one up, so
that no client keeps the operator from its lists. A list is dropped when its asker's connection closes. A list
may or may not include a change made while it is written. ``answer_list`` in ``responses.py`` answers with a
list.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from orderlymq_broker.core.effects import CallSoon, Effect, Now, Refusal
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.declaration import JsonModel
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.codec import FRAME_SIZE_MAX

# The work done before others have their turn, at some 6 us each. A row is 1, and so are eight members of it.
STEP_WORK_MAX: Final = 2_048
_MEMBERS: Final = 8
# The work of a queue in an offset table.
QUEUE_WORK: Final = 2
# A list of at most this much work does not wait for longer ones: the progress of one consumer group, or its
# members.
SHORT_WORK_MAX: Final = 64
# Lists that may wait or be written; tools ask for one or two.
WAITING_MAX: Final = 64
# A frame has a header in addition to the body.
BODY_SIZE_MAX: Final = FRAME_SIZE_MAX - (64 << 10)

_BUSY: Final = Refusal(
    ResponseCode.SYSTEM_BUSY,
    f"{WAITING_MAX} lists are requested and not written yet; try again later",
)
_TOO_LONG: Final = Refusal(
    ResponseCode.SYSTEM_ERROR,
    f"the list has more than {BODY_SIZE_MAX} bytes, the limit of a response: request single items",
)

T = TypeVar("T")

# The text of a list in pieces, each with the work that it took.
Pieces: TypeAlias = Iterator[tuple[bytes, int]]
Rows: TypeAlias = Iterator[tuple[str | MessageQueue, Any]]
# Called with the text, or with the reason why there is none.
Then: TypeAlias = Callable[[bytes | Refusal], list[Effect]]
# The asker whose turn it is: an account, or an address without one.
Asker: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class _Listing:
    """A list that is being written or waits to be."""

    pieces: Pieces
    then: Then
    connection: int
    written: list[bytes] = field(default_factory=list)
    size: int = 0


class Listings:
    """Writes one list after the other."""

    def __init__(self) -> None:
        self._current: _Listing | None = None
        # Waiting lists by asker, in the order of their turns.
        self._waiting: dict[Asker, deque[_Listing]] = {}
        self._goes_on = False

    def write(self, pieces: Pieces, then: Then, asker: Asker, connection: int) -> list[Effect]:
        """Start a list of which nothing was read yet, and call *then* at its end unless *connection* closes before."""
        listing = _Listing(pieces, then, connection)
        if self._goes_on:
            _, is_over = _write_on(listing, SHORT_WORK_MAX)
            if is_over:
                return _reply(listing)
        effects: list[Effect] = []
        count = sum(map(len, self._waiting.values())) + (self._current is not None)
        if count >= WAITING_MAX:
            refused = self._crowd_out(asker)
            if refused is None:
                return then(_BUSY)
            effects = refused.then(_BUSY)
        self._waiting.setdefault(asker, deque()).append(listing)

        return effects if self._goes_on else effects + self._work()

    def close(self, connection: int) -> None:
        """Drop the lists of a closed connection."""
        if self._current is not None and self._current.connection == connection:
            self._current = None
        for asker, queue in list(self._waiting.items()):
            kept = deque(each for each in queue if each.connection != connection)
            if kept:
                self._waiting[asker] = kept
            else:
                del self._waiting[asker]

    def _crowd_out(self, asker: Asker) -> _Listing | None:
        """Remove and return the newest list of the asker with most lists; None if *asker* would then have as many."""
        most = max(self._waiting.values(), key=len)
        own = self._waiting.get(asker, ())

        return most.pop() if len(most) > len(own) + 1 else None

    def _next(self) -> _Listing | None:
        if not self._waiting:
            return None
        asker = next(iter(self._waiting))
        queue = self._waiting.pop(asker)
        listing = queue.popleft()
        if queue:
            self._waiting[asker] = queue  # behind all others

        return listing

    def _go_on(self, _: Now) -> list[Effect]:
        self._goes_on = False
        return self._work()

    def _work(self) -> list[Effect]:
        effects: list[Effect] = []
        room = STEP_WORK_MAX
        while room > 0 and (listing := self._current or self._next()) is not None:
            # Remove it first: a list that fails to be written must not block the others for ever.
            self._current = None
            room, is_over = _write_on(listing, room)
            if is_over:
                effects += _reply(listing)
            else:
                self._current = listing
        if self._current is not None or self._waiting:
            self._goes_on = True
            effects.append(CallSoon(self._go_on))

        return effects


def _reply(listing: _Listing) -> list[Effect]:
    """Pass a finished list to its asker."""
    whole = listing.size <= BODY_SIZE_MAX

    return listing.then(b"".join(listing.written) if whole else _TOO_LONG)


def _write_on(listing: _Listing, room: int) -> tuple[int, bool]:
    """Write while there is room; return the remaining room, and whether the list is complete or too long."""
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
    """Write a JSON object that has the table *name* of *rows*, and the fields *beside*."""
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
    """Write a JSON object with the offset table of *queues*, and the fields that *end* returns once they are written."""
    start = b'{"offsetTable":{'
    for queue, offsets in queues:
        yield start + fastjson.dumps({queue: offsets})[1:-1], QUEUE_WORK
        start = b","
    yield (b"" if start == b"," else start) + b"}," + fastjson.dumps(end())[1:], 1


def rows_of(by_name: Mapping[str, T], shown: Callable[[T], Any]) -> Rows:
    """Yield each name in order with its row from *shown*; names removed meanwhile are left out."""
    for name in sorted(by_name):
        found = by_name.get(name)
        if found is not None:
            yield name, shown(found)


def array(name: str, rows: Iterator[Any], end: Callable[[], Mapping[str, Any]] = dict) -> Pieces:
    """Write a JSON object with the list *name* of *rows*, and the fields that *end* returns once they are written."""
    yield b"{" + fastjson.dumps(name) + b":[", 0
    yield from _items(rows)
    beside = end()
    yield (b"]," + fastjson.dumps(beside)[1:] if beside else b"]}"), 0


def filled(empty: bytes, begin: bytes, rows: Iterator[Any]) -> Pieces:
    """Write the JSON text *empty* with *rows* inserted after the bracket that *begin* ends with."""
    before, bracket, after = empty.partition(begin)
    assert bracket, f"there is no {begin!r} in {empty!r}"
    yield before + bracket, 0
    yield from _items(rows)
    yield after, 0


def _items(rows: Iterator[Any]) -> Pieces:
    """Write the rows of a list; a None stands for work that gives no row."""
    comma = b""
    for row in rows:
        if row is None:
            yield b"", 1
            continue
        yield comma + fastjson.dumps(row), 1
        comma = b","
