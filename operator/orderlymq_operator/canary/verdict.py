"""
The verdict of a canary, from the reports of its sender and its consumers.

Pure: each call carries the time, in seconds.

False means that the promise was broken; it stays for a while after the last trouble. Unknown means that nothing could
be proven, as during an election or while a machine is down: that proves no broken promise. True means that each queue
has delivered messages in order very recently.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from orderlymq_operator.canary.budget import Budget
from orderlymq_operator.canary.ledger import Bounds, Ledger
from orderlymq_operator.canary.troubles import Kind, Lane, Trouble
from orderlymq_protocol.plurals import counted

Status: TypeAlias = Literal["True", "False", "Unknown"]
Outcome: TypeAlias = Literal["good", "late", "failed"]

STARTING: Final = "Starting"
SENDS_FAIL: Final = "SendsFail"
NOT_DELIVERED: Final = "NotDelivered"
ANOTHER_CANARY: Final = "AnotherCanary"
ORDER_KEPT: Final = "OrderKept"
SLOW: Final = "Slow"
# This many late probes in a row make a queue slow.
_SLOW_PROBES: Final = 3


# The operator asks every second, so it knows of silence within five seconds. An election shorter than two is not
# noticed.
STALE_MIN_S: Final = 3.0
# Number of probes in a row that a queue must fail to deliver.
_STALE_PROBES: Final = 3


def stale_after_s(interval_s: float) -> float:
    """Return how long after a delivery its proof is valid, if probes are sent every *interval_s*."""
    return max(STALE_MIN_S, _STALE_PROBES * interval_s)


@dataclass(frozen=True, slots=True)
class Limits:
    """The thresholds of the verdict.

    Attributes:
        interval_s: time between two probes of a queue.
        target_s: a probe that takes longer is late.
        stale_s: if nothing is delivered for this long, nothing is verified any more.
        hold_s: how long a trouble stays in the verdict.
        objective: share of the probes that must be good.
    """

    interval_s: float = 1.0
    target_s: float = 1.0
    stale_s: float = STALE_MIN_S
    hold_s: float = 900.0
    objective: float = 0.999
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The present verdict; *reason* is one word, *message* a sentence for people."""

    status: Status
    reason: str
    message: str


@dataclass(slots=True)
class _Probes:
    """The probes of one queue: the deadline of the oldest one not yet counted, and the last outcomes."""

    due: float | None = None
    late: int = 0
    error: str = ""


class Canary:
    """The judge of all queues of one run.

    Args:
        run: distinguishes the messages of this run from those of other runs.
        observed: called with the outcome of each probe and its latency in seconds; None for a failed one.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        run: str,
        limits: Limits | None = None,
        observed: Callable[[Lane, Outcome, float | None], None] = lambda lane, outcome, took: None,
    ) -> None:
        self.limits = limits or Limits()
        self.run = run
        self.budget = Budget(self.limits.objective)
        self.ledgers = {lane: Ledger(lane, self.limits.bounds) for lane in lanes}
        self.counts: Counter[Kind] = Counter()
        self.takeovers = 0
        self._probes = {lane: _Probes() for lane in lanes}
        self._troubles: deque[Trouble] = deque(maxlen=100)
        self._foreign_at: float | None = None
        self._observed = observed

    # -- what the sender reports

    def send(self, lane: Lane, at: float) -> int:
        """Return the number of the next message of *lane*."""
        probes = self._probes[lane]
        if probes.due is None:
            probes.due = at + self.limits.target_s
        return self.ledgers[lane].send(at)

    def acknowledge(self, lane: Lane, number: int, offset: int, queue: int, at: float) -> None:
        """Record that a message is stored at *offset* of *queue*."""
        self._probes[lane].error = ""
        if queue != lane.queue:
            self.report(
                Kind.MISPLACED, lane, f"message {number} was acknowledged in queue {queue}", at
            )
        self._note(self.ledgers[lane].acknowledge(number, offset, at))

    def refuse(self, lane: Lane, number: int) -> None:
        """Record that a message is not stored and never will be."""
        self.ledgers[lane].refuse(number)

    def fail(self, lane: Lane, error: str) -> None:
        """Record why a send failed; it is retried."""
        self._probes[lane].error = error

    def take(self, lane: Lane, member: str, at: float) -> None:
        """Record that *member* begins to work on a message."""
        self._note(self.ledgers[lane].take(member, at))

    def leave(self, lane: Lane, member: str) -> None:
        """Record that *member* has finished its work on a message."""
        self.ledgers[lane].leave(member)

    def deliver(self, lane: Lane, number: int, offset: int, at: float) -> None:
        """Judge the delivery of a message of this run."""
        ledger = self.ledgers[lane]
        highest = ledger.highest
        sent_at = ledger.sent_at(number)
        self._note(ledger.deliver(number, offset, at))
        if ledger.highest > highest:
            self._delivered(lane, at, sent_at)

    def report(self, kind: Kind, lane: Lane, text: str, at: float) -> None:
        """Record a trouble that the caller has found."""
        self._note([Trouble(kind, lane, text, at)])

    def foreign(self, lane: Lane, at: float) -> None:
        """Record a message of another run.

        Messages of a former run are delivered before those of this run and do not count.
        """
        if self.ledgers[lane].highest:
            self._foreign_at = at

    def tick(self, now: float) -> None:
        """Count probes that are overdue; call it every half second."""
        for lane, probes in self._probes.items():
            if probes.due is not None and now >= probes.due:
                probes.due += self.limits.interval_s
                self._count(lane, "failed", None, now)
            self._note(self.ledgers[lane].overdue(now))

    def verdict(self, now: float) -> Verdict:
        """Return the verdict at *now*."""
        while self._troubles and now - self._troubles[0].at > self.limits.hold_s:
            self._troubles.popleft()
        if self._troubles:
            worst = self._troubles[-1]
            more = f"; {len(self._troubles) - 1} more" if len(self._troubles) > 1 else ""
            text = f"{worst.lane}: {worst.text}{more}"
            return Verdict("False", worst.kind.value, text)
        if self._foreign_at is not None and now - self._foreign_at < self.limits.stale_s:
            text = (
                "another canary sends to the same topics; stop one, or give it a prefix of its own"
            )
            return Verdict("Unknown", ANOTHER_CANARY, text)
        stale = [lane for lane in self.ledgers if self._is_stale(lane, now)]
        if stale:
            return self._unknown(stale)
        slow = [str(lane) for lane, each in self._probes.items() if each.late >= _SLOW_PROBES]
        if slow:
            text = f"in order, but later than {self.limits.target_s:g} s: {', '.join(slow[:3])}"
            return Verdict("True", SLOW, text)
        return Verdict(
            "True", ORDER_KEPT, f"order is kept in {counted(len(self.ledgers), 'queue')}"
        )

    def _unknown(self, stale: Sequence[Lane]) -> Verdict:
        lane = stale[0]
        ledger, probes = self.ledgers[lane], self._probes[lane]
        more = f"; {len(stale)} of {len(self.ledgers)} queues" if len(stale) > 1 else ""
        if probes.error:
            return Verdict("Unknown", SENDS_FAIL, f"{lane}: {probes.error}{more}")
        if ledger.delivered_at is None and not ledger.waits:
            return Verdict("Unknown", STARTING, f"{lane} has delivered nothing yet{more}")
        return Verdict(
            "Unknown",
            NOT_DELIVERED,
            f"{lane}: nothing was delivered for {self.limits.stale_s:g} s{more}",
        )

    def _is_stale(self, lane: Lane, now: float) -> bool:
        at = self.ledgers[lane].delivered_at
        return at is None or now - at > self.limits.stale_s

    # -- small parts

    def _delivered(self, lane: Lane, at: float, sent_at: float | None) -> None:
        probes, ledger = self._probes[lane], self.ledgers[lane]
        took = self.limits.target_s if sent_at is None else at - sent_at
        if took <= self.limits.target_s:
            self._count(lane, "good", took, at)
        elif probes.due is not None and sent_at is not None:
            due = sent_at + self.limits.target_s
            if probes.due <= due:  # otherwise a tick has counted it
                self._count(lane, "late", took, at)
                probes.due = due + self.limits.interval_s
        if ledger.highest == ledger.sent:
            probes.due = None
        elif probes.due is not None:
            following = ledger.sent_at(ledger.highest + 1)
            if following is not None:  # a tick may have counted it too
                probes.due = max(probes.due, following + self.limits.target_s)

    def _count(self, lane: Lane, outcome: Outcome, took: float | None, at: float) -> None:
        probes = self._probes[lane]
        probes.late = 0 if outcome == "good" else probes.late + 1
        self.budget.count(at, is_good=outcome == "good")
        self._observed(lane, outcome, took)

    def _note(self, troubles: Iterable[Trouble]) -> None:
        for trouble in troubles:
            self.counts[trouble.kind] += 1
            self._troubles.append(trouble)

    def recent(self) -> Iterator[Trouble]:
        """Return the troubles that make up the verdict, the oldest first."""
        return iter(self._troubles)
