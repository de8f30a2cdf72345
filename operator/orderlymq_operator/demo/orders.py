"""
The life of an order, and how a step of it travels in a message.

Pure. The key of a message is the order, so all steps of one order stand in one queue in the order in which
they were sent; `Ledger` notices, while the demo runs, when a step is seen out of turn.
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
        """The step in a word."""
        return STEPS[self.number]

    @property
    def message(self) -> str:
        """Return the name that makes this message unique in a history."""
        return f"{self.run}/{self.order}/{self.number}"

    def encode(self) -> bytes:
        """Return the body of the message."""
        return msgspec.json.encode(self)


def decode(body: bytes) -> Step | None:
    """Return the step that *body* holds; None for a message that is none of ours."""
    try:
        step = msgspec.json.decode(body, type=Step)
    except UNREADABLE:
        return None
    return step if 0 <= step.number < len(STEPS) else None


@dataclass(slots=True)
class Ledger:
    """Steps of each order that one consumer has seen."""

    next_step: dict[str, int] = field(default_factory=dict)
    completed: int = 0
    out_of_turn: int = 0

    def enter(self, step: Step) -> bool:
        """Enter a delivered step; return whether it was its turn.

        A step seen before is a redelivery and changes nothing. The first step seen of an order may be a later
        one: the order may have begun at another consumer.
        """
        expected = self.next_step.get(step.order)
        if expected is not None and step.number < expected:
            return True
        in_turn = expected is None or step.number == expected
        self.next_step[step.order] = step.number + 1
        if not in_turn:
            self.out_of_turn += 1
        if step.number == len(STEPS) - 1:
            self.completed += 1
        return in_turn
