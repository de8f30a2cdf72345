"""
Models of pipelines for pages and `/api`.

Rules: those of `models`.
"""

from typing import Literal

from orderlymq_console.models import Figure, Model, Page, Trouble

AuditState = Literal["kept", "broken", "unknown"]


class PipelineRow(Model):
    """A pipeline in the list.

    Attributes:
        place: its manifest, or its resource.
        reads, writes: topic, archive or group that it reads; folder or topic that it writes. Empty if there is none.
        is_topic, to_topic: whether these are topics of this cluster.
        state: the state that its driver or the operator reports, "Died" for a driver that was killed; empty if it is unknown.
        state_unknown: why the state is unknown.
        changed_ms: when its driver last reported something new.
        lag: messages that it has not read yet, now.
        audit: what the last audit found; None if the pipeline is not an audit.
    """

    name: str
    place: str
    type: str
    reads: str
    writes: str
    is_topic: bool = False
    to_topic: bool = False
    state: str
    state_unknown: str = ""
    changed_ms: int | None = None
    last_batch: int | None = None
    rows: Figure
    rows_per_second: Figure
    lag: Figure
    last_error: str = ""
    audit: AuditState | None = None


class PipelinesPage(Page):
    """All pipelines."""

    rows: tuple[PipelineRow, ...]
    troubles: tuple[Trouble, ...]


class PipelineQueue(Model):
    """How far a pipeline has read a queue.

    Attributes:
        offset: the next message that it reads.
        end: offset of the next message that is sent.
        lag: messages between the two.
        oldest_seconds: age of the first message that it has not read.
    """

    topic: str
    broker_group: str
    queue: int
    offset: int
    end: Figure
    lag: Figure
    oldest_seconds: Figure


class AuditFinding(Model):
    """A place where the order is broken, as `orderlymq verify` describes it."""

    queue: str
    offset: int
    defect: str
    key: str
    expected: str
    got: str


class Audit(Model):
    """Findings of the last audit.

    Attributes:
        at_ms: when it ended, or when a stream wrote its last batch.
        text: the sentence that the audit itself reports.
        findings: the first of its findings.
    """

    state: AuditState
    unknown: str = ""
    at_ms: int | None = None
    text: str = ""
    count: Figure
    findings: tuple[AuditFinding, ...] = ()


def unknown_audit(reason: str) -> Audit:
    """Return an audit whose result is unknown."""
    return Audit(state="unknown", unknown=reason, count=Figure(unknown=reason))


class PipelinePage(Page):
    """One pipeline; *note* says what to know in addition to its state, *queues_unknown* why no progress is known."""

    row: PipelineRow
    troubles: tuple[Trouble, ...]
    note: str = ""
    result: str = ""
    queues: tuple[PipelineQueue, ...]
    queues_left_out: int = 0
    queues_unknown: str = ""
    audit: Audit | None = None
