"""The vocabulary of the order oracle: the events of a history, and the findings."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kind of an event."""

    SEND = "send"  # a producer starts to send: process, topic, key, message
    ACK = "ack"  # the broker confirmed that it is stored: message, queue, offset
    REFUSED = "refused"  # definite failure: it was not stored and will never be
    UNKNOWN = "unknown"  # the producer does not know the outcome
    DELIVER = "deliver"  # a listener starts with a message: group, client, queue, offset
    DONE = "done"  # the listener succeeded with it
    FAILED = "failed"  # the listener failed and wants it again
    DEAD = "dead"  # handed over to the dead-letter queue
    COMMIT = "commit"  # a consumer offset is durable: group, queue, offset; with attempt and key: of a lane, inclusive
    RESET = "reset"  # an administrator moved an offset: group, queue, offset; without offset: some time later
    LOCK = "lock"  # a queue was granted: group, queue, client, epoch
    GONE = "gone"  # a client's process is dead: client
    LAPSED = "lapsed"  # the client's lease ended while its listener ran; without attempt: all its leases of the queue
    STORED = "stored"  # the final read of the log found it: message, queue, offset
    DROPPED = "dropped"  # retention took it, as configured: message, queue, offset
    SCANNED = "scanned"  # the final read of this topic is complete
    DRAINED = "drained"  # this group has consumed all messages
    GROWN = "grown"  # the topic gets more queues: each key may move once from here on
    FAULT = "fault"  # something was broken on purpose: detail
    NOTED = "noted"  # input for rules other than those of order: detail


class Defect(StrEnum):
    """The ways in which the promise can be broken."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    OVERLAPPED = "overlapped"
    SKIPPED = "skipped"
    ROLLED_BACK = "rolled back"
    RESURRECTED = "resurrected"
    OVERTAKEN = "overtaken"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history; ``at`` is in nanoseconds of one clock shared by all processes.

    ``epoch`` belongs to a queue's lock, ``attempt`` to the hand-out of a lane in a group that consumes by key. ``lane``
    is the key of that lane if it differs from ``key``, the message's own key.
    """

    at: int
    kind: Kind
    process: str = ""
    topic: str = ""
    key: str = ""
    message: str = ""
    queue: str = ""
    offset: int = -1
    group: str = ""
    client: str = ""
    epoch: int = -1
    attempt: int = -1
    detail: str = ""
    lane: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise, with the shortest slice of history that shows it."""

    defect: Defect
    message: str
    queue: str
    explanation: str
    evidence: tuple[Event, ...]

    def lines(self) -> list[str]:
        """Return the shortest slice of history that shows it, one line per event, oldest first."""
        return as_lines(self.evidence)


def as_lines(evidence: Iterable[Event]) -> list[str]:
    """Return a slice of history, one line per event, oldest first, with the time since the first event."""
    events = sorted(evidence, key=lambda event: event.at)
    return [f"+{(event.at - events[0].at) / 1e6:.3f} ms {_described(event)}" for event in events]


def _described(event: Event) -> str:
    """Return an event as text, without its unset fields."""
    facts = [
        f"{name}={value}"
        for name in (
            "process",
            "group",
            "client",
            "message",
            "topic",
            "queue",
            "key",
            "lane",
            "detail",
        )
        if (value := getattr(event, name))
    ]
    facts += [
        f"{name}={value}"
        for name in ("offset", "epoch", "attempt")
        if (value := getattr(event, name)) >= 0
    ]
    return " ".join([event.kind.value, *facts])
