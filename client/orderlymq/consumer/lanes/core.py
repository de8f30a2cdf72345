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
from orderlymq.consumer.lanes.attempts import NEVER, Attempt, LaneId, Phase, attempt_of
from orderlymq.consumer.lanes.events import (
    Answered,
    Assigned,
    AttemptId,
    Closing,
    CompleteFailed,
    CutOff,
    End,
    Ended,
    Event,
    Fetched,
    FetchEmpty,
    FetchFailed,
    Instruction,
    Listened,
    Paused,
    Place,
    Report,
    Resumed,
    Tick,
    Work,
)
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
        self._attempts: dict[AttemptId, Attempt] = {}
        self._ready: deque[AttemptId] = deque()
        self._busy: set[LaneId] = set()
        # Newer attempts at lanes whose listener still runs with an older attempt.
        self._next_attempts: dict[LaneId, AttemptId] = {}
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
        return not self._attempts

    def holds(self, attempt_id: AttemptId, now_ms: int) -> bool:
        """Return whether this member still holds the lane of a running listener."""
        attempt = self._attempts.get(attempt_id)

        return (
            attempt is not None
            and attempt.phase is Phase.WORKING
            and not attempt.is_lost
            and now_ms < attempt.until_ms
        )

    def may_start(self, attempt_id: AttemptId, now_ms: int) -> bool:
        """Return whether the listener may still be called with this attempt."""
        return not (self._is_paused or self._is_closing) and self.holds(attempt_id, now_ms)

    def next_wake_ms(self) -> int | None:
        """Return the time at which the next `Tick` is due, or None."""
        can_fetch = not (self._is_paused or self._is_closing)
        wake = min(self._check_ms, self._sources.wake_ms(can_fetch=can_fetch))

        return None if wake == NEVER else wake

    def figures(self) -> LaneFigures:
        """Return the current figures."""
        attempts = self._attempts.values()

        return LaneFigures(
            len(attempts),
            self._working,
            sum(attempt.phase is Phase.WAITING for attempt in attempts),
            self._ended,
            self._lost,
            self._sources.limited(),
        )

    def check(self) -> None:
        """Assert the invariants."""
        working = [each for each in self._attempts.values() if each.phase is Phase.WORKING]
        assert len(working) == self._working == len(self._busy)
        assert {attempt.lane_id for attempt in working} == self._busy
        assert self._working <= self._rules.workers
        assert self._ended == sum(each.phase is Phase.ENDED for each in self._attempts.values())
        assert self._started_sum_ms == sum(attempt.started_ms for attempt in working)
        ended = Counter(
            each.id.place for each in self._attempts.values() if each.phase is Phase.ENDED
        )
        unsure = Counter(each.id.place for each in self._attempts.values() if each.is_unsure)
        assert self._unsure == unsure.total()
        for source in self._sources:
            assert source.reported == ended[source.place]
            assert source.unsure == unsure[source.place]
            for queue_id, attempt in source.outbox:
                assert AttemptId(source.place, queue_id, attempt) in self._attempts

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
        for attempt in self._attempts.values():
            if attempt.phase is Phase.ENDED:
                self._await_verdict(attempt, now_ms)
        self._release_waiting(now_ms)
        self._ready.clear()

    def _cut_off(self, running: frozenset[AttemptId], now_ms: int) -> None:
        for attempt in list(self._attempts.values()):
            if attempt.phase is Phase.WORKING:
                self._stop_working(attempt)
                if attempt.is_lost or attempt.id in running:
                    self._forget(attempt)
                else:
                    self._end(attempt, attempt.released(), now_ms)

    def _release_waiting(self, now_ms: int, place: Place | None = None) -> None:
        for attempt in list(self._attempts.values()):
            if attempt.phase is Phase.WAITING and place in (None, attempt.id.place):
                self._end(attempt, attempt.released(), now_ms)

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
            attempt = attempt_of(
                given, event.place, lease_ms=event.lease_ms, until_ms=until_ms, check_ms=check_ms
            )
            if attempt.id in self._attempts:
                continue
            self._attempts[attempt.id] = attempt
            self._check_ms = min(self._check_ms, check_ms)
            if not is_wanted:
                self._end(attempt, attempt.released(), now_ms)
            elif not attempt.messages:
                self._end(attempt, attempt.finished(self._rules.tries_max), now_ms)
            elif is_repeat:
                attempt.is_unsure = True
                self._unsure += 1
                self._sources[event.place].unsure += 1
                attempt.until_ms = attempt.check_ms = now_ms + event.lease_ms
                self._sources[event.place].put(attempt.renewed(), now_ms)
            else:
                self._ready.append(attempt.id)

    def _fetch(self, now_ms: int) -> None:
        if not (self._is_paused or self._is_closing):
            self._out += self._sources.fetches(
                now_ms, lambda: self._free(now_ms), self._answered_within_ms()
            )

    def _free(self, now_ms: int) -> int:
        """Return how many more lanes to ask for; 0 while more than half of the lanes that may wait do so or are on their way."""
        unfinished = len(self._attempts) - self._ended - self._unsure - self._barred()
        unfinished += self._sources.asked()
        ahead = self._ahead(now_ms)
        # A fetch costs its broker one log entry, for one lane or for many.
        if 2 * (unfinished - self._working) > ahead:
            return 0

        return self._rules.workers + ahead - unfinished

    def _barred(self) -> int:
        """Return how many lanes wait not for a worker but for their earlier listener, which may never return."""
        attempts = (self._attempts.get(each) for each in self._next_attempts.values())

        return sum(attempt is not None and attempt.phase is Phase.WAITING for attempt in attempts)

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
            attempt = self._attempts.get(self._ready.popleft())
            if attempt is None or attempt.phase is not Phase.WAITING or now_ms >= attempt.until_ms:
                continue  # lost or released since, or about to be
            if attempt.lane_id in self._busy:
                self._next_attempts[attempt.lane_id] = attempt.id
                continue
            attempt.phase, attempt.started_ms = Phase.WORKING, now_ms
            self._busy.add(attempt.lane_id)
            self._working += 1
            self._started_sum_ms += now_ms
            # A failed batch counts as a try of its first message. Deliver that message alone, to see whether it is the
            # one that fails.
            messages = attempt.take(1 if attempt.lane.tries else self._rules.batch_max)
            behind = attempt.lane.behind + len(attempt.messages)
            self._out.append(Work(attempt.id, attempt.lane, messages, behind))

    def _stop_working(self, attempt: Attempt) -> None:
        self._working -= 1
        self._started_sum_ms -= attempt.started_ms
        self._busy.discard(attempt.lane_id)
        behind = self._next_attempts.pop(attempt.lane_id, None)
        if behind is not None:
            self._ready.appendleft(behind)
        attempt.phase = Phase.WAITING

    def _end_of(self, call: End, now_ms: int) -> None:
        if isinstance(call, Listened):
            self._listened(call, now_ms)
        else:
            self._dropped(call.attempt, now_ms)

    def _listened(self, event: Listened, now_ms: int) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is None or attempt.phase is not Phase.WORKING:
            return  # the call was cut off
        self._stop_working(attempt)
        took_ms = float(now_ms - attempt.started_ms)
        before_ms = took_ms if self._service_ms is None else self._service_ms
        self._service_ms = before_ms + _NEWEST * (took_ms - before_ms)
        if attempt.is_lost:
            self._forget(attempt)
        elif event.error is not None:
            report = attempt.failed(
                attempt.before_working(),
                event.error,
                delay_ms=event.delay_ms,
                tries_max=self._rules.tries_max,
            )
            self._end(attempt, report, now_ms)
        else:
            attempt.complete = attempt.working[-1].queue_offset
            attempt.working = ()
            if not attempt.messages:
                self._end(attempt, attempt.finished(self._rules.tries_max), now_ms)
            elif self._is_closing or not self._sources[attempt.id.place].is_wanted:
                self._end(attempt, attempt.released(), now_ms)
            else:
                self._ready.append(attempt.id)  # other lanes first: a long one must not delay them

    def _dropped(self, attempt_id: AttemptId, now_ms: int) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.phase is not Phase.WORKING:
            return
        self._stop_working(attempt)
        attempt.put_back()
        if attempt.is_lost or now_ms >= attempt.until_ms:
            self._lose(attempt, "before a worker was free")
            self._forget(attempt)
        elif self._is_closing:
            self._end(attempt, attempt.released(), now_ms)
        else:
            self._ready.appendleft(attempt_id)

    # -- leases

    def _look(self, now_ms: int) -> None:
        if now_ms < self._check_ms:
            return
        for attempt in list(self._attempts.values()):
            if attempt.check_ms <= now_ms:
                self._look_at(attempt, now_ms)
        self._check_ms = min(
            (attempt.check_ms for attempt in self._attempts.values()), default=NEVER
        )

    def _look_at(self, attempt: Attempt, now_ms: int) -> None:
        if attempt.phase is Phase.ENDED:
            self._lose(attempt, "before a broker answered the report of its result")
            self._forget(attempt)
        elif now_ms >= attempt.until_ms:
            if attempt.phase is Phase.WAITING:
                self._lose(attempt, "before a worker was free")
                self._forget(attempt)
            else:
                self._lose(attempt, "while its listener ran")
        elif attempt.phase is Phase.WAITING:
            # Another member may have a worker for the lane.
            self._end(attempt, attempt.released(), now_ms)
        else:
            attempt.check_ms = attempt.until_ms
            self._sources[attempt.id.place].put(attempt.renewed(), now_ms + GATHER_MS)

    def _lose(self, attempt: Attempt, when: str) -> None:
        if attempt.is_lost:
            return
        attempt.is_lost, attempt.check_ms = True, NEVER
        self._lost += 1
        self._sources[attempt.id.place].drop(attempt.id)
        self._report(
            "warning", f"{attempt.name} was lost {when}: attempt {attempt.id.number} is over"
        )

    # -- reports

    def _end(self, attempt: Attempt, report: LaneReport, now_ms: int) -> None:
        """Report the end of an attempt; the attempt stays in hand until its verdict arrives."""
        self._trust(attempt)
        attempt.phase = Phase.ENDED
        self._ended += 1
        attempt.messages.clear()
        self._await_verdict(attempt, now_ms)
        source = self._sources[attempt.id.place]
        source.reported += 1
        source.put(report, now_ms + self._gather_ms(attempt, report))

    def _await_verdict(self, attempt: Attempt, now_ms: int) -> None:
        """Wait for the verdict about an attempt, even after its lease, because a new leader starts the lease again.

        While closing, wait only for one renewal period after the lease.
        """
        attempt.check_ms = NEVER
        if self._is_closing:
            attempt.check_ms = max(attempt.until_ms, now_ms) + self._rules.renew_ms
        self._check_ms = min(self._check_ms, attempt.check_ms)

    def _gather_ms(self, attempt: Attempt, report: LaneReport) -> int:
        """Return how long a report waits for other reports."""
        is_busy = len(self._ready) > self._rules.workers - self._working
        if is_busy and report.result == wire.DONE and not attempt.lane.behind:
            return GATHER_BUSY_MS

        # If no listener runs and no lane waits for one, no other report will follow soon.
        return GATHER_MS if self._working or self._ready else 0

    def _answered(self, event: Answered, now_ms: int) -> None:
        self._sources[event.place].answered()
        self._answer_ms += _NEWEST * (now_ms - event.asked_at_ms - self._answer_ms)
        for report, verdict in zip(event.reports, event.verdicts, strict=True):
            attempt = self._attempts.get(AttemptId(event.place, report.queue_id, report.attempt))
            if attempt is None:
                continue
            if report.result == wire.RENEW:
                self._renewed(attempt, verdict, event.asked_at_ms)
            else:
                self._judged(attempt, report, verdict)

    def _renewed(self, attempt: Attempt, verdict: LaneVerdict, asked_at_ms: int) -> None:
        if attempt.phase is Phase.ENDED or attempt.is_lost:
            return
        if verdict.verdict != wire.RENEWED:
            when = "while its listener ran"
            if attempt.phase is Phase.WAITING:
                when = (
                    "before its fetch was answered"
                    if attempt.is_unsure
                    else "before a worker was free"
                )
            self._lose(attempt, f"{when} ({verdict.remark or verdict.verdict})")
            if attempt.phase is Phase.WAITING:
                self._forget(attempt)
            return
        attempt.until_ms = asked_at_ms + attempt.lease_ms
        attempt.check_ms = asked_at_ms + self._rules.renew_ms
        self._check_ms = min(self._check_ms, attempt.check_ms)
        if attempt.is_unsure:
            self._trust(attempt)
            self._ready.append(attempt.id)

    def _trust(self, attempt: Attempt) -> None:
        """Stop waiting for the first renewal of a lane from a repeated fetch."""
        self._unsure -= attempt.is_unsure
        self._sources[attempt.id.place].unsure -= attempt.is_unsure
        attempt.is_unsure = False

    def _judged(self, attempt: Attempt, report: LaneReport, verdict: LaneVerdict) -> None:
        match verdict.verdict:
            case wire.STALE:
                self._lose(attempt, f"before {report.result} was reported ({verdict.remark})")
            case wire.PARKED:
                self._report(
                    "warning",
                    f"{attempt.name} is parked, {counted(verdict.tries, 'try', 'tries')}: {report.reason}",
                )
            case wire.DEAD:
                self._report(
                    "warning", f"a message of {attempt.name} became a dead letter: {report.reason}"
                )
            case wire.HELD:
                self._report(
                    "warning",
                    f"{attempt.name} is held until `orderlymq group release`: {report.reason}",
                )
        self._forget(attempt)

    def _not_answered(self, event: CompleteFailed, now_ms: int) -> None:
        known = tuple(
            report
            for report in event.reports
            if (
                attempt := self._attempts.get(
                    AttemptId(event.place, report.queue_id, report.attempt)
                )
            )
            and not attempt.is_lost
        )
        again = () if event.refused else known
        self._out += self._sources.not_answered(event, again, now_ms)
        if event.refused:
            for report in known:
                attempt = self._attempts[AttemptId(event.place, report.queue_id, report.attempt)]
                self._lose(attempt, f"because of a refusal: {event.reason}")
                if attempt.phase is not Phase.WORKING:
                    self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        self._trust(attempt)
        source, is_reported = self._sources[attempt.id.place], attempt.phase is Phase.ENDED
        source.drop(attempt.id)
        source.reported -= is_reported
        self._ended -= is_reported
        del self._attempts[attempt.id]

    def _report(self, level: Level, text: str) -> None:
        self._out.append(Report(level, text))
