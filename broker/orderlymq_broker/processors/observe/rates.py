"""
Counters over time: messages of topics and of groups, per second, minute, hour and day.

The rules: a message costs one integer addition. Everything else is read from counters and offsets once per second, or
every ten seconds for groups. As in RocketMQ (StatsItemSet), a series exists once it has counted something. It covers
this process's time as leader and ends with the process. Tools read the series through
``admin/statistics.py``.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from orderlymq_broker.core.effects import Now
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.state.records import Append
from orderlymq_protocol.body.stats import BrokerStatsData, BrokerStatsItem

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SEND_BACKS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"

# The divisor of a size for its average: messages, or the answers that contained them, as in RocketMQ.
_ANSWERS: Final = "answers to GROUP_GET"
_PARTS: Final = {TOPIC_PUT_SIZE: TOPIC_PUT_NUMS, GROUP_GET_SIZE: _ANSWERS}

_SAMPLE_MS: Final = SECOND_MS
_GROUPS_SAMPLE_MS: Final = 10 * SECOND_MS
# The work of one tick: a topic of a group counts 1, and so do eight of its queues.
_STEP_WORK_MAX: Final = 8_192
_QUEUES_OF_WORK: Final = 8
# Topics whose messages one tick counts, at about 15 us each the first time.
TOPICS_STEP_MAX: Final = 512
# Topics of groups whose answers one tick counts, at about 10 us each.
ANSWERS_STEP_MAX: Final = 1_024
# The width of a bucket, and the number of buckets that cover the longest span asked of them, with two to spare.
_MINUTE_BUCKETS: Final = (2 * SECOND_MS, 32)
_HOUR_BUCKETS: Final = (2 * MINUTE_MS, 32)
_DAY_BUCKETS: Final = (HOUR_MS, 26)
# One addition counts a message and its bytes; no second brings 2**44 bytes.
_ONE_MESSAGE: Final = 1 << 44
# Counters whose rates of the last second are shown; those of messages also have a series.
_RATED: Final = {
    "messages_in": BROKER_PUT_NUMS,
    "bytes_in": None,
    "messages_out": BROKER_GET_NUMS,
    "bytes_out": None,
}
_BYTES_MASK: Final = _ONE_MESSAGE - 1


class Buckets:
    """The values of a total at the end of each of the last time spans in which it changed.

    One array holds span numbers and totals alternately: each topic and each group has several series, and a deque of
    pairs takes five times as much memory.
    """

    __slots__ = ("_base", "_ends", "_size_max", "width_ms")

    def __init__(self, width_ms: int, count: int) -> None:
        self.width_ms = width_ms
        self._base = 0
        self._ends = array("q")
        self._size_max = 2 * count

    def note(self, now_ms: int, total: int) -> None:
        """Store the present total."""
        ends, bucket = self._ends, now_ms // self.width_ms
        if ends and ends[-2] == bucket:
            ends[-1] = total
            return
        if len(ends) == self._size_max:
            self._base = ends[1]
            del ends[:2]
        ends.extend((bucket, total))

    def after(self, time_ms: int) -> int:
        """Return the first bucket that begins after a moment."""
        return time_ms // self.width_ms + 1

    def before(self, bucket: int) -> int:
        """Return the total at the beginning of *bucket*."""
        ends = self._ends
        at = bisect_left(ends[::2], bucket)

        return ends[2 * at - 1] if at else self._base


class Series:
    """A growing total, and how much of it was added in the last minute, hour or day."""

    __slots__ = ("_began_ms", "_buckets", "total")

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self.total = 0
        self._buckets = tuple(
            Buckets(*shape) for shape in (_MINUTE_BUCKETS, _HOUR_BUCKETS, _DAY_BUCKETS)
        )

    def add(self, now_ms: int, count: int) -> None:
        """Add *count* to the total."""
        self.total += count
        for buckets in self._buckets:
            buckets.note(now_ms, self.total)

    def grown(self, now_ms: int, span_ms: int) -> int:
        """Return the growth in the last *span_ms*, without the bucket in which the span began."""
        buckets = self._covering(span_ms)

        return self.total - buckets.before(buckets.after(now_ms - span_ms))

    def rate(self, now_ms: int, span_ms: int) -> float:
        """Return the growth per second over the span, or over the series' life if that is shorter."""
        buckets = self._covering(span_ms)
        counted_ms = now_ms - buckets.after(now_ms - span_ms) * buckets.width_ms
        lived_ms = now_ms - self._began_ms

        return self.grown(now_ms, span_ms) * SECOND_MS / max(SECOND_MS, min(counted_ms, lived_ms))

    def _covering(self, span_ms: int) -> Buckets:
        return self._buckets[bisect_left((MINUTE_MS, HOUR_MS), span_ms)]


class Figures:
    """The series of one replica."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._series: dict[tuple[str, str], Series] = {}
        self._sums: defaultdict[int, int] = defaultdict(int)
        # What topics received but the series do not contain yet.
        self._got: dict[int, int] = {}
        self._before: dict[str, int] = {}
        # What groups were sent but the series do not contain yet.
        self._answers: dict[tuple[str, str], tuple[int, int]] = {}
        self._sampled_ms = 0
        self.per_second: dict[str, float] = dict.fromkeys(_RATED, 0.0)
        # For each topic and group: the sum of its offsets, and the number of queues.
        self._committed: dict[tuple[str, str], tuple[int, int]] | None = None
        # The sampling of all groups, if it is in progress.
        self._sampling: Iterator[int] | None = None
        self._at_ms = 0
        self._next_sample_ms = 0
        self._next_groups_ms = 0
        self._day = 0
        self.began_wall_ms = 0
        self.bytes_in = 0
        # (put, got) at the last two midnights (UTC), the older first.
        self.mornings = ((0, 0), (0, 0))

    def appended(self, records: Sequence[Append]) -> None:
        """Count applied messages."""
        sums = self._sums
        for record in records:
            sums[record.topic_id] += _ONE_MESSAGE + record.size

    def tick(self, now: Now) -> None:
        """Take the due samples of topics, of groups and of their deliveries, in steps of a few milliseconds."""
        self._at_ms = now.monotonic_ms
        self._go_on()
        self._count_topics(now.monotonic_ms)
        self._count_answers(now.monotonic_ms)
        if now.monotonic_ms < self._next_sample_ms:
            return
        self._next_sample_ms = now.monotonic_ms + _SAMPLE_MS
        self._begin_day(now)
        self._sample_broker(now.monotonic_ms)
        self._sample_topics(now.monotonic_ms)
        self._sample_answers(now.monotonic_ms)
        if self._sampling is None and now.monotonic_ms >= self._next_groups_ms:
            self._next_groups_ms = now.monotonic_ms + _GROUPS_SAMPLE_MS
            self._sampling = self._sample_groups()
            self._go_on()

    def ended(self) -> None:
        """Clear offsets and rates: this replica serves no clients now, and does not count for another leader."""
        self._committed = self._sampling = None
        self.per_second = dict.fromkeys(_RATED, 0.0)

    def get(self, name: str, key: str = "") -> Series | None:
        """Return one series, or None if nothing was counted yet."""
        return self._series.get((name, key))

    def data(self, name: str, key: str, now_ms: int) -> BrokerStatsData | None:
        """Return the body of 315 for a series, or None if there is no such series."""
        series = self.get(name, key)
        if series is None:
            return None

        return BrokerStatsData(
            *(
                BrokerStatsItem(
                    series.grown(now_ms, span_ms),
                    round(series.rate(now_ms, span_ms), 2),
                    self._per_message(name, key, now_ms, span_ms),
                )
                for span_ms in (MINUTE_MS, HOUR_MS, DAY_MS)
            )
        )

    def consume_rate(self, group: str, topic: str, now_ms: int) -> float:
        """Return how many messages per second a group consumed of a topic in the last minute."""
        return self._minute_rate(GROUP_GET_NUMS, f"{topic}@{group}", now_ms)

    def put_rate(self, topic: str, now_ms: int) -> float:
        """Return how many messages per second a topic received in the last minute."""
        return self._minute_rate(TOPIC_PUT_NUMS, topic, now_ms)

    def _minute_rate(self, name: str, key: str, now_ms: int) -> float:
        series = self.get(name, key)

        return 0.0 if series is None else round(series.rate(now_ms, MINUTE_MS), 2)

    def broker_rates(self, name: str, now_ms: int) -> str:
        """Return the broker's rates over 10 s, 1 min and 10 min, separated by blanks as the tools want them."""
        series = self.get(name)
        if series is None:
            return "0.0 0.0 0.0"
        spans = (10 * SECOND_MS, MINUTE_MS, 10 * MINUTE_MS)

        return " ".join(str(round(series.rate(now_ms, span), 4)) for span in spans)

    # -- sampling ----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        room = _STEP_WORK_MAX
        for work in self._sampling or ():
            room -= work
            if room <= 0:
                return
        self._sampling = None

    def _begin_day(self, now: Now) -> None:
        counters = self._context.counters
        present = (counters["messages_in"], counters["messages_out"])
        day = now.wall_ms // DAY_MS
        if not self._day:
            self.began_wall_ms = now.wall_ms
        elif day != self._day:
            self.mornings = (self.mornings[1], present)
        self._day = day

    def _sample_broker(self, now_ms: int) -> None:
        before = self._before
        self._before = {counter: self._context.counters[counter] for counter in _RATED}
        for counter, name in _RATED.items():
            grown = self._before[counter] - before.get(counter, 0)
            if before:
                self.per_second[counter] = grown * SECOND_MS / (now_ms - self._sampled_ms)
            if name is not None and grown:
                self._add(name, "", now_ms, grown)
        self._sampled_ms = now_ms

    def _sample_topics(self, now_ms: int) -> None:
        if not self._got:
            self._got = self._sums
            self._sums = defaultdict(int)
            self._count_topics(now_ms)

    def _count_topics(self, now_ms: int) -> None:
        for topic_id in list(islice(self._got, TOPICS_STEP_MAX)):
            packed = self._got.pop(topic_id)
            self.bytes_in += packed & _BYTES_MASK
            topic = self._context.state.topics.by_id.get(topic_id)
            if topic is not None:
                self._add(TOPIC_PUT_NUMS, topic.name, now_ms, packed // _ONE_MESSAGE)
                self._add(TOPIC_PUT_SIZE, topic.name, now_ms, packed & _BYTES_MASK)

    def _sample_answers(self, now_ms: int) -> None:
        """Count what groups were sent and have sent back; `_sample_groups` removes the series of deleted groups."""
        got, sent_back = self._context.got, self._context.sent_back
        for topic, group in list(islice(sent_back, ANSWERS_STEP_MAX)):
            self._add(SEND_BACKS, f"{topic}@{group}", now_ms, sent_back.pop((topic, group)))
        if not self._answers:
            self._answers = dict(got)
            got.clear()
            self._count_answers(now_ms)

    def _count_answers(self, now_ms: int) -> None:
        for topic, group in list(islice(self._answers, ANSWERS_STEP_MAX)):
            answers, size = self._answers.pop((topic, group))
            self._add(GROUP_GET_SIZE, f"{topic}@{group}", now_ms, size)
            self._add(_ANSWERS, f"{topic}@{group}", now_ms, answers)

    def _sample_groups(self) -> Iterator[int]:
        """Count committed messages as delivered ones, which costs pulls nothing.

        Yields the work done since the last time.
        """
        offsets = self._context.state.offsets
        before, present = self._committed, dict[tuple[str, str], tuple[int, int]]()
        for group in list(offsets.groups()):
            for topic, queues in list(offsets.of_group(group).items()):
                present[topic, group] = sum(queues.values()), len(queues)
                former, known = (0, 0) if before is None else before.get((topic, group), (0, 0))
                # When a group begins in a queue, it has consumed nothing there yet. Queues that it began since then
                # come after the others. Messages that a group consumes again after its offsets were set back are
                # counted again.
                grown = sum(islice(queues.values(), known)) - former
                if grown > 0:
                    self._add(GROUP_GET_NUMS, f"{topic}@{group}", self._at_ms, grown)
                yield 1 + len(queues) // _QUEUES_OF_WORK
        self._committed = present
        topics, groups = self._context.state.topics.by_name, self._context.state.groups.by_name
        for name, key in list(self._series):
            topic, _, group = key.partition("@")
            is_gone = bool(group) and group not in groups and not offsets.of_group(group)
            if key and (topic not in topics or is_gone):
                del self._series[name, key]
            yield 1

    def _add(self, name: str, key: str, now_ms: int, count: int) -> None:
        series = self._series.get((name, key))
        if series is None:
            series = self._series[name, key] = Series(now_ms - _SAMPLE_MS)
        series.add(now_ms, count)

    def _per_message(self, name: str, key: str, now_ms: int, span_ms: int) -> float:
        series, counts = self.get(name, key), self.get(_PARTS.get(name, ""), key)
        grown = 0 if series is None else series.grown(now_ms, span_ms)
        if not grown:
            return 0.0
        if counts is None:
            return 1.0

        return round(grown / max(1, counts.grown(now_ms, span_ms)), 2)
