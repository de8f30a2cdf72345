"""
The plan of a redrive: which dead letters go back, in which order, and which stay. Pure.

Rules: per key in the order of the origins; a letter that was overtaken is sent, skipped, or holds its whole
key, as the plan's maker says; a letter that came back too often stays. A plan is made once and then only
carried out; each item has an identity of its own, so carrying it out again sends nothing twice.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Literal

from orderlymq_spark.jobs.deadletters.letters import DeadLetter

Decision = Literal["send", "skip", "hold"]


@dataclass(frozen=True, slots=True)
class Item:
    """One dead letter in a plan.

    Attributes:
        identity: the unique key that its new message gets.
        reason: why it is not sent.
    """

    broker: str
    queue_id: int
    offset: int
    topic: str
    key: str | None
    identity: str
    decision: Decision
    reason: str = ""

    @property
    def place(self) -> tuple[str, int, int]:
        """Return where the dead letter lies."""
        return self.broker, self.queue_id, self.offset


@dataclass(frozen=True, slots=True)
class Plan:
    """What a redrive will do."""

    plan_id: str
    group: str
    items: tuple[Item, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Plan":
        """Read `to_json`."""
        items = tuple(Item(**each) for each in value["items"])
        return cls(value["plan_id"], value["group"], items)


def make_plan(
    plan_id: str,
    group: str,
    letters: Sequence[DeadLetter],
    *,
    target: str | None,
    on_overtaken: Literal["skip", "send", "hold-key"],
    redrives_max: int,
) -> Plan:
    """Decide about every letter; *target* None means each one's own topic."""
    items: list[Item] = []
    held: set[tuple[str, str]] = set()
    for letter in sorted(letters, key=lambda each: each.order):
        topic = target or letter.topic
        key = letter.message.key
        decision, reason = _decide(letter, topic, on_overtaken, redrives_max)
        if decision == "send" and key is not None and (topic, key) in held:
            decision, reason = "hold", "an earlier message of its key is held"
        if decision == "hold" and key is not None:
            held.add((topic, key))
        queue = letter.message.queue
        place = (
            f"{plan_id}\x00{queue.broker_name}\x00{queue.queue_id}\x00{letter.message.queue_offset}"
        )
        identity = blake2b(place.encode(), digest_size=16).hexdigest().upper()
        items.append(
            Item(
                queue.broker_name,
                queue.queue_id,
                letter.message.queue_offset,
                topic,
                key,
                identity,
                decision,
                reason,
            )
        )
    return Plan(plan_id, group, tuple(items))


def _decide(
    letter: DeadLetter, topic: str, on_overtaken: str, redrives_max: int
) -> tuple[Decision, str]:
    if not topic:
        return "skip", "it does not tell its topic; set spec.target"
    if letter.redrives >= redrives_max:
        return "hold", f"it was redriven {letter.redrives} times already (maxRedrives)"
    if letter.overtaken and on_overtaken == "skip":
        return "skip", "a later message of its key was consumed"
    if letter.overtaken and on_overtaken == "hold-key":
        return "hold", "a later message of its key was consumed"
    return "send", ""
