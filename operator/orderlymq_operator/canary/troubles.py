"""
The troubles that a canary may find, by name. Pure.

Rule: each kind breaks a sentence of the promise (docs/explanation/guarantees.md). Effects of a failure that do not
break it, above all a repeat, are counted and are not troubles.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Why the order is not verified."""

    SKIPPED = "Skipped"
    """A message was delivered before an earlier one of its key."""
    REORDERED = "Reordered"
    """A message was delivered for the first time behind a later one of its key."""
    LOST = "Lost"
    """The offsets of the queue have gone back, so acknowledged messages are lost."""
    STORED_TWICE = "StoredTwice"
    """An older message is in the queue a second time, behind later ones."""
    REWRITTEN = "Rewritten"
    """Two different messages were seen at one offset of a queue."""
    TWO_HOLDERS = "TwoHolders"
    """Two consumers worked on one queue at the same time."""
    ALTERED = "Altered"
    """A message differs from what the canary sent, or the canary never sent it."""
    REFUSED_DELIVERED = "RefusedDelivered"
    """A message was delivered although its send had been refused."""
    MISPLACED = "Misplaced"
    """A message is in another queue or at another offset than the answer to its send said."""
    REPLAYED = "Replayed"
    """Messages that had been consumed long before were delivered again."""
    UNDELIVERED = "Undelivered"
    """An acknowledged message was not delivered, although its broker group accepts messages."""
    TOPIC_GONE = "TopicGone"
    """The topic of the canary was deleted with its messages."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One queue of the canary's topic in a raft group; it carries one key."""

    group: str
    queue: int

    def __str__(self) -> str:
        return f"{self.group}/{self.queue}"


@dataclass(frozen=True, slots=True)
class Trouble:
    """An event that must not happen; *at* in seconds of the canary's clock, *text* for people."""

    kind: Kind
    lane: Lane
    text: str
    at: float
