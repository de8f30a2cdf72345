"""
A pipeline and the reports of its runs, in one form for files and for Kubernetes.

Rules: unknown members are ignored. A value that is not known is None or empty, and another field gives the reason.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import JsonValue

from orderlymq.errors import OrderlyMQError
from orderlymq_console.models import Model
from orderlymq_console.pipelinemodels import Audit

#: Limits for pipelines, for queues of one, and for findings of an audit; what exceeds them is counted or reported as left out.
PIPELINES_MAX: Final = 500
QUEUES_MAX: Final = 4_096
FINDINGS_MAX: Final = 100
_TEXT_MAX: Final = 2_000
# By type of pipeline: the field that names its destination.
_SINKS: Final = {
    "compact": "path",
    "cdc-apply": "path",
    "replay": "target",
    "mirror": "target_bootstrap",
    "redrive": "target",
    "skew-report": "html",
    "order-audit": "findings",
}


class PipelinesUnread(OrderlyMQError):  # noqa: N818 - says what it is
    """The pipelines cannot be read now; the text says why."""


class PipelineSource(Protocol):
    """A place from which pipelines are read."""

    async def read(self) -> "tuple[PipelineReport, ...]":
        """Return all pipelines, sorted by name.

        Raises:
            PipelinesUnread: They cannot be read now.
        """


class SourceReport(Model):
    """The source of a pipeline; *bootstrap* names its own name servers."""

    topic: str
    bootstrap: str | None = None


class SpecReport(Model):
    """The part of a spec that a page shows."""

    type: str
    source: SourceReport | None = None
    bootstrap: str | None = None
    checkpoint: str | None = None
    path: str | None = None
    table: str | None = None
    archive: str | None = None
    topic: str | None = None
    group: str | None = None
    target: str | None = None
    target_bootstrap: str | None = None
    html: str | None = None
    findings: str | None = None
    stream: bool = False
    cluster_ref: dict[str, JsonValue] | None = None

    @property
    def reads(self) -> str:
        """What it reads: a topic, an archive, or the dead letters of a consumer group."""
        if self.source is not None:
            return self.source.topic
        if self.group is not None:
            return f"dead letters of {self.group}"
        return self.topic or self.archive or self.path or ""

    @property
    def writes(self) -> str:
        """Where it writes; empty if it only reports."""
        if self.type == "archive":
            # Only one of them is set: an Iceberg table has no path here.
            return self.path or self.table or ""
        return getattr(self, _SINKS.get(self.type, ""), None) or ""

    @property
    def name_servers(self) -> str:
        """The name servers in its spec; empty if there are none."""
        given = self.source.bootstrap if self.source is not None else self.bootstrap
        return given or ""


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The next offset that a pipeline reads from a queue."""

    topic: str
    broker_group: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """One pipeline.

    Attributes:
        place: the file, or the resource.
        spec: None if it cannot be read.
        own_cluster: it reads the cluster that the console shows; None if its name servers decide that.
        phase: the state that its driver or the operator reports; empty if it is not known.
        unknown: why the phase, or else the progress, is not known.
        note: what to know in addition to the phase.
        changed_ms: when its driver last reported something new, wall ms.
        lag: messages that waited when its last batch ended.
        audit: None if the pipeline is not an audit.
    """

    name: str
    place: str
    spec: SpecReport | None = None
    own_cluster: bool | None = None
    phase: str = ""
    unknown: str = ""
    note: str = ""
    changed_ms: int | None = None
    last_batch: int | None = None
    rows: int | None = None
    rows_per_second: float | None = None
    lag: int | None = None
    queues: tuple[QueueReport, ...] = ()
    result: str = ""
    last_error: str = ""
    audit: Audit | None = None


def shortened(value: Any) -> str:
    """Return a value as a text, cut to a length that a page can show."""
    text = "" if value is None else str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
