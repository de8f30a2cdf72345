"""The page of growth: first a verdict per dimension, then a table and a curve for each. Pure except for picture files."""

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Final

from bench.growth.dimensions import DIMENSIONS, Dimension
from bench.report.figures import shown
from bench.report.origin import origin
from bench.report.results import Line

from bench.report import sections

#: The limit of a decade's cost per message, relative to the previous decade: a tenth more.
DECADE_MOST: Final = 1.10
KILL_MOST_S: Final = 0.25
_COLUMNS: Final = (
    ("cpu_us", "CPU per message, µs"),
    ("rate", "messages/s"),
    ("p50_ms", "p50, ms"),
    ("p99_ms", "p99, ms"),
    ("idle_percent", "leader idle, % of a CPU"),
    ("rss_mib", "leader's memory, MiB"),
    ("failover_s", "leader killed, s"),
    ("start_s", "start, s"),
)
#: The causes that profiles have shown for the tables, by dimension.
CAUSES: Final[dict[str, str]] = {}


def lacking(path: Path, slots: Set[tuple[str, str]]) -> list[str]:
    """Return the decades that the page at *path* has and a page of *slots* (dimension, decade) would lack."""
    names = {dimension.title: dimension.name for dimension in DIMENSIONS}
    had = {
        (names[heading], cells[0].replace(",", ""))
        for heading, cells in sections.rows(path)
        if heading in names and cells[0][0].isdigit()
    }
    return [f"{name} {decade}" for name, decade in sorted(had - slots)]


def write(path: Path, lines: Sequence[Line]) -> None:
    """Write the page and its pictures next to it.

    Raises:
        ValueError: The page has decades that the lines lack.
    """
    if found := lacking(path, {(line.peer, line.work) for line in lines}):
        raise ValueError(sections.refusal(path, found))
    folder = path.parent / path.stem
    pictures = _draw(folder, lines)
    path.write_text("\n".join(_page(lines, pictures, path.stem)) + "\n")


@dataclass(frozen=True, slots=True)
class Step:
    """A decade that costs more than the limit, as a ratio to the previous decade.

    Attributes:
        taken_back: the next decade's cost is again within the limit, relative to the decade before the step.
    """

    ratio: float
    old: int
    new: int
    taken_back: bool

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x from {self.old:,} to {self.new:,}"


def verdicts(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a verdict per dimension with the decades that add too much; the dimension with the worst decade comes first."""
    found = []
    for dimension in DIMENSIONS:
        points = _points(lines, dimension)
        if len(points) > 1:
            cost = _cost(dimension)
            steps = _steps(points, cost)
            grown = [step for step in steps if not step.taken_back]
            noise = ", ".join(str(step) for step in steps if step.taken_back)
            parts = [
                ", ".join(f"**{step}**" for step in grown) or "flat",
                *([f"taken back: {noise}"] if noise else []),
                f"{shown(points[0][1][cost])} µs per {'KiB' if dimension.per_byte else 'message'} at {points[0][0]:,},"
                f" {shown(points[-1][1][cost])} µs at {points[-1][0]:,}.",
            ]
            worst = max((step.ratio for step in grown), default=0.0)
            found.append((worst, f"{dimension.title}: {'; '.join(parts)}"))
    # Dimensions without growth keep the order of the tables.
    return (text for _, text in sorted(found, key=itemgetter(0), reverse=True))


def _cost(dimension: Dimension) -> str:
    return "cpu_us_kib" if dimension.per_byte else "cpu_us"


def _points(lines: Sequence[Line], dimension: Dimension) -> list[tuple[int, dict[str, float]]]:
    """Return the figures at each decade; for a decade measured twice, the newer ones."""
    found = {
        int(line.work): {
            name: value for name, value in line.figures.items() if isinstance(value, float)
        }
        for line in lines
        if line.peer == dimension.name
    }
    return sorted(found.items())


def _steps(points: Sequence[tuple[int, dict[str, float]]], cost: str) -> list[Step]:
    """Return the decades that cost more than the limit."""
    costs = [(number, figures[cost]) for number, figures in points]
    return [
        Step(
            after / before,
            old,
            new,
            any(later <= before * DECADE_MOST for _, later in costs[place + 2 : place + 3]),
        )
        for place, ((old, before), (new, after)) in enumerate(pairwise(costs))
        if after > before * DECADE_MOST
    ]


def _page(lines: Sequence[Line], pictures: set[str], folder: str) -> Iterator[str]:
    yield "# Growth"
    yield ""
    yield (
        "This page shows what a message costs while one number grows by decades, from 10 to 100 and so on. A broker group of three"
        f" replicas and the load share {os.cpu_count()} CPUs, so the rates are those of a small machine. Compare the shapes of the curves."
        " The load is the same at each decade: 64 senders of 1 KiB at full speed, then 300 messages/s at a steady pace for p50 and p99,"
        " then a SIGKILL of the leader and its restart. CPU per message is that of all replicas at full speed. The aim: a decade"
        f" costs at most {DECADE_MOST - 1:.0%} more. The memory also grows with the messages that earlier decades have stored."
        " The sender is one process of the Python SDK, which uses some of the CPUs; [benchmarks](benchmarks.md) has the rates of Java's client."
    )
    yield ""
    yield (
        f"`make bench-growth` repeats the measurement, with the compiled modules of the image ({origin(lines)})."
        " A decade without a row was not run. Each decade is measured once. A step of more than"
        f" {DECADE_MOST - 1:.0%} counts as growth and is bold, unless the next decade takes it back, that is, costs at most"
        f" {DECADE_MOST - 1:.0%} more than the decade before the step. The last step always counts."
    )
    yield ""
    yield (
        "At each decade the leader is killed once. A follower waits 200 ms for a message from it before it stands for election. If it"
        " does not win, it waits again, for a random time of 200 to 400 ms. Kills that took longer than the aim are listed below the table."
    )
    yield ""
    yield "## In short"
    yield ""
    yield from (f"* {text}" for text in verdicts(lines))
    for dimension in DIMENSIONS:
        points = _points(lines, dimension)
        if points:
            yield ""
            yield from _section(dimension, points, pictures, folder)


def _section(
    dimension: Dimension,
    points: Sequence[tuple[int, dict[str, float]]],
    pictures: set[str],
    folder: str,
) -> Iterator[str]:
    yield f"## {dimension.title}"
    yield ""
    if dimension.name in pictures:
        yield f"![{dimension.title}]({folder}/{dimension.name}.svg)"
        yield ""
    columns = [*_COLUMNS]
    if dimension.per_byte:
        columns.insert(0, ("cpu_us_kib", "CPU per KiB, µs"))
    yield f"| {dimension.title.lower()} | {' | '.join(title for _, title in columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    steps = {step.new: step for step in _steps(points, _cost(dimension))}
    for number, figures in points:
        first, *others = (shown(figures.get(name, float("nan"))) for name, _ in columns)
        yield f"| {number:,} | {_marked(first, steps.get(number))} | {' | '.join(others)} |"
    slow = [
        (number, figures)
        for number, figures in points
        if round(figures["failover_s"], 2) > KILL_MOST_S
    ]
    if slow:
        yield ""
        yield f"Kills above {KILL_MOST_S} s: {', '.join(_kill(*each) for each in slow)}."
    if cause := CAUSES.get(dimension.name):
        yield ""
        yield cause


def _marked(cost: str, step: Step | None) -> str:
    if step is None:
        return cost
    if step.taken_back:
        return f"{cost} ({step.ratio:.2f}x, taken back)"
    return f"**{cost} ({step.ratio:.2f}x)**"


def _kill(number: int, figures: Mapping[str, float]) -> str:
    terms = f" ({figures['terms']:.0f} terms)" if "terms" in figures else ""
    return f"{shown(figures['failover_s'])} s at {number:,}{terms}"


def _draw(folder: Path, lines: Sequence[Line]) -> set[str]:
    import matplotlib as mpl  # noqa: PLC0415 needed for nothing else
    from matplotlib import pyplot as plt  # noqa: PLC0415

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "orderlymq"  # the same figures give the same file
    folder.mkdir(parents=True, exist_ok=True)
    drawn = set()
    for dimension in DIMENSIONS:
        points = _points(lines, dimension)
        if len(points) > 1:
            _curve(folder / f"{dimension.name}.svg", dimension, points)
            drawn.add(dimension.name)
    plt.close("all")
    return drawn


def _curve(
    path: Path, dimension: Dimension, points: Sequence[tuple[int, dict[str, float]]]
) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 needed for nothing else

    panels = (
        (_cost(dimension), "CPU per KiB, µs" if dimension.per_byte else "CPU per message, µs"),
        ("p99_ms", "p99 at a steady pace, ms"),
        ("rss_mib", "leader's memory, MiB"),
        ("failover_s", "leader killed, s"),
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(13, 2.8))
    numbers = [number for number, _ in points]
    for each, (name, title) in zip(axes, panels, strict=True):
        each.plot(numbers, [figures[name] for _, figures in points], "o-")
        each.set(xscale="log", title=title, ylim=(0, None), xlabel=dimension.title.lower())
        each.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
