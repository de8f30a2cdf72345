"""
The order oracle: reads a history of what happened and says whether the promise was kept.

The demo, the simulator, the tests and ``orderlymq verify`` use this one definition of order. The oracle is pure: it
gets events and returns a verdict, and never asks a broker. It does not judge what the history does not show, and the
verdict says so. Without a final read of the log (``stored``), or an event that a group has drained its queues
(``drained``), no message can be called lost. ``history.py`` reads and writes histories as JSON lines.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orderlymq.oracle.events import Defect, Event, Finding, Kind, as_lines
from orderlymq.oracle.facts import Facts
from orderlymq.oracle.lanes import groups_by_property, judge_lanes
from orderlymq.oracle.queues import judge_queues

__all__ = ["Defect", "Event", "Finding", "Kind", "Verdict", "as_lines", "judge"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a history.

    Attributes:
        findings: the broken promises; empty if the promise held.
        counts: numbers of sent, acknowledged, refused, unknown, delivered, redelivered and dead-lettered messages.
        not_judged: checks for which the history has no evidence.
        duration_s: time from the first to the last event.
        ack_gap_ms: longest time without an acknowledgement around each fault, by the detail of the fault.
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
    facts = Facts(history)

    findings = [
        *_lost(facts),
        *_duplicated(facts),
        *_resurrected(facts),
        *_misplaced(facts),
        *_delivered_out_of_order(facts),
        *judge_queues(facts),
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
    """Return, for each message, every place where it was seen, with the first event that shows it."""
    places: dict[str, dict[tuple[str, str, int], Event]] = defaultdict(dict)
    for event in events:
        if event.offset >= 0 and event.message:
            places[event.message].setdefault((event.topic, event.queue, event.offset), event)
    return places


def _lost(facts: Facts) -> list[Finding]:
    findings = []
    for message, ack in facts.acks.items():
        if message in facts.dropped:
            continue  # it was kept as long as promised
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


def _duplicated(facts: Facts) -> list[Finding]:
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
                f"one send is stored at {first.queue}@{first.offset} and {other.queue}@{other.offset}",
                (first, other),
            )
            for other in others
        )
    return findings


def _resurrected(facts: Facts) -> list[Finding]:
    findings = []
    for message, refused in facts.refusals.items():
        if message in facts.acks:
            continue  # a later attempt of the same send succeeded
        if message in facts.unknowns:
            continue  # a refusal says nothing about other attempts of unknown outcome
        repeat = facts.repeats.get(message)
        if repeat is not None and repeat.at > refused.at:
            continue  # it was tried again, and the outcome is unknown
        sightings = [*facts.stored.get(message, ()), *facts.deliveries.get(message, ())]
        if sightings:
            sight = min(sightings, key=lambda event: event.at)
            findings.append(
                Finding(
                    Defect.RESURRECTED,
                    message,
                    sight.queue,
                    f"finally refused, but stored at offset {sight.offset}",
                    (refused, sight),
                )
            )
    return findings


def _by_key(facts: Facts) -> Iterator[tuple[str, list[Event]]]:
    """Yield the topic and the acknowledged sends of each key, of all senders, in the order in which the sends began."""
    keys: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for message, send in facts.sends.items():
        if send.key and message in facts.acks:
            keys[facts.acks[message].topic or send.topic, send.key].append(send)
    for (topic, _), sends in keys.items():
        yield topic, sends


def _steps(facts: Facts, sends: Sequence[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Yield each send of a key with the sends that were acknowledged since the one before it began.

    A send must come after all sends that were acknowledged before it began. Two sends in flight at the same time have
    no order.
    """
    # A send never precedes itself, even if the clock is coarse.
    ends = [(max(facts.acks[send.message].at, send.at + 1), send) for send in sends]
    ends.sort(key=lambda end: end[0], reverse=True)
    for send in sends:
        before = []
        while ends and ends[-1][0] <= send.at:
            before.append(ends.pop()[1])
        yield send, before


def _misplaced(facts: Facts) -> list[Finding]:
    findings: list[Finding] = []
    for topic, sends in _by_key(facts):
        highest: dict[str, Event] = {}  # queue -> acknowledgement
        moved: dict[str, tuple[int, Event]] = {}  # queue -> most moves, and their acknowledgement
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
            # An expansion may move a key. Whether the move lets a message overtake another is judged by the deliveries.
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


def _turns(facts: Facts) -> dict[tuple[str, str], Event]:
    """Return the turn of each message in each group that got it.

    The turn is the first delivery, or an earlier hand-over to the dead letters without a delivery; a delivery after
    that is a repeat.
    """
    firsts: dict[tuple[str, str], Event] = {}
    for message, deliveries in facts.deliveries.items():
        for event in deliveries:
            firsts.setdefault((event.group, message), event)
    for place, letter in facts.dead.items():
        if place in firsts and letter.at < firsts[place].at:
            firsts[place] = letter
    return firsts


def _delivered_out_of_order(facts: Facts) -> list[Finding]:
    firsts = _turns(facts)
    since: dict[str, int] = {}
    for event in facts.history:
        if event.group:
            since.setdefault(event.group, event.at)
    # Groups whose lanes go by another property than the key have an order only in their lanes.
    groups = {group for group, _ in firsts} - groups_by_property(facts.history)

    return [
        finding
        for topic, sends in _by_key(facts)
        for group in groups
        for finding in _overtaken(facts, firsts, group, since[group], topic, sends)
    ]


def _overtaken(
    facts: Facts,
    firsts: dict[tuple[str, str], Event],
    group: str,
    since: int,
    topic: str,
    sends: Sequence[Event],
) -> Iterator[Finding]:
    """Yield a finding for each message that a group got before an earlier message of its key.

    Earlier means that it was acknowledged before the send of the other began.
    """
    # These expansions could not wait for the group, which came after the key had moved.
    expansions = [grown.at for grown in facts.expansions[topic] if grown.at < since]
    # The last turn, by queue and reset; the last end of work, by queue, expansions before the send, and reset.
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
        # In two queues, only the end of the first message's work keeps the order.
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


#: Time after a fault in which its effect on acknowledgements is looked for.
_FAULT_WINDOW_NS = 30_000_000_000


def _ack_gaps(facts: Facts) -> dict[str, float]:
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
