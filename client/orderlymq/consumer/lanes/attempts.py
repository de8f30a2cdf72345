"""
The attempts at lanes that a consumer by key has in hand, and the reports about them.

Rule: this module only holds data and answers questions; `core` makes every change of phase, so that its rules stand in
one place.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from orderlymq.consumer.lanes.events import AttemptId, Given, Place
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.lanes import (
    DONE,
    KEY_LENGTH_SHOWN,
    REASON_LENGTH_MAX,
    RELEASE,
    RENEW,
    RETRY,
    Lane,
    LaneReport,
)

NEVER: Final = 2**62

LaneId: TypeAlias = tuple[Place, int, str | int]
"""A lane over all its attempts: its key, or its number if its message has no key or the whole key is unknown."""


class Phase(Enum):
    """The phase of an attempt."""

    WAITING = auto()  # for a worker
    WORKING = auto()  # a listener has its messages
    ENDED = auto()  # its last report has no verdict yet


@dataclass(slots=True)
class Attempt:
    """One attempt at one lane.

    Attributes:
        key: the whole key; empty if the lane has none, or no message has the whole of it.
        messages: the messages that no listener has had yet.
        until_ms: the end of the lease; it is never later than by the broker's own count.
        check_ms: time at which the lease is checked next.
        complete: offset of the last message that is done, -1 for none.
        working: the messages that the listener has now.
        is_unsure: true if it came with a repeated fetch, so its lease may have begun long ago; no listener gets it
            before a renewal has succeeded.
        is_lost: the lease is over, or the broker said so; nothing more is reported.
    """

    id: AttemptId
    lane: Lane
    key: str
    messages: deque[ReceivedMessage]
    readable: int | None
    reason: str
    lease_ms: int
    until_ms: int
    check_ms: int
    phase: Phase = Phase.WAITING
    complete: int = -1
    working: tuple[ReceivedMessage, ...] = ()
    started_ms: int = 0
    is_unsure: bool = False
    is_lost: bool = False

    @property
    def lane_id(self) -> LaneId:
        """The identity of the lane, for which this process runs one listener at a time."""
        place, queue_id, _ = self.id

        return place, queue_id, self.key or self.lane.lane

    @property
    def name(self) -> str:
        """The lane's name for users."""
        place, queue_id, _ = self.id
        key = f"key {self.lane.key}" if self.lane.key else f"lane {self.lane.lane}"

        return f"{key} in queue {queue_id} of {place.topic} at {place.broker_name}"

    def take(self, count: int) -> tuple[ReceivedMessage, ...]:
        """Take up to *count* of the next messages for the listener."""
        self.working = tuple(self.messages.popleft() for _ in range(min(count, len(self.messages))))

        return self.working

    def put_back(self) -> None:
        """Put back the messages of a listener that was not called."""
        self.messages.extendleft(reversed(self.working))
        self.working = ()

    def say(self, result: str, offset: int) -> LaneReport:
        """Return a report about this attempt."""
        return LaneReport(self.id.queue_id, self.lane.lane, self.id.number, result, offset)

    def finished(self, tries_max: int | None) -> LaneReport:
        """Return the report of an attempt without messages left; an unreadable message fails as if the listener had raised."""
        if self.readable is None:
            return self.say(DONE, self.lane.offsets[-1] if self.lane.offsets else -1)
        complete = max((each for each in self.lane.offsets if each < self.readable), default=-1)
        if not self.reason:
            return self.say(RELEASE, complete)
        return self.failed(complete, self.reason, tries_max=tries_max)

    def released(self) -> LaneReport:
        """Return the report that gives back the messages that are not done."""
        return self.say(RELEASE, self.complete)

    def renewed(self) -> LaneReport:
        """Return the report that asks for a longer lease and says what is done."""
        return self.say(RENEW, self.complete)

    def failed(
        self, offset: int, reason: str, *, delay_ms: int = -1, tries_max: int | None = None
    ) -> LaneReport:
        """Return the report that the message after *offset* has failed."""
        return LaneReport(
            self.id.queue_id,
            self.lane.lane,
            self.id.number,
            RETRY,
            offset,
            delay_ms,
            tries_max,
            reason[:REASON_LENGTH_MAX],
        )

    def before_working(self) -> int:
        """Return the attempt's last offset before the listener's messages, -1 for none."""
        first = self.working[0].queue_offset

        return max((each for each in self.lane.offsets if each < first), default=-1)


def attempt_of(
    given: Given, place: Place, *, lease_ms: int, until_ms: int, check_ms: int
) -> Attempt:
    """Return the attempt at a lane that a fetch returned."""
    attempt_id = AttemptId(place, given.lane.queue_id, given.lane.attempt)
    messages = deque(given.messages)
    shown = given.lane.key
    key = given.key or (shown if len(shown) < KEY_LENGTH_SHOWN else "")

    return Attempt(
        attempt_id,
        given.lane,
        key,
        messages,
        given.readable,
        given.reason,
        lease_ms,
        until_ms,
        check_ms,
    )
