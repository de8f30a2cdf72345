"""
A pipeline and the reports of its runs: one form for files and for Kubernetes.

Rules: members that nobody here knows are ignored. What is not known is None or empty and has a reason beside it.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import JsonValue

from orderlymq.errors import OrderlyMQError
from orderlymq_console.models import Model
from orderlymq_console.pipelinemodels import Audit

#: Pipelines, queues of one, and findings of an audit that are read; more are counted or named as left out.
PIPELINES_MAX: Final = 500
QUEUES_MAX: Final = 4_096
FINDINGS_MAX: Final = 100
_TEXT_MAX: Final = 2_000
# By type: the field that names where it writes to.
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
    """Pipelines cannot be read now; the text says why."""


class PipelineSource(Protocol):
    """Where pipelines are read."""

    async def read(self) -> "tuple[PipelineReport, ...]":
        """Return all pipelines, by name.

        Raises:
            PipelinesUnread: They cannot be read now.
        """


class SourceReport(Model):
    """The source; *bootstrap* names name servers of its own."""

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
        """Its source: a topic, an archive, or a group's dead letters."""
        if self.source is not None:
            return self.source.topic
        if self.group is not None:
            return f"dead letters of {self.group}"
        return self.topic or self.archive or self.path or ""

    @property
    def writes(self) -> str:
        """Where it writes to; empty where it only reports."""
        if self.type == "archive":
            return self.path or self.table or ""  # one of them: an Iceberg table has no path here
        return getattr(self, _SINKS.get(self.type, ""), None) or ""

    @property
    def name_servers(self) -> str:
        """The name servers that it names; empty where it names none."""
        given = self.source.bootstrap if self.source is not None else self.bootstrap
        return given or ""


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The next offset that a pipeline reads of a queue."""

    topic: str
    broker_group: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """One pipeline.

    Attributes:
        place: the file, or the resource.
        spec: None where it cannot be read.
        own_cluster: it reads the cluster that the console looks at; None: its name servers say so.
        phase: the word of its driver or of the operator; empty when it is not known.
        unknown: why the phase, or else its progress, is not known.
        note: what has to be known beside the phase.
        changed_ms: when its driver said something new last, wall ms.
        lag: messages that waited when its last batch ended.
        audit: None for what is no audit.
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
    """Return a text that a page can bear."""
    text = "" if value is None else str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
