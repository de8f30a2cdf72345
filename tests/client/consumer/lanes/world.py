"""
A world in virtual time for consumers by key: a simple broker, a network that loses messages, listeners.

The broker keeps a list of keys per queue and searches all of it each time.
Each step checks what must never happen; `run` ends when nothing is owed any more.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from orderlymq.consumer.core.events import Assigned, Closing, Report, Tick
from orderlymq.consumer.lanes.core import LaneCore, LaneRules
from orderlymq.consumer.lanes.events import (
    Answered,
    AttemptId,
    Complete,
    CompleteFailed,
    Ended,
    Event,
    Fetch,
    Fetched,
    FetchEmpty,
    FetchFailed,
    Given,
    Instruction,
    Listened,
    Place,
    Work,
    WorkDropped,
)
from orderlymq_protocol.body.lanes import Lane, LaneReport, LaneVerdict
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client.messages import message

PLACE = Place("orders", "broker-a")
LEASE_MS = 1_000
WAIT_MS = 300


@dataclass
class Attempt:
    """A lane that a member has in hand."""

    number: int
    client: str
    sequence: int
    offsets: tuple[int, ...]
    until_ms: int
    since_ms: int


@dataclass
class NaiveBroker:
    """All queues of one topic; `keys[queue]` are the keys of its messages by offset."""

    keys: list[list[str]]
    done: set[tuple[int, int]] = field(default_factory=set)
    dead: set[tuple[int, int]] = field(default_factory=set)
    tries: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    in_hand: dict[tuple[int, str], Attempt] = field(default_factory=dict)
    parked: dict[tuple[int, str], int] = field(default_factory=dict)
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    def owed(self, queue: int, key: str) -> list[int]:
        """Return the offsets of a lane that are not completed."""
        return [
            offset
            for offset, each in enumerate(self.keys[queue])
            if each == key and (queue, offset) not in self.done
        ]

    @property
    def is_drained(self) -> bool:
        """Return whether nothing is owed."""
        return len(self.done) == sum(map(len, self.keys))

    def expire(self, now_ms: int) -> None:
        """End the attempts whose leases are over."""
        for lane in [lane for lane, each in self.in_hand.items() if each.until_ms <= now_ms]:
            del self.in_hand[lane]

    def fetch(self, client: str, ask: Fetch, per_lane: int, now_ms: int) -> tuple[Lane, ...]:
        """Hand out lanes, the oldest first; a repeat gets the same ones."""
        self.expire(now_ms)
        mine = [
            (lane, each)
            for lane, each in self.in_hand.items()
            if (each.client, each.sequence) == (client, ask.sequence)
        ]
        if mine:
            return tuple(self._shown(lane, each) for lane, each in mine)
        found: list[Lane] = []
        for queue, keys in enumerate(self.keys):
            for key in dict.fromkeys(keys):
                lane, owed = (queue, key), self.owed(queue, key)
                waits = self.parked.get(lane, 0) > now_ms
                if not owed or waits or lane in self.in_hand or len(found) >= ask.lanes_max:
                    continue
                attempt = Attempt(
                    next(self.numbers),
                    client,
                    ask.sequence,
                    tuple(owed[:per_lane]),
                    now_ms + LEASE_MS,
                    now_ms,
                )
                self.in_hand[lane] = attempt
                found.append(self._shown(lane, attempt))
        return tuple(found)

    def complete(
        self, client: str, reports: tuple[LaneReport, ...], now_ms: int
    ) -> tuple[LaneVerdict, ...]:
        """Take reports and answer them."""
        self.expire(now_ms)
        return tuple(self._judge(client, report, now_ms) for report in reports)

    def leave(self, client: str) -> None:
        """Take back a member's lanes."""
        for lane in [lane for lane, each in self.in_hand.items() if each.client == client]:
            del self.in_hand[lane]

    def _shown(self, lane: tuple[int, str], attempt: Attempt) -> Lane:
        queue, key = lane
        behind = len(self.owed(queue, key)) - len(attempt.offsets)
        tries = self.tries[queue, attempt.offsets[0]]
        number = self.keys[queue].index(key)
        return Lane(queue, number, attempt.number, key, attempt.offsets, tries, behind)

    def _judge(self, client: str, report: LaneReport, now_ms: int) -> LaneVerdict:
        lane = (report.queue_id, self.keys[report.queue_id][report.lane])
        attempt = self.in_hand.get(lane)
        if attempt is None or (attempt.number, attempt.client) != (report.attempt, client):
            return self._verdict(report, "stale")
        self.done |= {(lane[0], o) for o in attempt.offsets if o <= report.offset}
        match report.result:
            case "renew":
                attempt.until_ms = now_ms + LEASE_MS
                return self._verdict(report, "renewed")
            case "retry":
                first = self.owed(*lane)[0]
                self.tries[lane[0], first] += 1
                self.parked[lane] = now_ms + max(report.delay_millis, 100)
        del self.in_hand[lane]
        verdict = {"done": "done", "retry": "parked", "release": "released"}[report.result]
        return self._verdict(report, verdict)

    def _verdict(self, report: LaneReport, verdict: str) -> LaneVerdict:
        return LaneVerdict(report.queue_id, report.lane, report.attempt, verdict)


@dataclass
class Member:
    """One consumer; its clock is that of the world."""

    name: str
    core: LaneCore
    running: dict[AttemptId, tuple[int, str]] = field(default_factory=dict)
    is_gone: bool = False
    wake_ms: int | None = None


class World:
    """The broker, its members and the messages between them."""

    def __init__(
        self,
        keys: list[list[str]],
        random: Random,
        *,
        rules: LaneRules,
        per_lane: int = 1,
        members: int = 1,
        loss: float = 0.0,
        failing: float = 0.0,
        slow_ms: int = 20,
    ) -> None:
        self.now_ms = 0
        self.broker = NaiveBroker(keys)
        self.random = random
        self.loss = loss
        self.failing = failing
        self.slow_ms = slow_ms
        self.per_lane = per_lane
        self.rules = rules
        self.most_in_hand = 0
        self.delivered: list[tuple[int, str, int]] = []
        self.listened: set[tuple[int, int]] = set()
        self.reports: list[str] = []
        self.requests = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._turns = count()
        self.members = [Member(f"m{n}", LaneCore(rules)) for n in range(members)]
        queues = frozenset(MessageQueue(*PLACE, queue) for queue in range(len(keys)))
        for member in self.members:
            self.post(member, Assigned(queues))

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, next(self._turns), act))

    def run(self, until: Callable[[], bool], limit_ms: int = 600_000) -> None:
        """Go on until a condition holds."""
        while not until():
            assert self._agenda, "nothing will ever happen any more"
            self.now_ms, _, act = heapq.heappop(self._agenda)
            assert self.now_ms < limit_ms, "it takes too long"
            act()

    def drain(self) -> None:
        """Go on until nothing is owed."""
        self.run(lambda: self.broker.is_drained)

    def kill(self, member: Member) -> None:
        """End a member without a report; its listeners do nothing more."""
        member.is_gone = True
        member.running.clear()

    def post(self, member: Member, event: Event) -> None:
        if member.is_gone:
            return
        instructions = member.core.handle(event, self.now_ms)
        member.core.check()
        figures = member.core.figures()
        self.most_in_hand = max(self.most_in_hand, figures.in_hand - figures.reported)
        for instruction in instructions:
            self._carry_out(member, instruction)
        wake_ms = member.core.next_wake_ms()
        assert wake_ms is None or wake_ms > self.now_ms, "it would wake for ever"
        if wake_ms is not None and wake_ms != member.wake_ms:
            member.wake_ms = wake_ms
            self.later(max(0, wake_ms - self.now_ms), lambda: self._tick(member, wake_ms))

    def close(self, member: Member) -> None:
        """Close a member; it leaves the group when it is idle."""
        self.post(member, Closing())
        self.run(lambda: member.core.is_idle)
        self.broker.leave(member.name)
        member.is_gone = True

    def _tick(self, member: Member, wake_ms: int) -> None:
        if member.wake_ms == wake_ms:
            member.wake_ms = None
            self.post(member, Tick())

    def _carry_out(self, member: Member, instruction: Instruction) -> None:
        match instruction:
            case Fetch():
                self._fetch(member, instruction)
            case Work():
                self.later(0, lambda: self._work(member, instruction))
            case Complete():
                self._complete(member, instruction)
            case Report():
                self.reports.append(instruction.text)

    # -- the network

    def _lost(self) -> bool:
        return self.random.random() < self.loss

    def _fetch(self, member: Member, ask: Fetch) -> None:
        asked_at_ms = self.now_ms
        self.requests += 1
        failed = FetchFailed(ask.place, ask.sequence, "no answer")
        if self._lost():
            self.later(50, lambda: self.post(member, failed))
            return

        def serve() -> None:
            if member.is_gone:
                return
            lanes = self.broker.fetch(member.name, ask, self.per_lane, self.now_ms)
            if not lanes and self.now_ms < asked_at_ms + WAIT_MS:
                self.later(10, serve)
            elif self._lost():
                self.later(50, lambda: self.post(member, failed))
            elif not lanes:
                self.later(1, lambda: self.post(member, FetchEmpty(ask.place, ask.sequence)))
            else:
                given = tuple(Given(each, self._messages(each)) for each in lanes)
                event = Fetched(ask.place, ask.sequence, given, LEASE_MS, asked_at_ms)
                self.later(self.random.randint(1, 5), lambda: self.post(member, event))

        self.later(self.random.randint(1, 5), serve)

    def _messages(self, lane: Lane) -> tuple:  # type: ignore[type-arg]  # of received messages
        queue = MessageQueue(*PLACE, lane.queue_id)
        return tuple(message(offset, queue=queue) for offset in lane.offsets)

    def _complete(self, member: Member, ask: Complete) -> None:
        asked_at_ms = self.now_ms
        self.requests += 1
        failed = CompleteFailed(ask.place, ask.reports, "no answer")
        if self._lost():
            self.later(50, lambda: self.post(member, failed))
            return

        def serve() -> None:
            if member.is_gone:
                return
            verdicts = self.broker.complete(member.name, ask.reports, self.now_ms)
            assert self.broker.done <= self.listened, "complete, and no listener has had it"
            event: Event = Answered(ask.place, ask.reports, verdicts, asked_at_ms)
            if self._lost():
                event = failed
            self.later(self.random.randint(1, 5), lambda: self.post(member, event))

        self.later(self.random.randint(1, 5), serve)

    # -- listeners

    def _work(self, member: Member, work: Work) -> None:
        if member.is_gone:
            return
        if not member.core.may_start(work.attempt, self.now_ms):
            self.post(member, Ended((WorkDropped(work.attempt),)))
            return
        lane = (work.attempt.queue_id, work.lane.key)
        assert lane not in member.running.values(), f"two calls of {lane} at once"
        for other in self.members:
            for attempt, theirs in other.running.items():
                if theirs == lane and other.core.holds(attempt, self.now_ms):
                    raise AssertionError(f"{lane} has two holders")
        self._check_order(work)
        member.running[work.attempt] = lane
        took_ms = self.random.randint(0, self.slow_ms)
        self.later(took_ms, lambda: self._returned(member, work))

    def _check_order(self, work: Work) -> None:
        queue, key = work.attempt.queue_id, work.lane.key
        for each in work.messages:
            before = [o for o, k in enumerate(self.broker.keys[queue]) if k == key]
            batch = {m.queue_offset for m in work.messages}
            for offset in before:
                if offset < each.queue_offset and offset not in batch:
                    assert (queue, offset) in self.listened, f"{each} overtakes {offset}"
            self.delivered.append((queue, key, each.queue_offset))

    def _returned(self, member: Member, work: Work) -> None:
        if member.is_gone or work.attempt not in member.running:
            return
        del member.running[work.attempt]
        error = "ValueError: no" if self.random.random() < self.failing else None
        if error is None:
            self.listened |= {(work.attempt.queue_id, m.queue_offset) for m in work.messages}
        self.post(member, Ended((Listened(work.attempt, error),)))
