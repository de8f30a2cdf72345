"""
The rates that `orderlymq pipeline explain` uses are those of the benchmark's table.

`python -m tests.docs.test_spark_rates` writes them again.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "benchmarks.md"
RATES: Final = PAGE.parents[2] / "pipelines" / "orderlymq_spark" / "explain" / "rates.json"
_ROW: Final = re.compile(r"\| (.+?) \| [\d,]+ / \*\*([\d,]+)\*\* / [\d,]+ (rows|MB)/s \|")
_UNITS: Final = {"rows": 1, "MB": 1_000_000}


def rates() -> dict[str, Any]:
    """Return the medians of the table by row, in rows or bytes a second."""
    section = PAGE.read_text().partition("\n## Spark\n")[2].partition("<!-- end of spark -->")[0]
    about = next(line for line in section.splitlines() if line.startswith("`make bench-spark`"))
    return {
        "conditions": about.rsplit(". ", 1)[1].rstrip("."),
        "medians": {
            line: int(number.replace(",", "")) * _UNITS[unit]
            for line, number, unit in _ROW.findall(section)
        },
    }


def test_the_rates_are_those_of_the_page() -> None:
    """If this fails, run `python -m tests.docs.test_spark_rates`."""
    assert json.loads(RATES.read_text()) == rates()


if __name__ == "__main__":
    RATES.write_text(json.dumps(rates(), indent=2) + "\n")
