"""The section that compares systems by key: their results, where ours is behind, and the conditions. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.handled import Done, longest_pause_s, messages, p99_ms
from bench.report.figures import advantage, beside, shown

#: A consumer group that handles nothing for this long at the end stands still: failed messages return every second.
_STILL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Steady:
    """The results of a steady load.

    Attributes:
        sent: messages of healthy keys.
        handled: how many of these were handled before the waiting ended.
        pause_s: the longest time in which no handling of these ended.
        still_s: the time from the last handling to the end of the waiting.
    """

    sent: int
    handled: int
    p99_ms: float
    pause_s: float
    still_s: float

    @classmethod
    def of(cls, done: Sequence[Done], sent: int, begin: int, end: int) -> "Steady":
        """Summarise the messages handled between two instants of the machine's clock."""
        last = max((each.done for each in done), default=begin)
        return cls(
            sent,
            len(messages(done)),
            p99_ms(done) if len(done) > 1 else float("nan"),
            longest_pause_s(done, begin, last),
            (end - last) / 1e9,
        )

    @property
    def is_whole(self) -> bool:
        """Whether every healthy message was handled."""
        return self.handled >= self.sent

    def __str__(self) -> str:
        if self.is_whole:
            return f"{shown(self.p99_ms)} ms"
        said = "stands still" if self.still_s >= _STILL_S else "falls behind"
        return f"{said}: {self.handled:,} of {self.sent:,} handled"


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one system.

    Attributes:
        durability: the class of its acknowledgement, disk or memory.
        first_s: from the start of the consumers to the end of the first handling.
        stored: messages that waited in the queue.
        handled: how many of these were handled in the given time.
        cpu_us: CPU time of all nodes and consumers per handled message.
        violations: messages handled before an earlier one of their key had ended, in all works.
        repeats: healthy messages handled again, in all works.
    """

    durability: str
    title: str
    first_s: float
    stored: int
    handled: int
    rate: float
    cpu_us: float
    violations: int
    repeats: int
    healthy: Steady
    poisoned: Steady


#: Title, figure, and whether more is better. A system that did not handle everything has no delay to compare.
_FIGURES: Final[Sequence[tuple[str, Callable[[Row], float | None], bool]]] = (
    ("messages/s", lambda row: row.rate, True),
    ("CPU per message, µs", lambda row: row.cpu_us, False),
    ("consumers to the first message, s", lambda row: row.first_s, False),
    (
        "p99 without poison, ms",
        lambda row: row.healthy.p99_ms if row.healthy.is_whole else None,
        False,
    ),
    (
        "p99 with ten poison keys, ms",
        lambda row: row.poisoned.p99_ms if row.poisoned.is_whole else None,
        False,
    ),
    ("delivered again", lambda row: float(row.repeats), False),
    ("out of order", lambda row: float(row.violations), False),
)


def behind(ours: Row, others: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each figure in which another system is ahead of ours, the widest gap first."""
    found = []
    for title, figure, more in _FIGURES:
        for other in others:
            mine, its = figure(ours), figure(other)
            if mine is None or its is None:
                continue
            ratio = advantage(mine, its, more_is_better=more)
            # The ratio is None for a zero: a system without repeats is ahead of one with some.
            if mine != its and (its > mine) == more:
                found.append((ratio or 0.0, beside(title, other.title, its, mine)))
    yield from (line for _, line in sorted(found))


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        "| class | system | messages/s | CPU per message, µs | consumers to the first message, s | out of order | delivered again"
        " | p99 without poison | p99 with ten poison keys | longest pause of the healthy keys, s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        pause = max(row.poisoned.pause_s, 0.0 if row.poisoned.is_whole else row.poisoned.still_s)
        cells = (
            row.durability,
            row.title,
            shown(row.rate)
            if row.handled == row.stored
            else f"{shown(row.rate)} ({row.handled:,} handled)",
            f"{row.cpu_us:.0f}",
            shown(row.first_s),
            f"{row.violations}",
            f"{row.repeats}",
            f"{row.healthy}",
            f"{row.poisoned}",
            shown(pause) if row.poisoned.is_whole else f"{shown(pause)}, to the end",
        )
        yield f"| {' | '.join(cells)} |"
