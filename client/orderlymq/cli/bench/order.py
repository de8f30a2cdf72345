"""
Judges the order of a run while it runs: one number per key instead of a history.

Rules: one sender numbers the messages of a key from 0, and waits for the acknowledgement of one before it sends the
next. A delivery is the next message of its key, or a repeat of an earlier one; any other delivery breaks the order. A
message that was acknowledged and never delivered is missing. The oracle (`orderlymq.oracle`) judges more, from a whole
history.
"""

from collections.abc import Sequence
from typing import Final

FINDINGS_MAX: Final = 10


class OrderCheck:
    """The verdict on the deliveries of one consumer group.

    Attributes:
        repeats: number of repeated deliveries, which at-least-once delivery allows.
        broken: number of deliveries that broke the order.
        findings: a sentence about each of the first deliveries that did.
    """

    def __init__(self, keys: int) -> None:
        self.repeats = 0
        self.broken = 0
        self._findings: list[str] = []
        self._acknowledged = [-1] * keys
        self._delivered = [-1] * keys

    @property
    def findings(self) -> Sequence[str]:
        """The first findings, at most FINDINGS_MAX."""
        return self._findings

    def acknowledged(self, key: int, number: int) -> None:
        """Record that a message is stored."""
        self._acknowledged[key] = number

    def delivered(self, key: int, number: int) -> bool:
        """Record a delivery; return whether it is the first of its message."""
        last = self._delivered[key]
        if number <= last:
            self.repeats += 1
            return False
        if number > last + 1:
            self.broken += 1
            if len(self._findings) < FINDINGS_MAX:
                self._findings.append(
                    f"key {key}: message {number} was delivered before {last + 1}"
                )
        self._delivered[key] = number
        return True

    def missing(self) -> int:
        """Return how many acknowledged messages after the last delivery of their key were not delivered."""
        return sum(
            max(0, acknowledged - delivered)
            for acknowledged, delivered in zip(self._acknowledged, self._delivered, strict=True)
        )
