"""
The measured speed of pipelines: `rates.json` has the medians of the table in docs/explanation/benchmarks.md.

Rule: rates are never guessed; without a measured rate no time is given.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

#: The line of the benchmark's table that is closest to the work of each type; bytes per second for `compact`.
_LINES: Final = {
    "archive": "topic to Parquet (`archive`)",
    "compact": "`compact`, bytes of files read",
    "order-audit": "`order-audit` of the topic",
    "order-audit of an archive": "`order-audit` of the archive",
    "skew-report": "topic to DataFrame, count",
    "lag": "topic to DataFrame, count",
    "dead-letters": "topic to DataFrame, all columns thrown away",
}
#: The sink is not a pipeline; its rate was measured by hand: docs/howto/pipelines.md#the-ordered-sink.
_SINK_ROWS_PER_SECOND: Final = 8_000
#: Measured with `python -m bench.mirror`: docs/howto/mirror.md#speed.
_MIRROR_ROWS_PER_SECOND: Final = 10_000
START_S: Final = 13
"""Seconds that Java and Spark take until a first small batch is done, measured on two processors."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate per second, and the conditions of its measurement."""

    per_second: float
    conditions: str


def rate_of(kind: str) -> Rate | None:
    """Return the rate of a pipeline type; None if it was not measured."""
    known = json.loads(files(__package__).joinpath("rates.json").read_text())
    if kind in ("replay", "redrive"):
        return Rate(_SINK_ROWS_PER_SECOND, "the ordered sink of one broker, messages of 1 KB")
    if kind == "mirror":
        return Rate(
            _MIRROR_ROWS_PER_SECOND, "one broker at each side, messages of 1 KiB in four queues"
        )
    line = _LINES.get(kind)
    if line is None or line not in known["medians"]:
        return None
    return Rate(known["medians"][line], known["conditions"])
