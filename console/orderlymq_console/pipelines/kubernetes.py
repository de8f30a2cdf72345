"""
Pipelines of a Cluster on Kubernetes: the resources in its namespace, with the status that the operator writes.

Rules: they are listed at most once a second. A Pipeline of another Cluster is not shown.
"""

from datetime import datetime
from typing import Any, Final

import orjson
from pydantic import ValidationError

from orderlymq_console.apiserver import ApiServer, ApiServerSilent
from orderlymq_console.models import Figure, Model
from orderlymq_console.pipelinemodels import Audit, AuditState, unknown_audit
from orderlymq_console.pipelines.reports import (
    PIPELINES_MAX,
    PipelineReport,
    PipelinesUnread,
    QueueReport,
    SpecReport,
    shortened,
)

_LIST: Final = "/apis/orderlymq.io/v1alpha1/namespaces/{}/pipelines?limit={}"
_SIZE_MAX: Final = 64 * 1024 * 1024  # for 500 Pipelines with at most 4,096 queues each
_OPERATOR: Final = "orderlymq-operator"
_NOT_HERE: Final = "only its summary is known; its findings are on its volume"


class OffsetReport(Model):
    """How far a queue has been read."""

    topic: str
    broker: str
    queue: int
    offset: int


class ReportedCondition(Model):
    """A condition of the status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class StatusReport(Model):
    """The status that the operator writes; every member may be absent."""

    phase: str | None = None
    last_batch: int | None = None
    rows: int | None = None
    rows_per_second: float | None = None
    lag: int | None = None
    offsets: tuple[OffsetReport, ...] = ()
    result: str | None = None
    last_error: str | None = None
    conditions: tuple[ReportedCondition, ...] = ()


class WriterReport(Model):
    """A writer of a part of a resource, and the time of its last write."""

    manager: str = ""
    subresource: str = ""
    time: str = ""


class MetadataReport(Model):
    """The name of a resource, and its writers."""

    name: str
    managed_fields: tuple[WriterReport, ...] = ()


class ClusterPipelines:
    """The Pipelines in the namespace of a Cluster that refer to this Cluster or to none."""

    def __init__(self, namespace: str, cluster: str, server: ApiServer) -> None:
        self._namespace, self._cluster = namespace, cluster
        self._path = _LIST.format(namespace, PIPELINES_MAX)
        self._server = server

    async def read(self) -> tuple[PipelineReport, ...]:
        """List the Pipelines.

        Raises:
            PipelinesUnread: The API server refuses or does not answer.
        """
        try:
            status, body = await self._server.get(self._path, size_max=_SIZE_MAX)
        except ApiServerSilent as error:
            raise PipelinesUnread(str(error)) from error
        if status != 200:
            raise PipelinesUnread(_refusal(status, body))
        return self._reports(body)

    def _reports(self, body: bytearray) -> tuple[PipelineReport, ...]:
        try:
            items = orjson.loads(body)["items"]
            found = [_pipeline(self._namespace, item) for item in items]
        except (ValueError, KeyError, TypeError) as error:
            raise PipelinesUnread(
                f"the API server's list of Pipelines cannot be read: {error}"
            ) from error
        return tuple(each for each in found if self._is_own(each))

    def _is_own(self, each: PipelineReport) -> bool:
        reference = None if each.spec is None else each.spec.cluster_ref
        if reference is None:
            return True
        place = reference.get("namespace") or self._namespace
        return reference.get("name") == self._cluster and place == self._namespace


def _refusal(status: int, body: bytearray) -> str:
    if status == 404:
        return "the API server knows no Pipelines; install their definition (crds.install of the chart)"
    try:
        said = orjson.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        said = ""
    return shortened(f"the API server refuses to list Pipelines ({status}): {said}")


def _pipeline(namespace: str, item: dict[str, Any]) -> PipelineReport:
    metadata = MetadataReport.model_validate(item["metadata"])
    place = f"Pipeline {namespace}/{metadata.name}"
    try:
        spec = SpecReport.model_validate(item["spec"])
        status = StatusReport.model_validate(item.get("status") or {})
    except (ValidationError, KeyError) as error:
        reason = f"the resource cannot be read: {error}"
        return PipelineReport(name=metadata.name, place=place, unknown=shortened(reason))
    ready = next((each for each in status.conditions if each.type == "Ready"), None)
    return PipelineReport(
        name=metadata.name,
        place=place,
        spec=spec,
        own_cluster=True if spec.cluster_ref is not None and not spec.name_servers else None,
        phase=status.phase or "",
        unknown="" if status.phase else "the operator has not reported it yet",
        note="" if ready is None or ready.status == "True" else shortened(ready.message),
        changed_ms=_changed_ms(metadata),
        last_batch=status.last_batch,
        rows=status.rows,
        rows_per_second=status.rows_per_second,
        lag=status.lag,
        queues=tuple(
            QueueReport(each.topic, each.broker, each.queue, each.offset) for each in status.offsets
        ),
        result=shortened(status.result),
        last_error=shortened(status.last_error),
        audit=_audit(status, ready) if spec.type == "order-audit" else None,
    )


def _audit(status: StatusReport, ready: ReportedCondition | None) -> Audit:
    """Return the sentence of the last run; its findings are in a file on the Pipeline's volume."""
    if status.result is None or ready is None:
        return unknown_audit(
            "no audit has finished yet; a stream reports its findings when it ends"
        )
    # While another run is under way, the condition describes that run.
    state: AuditState = "unknown"
    if ready.reason == "FindingsFound":
        state = "broken"
    elif status.phase in ("Finished", "Scheduled") and ready.status == "True":
        state = "kept"
    return Audit(state=state, text=shortened(status.result), count=Figure(unknown=_NOT_HERE))


def _changed_ms(metadata: MetadataReport) -> int | None:
    """Return when the operator last wrote the status, as the API server recorded it; None if it recorded no time."""
    times = [
        each.time
        for each in metadata.managed_fields
        if each.manager == _OPERATOR and each.subresource == "status" and each.time
    ]
    try:
        return max(
            (int(datetime.fromisoformat(each).timestamp() * 1000) for each in times), default=None
        )
    except ValueError:
        return None
