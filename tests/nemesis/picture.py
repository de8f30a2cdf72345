"""A run as a picture: faults, leaders, rates per second, and the times without acknowledgements."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

from tests.nemesis.figures import SECOND, Figures, gaps, rates
from tests.nemesis.schedule import Track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tests.nemesis.faults import Outcome
    from tests.nemesis.measures import Target
    from tests.nemesis.run import Record

_COLOURS: Final = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:cyan")
_TRACKS: Final = {
    Track.REPLICAS: "tab:red",
    Track.CLIENTS: "tab:olive",
    Track.BESIDE: "tab:purple",
    Track.PAUSES: "tab:gray",
}
_WIDTH_MIN, _WIDTH_MAX, _SECONDS_PER_INCH = 12.0, 24.0, 15.0


def draw(record: "Record", counted: Figures, path: Path) -> None:
    """Write the picture as PNG."""
    seconds = (record.ended - record.began) / SECOND
    width = min(max(seconds / _SECONDS_PER_INCH, _WIDTH_MIN), _WIDTH_MAX)
    figure = Figure(figsize=(width, 10), dpi=70, layout="constrained")
    parts = figure.subplots(4, 1, sharex=True, height_ratios=[4, 1.2, 2, 2])
    faults, leaders, acks, deliveries = parts
    verdict = "kept" if record.kept else "BROKEN"
    faults.set_title(
        f"seed {record.seed}, {record.plan.replicas} replicas, {record.ground}: promise {verdict}"
    )
    _draw_faults(faults, record)
    _draw_leaders(leaders, record)
    _draw_rates(acks, record, counted.acks, "acknowledged/s")
    _draw_rates(deliveries, record, counted.deliveries, "delivered/s")
    for gap in gaps(counted.acks):
        began, ended = _at(record, gap.began), _at(record, gap.ended)
        acks.axvspan(began, ended, color="red", alpha=0.25, linewidth=0)
    for axes in parts:
        axes.axvline(_at(record, record.calm_began), color="black", linestyle=":")
        axes.grid(visible=True, axis="x", alpha=0.3)
    deliveries.set_xlabel(
        "seconds; dotted: the faults are over; red: nobody got an acknowledgement"
    )
    figure.savefig(path)


def _at(record: "Record", at: int) -> float:
    return (at - record.began) / SECOND


def _draw_faults(axes: "Axes", record: "Record") -> None:
    kinds = list(dict.fromkeys(_kinds(record.outcomes)))
    for outcome in record.outcomes:
        row = kinds.index(outcome.fault.kind)
        began = _at(record, outcome.began)
        # Wide enough to be visible.
        width = max(
            _at(record, outcome.ended) - began, (record.ended - record.began) / SECOND / 400
        )
        colour = _TRACKS[outcome.fault.shape.track]
        axes.barh(row, width, left=began, height=0.7, color=colour)
    axes.set_yticks(range(len(kinds)), kinds, fontsize=8)
    axes.invert_yaxis()


def _kinds(outcomes: Iterable["Outcome"]) -> Iterable[str]:
    return (outcome.fault.kind.value for outcome in outcomes)


def _draw_leaders(axes: "Axes", record: "Record") -> None:
    changes = record.watch.leaders()
    ends = [at for at, _ in changes[1:]] + [record.ended]
    for (at, node), end in zip(changes, ends, strict=False):
        if node is None:
            axes.axvspan(_at(record, at), _at(record, end), color="red", alpha=0.25, linewidth=0)
        else:
            began = _at(record, at)
            colour = _COLOURS[node % len(_COLOURS)]
            axes.barh(node, _at(record, end) - began, left=began, height=0.8, color=colour)
    axes.set_yticks(range(1, record.plan.replicas + 1))
    axes.set_ylabel("leader")


def _draw_rates(axes: "Axes", record: "Record", times: dict[str, list[int]], label: str) -> None:
    for number, family in enumerate(sorted(times)):
        counted = rates(times[family], record.began, record.ended)
        axes.plot(counted, label=family, color=_COLOURS[number % len(_COLOURS)], linewidth=1)
    axes.set_ylabel(label)
    axes.legend(loc="upper right", fontsize=8)


def draw_histograms(
    found: dict[str, list[float]], targets: dict[str, "Target"], where: Path
) -> None:
    """Write a histogram for each measure, with its targets, as handover.png."""
    rows = (len(found) + 1) // 2
    figure = Figure(figsize=(12, 2.2 * rows), dpi=70, layout="constrained")
    parts = figure.subplots(rows, 2, squeeze=False)
    for axes, (name, values) in zip(parts.flat, found.items(), strict=False):
        axes.hist(values, bins=20, color="tab:blue")
        target = targets[name]
        for value, colour in ((target.median, "tab:green"), (target.worst, "tab:red")):
            if value is not None:
                axes.axvline(value, color=colour, linestyle="--")
        axes.set_title(f"{name} (n = {len(values)})", fontsize=9)
        axes.set_xlim(left=0)
    for axes in parts.flat[len(found) :]:
        axes.set_visible(False)
    figure.supxlabel("seconds; green: target for the median, red: for the worst")
    figure.savefig(where / "handover.png")
