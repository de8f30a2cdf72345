"""
The sources of lanes: for each topic and broker, the fetch under way and the reports that wait.

Rules: a place has one fetch and one completion under way. A fetch without an answer is repeated with its number, and
reports without an answer are sent again, after pauses that grow. `core` says for how many lanes there is work.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from orderlymq.consumer.core.events import Report
from orderlymq.consumer.lanes.attempts import NEVER
from orderlymq.consumer.lanes.events import (
    AttemptId,
    Complete,
    CompleteFailed,
    Fetch,
    Fetched,
    FetchEmpty,
    FetchFailed,
    Place,
)
from orderlymq_protocol.body.lanes import LANES_MAX, LaneReport

_PAUSE_MS: Final = 50
_PAUSE_MS_MAX: Final = 1_000
# A user must change something first.
_REFUSED_PAUSE_MS: Final = 5_000
# Completions of a place without a verdict: above this, nothing is fetched there until its broker answers.
REPORTED_MAX: Final = 1_024

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


@dataclass(slots=True)
class Source:
    """One place that lanes come from.

    Attributes:
        asked: number of lanes that the fetch under way, or the one to repeat, asks for.
        is_repeat: the last fetch had no answer; the next one has its number.
        is_hungry: the last fetch brought all lanes it asked for, so the next one brings more, unless a broker holds it.
        sure_ms: time after which a fetch under way counts as held by the broker, which then has no more lanes.
        pause_ms, said_pause_ms: last pause after trouble with fetches, and with reports.
        trouble: the last reason that was logged.
        limited: why the place handed out no new lanes the last time.
        said_limited: the last such reason that was logged.
        outbox: reports that wait, by queue and attempt.
        reported: number of attempts that have ended and have no verdict yet.
        unsure: number of attempts that came with a repeated fetch and whose first renewal has no answer yet.
    """

    place: Place
    is_wanted: bool = True
    sequence: int = 0
    asked: int = 0
    is_fetching: bool = False
    is_repeat: bool = False
    is_hungry: bool = False
    sure_ms: int = 0
    not_before_ms: int = 0
    pause_ms: int = 0
    trouble: str = ""
    limited: str = ""
    said_limited: str = ""
    outbox: dict[tuple[int, int], LaneReport] = field(default_factory=dict)
    reported: int = 0
    unsure: int = 0
    is_sending: bool = False
    send_ms: int = 0
    said_pause_ms: int = 0

    def put(self, report: LaneReport, send_ms: int) -> None:
        """Add a report that is sent at *send_ms* or earlier; it replaces an earlier report of its attempt."""
        if not self.outbox:
            self.send_ms = send_ms
        elif not self.said_pause_ms:
            self.send_ms = min(self.send_ms, send_ms)
        self.outbox[report.queue_id, report.attempt] = report

    def put_back(self, reports: tuple[LaneReport, ...]) -> None:
        """Take back reports that have no answer; later reports of the same attempts remain."""
        again = {(each.queue_id, each.attempt): each for each in reports}
        self.outbox = {**again, **self.outbox}

    def drop(self, attempt_id: AttemptId) -> None:
        """Drop the report about an attempt."""
        self.outbox.pop((attempt_id.queue_id, attempt_id.number), None)

    def is_due(self, now_ms: int) -> bool:
        """Return whether reports should be sent now."""
        if not self.outbox or self.is_sending:
            return False

        return now_ms >= self.send_ms or (len(self.outbox) >= LANES_MAX and not self.said_pause_ms)

    def take_reports(self) -> tuple[LaneReport, ...]:
        """Take as many reports as one request may carry, and return them."""
        keys = list(self.outbox)[:LANES_MAX]
        self.is_sending = True

        return tuple(self.outbox.pop(key) for key in keys)

    def answered(self) -> None:
        """Record that a broker has answered reports."""
        self.is_sending, self.said_pause_ms = False, 0


class Sources:
    """All places of one consumer; each fetch has a higher number than the one before it."""

    def __init__(self, first_sequence: int) -> None:
        self._sources: dict[Place, Source] = {}
        self._sequence = first_sequence

    def __getitem__(self, place: Place) -> Source:
        return self._sources[place]

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def assign(self, places: Set[Place]) -> list[Place]:
        """Fetch from these places from now on; return those that are no longer wanted."""
        for place in sorted(places):
            self._sources.setdefault(place, Source(place)).is_wanted = True
        gone = [each for each in self if each.is_wanted and each.place not in places]
        for source in gone:
            source.is_wanted = False

        return [source.place for source in gone]

    def limited(self) -> dict[tuple[str, str], str]:
        """Return why places hand out no new lanes, by topic and broker."""
        return {
            (each.place.topic, each.place.broker_name): each.limited
            for each in self
            if each.limited
        }

    def wake_ms(self, *, can_fetch: bool) -> int:
        """Return the next time to send reports or to repeat a request."""
        wakes = [NEVER]
        for source in self:
            if source.outbox and not source.is_sending:
                wakes.append(source.send_ms)
            if can_fetch and source.is_wanted and not source.is_fetching and source.not_before_ms:
                wakes.append(source.not_before_ms)
            if can_fetch and source.is_fetching and source.is_hungry:
                wakes.append(source.sure_ms)

        return min(wakes)

    # -- fetches

    def asked(self) -> int:
        """Return how many lanes are on their way from places that are expected to have some."""
        return sum(each.asked for each in self if each.is_fetching and each.is_hungry)

    def fetches(self, now_ms: int, free: Callable[[], int], within_ms: int) -> Iterator[Fetch]:
        """Yield the fetches to start now.

        *free* returns for how many more lanes there is work. Brokers that have lanes answer *within_ms*.
        """
        for each in self:
            if each.is_fetching and now_ms >= each.sure_ms:
                each.is_hungry = False
        wanted = [each for each in self if each.is_wanted]
        for source in wanted:
            if source.is_fetching or now_ms < source.not_before_ms:
                continue
            source.not_before_ms = 0
            if not source.is_repeat:
                is_late = source.reported >= REPORTED_MAX or source.unsure
                lanes = 0 if is_late else free()
                if lanes <= 0:
                    continue
                # Places that wait for messages must leave room for the fetches of places that have some.
                share = lanes if source.is_hungry else max(1, lanes // len(wanted))
                self._sequence += 1
                source.sequence, source.asked = self._sequence, min(share, LANES_MAX)
            source.is_fetching, source.sure_ms = True, now_ms + within_ms
            # The other places come first the next time.
            self._sources[source.place] = self._sources.pop(source.place)
            yield Fetch(source.place, source.sequence, source.asked)

    def fetched(self, event: Fetched) -> list[Report] | None:
        """Record the end of a fetch; return what to log about it, None if it is not the fetch under way."""
        source = self[event.place]
        if source.sequence != event.sequence:
            return None
        source.is_fetching = source.is_repeat = False
        source.pause_ms = source.not_before_ms = 0
        source.trouble = ""
        source.is_hungry = len(event.lanes) >= source.asked

        return _limit(source, event.limited)

    def not_fetched(self, event: FetchEmpty | FetchFailed, now_ms: int) -> list[Report]:
        """Record that a fetch brought nothing; return what to log about it."""
        source = self[event.place]
        if source.sequence != event.sequence:
            return []
        source.is_fetching = source.is_hungry = False
        # A refusal says nothing about the request before it, which may have handed out lanes.
        source.is_repeat = isinstance(event, FetchFailed) and (
            source.is_repeat or not event.refused
        )
        if isinstance(event, FetchEmpty):
            source.pause_ms = source.not_before_ms = 0
            source.trouble = ""
            if not event.limited:
                source.said_limited = ""  # there was nothing to hand out, and no limit was reached
            return _limit(source, event.limited)
        source.pause_ms = min(_PAUSE_MS_MAX, max(_PAUSE_MS, source.pause_ms * 2))
        source.not_before_ms = now_ms + (_REFUSED_PAUSE_MS if event.refused else source.pause_ms)
        if event.reason == source.trouble:
            return []
        source.trouble = event.reason
        level: Level = "error" if event.refused else "debug" if event.expected else "warning"

        return [Report(level, f"no lanes of {_name(event.place)}: {event.reason}")]

    # -- reports

    def completes(self, now_ms: int) -> list[Complete]:
        """Return the requests with the reports that are due."""
        return [Complete(each.place, each.take_reports()) for each in self if each.is_due(now_ms)]

    def not_answered(
        self, event: CompleteFailed, again: tuple[LaneReport, ...], now_ms: int
    ) -> list[Report]:
        """Record that reports have no answer; those in *again* are sent again after a pause."""
        source = self[event.place]
        source.is_sending = False
        if event.refused:
            return []
        is_new = not source.said_pause_ms
        source.put_back(again)
        source.said_pause_ms = min(_PAUSE_MS_MAX, max(_PAUSE_MS, source.said_pause_ms * 2))
        source.send_ms = now_ms + source.said_pause_ms
        text = f"{len(again)} reports about lanes of {_name(event.place)}: {event.reason}"

        return [Report("info", text)] if is_new else []


def _limit(source: Source, limited: str) -> list[Report]:
    """Record why a place hands out no new lanes; return what to log: each reason once while it lasts."""
    source.limited = limited
    if limited in ("", source.said_limited):
        return []
    source.said_limited = limited

    return [Report("warning", f"no new lanes of {_name(source.place)}: {limited}")]


def _name(place: Place) -> str:
    return f"{place.topic} at {place.broker_name}"
