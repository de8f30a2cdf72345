"""
The table of docs/evidence/console.md: how far each problem is from the first page, written by the tests that click there.

`pytest tests/console/test_troubles.py --write-console-table` writes it, if all of them have passed.
"""

from pathlib import Path
from typing import Final

import pytest

PAGE: Final = Path(__file__).parents[2] / "docs" / "evidence" / "console.md"
OPTION: Final = "--write-console-table"
#: The longest time in seconds that the guide promises.
REACHED_MAX_S: Final = 5.0
#: The property under which a test reports its row.
ROW: Final = "reach"

HEAD: Final = """\
# Reach of the console

This page shows how many clicks and seconds it takes to find a fault in the console. Each row is a fault that a test caused in a
real cluster; ten of them were in one cluster at the same time. A headless Chromium opened the first page and clicked the
elements shown there until it reached the page with the cause and the remedy. The seconds are the time from the first page to
that page, including page loads: the median of three tries, each in an empty browser. The tries began after the cluster had
detected the fault; [the guide](../howto/console.md#faults-that-it-finds) says how long that takes.

`pytest tests/console/test_troubles.py --write-console-table` writes this page, but not if a fault needs more than three clicks or
five seconds.

| fault | clicks | seconds | last page |
|---|---:|---:|---|
"""


class ReachTable:
    """The plugin that collects the rows and writes the page after the session."""

    def __init__(self) -> None:
        self._rows: list[str] = []
        self._is_whole = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a test's row; if a test failed or did not run, the page stays as it is."""
        self._is_whole &= report.passed
        if report.when == "call":
            self._rows += [str(value) for name, value in report.user_properties if name == ROW]

    def pytest_sessionfinish(self) -> None:
        """Write the page, unless a way took longer than promised."""
        late = [row for row in self._rows if float(row.split(" | ")[2]) > REACHED_MAX_S]
        if late:
            raise pytest.UsageError(f"above {REACHED_MAX_S:g} s, so nothing is written: {late}")
        if self._is_whole and self._rows:
            PAGE.write_text(HEAD + "".join(f"| {row} |\n" for row in self._rows))
