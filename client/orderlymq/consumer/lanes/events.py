"""
The vocabulary between the core of a consumer by key and its shell: what happened, and what to do.

Rules: both unions are closed; times are milliseconds of one monotonic clock and are given to `handle` beside
the event. A hand is one attempt at one lane; it is named by where it is from and by numbers of the broker.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from orderlymq.consumer.core.events import (
    Assigned,
    Closing,
    Paused,
    Report,
    Resumed,
    Tick,
)
from orderlymq.consumer.core.events import Event as QueueEvent
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.lanes import Lane, LaneReport, LaneVerdict


class Place(NamedTuple):
    """Where lanes are fetched: the queues of one topic on one broker."""

    topic: str
    broker_name: str


class HandId(NamedTuple):
    """One attempt: its number is given once in its queue."""

    place: Place
    queue_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Given:
    """A lane as a fetch brought it.

    Attributes:
        messages: those of `lane.offsets` that are wanted and could be read.
        readable: offsets below it could be read; None when all could.
        reason: why the message there could not be read; without a reason the rest goes back.
        key: the whole key, of which `lane.key` may be the beginning; empty when nothing says it.
    """

    lane: Lane
    messages: tuple[ReceivedMessage, ...]
    readable: int | None = None
    reason: str = ""
    key: str = ""


# -- events


@dataclass(frozen=True, slots=True)
class OfPlace:
    """What events and instructions about one place name."""

    place: Place


@dataclass(frozen=True, slots=True)
class OfFetch(OfPlace):
    """What those about one fetch name."""

    sequence: int


@dataclass(frozen=True, slots=True)
class OfReports(OfPlace):
    """What those about reports of attempts name."""

    reports: tuple[LaneReport, ...]


@dataclass(frozen=True, slots=True)
class Fetched(OfFetch):
    """A fetch brought lanes; their leases run at least from *asked_at_ms* on."""

    lanes: tuple[Given, ...]
    lease_ms: int
    asked_at_ms: int
    limited: str = ""


@dataclass(frozen=True, slots=True)
class FetchEmpty(OfFetch):
    """There was nothing to hand out until the wait was over."""

    limited: str = ""


@dataclass(frozen=True, slots=True)
class FetchFailed(OfFetch):
    """A fetch has no answer that says what was handed out: it is repeated with its number.

    Attributes:
        refused: it will be refused until somebody changes something; *reason* says what.
        expected: the leader changes; nobody needs to know.
        final: the group takes no member like this one: what waits for the consumer to end gets *reason*.
    """

    reason: str
    refused: bool = False
    expected: bool = False
    final: bool = False


@dataclass(frozen=True, slots=True)
class Listened:
    """The listener is back.

    Attributes:
        error: why its messages are to come again; None when they are done.
        delay_ms: the pause that it wants before that; -1 for what the group says.
    """

    hand: HandId
    error: str | None
    delay_ms: int = -1


@dataclass(frozen=True, slots=True)
class WorkDropped:
    """The listener was not called, or nobody began the messages: nothing of them is a try."""

    hand: HandId


End: TypeAlias = Listened | WorkDropped


@dataclass(frozen=True, slots=True)
class Ended:
    """Several calls have ended, in this order."""

    ends: tuple[End, ...]


@dataclass(frozen=True, slots=True)
class Answered(OfReports):
    """A broker answered reports, in their order."""

    verdicts: tuple[LaneVerdict, ...]
    asked_at_ms: int


@dataclass(frozen=True, slots=True)
class CompleteFailed(OfReports):
    """Reports have no answer; *refused* when they never will have one."""

    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class CutOff:
    """Closing has waited long enough: the listeners that still run are cut off.

    Attributes:
        running: attempts that threads still work on; their lanes are free when the leases end.
    """

    running: frozenset[HandId] = frozenset()


Event: TypeAlias = (
    QueueEvent | Fetched | FetchEmpty | FetchFailed | Ended | Answered | CompleteFailed | CutOff
)


# -- instructions


@dataclass(frozen=True, slots=True)
class Fetch(OfFetch):
    """Ask for lanes; answered by `Fetched`, `FetchEmpty` or `FetchFailed`."""

    lanes_max: int


@dataclass(frozen=True, slots=True)
class Work:
    """Call the listener; answered by `Ended` with `Listened` or `WorkDropped`.

    Attributes:
        behind: messages of the lane that wait behind these.
    """

    hand: HandId
    lane: Lane
    messages: tuple[ReceivedMessage, ...]
    behind: int


@dataclass(frozen=True, slots=True)
class Complete(OfReports):
    """Say what became of attempts; answered by `Answered` or `CompleteFailed`."""


Instruction: TypeAlias = Fetch | Work | Complete | Report

__all__ = [
    "Answered",
    "Assigned",
    "Closing",
    "Complete",
    "CompleteFailed",
    "CutOff",
    "End",
    "Ended",
    "Event",
    "Fetch",
    "FetchEmpty",
    "FetchFailed",
    "Fetched",
    "Given",
    "HandId",
    "Instruction",
    "Listened",
    "Paused",
    "Place",
    "Report",
    "Resumed",
    "Tick",
    "Work",
    "WorkDropped",
]
