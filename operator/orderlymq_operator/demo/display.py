"""
The demo on the screen: live in a terminal, plain lines elsewhere, and the verdict's table at the end.

Rule: it only shows. Every number at the end comes from the history, most of them through the oracle's `Verdict`.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orderlymq.oracle.verdict import Defect, Verdict
from orderlymq_operator.demo.reports import Report

_PLAIN_INTERVAL_S: Final = 2.0
_EVENTS_SHOWN: Final = 6
_BAR_WIDTH: Final = 32


class Scoreboard:
    """The present state of the demo, from the reports of its processes."""

    def __init__(self) -> None:
        self.reports: dict[str, Report] = {}
        self.events: list[tuple[float, str]] = []
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def take(self, report: Report) -> None:
        """Store the newest counts of a process."""
        self.reports[report.process] = report

    def event(self, text: str) -> None:
        """Add an event."""
        self.events.append((self.elapsed_s, text))

    def total(self, name: str) -> int:
        """Return the sum of one count over all processes."""
        return sum(getattr(report, name) for report in self.reports.values())

    def queues(self) -> Mapping[str, tuple[int, str]]:
        """Return for each queue the last consumed offset and the process that consumed it."""
        found: dict[str, tuple[int, str]] = {}
        for report in self.reports.values():
            for queue, offset in report.queues.items():
                if queue not in found or offset > found[queue][0]:
                    found[queue] = (offset, report.process)
        return dict(sorted(found.items()))


class Display:
    """Shows a scoreboard until the block ends."""

    def __init__(self, board: Scoreboard, *, quiet: bool, console: Console | None = None) -> None:
        self._board = board
        self._quiet = quiet
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        self._shown_events = 0
        self._next_line_s = 0.0

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def refresh(self) -> None:
        """Show what is new."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.update(_picture(self._board), refresh=True)
            return
        for at, text in self._board.events[self._shown_events :]:
            self._console.print(f"{at:6.1f} s  {text}", markup=False)
        self._shown_events = len(self._board.events)
        if self._board.elapsed_s >= self._next_line_s:
            self._next_line_s = self._board.elapsed_s + _PLAIN_INTERVAL_S
            self._console.print(f"{self._board.elapsed_s:6.1f} s  {_counts(self._board)}")

    def show_verdict(self, verdict: Verdict, rate: float) -> None:
        """Show the table at the end; *rate* is acknowledged messages per second."""
        if not self._quiet:
            self._console.print(verdict_table(verdict, rate))
            for finding in verdict.findings[:_EVENTS_SHOWN]:
                self._console.print(f"  {finding.defect}: {finding.explanation}", markup=False)


def _counts(board: Scoreboard) -> str:
    return (
        f"acknowledged {board.total('acknowledged')}, delivered {board.total('delivered')}, "
        f"orders done {board.total('completed')}, in flight {board.total('in_flight')}"
    )


def _picture(board: Scoreboard) -> Group:
    queues = Table(box=None, pad_edge=False)
    for title in ("queue", "consumer", "consumed"):
        queues.add_column(title)
    highest = max((offset for offset, _ in board.queues().values()), default=0) + 1
    for queue, (offset, consumer) in board.queues().items():
        bar = "━" * max(1, _BAR_WIDTH * (offset + 1) // highest)
        queues.add_row(queue, consumer, f"{bar} {offset + 1}")
    events = [Text(f"{at:6.1f} s  {text}") for at, text in board.events[-_EVENTS_SHOWN:]]
    return Group(Text(f"{board.elapsed_s:6.1f} s  {_counts(board)}", style="bold"), queues, *events)


def verdict_table(verdict: Verdict, rate: float) -> Table:
    """Return the verdict as a table."""
    counts = verdict.counts
    rows = [
        ("sent", str(counts["sent"])),
        ("acknowledged", str(counts["acknowledged"])),
        ("delivered", str(counts["delivered"])),
        ("redelivered", str(counts["redelivered"])),
        *((str(defect.value), str(verdict.number(defect))) for defect in Defect),
        *((f"fail-over ({name})", f"{gap:.0f} ms") for name, gap in verdict.ack_gap_ms.items()),
        ("rate", f"{rate:.0f} messages/s"),
    ]
    if verdict.not_judged:
        rows.append(("not judged", ", ".join(verdict.not_judged)))
    title = "order kept" if verdict.kept and not verdict.not_judged else "ORDER NOT PROVEN"
    table = Table(title=title, show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    return table
