"""
Counters of a push consumer, by topic: pulls, listener calls, messages done and failed.

Rules: the names are those of RocketMQ's ConsumeStatus, which its tools show for each consumer. Rates and averages cover
the last minute, failures also the last hour, totals the whole life of the consumer. Pure: times are milliseconds of one
monotonic clock, given with each event.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from orderlymq.consumer.core.events import ConcurrentResult, ListenerDone, OrderedResult

#: Upper bounds of the histogram of listener calls, in ms; the last column counts the calls that took longer.
CONSUME_RT_BOUNDS_MS: Final = (1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 60_000)

_PART_MS: Final = 10_000  # the sampling interval of RocketMQ
_MINUTE: Final = 6
_HOUR: Final = 360
_NO_RATE_MS: Final = 1_000  # a period shorter than this has no rate yet


@dataclass(slots=True)
class _Part:
    """The counters of one topic for ten seconds."""

    number: int
    pulls: int = 0
    pulled: int = 0
    pull_ms: int = 0
    calls: int = 0
    consume_ms: int = 0
    ok: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class TopicCounters:
    """Counters of a consumer for one topic.

    Attributes:
        pull_rt_ms: average duration in the last minute of a pull that found something, including the time the broker
            held it.
        consume_rt_ms: average duration of a listener call in the last minute.
        pull_tps, consume_ok_tps, consume_failed_tps: messages per second in the last minute.
        consume_failed_msgs: messages that failed in the last hour.
        pulls, pulled: pulls that found something, and their messages, since the start.
        calls, ok, failed: listener calls, and the messages that succeeded and failed in them, since the start.
        consume_rt_histogram: number of calls by duration, in the columns of CONSUME_RT_BOUNDS_MS.
    """

    pull_rt_ms: float
    pull_tps: float
    consume_rt_ms: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_failed_msgs: int
    pulls: int
    pulled: int
    calls: int
    ok: int
    failed: int
    consume_rt_histogram: tuple[int, ...]

    def to_json_value(self) -> dict[str, float | int]:
        """Return RocketMQ's ConsumeStatus."""
        return {
            "pullRT": self.pull_rt_ms,
            "pullTPS": self.pull_tps,
            "consumeRT": self.consume_rt_ms,
            "consumeOKTPS": self.consume_ok_tps,
            "consumeFailedTPS": self.consume_failed_tps,
            "consumeFailedMsgs": self.consume_failed_msgs,
        }


@dataclass(slots=True)
class _Topic:
    since_ms: int
    parts: deque[_Part] = field(default_factory=lambda: deque(maxlen=_HOUR))
    total: _Part = field(default_factory=lambda: _Part(0))
    histogram: list[int] = field(default_factory=lambda: [0] * (len(CONSUME_RT_BOUNDS_MS) + 1))

    def now(self, now_ms: int) -> _Part:
        number = now_ms // _PART_MS
        if not self.parts or self.parts[-1].number != number:
            self.parts.append(_Part(number))
        return self.parts[-1]

    def show(self, now_ms: int) -> TopicCounters:
        newest = now_ms // _PART_MS
        hour = [part for part in self.parts if part.number > newest - _HOUR]
        minute = [part for part in hour if part.number > newest - _MINUTE]
        # The current part is shorter than ten seconds; the rest of it does not count as time without messages.
        begin_ms = max(self.since_ms, (newest - _MINUTE + 1) * _PART_MS)
        seconds = max(_NO_RATE_MS, now_ms - begin_ms) / 1000
        pulls, calls = sum(part.pulls for part in minute), sum(part.calls for part in minute)
        return TopicCounters(
            round(sum(part.pull_ms for part in minute) / max(1, pulls), 2),
            round(sum(part.pulled for part in minute) / seconds, 2),
            round(sum(part.consume_ms for part in minute) / max(1, calls), 2),
            round(sum(part.ok for part in minute) / seconds, 2),
            round(sum(part.failed for part in minute) / seconds, 2),
            sum(part.failed for part in hour),
            self.total.pulls,
            self.total.pulled,
            self.total.calls,
            self.total.ok,
            self.total.failed,
            tuple(self.histogram),
        )


class ConsumerStats:
    """The counters of one consumer."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def pulled(self, topic: str, count: int, duration_ms: int, now_ms: int) -> None:
        """Count a pull that found *count* messages."""
        found = self._topic(topic, now_ms)
        for part in (found.now(now_ms), found.total):
            part.pulls += 1
            part.pulled += count
            part.pull_ms += duration_ms

    def listened(
        self, topic: str, count: int, done: ListenerDone, duration_ms: int, now_ms: int
    ) -> None:
        """Count a listener call with *count* messages."""
        self.called(topic, *outcome(done, count), duration_ms, now_ms)

    def called(self, topic: str, ok: int, failed: int, duration_ms: int, now_ms: int) -> None:
        """Count a listener call in which some messages succeeded and others failed."""
        found = self._topic(topic, now_ms)
        for part in (found.now(now_ms), found.total):
            part.calls += 1
            part.consume_ms += duration_ms
            part.ok += ok
            part.failed += failed
        found.histogram[bisect_left(CONSUME_RT_BOUNDS_MS, duration_ms)] += 1

    def show(self, now_ms: int) -> Mapping[str, TopicCounters]:
        """Return the counters by topic."""
        return {topic: found.show(now_ms) for topic, found in sorted(self._topics.items())}

    def _topic(self, topic: str, now_ms: int) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _Topic(now_ms)
        return found


def outcome(done: ListenerDone, count: int) -> tuple[int, int]:
    """Return how many of *count* messages succeeded in a listener call, and how many failed.

    A rollback counts as neither, as in RocketMQ. COMMIT counts as success, which RocketMQ does not count.
    """
    match done.result:
        case OrderedResult.SUCCESS | OrderedResult.COMMIT:
            return count, 0
        case OrderedResult.ROLLBACK:
            # Under auto-commit a rollback acknowledges the messages, and the log says so.
            return (count, 0) if done.auto_commit else (0, 0)
        case ConcurrentResult.SUCCESS:
            ok = max(0, min(done.ack_index, count - 1) + 1)
            return ok, count - ok
        case _:
            return 0, count
