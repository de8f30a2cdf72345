"""
The facts of a history, indexed once for all checks of the order oracle. Pure.

This module judges only one thing: which messages a reset of offsets allows a group to pass over.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from orderlymq.oracle.events import Event, Kind


@dataclass(slots=True)
class Facts:
    """The history, indexed once for all checks."""

    history: Sequence[Event]
    sends: dict[str, Event] = field(default_factory=dict)
    repeats: dict[str, Event] = field(default_factory=dict)  # the newest attempt of each send
    acks: dict[str, Event] = field(default_factory=dict)
    refusals: dict[str, Event] = field(default_factory=dict)
    unknowns: dict[str, Event] = field(default_factory=dict)
    stored: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    deliveries: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    dead: dict[tuple[str, str], Event] = field(default_factory=dict)
    dropped: dict[str, Event] = field(default_factory=dict)
    scanned: dict[str, Event] = field(default_factory=dict)
    drained: dict[tuple[str, str], Event] = field(default_factory=dict)
    faults: list[Event] = field(default_factory=list)
    expansions: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    dones: dict[tuple[str, str], Event] = field(default_factory=dict)
    resets: dict[tuple[str, str, str], list[Event]] = field(
        default_factory=lambda: defaultdict(list)
    )
    # For each group and message, the last event of a listener or of a hand-over to the dead letters.
    seen: dict[tuple[str, str], Event] = field(default_factory=dict)

    def __post_init__(self) -> None:  # noqa: C901, PLR0912 - one arm per kind
        for event in self.history:
            if event.kind in (Kind.DELIVER, Kind.DONE, Kind.DEAD):
                self.seen[event.group, event.message] = event
            match event.kind:
                case Kind.SEND:
                    self.sends.setdefault(event.message, event)
                    self.repeats[event.message] = event
                case Kind.ACK:
                    self.acks.setdefault(event.message, event)
                case Kind.REFUSED:
                    self.refusals[event.message] = event
                case Kind.UNKNOWN:
                    self.unknowns.setdefault(event.message, event)
                case Kind.STORED:
                    self.stored[event.message].append(event)
                case Kind.DELIVER:
                    self.deliveries[event.message].append(event)
                case Kind.DEAD:
                    self.dead.setdefault((event.group, event.message), event)
                case Kind.DROPPED:
                    self.dropped.setdefault(event.message, event)
                case Kind.SCANNED:
                    self.scanned[event.topic] = event
                case Kind.DRAINED:
                    self.drained[event.group, event.topic] = event
                case Kind.FAULT:
                    self.faults.append(event)
                case Kind.GROWN:
                    self.expansions[event.topic].append(event)
                case Kind.RESET:
                    self.resets[event.group, event.topic, event.queue].append(event)
                case Kind.DONE:
                    self.dones.setdefault((event.group, event.message), event)
                case _:
                    pass  # commits, locks and listener results are read queue by queue

    def counts(self) -> dict[str, int]:
        """Return the counts of a verdict."""
        delivered = [event for events in self.deliveries.values() for event in events]
        first = {(event.group, event.message) for event in delivered}
        return {
            "sent": len(self.sends),
            "acknowledged": len(self.acks),
            "refused": len(self.refusals),
            "unknown": len(self.unknowns.keys() - self.acks.keys()),
            "delivered": len(first),
            "redelivered": len(delivered) - len(first),
            "dead-lettered": len(self.dead),
        }

    def not_judged(self) -> tuple[str, ...]:
        """Return the checks for which the history has no evidence."""
        missing: list[str] = []
        topics = {event.topic for event in self.acks.values()}
        covered = self.scanned.keys() | {topic for _, topic in self.drained}
        missing.extend(f"loss in topic {topic}" for topic in sorted(topics - covered))
        for group, topic, queue in sorted(self.resets):
            drained = self.drained.get((group, topic))
            reset = drained and self.reset_before(drained, queue)
            if reset and reset.offset < 0:
                missing.append(
                    f"loss in queue {queue} of topic {topic} for group {group} after a reset"
                )
        if not self.deliveries:
            missing.append("order of delivery")
        return tuple(missing)

    def reset_before(self, drained: Event, queue: str) -> Event | None:
        """Return the last reset of a queue before its group had drained it."""
        resets = self.resets.get((drained.group, drained.topic, queue), ())
        return next((each for each in reversed(resets) if each.at < drained.at), None)

    def judged_since(self, group: str, ack: Event, turn: Event) -> int | None:
        """Return the time from which on a group must not pass over a message that had its turn; None if unknown.

        A reset before that turn may have led back to the message; messages delivered before that reset did not overtake
        it. Without such a reset the time is -1.
        """
        resets = self.resets.get((group, ack.topic, ack.queue), ())
        back = [each for each in resets if each.at < turn.at and each.offset <= ack.offset]
        if any(each.offset < 0 for each in back):
            return None
        return max((each.at for each in back), default=-1)

    def is_missing(self, ack: Event, drained: Event) -> bool:
        """Return whether a group has drained a topic without this message, as far as the history shows.

        A reset lets the group pass over messages before its offset, and get the later ones once more.
        """
        seen = self.seen.get((drained.group, ack.message))
        reset = self.reset_before(drained, ack.queue)
        if reset is None:
            return seen is None
        return 0 <= reset.offset <= ack.offset and (seen is None or seen.at < reset.at)
