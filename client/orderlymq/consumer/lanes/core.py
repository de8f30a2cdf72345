"""
The decisions of a consumer by key: what to fetch, which work to start, what to report, when to renew. Pure.

Rules:
* Each lane has one listener call at a time, even if the lease of an earlier attempt ended while its listener ran.
* The lanes in hand are bounded: as many as there are workers, those that the workers need while a fetch is under way,
  and those whose reports have no verdict yet. A lane that waited too long for a worker is given back.
* A lost lane is forgotten: nothing is reported about it, and its messages are delivered again.
* A lane from a repeated fetch may have been in hand for long, so its lease is renewed before a listener gets it. Until
  then it counts only for its place, from which nothing more is fetched.
* A fetch without an answer is repeated with its number, and reports without an answer are sent again.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orderlymq.consumer.core import events as queues
from orderlymq.consumer.lanes.events import (
    Answered,
    Assigned,
    Closing,
    CompleteFailed,
    CutOff,
    End,
    Ended,
    Event,
    Fetched,
    FetchEmpty,
    FetchFailed,
    HandId,
    Instruction,
    Listened,
    Paused,
    Place,
    Report,
    Resumed,
    Tick,
    Work,
)
from orderlymq.consumer.lanes.hands import NEVER, Hand, LaneId, Phase, hand_of
from orderlymq.consumer.lanes.sources import Level, Sources
from orderlymq_protocol.body import lanes as wire
from orderlymq_protocol.body.lanes import LANES_MAX, LaneReport, LaneVerdict
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.plurals import counted

# Completions within this time become one record of the broker's log.
GATHER_MS: Final = 2
# How long a completion waits if no message waits behind it and other lanes wait for a worker of this member: half of
# the time for which those lanes wait. A request costs its broker and each replica one log entry, for one lane or for
# many.
GATHER_BUSY_MS: Final = 20
# Waiting lanes should keep the workers busy for twice the time of a broker's answer, within these limits. With less,
# workers would wait for the next fetch; with more, lanes would wait here although another member has a free worker.
AHEAD_MS: Final = 50
AHEAD_MS_MAX: Final = 500
# Assumed duration of a call that took no measurable time.
_SHORTEST_MS: Final = 0.1
# Weight of a new call in the average duration.
_NEWEST: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRules:
    """Settings of the core; times in milliseconds.

    Attributes:
        workers: number of listener calls at the same time.
        ahead_max: maximum number of lanes in hand beyond the workers.
        batch_max: messages of one lane in one call.
        renew_ms: time after the start of a lease at which it is renewed.
        tries_max: maximum number of tries; None for the consumer group's setting.
        first_sequence: number of the first fetch; higher at each start of a client.
    """

    workers: int
    ahead_max: int = 2 * LANES_MAX
    batch_max: int = 1
    renew_ms: int = 5_000
    tries_max: int | None = None
    first_sequence: int = 1


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """Figures of a consumer by key at one moment.

    Attributes:
        in_hand: lanes that brokers have handed out to the consumer: working, waiting and reported ones.
        working: lanes whose messages a listener has.
        waiting: lanes that wait for a worker.
        reported: lanes whose completion has no verdict yet.
        lost: attempts that ended before they were complete, since the start.
        limited: why brokers hand out no new lanes, by topic and broker; normally empty.
    """

    in_hand: int
    working: int
    waiting: int
    reported: int
    lost: int
    limited: Mapping[tuple[str, str], str]


class LaneCore:
    """All lanes of one consumer.

    Life cycle: `Assigned` says where lanes may be. `Closing` gives back the lanes that no listener has, and those that
    a fetch under way still brings. After that the core is idle once the last verdict has arrived or is overdue.
    """

    def __init__(self, rules: LaneRules) -> None:
        self.queues: frozenset[MessageQueue] = frozenset()
        self._rules = rules
        self._sources = Sources(rules.first_sequence)
        self._hands: dict[HandId, Hand] = {}
        self._ready: deque[HandId] = deque()
        self._busy: set[LaneId] = set()
        # Newer attempts at lanes whose listener still runs with an older attempt.
        self._behind: dict[LaneId, HandId] = {}
        self._working = 0
        self._ended = 0
        self._unsure = 0
        self._started_sum_ms = 0
        self._service_ms: float | None = None
        # How long a broker takes to answer completions; fetches do not count, because brokers hold them.
        self._answer_ms = 0.0
        self._check_ms = NEVER
        self._lost = 0
        self._is_paused = False
        self._is_closing = False
        self._out: list[Instruction] = []

    # -- questions

    @property
    def is_idle(self) -> bool:
        """Whether no lane is in hand."""
        return not self._hands

    def holds(self, hand_id: HandId, now_ms: int) -> bool:
        """Return whether this member still holds the lane of a running listener."""
        hand = self._hands.get(hand_id)

        return (
            hand is not None
            and hand.phase is Phase.WORKING
            and not hand.is_lost
            and now_ms < hand.until_ms
        )

    def may_start(self, hand_id: HandId, now_ms: int) -> bool:
        """Return whether the listener may still be called with this attempt."""
        return not (self._is_paused or self._is_closing) and self.holds(hand_id, now_ms)

    def next_wake_ms(self) -> int | None:
        """Return the time at which the next `Tick` is due, or None."""
        can_fetch = not (self._is_paused or self._is_closing)
        wake = min(self._check_ms, self._sources.wake_ms(can_fetch=can_fetch))

        return None if wake == NEVER else wake

    def figures(self) -> LaneFigures:
        """Return the current figures."""
        hands = self._hands.values()

        return LaneFigures(
            len(hands),
            self._working,
            sum(hand.phase is Phase.WAITING for hand in hands),
            self._ended,
            self._lost,
            self._sources.limited(),
        )

    def check(self) -> None:
        """Assert the invariants."""
        working = [h for h in self._hands.values() if h.phase is Phase.WORKING]
        assert len(working) == self._working == len(self._busy)
        assert {hand.lane_id for hand in working} == self._busy
        assert self._working <= self._rules.workers
        assert self._ended == sum(hand.phase is Phase.ENDED for hand in self._hands.values())
        assert self._started_sum_ms == sum(hand.started_ms for hand in working)
        ended = Counter(h.id.place for h in self._hands.values() if h.phase is Phase.ENDED)
        unsure = Counter(h.id.place for h in self._hands.values() if h.is_unsure)
        assert self._unsure == unsure.total()
        for source in self._sources:
            assert source.reported == ended[source.place]
            assert source.unsure == unsure[source.place]
            for queue_id, attempt in source.outbox:
                assert HandId(source.place, queue_id, attempt) in self._hands

    # -- events

    def handle(self, event: Event, now_ms: int) -> list[Instruction]:  # noqa: C901 - one arm per event
        """Handle one event and return the instructions."""
        self._out = []
        match event:
            case Assigned(queues=found):
                self._assign(found, now_ms)
            case Fetched():
                self._fetched(event, now_ms)
            case FetchEmpty() | FetchFailed():
                self._out += self._sources.not_fetched(event, now_ms)
            case Ended(ends):
                for each in ends:
                    self._end_of(each, now_ms)
            case Answered():
                self._answered(event, now_ms)
            case CompleteFailed():
                self._not_answered(event, now_ms)
            case Paused():
                self._is_paused = True
            case Resumed():
                self._is_paused = False
            case Closing():
                self._close(now_ms)
            case CutOff(running):
                self._cut_off(running, now_ms)
            case Tick() | queues.OffsetsReset():
                pass  # the broker performs a reset: lanes in hand end with their attempts
            case _:
                raise AssertionError(f"no event of a consumer by key: {event}")
        # Dispatch before checking leases, so that a lane for which there is a worker is not given back.
        self._dispatch(now_ms)
        self._look(now_ms)
        self._out += self._sources.completes(now_ms)
        self._fetch(now_ms)

        return self._out

    def _assign(self, found: frozenset[MessageQueue], now_ms: int) -> None:
        self.queues = found
        for gone in self._sources.assign({Place(each.topic, each.broker_name) for each in found}):
            self._release_waiting(now_ms, gone)

    def _close(self, now_ms: int) -> None:
        self._is_closing = True
        for hand in self._hands.values():
            if hand.phase is Phase.ENDED:
                self._await_verdict(hand, now_ms)
        self._release_waiting(now_ms)
        self._ready.clear()

    def _cut_off(self, running: frozenset[HandId], now_ms: int) -> None:
        for hand in list(self._hands.values()):
            if hand.phase is Phase.WORKING:
                self._stop_working(hand)
                if hand.is_lost or hand.id in running:
                    self._forget(hand)
                else:
                    self._end(hand, hand.released(), now_ms)

    def _release_waiting(self, now_ms: int, place: Place | None = None) -> None:
        for hand in list(self._hands.values()):
            if hand.phase is Phase.WAITING and place in (None, hand.id.place):
                self._end(hand, hand.released(), now_ms)

    # -- fetches

    def _fetched(self, event: Fetched, now_ms: int) -> None:
        is_repeat = self._sources[event.place].is_repeat
        reports = self._sources.fetched(event)
        if reports is None:
            return
        self._out += reports
        is_wanted = self._sources[event.place].is_wanted and not self._is_closing
        until_ms = event.asked_at_ms + event.lease_ms
        # At worst two thirds of the lease remain. Check after half of that, so that one renewal may be lost.
        check_ms = min(now_ms + self._rules.renew_ms, until_ms - event.lease_ms // 3)
        for given in event.lanes:
            hand = hand_of(
                given, event.place, lease_ms=event.lease_ms, until_ms=until_ms, check_ms=check_ms
            )
            if hand.id in self._hands:
                continue
            self._hands[hand.id] = hand
            self._check_ms = min(self._check_ms, check_ms)
            if not is_wanted:
                self._end(hand, hand.released(), now_ms)
            elif not hand.messages:
                self._end(hand, hand.finished(self._rules.tries_max), now_ms)
            elif is_repeat:
                hand.is_unsure = True
                self._unsure += 1
                self._sources[event.place].unsure += 1
                hand.until_ms = hand.check_ms = now_ms + event.lease_ms
                self._sources[event.place].put(hand.renewed(), now_ms)
            else:
                self._ready.append(hand.id)

    def _fetch(self, now_ms: int) -> None:
        if not (self._is_paused or self._is_closing):
            self._out += self._sources.fetches(
                now_ms, lambda: self._free(now_ms), self._answered_within_ms()
            )

    def _free(self, now_ms: int) -> int:
        """Return how many more lanes to ask for; 0 while more than half of the lanes that may wait do so or are on their way."""
        unfinished = len(self._hands) - self._ended - self._unsure - self._barred()
        unfinished += self._sources.asked()
        ahead = self._ahead(now_ms)
        # A fetch costs its broker one log entry, for one lane or for many.
        if 2 * (unfinished - self._working) > ahead:
            return 0

        return self._rules.workers + ahead - unfinished

    def _barred(self) -> int:
        """Return how many lanes wait not for a worker but for their earlier listener, which may never return."""
        hands = (self._hands.get(each) for each in self._behind.values())

        return sum(hand is not None and hand.phase is Phase.WAITING for hand in hands)

    def _ahead(self, now_ms: int) -> int:
        """Return how many lanes may wait for a worker: the shorter the listener's calls, the more."""
        if self._service_ms is None:
            return 0
        age_ms = 0.0
        if self._working:
            age_ms = now_ms - self._started_sum_ms / self._working
        call_ms = max(_SHORTEST_MS, self._service_ms, age_ms)
        ahead = self._rules.workers * self._answered_within_ms() / call_ms

        return min(self._rules.ahead_max, round(ahead))

    def _answered_within_ms(self) -> int:
        """Return the longest time that a broker takes for an answer that it does not hold."""
        return round(min(max(AHEAD_MS, 2 * self._answer_ms), AHEAD_MS_MAX))

    # -- work

    def _dispatch(self, now_ms: int) -> None:
        if self._is_paused or self._is_closing:
            return
        while self._ready and self._working < self._rules.workers:
            hand = self._hands.get(self._ready.popleft())
            if hand is None or hand.phase is not Phase.WAITING or now_ms >= hand.until_ms:
                continue  # lost or released since, or about to be
            if hand.lane_id in self._busy:
                self._behind[hand.lane_id] = hand.id
                continue
            hand.phase, hand.started_ms = Phase.WORKING, now_ms
            self._busy.add(hand.lane_id)
            self._working += 1
            self._started_sum_ms += now_ms
            # A failed batch counts as a try of its first message. Deliver that message alone, to see whether it is the
            # one that fails.
            messages = hand.take(1 if hand.lane.tries else self._rules.batch_max)
            behind = hand.lane.behind + len(hand.messages)
            self._out.append(Work(hand.id, hand.lane, messages, behind))

    def _stop_working(self, hand: Hand) -> None:
        self._working -= 1
        self._started_sum_ms -= hand.started_ms
        self._busy.discard(hand.lane_id)
        behind = self._behind.pop(hand.lane_id, None)
        if behind is not None:
            self._ready.appendleft(behind)
        hand.phase = Phase.WAITING

    def _end_of(self, call: End, now_ms: int) -> None:
        if isinstance(call, Listened):
            self._listened(call, now_ms)
        else:
            self._dropped(call.hand, now_ms)

    def _listened(self, event: Listened, now_ms: int) -> None:
        hand = self._hands.get(event.hand)
        if hand is None or hand.phase is not Phase.WORKING:
            return  # the call was cut off
        self._stop_working(hand)
        took_ms = float(now_ms - hand.started_ms)
        before_ms = took_ms if self._service_ms is None else self._service_ms
        self._service_ms = before_ms + _NEWEST * (took_ms - before_ms)
        if hand.is_lost:
            self._forget(hand)
        elif event.error is not None:
            report = hand.failed(
                hand.before_working(),
                event.error,
                delay_ms=event.delay_ms,
                tries_max=self._rules.tries_max,
            )
            self._end(hand, report, now_ms)
        else:
            hand.complete = hand.working[-1].queue_offset
            hand.working = ()
            if not hand.messages:
                self._end(hand, hand.finished(self._rules.tries_max), now_ms)
            elif self._is_closing or not self._sources[hand.id.place].is_wanted:
                self._end(hand, hand.released(), now_ms)
            else:
                self._ready.append(hand.id)  # other lanes first: a long one must not delay them

    def _dropped(self, hand_id: HandId, now_ms: int) -> None:
        hand = self._hands.get(hand_id)
        if hand is None or hand.phase is not Phase.WORKING:
            return
        self._stop_working(hand)
        hand.put_back()
        if hand.is_lost or now_ms >= hand.until_ms:
            self._lose(hand, "before a worker was free")
            self._forget(hand)
        elif self._is_closing:
            self._end(hand, hand.released(), now_ms)
        else:
            self._ready.appendleft(hand_id)

    # -- leases

    def _look(self, now_ms: int) -> None:
        if now_ms < self._check_ms:
            return
        for hand in list(self._hands.values()):
            if hand.check_ms <= now_ms:
                self._look_at(hand, now_ms)
        self._check_ms = min((hand.check_ms for hand in self._hands.values()), default=NEVER)

    def _look_at(self, hand: Hand, now_ms: int) -> None:
        if hand.phase is Phase.ENDED:
            self._lose(hand, "before a broker answered the report of its result")
            self._forget(hand)
        elif now_ms >= hand.until_ms:
            if hand.phase is Phase.WAITING:
                self._lose(hand, "before a worker was free")
                self._forget(hand)
            else:
                self._lose(hand, "while its listener ran")
        elif hand.phase is Phase.WAITING:
            # Another member may have a worker for the lane.
            self._end(hand, hand.released(), now_ms)
        else:
            hand.check_ms = hand.until_ms
            self._sources[hand.id.place].put(hand.renewed(), now_ms + GATHER_MS)

    def _lose(self, hand: Hand, when: str) -> None:
        if hand.is_lost:
            return
        hand.is_lost, hand.check_ms = True, NEVER
        self._lost += 1
        self._sources[hand.id.place].drop(hand.id)
        self._report("warning", f"{hand.name} was lost {when}: attempt {hand.id.attempt} is over")

    # -- reports

    def _end(self, hand: Hand, report: LaneReport, now_ms: int) -> None:
        """Report the end of an attempt; the attempt stays in hand until its verdict arrives."""
        self._trust(hand)
        hand.phase = Phase.ENDED
        self._ended += 1
        hand.messages.clear()
        self._await_verdict(hand, now_ms)
        source = self._sources[hand.id.place]
        source.reported += 1
        source.put(report, now_ms + self._gather_ms(hand, report))

    def _await_verdict(self, hand: Hand, now_ms: int) -> None:
        """Wait for the verdict about an attempt, even after its lease, because a new leader starts the lease again.

        While closing, wait only for one renewal period after the lease.
        """
        hand.check_ms = NEVER
        if self._is_closing:
            hand.check_ms = max(hand.until_ms, now_ms) + self._rules.renew_ms
        self._check_ms = min(self._check_ms, hand.check_ms)

    def _gather_ms(self, hand: Hand, report: LaneReport) -> int:
        """Return how long a report waits for other reports."""
        is_busy = len(self._ready) > self._rules.workers - self._working
        if is_busy and report.result == wire.DONE and not hand.lane.behind:
            return GATHER_BUSY_MS

        # If no listener runs and no lane waits for one, no other report will follow soon.
        return GATHER_MS if self._working or self._ready else 0

    def _answered(self, event: Answered, now_ms: int) -> None:
        self._sources[event.place].answered()
        self._answer_ms += _NEWEST * (now_ms - event.asked_at_ms - self._answer_ms)
        for report, verdict in zip(event.reports, event.verdicts, strict=True):
            hand = self._hands.get(HandId(event.place, report.queue_id, report.attempt))
            if hand is None:
                continue
            if report.result == wire.RENEW:
                self._renewed(hand, verdict, event.asked_at_ms)
            else:
                self._judged(hand, report, verdict)

    def _renewed(self, hand: Hand, verdict: LaneVerdict, asked_at_ms: int) -> None:
        if hand.phase is Phase.ENDED or hand.is_lost:
            return
        if verdict.verdict != wire.RENEWED:
            when = "while its listener ran"
            if hand.phase is Phase.WAITING:
                when = (
                    "before its fetch was answered"
                    if hand.is_unsure
                    else "before a worker was free"
                )
            self._lose(hand, f"{when} ({verdict.remark or verdict.verdict})")
            if hand.phase is Phase.WAITING:
                self._forget(hand)
            return
        hand.until_ms = asked_at_ms + hand.lease_ms
        hand.check_ms = asked_at_ms + self._rules.renew_ms
        self._check_ms = min(self._check_ms, hand.check_ms)
        if hand.is_unsure:
            self._trust(hand)
            self._ready.append(hand.id)

    def _trust(self, hand: Hand) -> None:
        """Stop waiting for the first renewal of a lane from a repeated fetch."""
        self._unsure -= hand.is_unsure
        self._sources[hand.id.place].unsure -= hand.is_unsure
        hand.is_unsure = False

    def _judged(self, hand: Hand, report: LaneReport, verdict: LaneVerdict) -> None:
        match verdict.verdict:
            case wire.STALE:
                self._lose(hand, f"before {report.result} was reported ({verdict.remark})")
            case wire.PARKED:
                self._report(
                    "warning",
                    f"{hand.name} is parked, {counted(verdict.tries, 'try', 'tries')}: {report.reason}",
                )
            case wire.DEAD:
                self._report(
                    "warning", f"a message of {hand.name} became a dead letter: {report.reason}"
                )
            case wire.HELD:
                self._report(
                    "warning",
                    f"{hand.name} is held until `orderlymq group release`: {report.reason}",
                )
        self._forget(hand)

    def _not_answered(self, event: CompleteFailed, now_ms: int) -> None:
        known = tuple(
            report
            for report in event.reports
            if (hand := self._hands.get(HandId(event.place, report.queue_id, report.attempt)))
            and not hand.is_lost
        )
        again = () if event.refused else known
        self._out += self._sources.not_answered(event, again, now_ms)
        if event.refused:
            for report in known:
                hand = self._hands[HandId(event.place, report.queue_id, report.attempt)]
                self._lose(hand, f"because of a refusal: {event.reason}")
                if hand.phase is not Phase.WORKING:
                    self._forget(hand)

    def _forget(self, hand: Hand) -> None:
        self._trust(hand)
        source, is_reported = self._sources[hand.id.place], hand.phase is Phase.ENDED
        source.drop(hand.id)
        source.reported -= is_reported
        self._ended -= is_reported
        del self._hands[hand.id]

    def _report(self, level: Level, text: str) -> None:
        self._out.append(Report(level, text))
