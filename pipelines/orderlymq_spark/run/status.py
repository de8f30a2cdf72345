"""The status of a running pipeline: `status.json` next to its checkpoint, and Prometheus gauges with the same figures."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from prometheus_client import Gauge, start_http_server

from orderlymq_runtime.wallclock import machine_ms
from orderlymq_spark.errors import OptionError
from orderlymq_spark.locations.location import Location
from orderlymq_spark.run.checkpoint import Claim

_FILE: Final = "status.json"
_WAY_OUT: Final = "correct it, or move it away; without it, nothing records which pipeline the checkpoint belongs to"


@dataclass(slots=True)
class Status:
    """The status of a pipeline.

    After a restart, a mirror compares *source*, and a stream compares *about*: the values its checkpoint is bound to.
    """

    name: str
    type: str
    phase: str = "Starting"
    last_batch: int | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    offsets: Any = None
    source: Any = None
    about: Any = None
    lag: int | None = None
    lag_seconds: float | None = None
    updated_at_ms: int = 0
    last_error: str | None = None
    batches: int = field(default=0)
    counts_offsets: bool = False

    def write(self, claim: Claim) -> None:
        """Write the status next to the checkpoint.

        Raises:
            CheckpointInUse: Another driver has started, so the file belongs to it.
        """
        claim.check()
        self.updated_at_ms = machine_ms()
        facts = asdict(self)
        del facts["counts_offsets"]
        (claim.checkpoint / _FILE).write(json.dumps(facts, indent=1))

    def fail(self, claim: Claim, reason: str) -> None:
        """Write that the run has failed; raises the errors of `write`."""
        self.phase, self.last_error = "Failed", reason
        self.write(claim)


def kept_status(checkpoint: Location) -> dict[str, Any]:
    """Return the status that the last run wrote; empty before the first run.

    Raises:
        OptionError: The file is damaged, for example by an edit.
    """
    path = checkpoint / _FILE
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} cannot be read ({error}); {_WAY_OUT}") from error
    if not isinstance(found, dict):
        raise OptionError(f"{path} does not hold a JSON object; {_WAY_OUT}")
    return found


def gauges_at(port: int | None) -> dict[str, Gauge]:
    """Start the metrics server on *port* and return the gauges by field; without a port, return none."""
    if port is None:
        return {}
    start_http_server(port)
    return {
        name: Gauge(f"orderlymq_pipeline_{name}", about, ["pipeline"])
        for name, about in (
            ("rows", "rows that this run has moved"),
            ("rows_per_second", "rate of the last batch"),
            ("lag", "messages that wait"),
            ("lag_seconds", "since the oldest message that waits was stored"),
            ("last_batch", "number of the last finished batch"),
        )
    }


def show(status: Status, gauges: Mapping[str, Gauge]) -> None:
    """Set the gauges to the values of the status; unknown values become NaN."""
    for name, gauge in gauges.items():
        value = getattr(status, name)
        gauge.labels(status.name).set(math.nan if value is None else value)
