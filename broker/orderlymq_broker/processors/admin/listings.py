"""
Answers that list everything: 21, 43 and 201.

The rules: a list is written some milliseconds at a time, because a broker group may have tens of thousands of rows and others
elect a leader that is silent for a fifth of a second; one list is written at a time, and the others wait without taking memory;
one that would not fit a frame is refused as soon as that is known. What is changed while a list is written may be in it or not.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from orderlymq_broker.core.effects import Effect, Later, Now, Peer
from orderlymq_broker.core.requestcontext import RequestRefused, answer, unanswered
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.codec import FRAME_SIZE_MAX
from orderlymq_protocol.frame.command import RemotingCommand

# What is written before others have their turn, at some 6 us each: a row is 1, and so are eight members of it.
STEP_WORK_MAX: Final = 2_048
_MEMBERS: Final = 8
# Tools ask for one or two.
WAITING_MAX: Final = 64
# Beside it a frame has a header, and a table its version.
BODY_SIZE_MAX: Final = FRAME_SIZE_MAX - (64 << 10)


Rows: TypeAlias = Iterator[tuple[str, Any]]


@dataclass(slots=True)
class _Listing:
    """A list that is being written, or waits for it: *name* of the table, its rows, and what stands beside it."""

    request: RemotingCommand
    peer: Peer
    name: str
    rows: Rows
    beside: Mapping[str, Any]
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class Listings:
    """Writes one list after the other."""

    def __init__(self) -> None:
        self._queue: deque[_Listing] = deque()
        self._goes_on = False

    def answer(
        self,
        request: RemotingCommand,
        peer: Peer,
        name: str,
        rows: Rows,
        **beside: Any,
    ) -> list[Effect]:
        """Answer with a JSON object that has the table *name* of *rows*, which nothing was read of yet, and *beside*.

        Raises:
            RequestRefused: too many wait already (2).
        """
        if len(self._queue) >= WAITING_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{WAITING_MAX} lists are asked for and not written yet; try again later",
            )
        self._queue.append(_Listing(unanswered(request), peer, name, rows, beside))

        return [] if self._goes_on else self._work()

    def _go_on(self, _: Now) -> list[Effect]:
        self._goes_on = False
        return self._work()

    def _work(self) -> list[Effect]:
        effects: list[Effect] = []
        room = STEP_WORK_MAX
        while self._queue and room > 0:
            listing = self._queue[0]
            room, is_whole = _write(listing, room)
            if is_whole:
                self._queue.popleft()
                effects += _answer(listing)
        if self._queue:
            self._goes_on = True
            effects.append(Later(self._go_on))

        return effects


def _write(listing: _Listing, room: int) -> tuple[int, bool]:
    """Write rows while there is room; return what is left of it, and whether the list is whole, or too long."""
    some: dict[str, Any] = {}
    is_whole = True
    for name, value in listing.rows:
        some[name] = value
        room -= 1 + (len(value) // _MEMBERS if isinstance(value, Mapping) else 0)
        if room <= 0:
            is_whole = False
            break
    if some:
        listing.parts.append(fastjson.dumps(some)[1:-1])
        listing.size += len(listing.parts[-1]) + 1

    return room, is_whole or listing.size > BODY_SIZE_MAX


def _answer(listing: _Listing) -> list[Effect]:
    if listing.size > BODY_SIZE_MAX:
        remark = f"the list has more than {BODY_SIZE_MAX} bytes, which no answer can have: ask for single ones"
        return answer(listing.request, listing.peer, ResponseCode.SYSTEM_ERROR, remark=remark)
    beside = fastjson.dumps(listing.beside)[1:-1]
    table = b"".join((fastjson.dumps(listing.name), b":{", b",".join(listing.parts), b"}"))
    body = b"".join((b"{", beside, b"," if beside else b"", table, b"}"))

    return answer(listing.request, listing.peer, body=body)
