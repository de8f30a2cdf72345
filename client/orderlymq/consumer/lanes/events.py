"""
The vocabulary between the core of a consumer by key and its shell: what happened, and what to do.

Rules: both unions are closed. Times are milliseconds of one monotonic clock; `handle` gets the time in addition to the
event. An attempt is one hand-out of one lane; it is named by its place and by numbers of the broker.
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
    """A place from which lanes are fetched: the queues of one topic on one broker."""

    topic: str
    broker_name: str


class AttemptId(NamedTuple):
    """One attempt; the broker never gives its number again in its queue."""

    place: Place
    queue_id: int
    number: int


@dataclass(frozen=True, slots=True)
class Given:
    """A lane as a fetch returned it.

    Attributes:
        messages: the messages of `lane.offsets` that are wanted and could be read.
        readable: the first offset that could not be read; None if all could.
        reason: why the message at that offset could not be read; if empty, the messages from there on are given back.
        key: the whole key, of which `lane.key` may be the beginning; empty if no message has it.
    """

    lane: Lane
    messages: tuple[ReceivedMessage, ...]
    readable: int | None = None
    reason: str = ""
    key: str = ""


# -- events


@dataclass(frozen=True, slots=True)
class OfPlace:
    """An event or instruction about one place."""

    place: Place


@dataclass(frozen=True, slots=True)
class OfFetch(OfPlace):
    """An event or instruction about one fetch."""

    sequence: int


@dataclass(frozen=True, slots=True)
class OfReports(OfPlace):
    """An event or instruction about reports of attempts."""

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
    """The broker had nothing to hand out until the end of the wait."""

    limited: str = ""


@dataclass(frozen=True, slots=True)
class FetchFailed(OfFetch):
    """A fetch has no answer that says what was handed out, so it is repeated with its number.

    Attributes:
        refused: brokers refuse the fetch until a user changes something; *reason* says what.
        expected: the leader is changing; users need not know.
        final: the consumer group accepts no member like this one; callers that wait for the consumer's end get
            *reason*.
    """

    reason: str
    refused: bool = False
    expected: bool = False
    final: bool = False


@dataclass(frozen=True, slots=True)
class Listened:
    """The listener has returned or raised.

    Attributes:
        error: why its messages must be delivered again; None if they are done.
        delay_ms: the pause before that which the listener asks for; -1 for the consumer group's setting.
    """

    attempt: AttemptId
    error: str | None
    delay_ms: int = -1


@dataclass(frozen=True, slots=True)
class WorkDropped:
    """The listener was not called, or the program did not take the messages: this is no try."""

    attempt: AttemptId


End: TypeAlias = Listened | WorkDropped


@dataclass(frozen=True, slots=True)
class Ended:
    """Several calls have ended, in this order."""

    ends: tuple[End, ...]


@dataclass(frozen=True, slots=True)
class Answered(OfReports):
    """A broker answered reports; the verdicts have the order of the reports."""

    verdicts: tuple[LaneVerdict, ...]
    asked_at_ms: int


@dataclass(frozen=True, slots=True)
class CompleteFailed(OfReports):
    """Reports have no answer; *refused* if they will never get one."""

    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class CutOff:
    """Closing has waited long enough: the listeners that still run are cut off.

    Attributes:
        running: attempts that threads still work on; their lanes become free when the leases end.
    """

    running: frozenset[AttemptId] = frozenset()


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
        behind: number of messages of the lane that wait behind these.
    """

    attempt: AttemptId
    lane: Lane
    messages: tuple[ReceivedMessage, ...]
    behind: int


@dataclass(frozen=True, slots=True)
class Complete(OfReports):
    """Send reports about attempts; answered by `Answered` or `CompleteFailed`."""


Instruction: TypeAlias = Fetch | Work | Complete | Report

__all__ = [
    "Answered",
    "Assigned",
    "AttemptId",
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
