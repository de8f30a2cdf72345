"""Status of a pipeline that runs on: `status.json` beside its checkpoint, and Prometheus gauges of the same."""

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
_WAY_OUT: Final = "correct it, or move it away: then nothing says what the checkpoint is of"


@dataclass(slots=True)
class Status:
    """Status of a pipeline.

    When it begins again a mirror compares *source*, and a stream *about*: what its checkpoint is about.
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
        """Put it beside the checkpoint.

        Raises:
            CheckpointInUse: Another driver has begun, so the file is that one's.
        """
        claim.check()
        self.updated_at_ms = machine_ms()
        facts = asdict(self)
        del facts["counts_offsets"]
        (claim.checkpoint / _FILE).write(json.dumps(facts, indent=1))

    def fail(self, claim: Claim, reason: str) -> None:
        """Write that the run has failed; errors as of `write`."""
        self.phase, self.last_error = "Failed", reason
        self.write(claim)


def kept_status(checkpoint: Location) -> dict[str, Any]:
    """Return what the last run has written; nothing before a first one.

    Raises:
        OptionError: It is damaged, as by an edit.
    """
    path = checkpoint / _FILE
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} cannot be read ({error}); {_WAY_OUT}") from error
    if not isinstance(found, dict):
        raise OptionError(f"{path} holds no object of JSON; {_WAY_OUT}")
    return found


def gauges_at(port: int | None) -> dict[str, Gauge]:
    """Return what Prometheus is shown of the status, by field; nothing without a port."""
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
    """Let the gauges say what the status does; what is not known is NaN."""
    for name, gauge in gauges.items():
        value = getattr(status, name)
        gauge.labels(status.name).set(math.nan if value is None else value)
