"""
The ledger of one queue: what was sent to it, what came out, and whether that breaks the promise. Pure.

The sender numbers its messages from 1 and sends the next one only when the outcome of the last is known. So a new
offset must have the next number, and a known offset must have the same number again. Repeats are legal after a
failure; their offsets distinguish them from broken order. Times are seconds of a monotonic clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from orderlymq_operator.canary.troubles import Kind, Lane, Trouble

T = TypeVar("T")

# Offsets to remember: nine minutes at one message a second.
HISTORY_MAX: Final = 512
# Refused or skipped numbers to remember; each of them comes from a separate failure.
_NUMBERS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits of the checks.

    Attributes:
        lost_after_s: an acknowledged message that was not delivered for this long is a trouble. Longer than a
            consumer's lease (15 s) and an election together.
        replay_s: a message may be delivered again if its first delivery was at most this long before the newest one.
            Longer than the commit interval (5 s) and the pause of a failure.
    """

    lost_after_s: float = 60.0
    replay_s: float = 60.0


@dataclass(slots=True)
class Ledger:
    """One queue. The attributes are facts for the verdict.

    Attributes:
        sent: the last number that was sent.
        acknowledged_at: time of the last acknowledgement; None before the first.
        delivered_at: time of the last delivery of a new message; None before the first.
        repeats: number of messages that were delivered again.
        copies: number of messages that were stored twice in a row, after an unknown outcome.
    """

    lane: Lane
    bounds: Bounds
    sent: int = 0
    acknowledged_at: float | None = None
    delivered_at: float | None = None
    repeats: int = 0
    copies: int = 0
    _sent_at: dict[int, float] = field(default_factory=dict)
    _acked: dict[int, tuple[int, float]] = field(default_factory=dict)
    _last_ack: tuple[int, int] = (0, -1)
    _highest: int = 0
    _top: int = -1
    _history: dict[int, tuple[int, float]] = field(default_factory=dict)
    _refused: dict[int, None] = field(default_factory=dict)
    _missing: dict[int, None] = field(default_factory=dict)
    _busy: str | None = None
    _reported: set[Kind] = field(default_factory=set)

    # -- the sender

    def send(self, at: float) -> int:
        """Return the number of the next message, which is sent now."""
        self.sent += 1
        self._sent_at[self.sent] = at
        _trim(self._sent_at, HISTORY_MAX)
        return self.sent

    def refuse(self, number: int) -> None:
        """Record that *number* is not stored and never will be; the next message gets another number."""
        self._refused[number] = None
        self._sent_at.pop(number, None)
        _trim(self._refused, _NUMBERS_MAX)

    def acknowledge(self, number: int, offset: int, at: float) -> Iterator[Trouble]:
        """Record that *number* is stored at *offset*."""
        last, last_offset = self._last_ack
        self.acknowledged_at = at
        if offset <= last_offset:
            yield self._trouble(
                Kind.LOST,
                f"message {number} was acknowledged at offset {offset}, after message {last} at offset {last_offset}",
                at,
            )
            self._begin_again(number, offset)
        self._last_ack = (number, offset)
        if number <= self._highest:
            yield from self._compare(number, offset, at)
            return
        self._acked[number] = (offset, at)
        _trim(self._acked, HISTORY_MAX)

    def _begin_again(self, number: int, offset: int) -> None:
        """Continue after a loss: the loss is reported only once."""
        self._acked.clear()
        self._history.clear()
        self._missing.clear()
        self._highest, self._top = number - 1, offset - 1

    def _compare(self, number: int, offset: int, at: float) -> Iterator[Trouble]:
        """Compare an acknowledgement that came after the delivery."""
        known = self._history.get(offset)
        # Beyond the delivered offsets, a copy of the message may still come.
        if offset <= self._top if known is None else known[0] != number:
            yield self._trouble(
                Kind.MISPLACED, f"message {number} was not delivered at its offset {offset}", at
            )

    # -- the consumers

    def take(self, member: str, at: float) -> Iterator[Trouble]:
        """Record that *member* begins to work on a message of this queue."""
        if self._busy not in (None, member):
            yield self._trouble(
                Kind.TWO_HOLDERS, f"{self._busy} and {member} work on the queue together", at
            )
        self._busy = member

    def leave(self, member: str) -> None:
        """Record that *member* has finished its work on a message."""
        if self._busy == member:
            self._busy = None

    def deliver(self, number: int, offset: int, at: float) -> Iterator[Trouble]:
        """Judge the delivery of *number* at *offset*."""
        known = self._history.get(offset)
        if known is not None:
            yield from self._judge_repeat(number, offset, known, at)
        elif offset > self._top:
            yield from self._judge_next(number, offset, at)
        elif number in self._missing:
            yield from self._judge_late(number, offset, at)
        else:
            self.repeats += 1
            yield from self._once(
                Kind.REPLAYED, f"message {number} at offset {offset} was delivered again", at
            )

    def _judge_repeat(
        self, number: int, offset: int, known: tuple[int, float], at: float
    ) -> Iterator[Trouble]:
        first, first_at = known
        if first != number:
            yield self._trouble(
                Kind.REWRITTEN, f"offset {offset} held message {first}, now it holds {number}", at
            )
            return
        self.repeats += 1
        age_s = (self.delivered_at or first_at) - first_at
        if age_s > self.bounds.replay_s:
            text = f"message {number} was delivered again, consumed {age_s:.0f} s before message {self._highest}"
            yield from self._once(Kind.REPLAYED, text, at)

    def _judge_late(self, number: int, offset: int, at: float) -> Iterator[Trouble]:
        del self._missing[number]
        self._remember(number, offset, at)
        yield self._trouble(
            Kind.REORDERED, f"message {number} was delivered after message {self._highest}", at
        )

    def _judge_next(self, number: int, offset: int, at: float) -> Iterator[Trouble]:
        highest, self._top = self._highest, offset
        if number > self.sent:
            yield self._trouble(Kind.ALTERED, f"message {number} was delivered but never sent", at)
            return
        if number in self._refused:
            yield self._trouble(
                Kind.REFUSED_DELIVERED,
                f"message {number} was delivered, but its send had been refused",
                at,
            )
        self._remember(number, offset, at)
        acked = self._acked.pop(number, None)
        # One copy may be at an offset before the acknowledged one.
        if acked is not None and acked[0] < offset:
            text = f"message {number} was acknowledged at offset {acked[0]} but is at {offset}"
            yield self._trouble(Kind.MISPLACED, text, at)
        if number == highest:
            self.copies += 1
        elif number in self._missing:
            yield from self._judge_late(number, offset, at)
        elif number < highest:
            text = f"message {number} is in the queue again after message {highest}"
            yield self._trouble(Kind.STORED_TWICE, text, at)
        else:
            yield from self._judge_gap(highest, number, at)
            self._highest, self.delivered_at = number, at
            self._reported.clear()

    def _judge_gap(self, highest: int, number: int, at: float) -> Iterator[Trouble]:
        gap = [each for each in range(highest + 1, number) if each not in self._refused]
        if not gap:
            return
        for each in gap[-_NUMBERS_MAX:]:
            self._missing[each] = None
            self._acked.pop(each, None)
        _trim(self._missing, _NUMBERS_MAX)
        text = f"message {number} was delivered before {gap[0]}" + (
            f" to {gap[-1]}" if gap[1:] else ""
        )
        yield self._trouble(Kind.SKIPPED, text, at)

    # -- time

    def overdue(self, now: float) -> Iterator[Trouble]:
        """Yield a trouble if an acknowledged message is missing; only once until a new message is delivered."""
        if not self._acked or self.acknowledged_at is None:
            return
        number, (_, at) = next(iter(self._acked.items()))
        serves = now - self.acknowledged_at <= self.bounds.lost_after_s / 2
        if serves and now - at > self.bounds.lost_after_s:
            text = f"message {number} was acknowledged {now - at:.0f} s ago and not delivered"
            yield from self._once(Kind.UNDELIVERED, text, now)

    def sent_at(self, number: int) -> float | None:
        """Return when *number* was sent, or None if that is not remembered."""
        return self._sent_at.get(number)

    @property
    def waits(self) -> bool:
        """Whether an acknowledged message has not been delivered yet."""
        return bool(self._acked)

    @property
    def highest(self) -> int:
        """The highest number that was delivered."""
        return self._highest

    # -- small parts

    def _remember(self, number: int, offset: int, at: float) -> None:
        self._history[offset] = (number, at)
        _trim(self._history, HISTORY_MAX)

    def _once(self, kind: Kind, text: str, at: float) -> Iterator[Trouble]:
        if kind not in self._reported:
            self._reported.add(kind)
            yield self._trouble(kind, text, at)

    def _trouble(self, kind: Kind, text: str, at: float) -> Trouble:
        return Trouble(kind, self.lane, text, at)


def _trim(found: dict[int, T], most: int) -> None:
    while len(found) > most:
        del found[next(iter(found))]
