"""
The life of an order, and how a message carries one of its steps.

Pure. The key of a message is the order, so all steps of an order are in one queue in the order in which they were
sent. While the demo runs, `Ledger` counts the orders that are done.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from orderlymq_protocol.decodeerrors import UNREADABLE

STEPS: Final = ("created", "paid", "packed", "shipped", "done")


class Step(msgspec.Struct, frozen=True):
    """One message: step *number* of *order*, sent by *producer* in one *run* of the demo."""

    run: str
    producer: str
    order: str
    number: int

    @property
    def name(self) -> str:
        """The name of the step."""
        return STEPS[self.number]

    @property
    def message(self) -> str:
        """The name that identifies this message in a history."""
        return f"{self.run}/{self.order}/{self.number}"

    def encode(self) -> bytes:
        """Return the body of the message."""
        return msgspec.json.encode(self)


def decode(body: bytes) -> Step | None:
    """Return the step in *body*; None for a message that the demo did not send."""
    try:
        step = msgspec.json.decode(body, type=Step)
    except UNREADABLE:
        return None
    return step if 0 <= step.number < len(STEPS) else None


@dataclass(slots=True)
class Ledger:
    """The steps of each order that one consumer has seen."""

    next_step: dict[str, int] = field(default_factory=dict)
    completed: int = 0

    def enter(self, step: Step) -> None:
        """Record a delivered step; a known step is a redelivery and changes nothing."""
        if step.number < self.next_step.get(step.order, 0):
            return
        self.next_step[step.order] = step.number + 1
        if step.number == len(STEPS) - 1:
            self.completed += 1
