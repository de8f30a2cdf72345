"""
The order oracle: reads a history of what happened and says whether the promise was kept.

One definition of order serves the demo, the simulator, the tests and ``orderlymq verify``. The
oracle is pure: it gets events and returns a verdict, it never asks a broker. What the history
does not show is not judged, and the verdict says so: without a final read of the log
(``stored``) or the word that a group has drained its queues (``drained``), nothing can be
called lost. ``history.py`` reads and writes histories as JSON lines.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from orderlymq.oracle.events import Defect, Event, Finding, Kind, as_lines
from orderlymq.oracle.lanes import groups_by_key, groups_by_property, judge_lanes

__all__ = ["Defect", "Event", "Finding", "Kind", "Verdict", "as_lines", "judge"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a history.

    Attributes:
        findings: empty when the promise held.
        counts: numbers of sent, acknowledged, refused, unknown, delivered, redelivered and
            dead-lettered messages.
        not_judged: checks for which the history holds no evidence.
        duration_s: from the first to the last event.
        ack_gap_ms: longest time without an acknowledgement around each fault, by its detail.
    """

    findings: tuple[Finding, ...]
    counts: dict[str, int]
    not_judged: tuple[str, ...]
    duration_s: float
    ack_gap_ms: dict[str, float]

    @property
    def kept(self) -> bool:
        """Whether the promise held as far as it was judged."""
        return not self.findings

    def number(self, defect: Defect) -> int:
        """Return how often *defect* was found."""
        return sum(finding.defect is defect for finding in self.findings)


def judge(events: Iterable[Event]) -> Verdict:
    """Judge a history; events may come in any order and are sorted by time."""
    history = sorted(events, key=lambda event: event.at)
    facts = _Facts(history)

    findings = [
        *_lost(facts),
        *_duplicated(facts),
        *_resurrected(facts),
        *_misplaced(facts),
        *_delivered_out_of_order(facts),
        *_Queues(facts).findings,
        *judge_lanes(history),
    ]

    return Verdict(
        findings=tuple(sorted(findings, key=lambda finding: finding.evidence[-1].at)),
        counts=facts.counts(),
        not_judged=facts.not_judged(),
        duration_s=(history[-1].at - history[0].at) / 1e9 if history else 0.0,
        ack_gap_ms=_ack_gaps(facts),
    )


def _place_of(events: Iterable[Event]) -> dict[str, dict[tuple[str, str, int], Event]]:
    """Return, per message, every place it was seen at, with the first event that says so."""
    places: dict[str, dict[tuple[str, str, int], Event]] = defaultdict(dict)
    for event in events:
        if event.offset >= 0 and event.message:
            places[event.message].setdefault((event.topic, event.queue, event.offset), event)
    return places


@dataclass(slots=True)
class _Facts:
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
    # By group and message the last event of a listener or of a hand-over to the dead letters.
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
        """Return since when a group should not have passed over a message that had its turn; None where nobody knows.

        A reset before that turn may have led back to it, and what was delivered before the reset did not overtake it.
        """
        resets = self.resets.get((group, ack.topic, ack.queue), ())
        back = [each for each in resets if each.at < turn.at and each.offset <= ack.offset]
        if any(each.offset < 0 for each in back):
            return None
        return max((each.at for each in back), default=-1)

    def is_missing(self, ack: Event, drained: Event) -> bool:
        """Return whether a group has drained a topic without this message, as far as can be known.

        A reset lets the group pass over what stands before its offset, and have what stands behind once more.
        """
        seen = self.seen.get((drained.group, ack.message))
        reset = self.reset_before(drained, ack.queue)
        if reset is None:
            return seen is None
        return 0 <= reset.offset <= ack.offset and (seen is None or seen.at < reset.at)


def _lost(facts: _Facts) -> list[Finding]:
    findings = []
    for message, ack in facts.acks.items():
        if message in facts.dropped:
            continue  # it was kept as long as was promised
        scan = facts.scanned.get(ack.topic)
        if scan is not None and ack.at < scan.at and message not in facts.stored:
            findings.append(
                Finding(
                    Defect.LOST,
                    message,
                    ack.queue,
                    f"acknowledged at offset {ack.offset}, absent from the log",
                    (ack, scan),
                )
            )
            continue

        for (group, topic), drained in facts.drained.items():
            if topic == ack.topic and ack.at < drained.at and facts.is_missing(ack, drained):
                why = f"acknowledged at offset {ack.offset}, never delivered to group {group}"
                evidence = [ack, drained]
                if reset := facts.reset_before(drained, ack.queue):
                    why += f" since the reset to {reset.offset}"
                    evidence.insert(1, reset)
                findings.append(Finding(Defect.LOST, message, ack.queue, why, tuple(evidence)))
    return findings


def _duplicated(facts: _Facts) -> list[Finding]:
    seen = [
        event
        for event in facts.history
        if event.kind in (Kind.ACK, Kind.STORED, Kind.DELIVER) and event.message in facts.sends
    ]
    findings: list[Finding] = []
    for message, places in _place_of(seen).items():
        first, *others = places.values()
        findings.extend(
            Finding(
                Defect.DUPLICATED,
                message,
                other.queue,
                f"one send stands at {first.queue}@{first.offset} and {other.queue}@{other.offset}",
                (first, other),
            )
            for other in others
        )
    return findings


def _resurrected(facts: _Facts) -> list[Finding]:
    findings = []
    for message, refused in facts.refusals.items():
        if message in facts.acks:
            continue  # a later attempt of the same send succeeded
        if message in facts.unknowns:
            continue  # a refusal speaks of its own attempt, not of the one that nobody knows about
        repeat = facts.repeats.get(message)
        if repeat is not None and repeat.at > refused.at:
            continue  # it was tried again, and nobody knows how that ended
        sightings = [*facts.stored.get(message, ()), *facts.deliveries.get(message, ())]
        if sightings:
            sight = min(sightings, key=lambda event: event.at)
            findings.append(
                Finding(
                    Defect.RESURRECTED,
                    message,
                    sight.queue,
                    f"refused for good, yet it stands at offset {sight.offset}",
                    (refused, sight),
                )
            )
    return findings


def _by_key(facts: _Facts) -> Iterator[tuple[str, list[Event]]]:
    """Yield the topic and the acknowledged sends of each key, of every sender, in the order in which they began."""
    keys: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for message, send in facts.sends.items():
        if send.key and message in facts.acks:
            keys[facts.acks[message].topic or send.topic, send.key].append(send)
    for (topic, _), sends in keys.items():
        yield topic, sends


def _steps(facts: _Facts, sends: Sequence[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Yield each send of a key with those that were acknowledged since the one before it began.

    The order of a send and of all that were acknowledged before it began is promised; two in flight have none.
    """
    # No send precedes itself, however coarse the clock is.
    ends = [(max(facts.acks[send.message].at, send.at + 1), send) for send in sends]
    ends.sort(key=lambda end: end[0], reverse=True)
    for send in sends:
        before = []
        while ends and ends[-1][0] <= send.at:
            before.append(ends.pop()[1])
        yield send, before


def _misplaced(facts: _Facts) -> list[Finding]:
    findings: list[Finding] = []
    for topic, sends in _by_key(facts):
        highest: dict[str, Event] = {}  # queue -> acknowledgement
        moved: dict[str, tuple[int, Event]] = {}  # queue -> most moves, and who had made them
        moves: dict[str, int] = {}  # message -> moves of its key in sends that followed each other
        overtaken: set[str] = set()
        for after, before in _steps(facts, sends):
            for ack in (facts.acks[send.message] for send in before):
                if ack.queue not in highest or ack.offset > highest[ack.queue].offset:
                    highest[ack.queue] = ack
                if ack.queue not in moved or moves[ack.message] >= moved[ack.queue][0]:
                    moved[ack.queue] = moves[ack.message], ack
            second = facts.acks[after.message]
            moves[after.message], last = moved.get(second.queue, (0, None))
            found: list[tuple[Event, str]] = []
            for queue, (number, first) in moved.items():
                is_move = queue != second.queue
                if is_move and (last is None or number >= moves[after.message]):
                    moves[after.message], last = number + 1, first
                    why = f"key {after.key!r} moved from {queue} to {second.queue}"
                    found = [(first, why)]
            # What a move that is due to an expansion may not do is overtake: that is judged by the deliveries.
            if moves[after.message] <= sum(e.at <= second.at for e in facts.expansions[topic]):
                found = []
            top = highest.get(second.queue)
            if top is not None and top.offset >= second.offset and top.message not in overtaken:
                overtaken.add(top.message)
                why = f"acknowledged first at offset {top.offset}, then at {second.offset}"
                found.append((top, why))
            findings += [
                Finding(Defect.REORDERED, after.message, second.queue, why, (first, after, second))
                for first, why in found
            ]
    return findings


def _turns(facts: _Facts) -> dict[tuple[str, str], Event]:
    """Return when each message that a group was given had its turn there.

    That is its first delivery, or when it was handed over unseen: a delivery after that is a repetition.
    """
    firsts: dict[tuple[str, str], Event] = {}
    for message, deliveries in facts.deliveries.items():
        for event in deliveries:
            firsts.setdefault((event.group, message), event)
    for place, letter in facts.dead.items():
        if place in firsts and letter.at < firsts[place].at:
            firsts[place] = letter
    return firsts


def _delivered_out_of_order(facts: _Facts) -> list[Finding]:
    firsts = _turns(facts)
    since: dict[str, int] = {}
    for event in facts.history:
        if event.group:
            since.setdefault(event.group, event.at)
    # What one wants by another property than the key has its order in its lanes alone.
    groups = {group for group, _ in firsts} - groups_by_property(facts.history)

    return [
        finding
        for topic, sends in _by_key(facts)
        for group in groups
        for finding in _overtaken(facts, firsts, group, since[group], topic, sends)
    ]


def _overtaken(
    facts: _Facts,
    firsts: dict[tuple[str, str], Event],
    group: str,
    since: int,
    topic: str,
    sends: Sequence[Event],
) -> Iterator[Finding]:
    """Yield each message of a key that a group got after one that was sent when it was acknowledged."""
    # Nobody could wait for a group that came after the key had moved.
    expansions = [grown.at for grown in facts.expansions[topic] if grown.at < since]
    # By queue the last turn; by queue and expansions before the send the last end of work; each since a reset.
    turns: dict[tuple[str, int], Event] = {}
    ends: dict[tuple[str, int, int], Event] = {}
    found: set[str] = set()
    for after, before in _steps(facts, sends):
        for send in before:
            turn, sent = firsts.get((group, send.message)), facts.acks[send.message]
            judged = None if turn is None else facts.judged_since(group, sent, turn)
            if turn is not None and judged is not None:
                turns[sent.queue, judged] = max(
                    turns.get((sent.queue, judged), turn), turn, key=_time
                )
                place = sent.queue, bisect_left(expansions, send.at), judged
                end = facts.dones.get((group, send.message), turn)
                ends[place] = max(ends.get(place, end), end, key=_time)
        second = firsts.get((group, after.message))
        if second is None:
            continue
        ack = facts.acks[after.message]
        grown = bisect_right(expansions, ack.at)
        others = [t for (queue, s), t in turns.items() if queue == ack.queue and s <= second.at]
        # In two queues nothing but the end of the first one's work keeps the order.
        others += [
            end
            for (queue, n, s), end in ends.items()
            if queue != ack.queue and n == grown and s <= second.at
        ]
        first = max(others, key=_time, default=second)
        if second.at < first.at and first.message not in found:
            found.add(first.message)
            why = f"group {group} got it before {first.message}, which was acknowledged earlier"
            yield Finding(Defect.REORDERED, after.message, second.queue, why, (second, first))


def _time(event: Event) -> int:
    return event.at


@dataclass(slots=True)
class _Line:
    """One queue as one ordered group sees it."""

    open: dict[str, Event] = field(default_factory=dict)  # client -> delivery under way
    delivered: dict[int, Event] = field(default_factory=dict)  # offset -> its first delivery
    settled: set[int] = field(default_factory=set)  # offsets done or dead-lettered
    owed: set[int] = field(default_factory=set)  # offsets delivered, and neither settled nor told
    again: set[int] = field(
        default_factory=set
    )  # offsets settled before a reset that wants them again
    highest: int = -1
    may_jump: bool = False  # once: an administrator moves the group
    newest: Event | None = None  # delivery with the highest epoch
    committed: Event | None = None


class _Queues:
    """Checks of one queue at a time: one owner, no gaps, no offset that falls."""

    def __init__(self, facts: _Facts) -> None:
        self.findings: list[Finding] = []
        self._lines: dict[tuple[str, str, str], _Line] = defaultdict(_Line)
        self._known: dict[tuple[str, str], dict[int, Event]] = defaultdict(dict)
        self._dropped: dict[tuple[str, str], set[int]] = defaultdict(set)
        # A group that never reports DONE is a concurrent one: its queues have no single owner.
        # A group by key is judged lane by lane.
        ordered = {event.group for event in facts.history if event.kind is Kind.DONE}
        self._ordered = ordered - groups_by_key(facts.history)
        for events in (facts.acks.values(), *facts.stored.values()):
            for event in events:
                self._known[event.topic, event.queue].setdefault(event.offset, event)
        self._offsets = {place: sorted(known) for place, known in self._known.items()}
        for event in facts.history:
            self._read(event)

    def _read(self, event: Event) -> None:
        line = self._lines[event.group, event.topic, event.queue]
        match event.kind:
            case Kind.DELIVER if event.group in self._ordered:
                self._deliver(line, event)
            case Kind.DONE | Kind.DEAD:
                line.open.pop(event.client, None)
                line.settled.add(event.offset)
                line.owed.discard(event.offset)
                line.again.discard(event.offset)
            case Kind.FAILED | Kind.LAPSED:
                line.open.pop(event.client, None)
            case Kind.GONE:
                for other in self._lines.values():
                    other.open.pop(event.client, None)
            case Kind.COMMIT if event.attempt < 0:
                self._commit(line, event)
            case Kind.DROPPED:
                self._dropped[event.topic, event.queue].add(event.offset)
            case Kind.DRAINED:
                self._drained(event)
            case Kind.RESET if event.offset < 0:
                line.committed = None
                line.may_jump = True
            case Kind.RESET:
                line.committed = None
                line.highest = event.offset - 1
                line.owed = {offset for offset in line.owed if offset >= event.offset}
                line.again = {offset for offset in line.settled if offset >= event.offset}
                line.newest = None
            case _:
                pass

    def _deliver(self, line: _Line, event: Event) -> None:
        for client, other in line.open.items():
            if client != event.client:
                self._add(Defect.OVERLAPPED, event, f"{client} still works on the queue", other)
        newest = line.newest
        if newest is not None and 0 <= event.epoch < newest.epoch:
            why = f"epoch {event.epoch} delivers after epoch {newest.epoch} has begun"
            self._add(Defect.OVERLAPPED, event, why, newest)
        elif (
            newest is not None
            and 0 <= event.epoch == newest.epoch
            and event.client != newest.client
            and newest.client not in line.open  # who works still is told above
        ):
            why = f"epoch {event.epoch} was given to {newest.client}"
            self._add(Defect.OVERLAPPED, event, why, newest)
        if newest is None or event.epoch >= newest.epoch:
            line.newest = event

        self._check_gap(line, event)
        committed = line.committed
        # A later holder begins where the former one's last commit stood. One holder's own commit may be
        # on its way while it asks where to begin again: that is a redelivery, and no defect.
        later = committed is not None and 0 <= committed.epoch < event.epoch
        if committed is not None and later and event.offset < committed.offset:
            why = f"delivered again although everything before {committed.offset} is committed"
            self._add(Defect.ROLLED_BACK, event, why, committed)
        line.open[event.client] = event
        line.delivered.setdefault(event.offset, event)
        if event.offset not in line.settled or event.offset in line.again:
            line.owed.add(event.offset)
        line.highest = max(line.highest, event.offset)

    def _check_gap(self, line: _Line, event: Event) -> None:
        found = self._skipped(line, event) or self._overtaken(line, event)
        if found is None:
            return
        if not line.may_jump:
            self._add(*found)
        line.may_jump = False
        line.owed = {offset for offset in line.owed if offset >= event.offset}

    def _skipped(self, line: _Line, event: Event) -> tuple[Defect, Event, str, Event] | None:
        # Only offsets between the highest one seen and this one can have been jumped over now;
        # a first delivery may start anywhere, where the group's start position said.
        if not line.delivered:
            return None
        place = event.topic, event.queue
        offsets = self._offsets.get(place, [])
        first, end = (bisect_left(offsets, each) for each in (line.highest + 1, event.offset))
        for offset in map(offsets.__getitem__, range(first, end)):
            # Messages behind a dead letter of a parked key are handed over unseen.
            if offset not in self._dropped[place] and offset not in line.settled:
                why = f"offset {offset} was never delivered before {event.offset}"
                return Defect.SKIPPED, event, why, self._known[place][offset]
        return None

    def _overtaken(self, line: _Line, event: Event) -> tuple[Defect, Event, str, Event] | None:
        owed = line.owed - self._dropped[event.topic, event.queue]
        offset = max((offset for offset in owed if offset < event.offset), default=None)
        if offset is None:
            return None
        why = f"delivered while offset {offset} is neither done nor dead-lettered"
        return Defect.OVERTAKEN, event, why, line.delivered[offset]

    def _drained(self, event: Event) -> None:
        """Find what no later delivery shows: the last acknowledged message of a queue that was begun and not done."""
        for (group, topic, queue), line in self._lines.items():
            if (group, topic) != (event.group, event.topic) or line.may_jump:
                continue
            known = self._known[topic, queue]
            for offset in sorted(line.owed - self._dropped[topic, queue]):
                ack = known.get(offset)
                if ack is None or ack.kind is not Kind.ACK or ack.at > event.at:
                    continue
                delivery = line.delivered[offset]
                why = "delivered, and neither done nor dead-lettered when the group had drained"
                self._add(Defect.LOST, delivery, why, event)

    def _commit(self, line: _Line, event: Event) -> None:
        if line.committed is not None and event.offset < line.committed.offset:
            why = f"committed offset fell from {line.committed.offset} to {event.offset}"
            self._add(Defect.ROLLED_BACK, event, why, line.committed)
        line.committed = event

    def _add(self, defect: Defect, event: Event, explanation: str, other: Event) -> None:
        self.findings.append(
            Finding(defect, event.message, event.queue, explanation, (other, event))
        )


#: How far after a fault its effect on acknowledgements is looked for.
_FAULT_WINDOW_NS = 30_000_000_000


def _ack_gaps(facts: _Facts) -> dict[str, float]:
    times = sorted(ack.at for ack in facts.acks.values())
    gaps: dict[str, float] = {}
    for fault in facts.faults:
        longest = 0
        for before, after in pairwise(times):
            if after >= fault.at and before <= fault.at + _FAULT_WINDOW_NS:
                longest = max(longest, after - before)
        name = fault.detail or "fault"
        gaps[name] = max(gaps.get(name, 0.0), longest / 1e6)
    return gaps
