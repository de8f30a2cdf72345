"""
Observed state of a Pipeline's workloads and driver pods, and the Pipeline status that follows from it.

Pure. The last report of a driver is the termination message of its container: JSON if the driver could write it,
otherwise the end of its log or nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, cast

import orjson

from orderlymq_operator.kube.objects import drift, names
from orderlymq_operator.kube.objects.drivers import CONTAINER, SPARK_DRIVER_CONTAINER
from orderlymq_operator.kube.observe.pods import ENDED, container_status, pod_facts
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.pipelines import (
    DriverPod,
    DriverReport,
    Form,
    ReportPipeline,
    Workload,
)
from orderlymq_operator.resources.pipelines.pipeline import QUEUES_MAX

_FIGURES: Final = {
    "last_batch": "lastBatch",
    "rows": "rows",
    "rows_per_second": "rowsPerSecond",
    "lag": "lag",
    "offsets": "offsets",
}
_TEXT_MAX: Final = 1024  # the limit of a text in the status
_NUMBER_END: Final = 1 << 63
_ENDED: Final = {"Complete", "Failed"}
_SPARK_ENDED: Final = {"COMPLETED", "FAILED"}
_SPARK_ROLE: Final = "spark-role"
_LABEL_REVISION: Final = "controller-revision-hash"  # a StatefulSet sets this label on its pods


def is_driver(pod: Json) -> bool:
    """Return whether a pod is a driver's; executors of a SparkApplication have the same labels and a role label."""
    return (pod["metadata"].get("labels") or {}).get(_SPARK_ROLE) != names.EXECUTOR


def is_past(pod: Json, since: str) -> bool:
    """Return whether a pod has ended and was made before *since*; its last report is that of a former Pipeline."""
    ended = (pod.get("status") or {}).get("phase") in ENDED
    return ended and pod["metadata"].get("creationTimestamp", "") < since


def driver_pod(pod: Json) -> DriverPod:
    """Return the facts about a driver's pod; the report of a running driver must be requested from the driver."""
    facts = pod_facts(pod)
    meta = pod["metadata"]
    container = container_status(pod, (CONTAINER, SPARK_DRIVER_CONTAINER))
    state, before = container.get("state") or {}, container.get("lastState") or {}
    ended = facts.phase in ENDED
    last = state.get("terminated") or before.get("terminated")
    trouble = facts.trouble
    return DriverPod(
        name=facts.name,
        form=cast("Form", (meta.get("labels") or {}).get(names.LABEL_FORM, "")),
        work=(meta.get("annotations") or {}).get(names.ANNOTATION_WORK, ""),
        created=meta.get("creationTimestamp", ""),
        ended=ended,
        succeeded=facts.phase == "Succeeded",
        ready=facts.ready_since is not None and not facts.deleting,
        ending=facts.deleting,
        revision=(meta.get("labels") or {}).get(_LABEL_REVISION, ""),
        maker=next((str(each["uid"]) for each in meta.get("ownerReferences") or []), ""),
        trouble=None
        if trouble is None
        else ConditionReport("False", trouble.reason, trouble.text[:_TEXT_MAX]),
        word=last_report(last) if last else None,
    )


def last_report(terminated: Json) -> DriverReport | None:
    """Return the report of a container that has ended; None if it ended with code 0 and without a report."""
    text = (terminated.get("message") or "").strip()
    found = read_report(text)
    if found is not None:
        return found
    if terminated.get("exitCode", 0) == 0:
        return None
    why = terminated.get("reason") or "Error"
    ending = f"the driver ended with {terminated.get('exitCode')} ({why})"
    # The text is the end of a log, and its last lines say most.
    return DriverReport("Failed", error=f"{ending}: {text[-_TEXT_MAX // 2 :]}" if text else ending)


def read_report(text: str) -> DriverReport | None:
    """Parse a driver's JSON report; return None if the text is not a report."""
    try:
        said = orjson.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("phase"), str):
        return None
    return DriverReport(
        phase=said["phase"],
        result=_text(said.get("result")),
        passed=said.get("passed"),
        error=_text(said.get("last_error")),
        figures=tuple((name, said[name]) for name in _FIGURES if said.get(name) is not None),
    )


def is_run(live: Json) -> bool:
    """Return whether a Job is a run of a CronJob, by its owner; its labels are copied from the pod template."""
    return any(
        owner.get("kind") == "CronJob" for owner in live["metadata"].get("ownerReferences") or []
    )


def run_of(live: Json, cron_job: Json) -> Workload:
    """Return the facts about a run of *cron_job*, the desired CronJob."""
    template = cron_job["spec"].get("jobTemplate")
    return workload_of(live, template and {"metadata": template["metadata"]})


def workload_of(
    live: Json, wanted: Json | None, is_right: Callable[[Json, Json], bool] = drift.contains
) -> Workload:
    """Return the facts about a workload; *wanted* is the desired workload without the fields that pause it."""
    meta, spec = live["metadata"], live.get("spec") or {}
    form = live["kind"]
    if form == "Job" and wanted is not None:
        # Compare metadata only: a Job's pod template cannot change later. If an admission rule changed it at creation,
        # the rule would change the next Job's, too.
        wanted, is_right = {"metadata": wanted["metadata"]}, drift.contains
    current = wanted is not None and is_right(live, wanted)
    status = live.get("status") or {}
    state, error, revision, ended = "", "", "", False
    if form == "StatefulSet":
        if status.get("observedGeneration") == meta.get("generation"):
            revision = status.get("updateRevision", "")
        suspended = spec.get("replicas") == 0
        current = current and spec.get("replicas") in {0, 1}
    else:
        suspended = bool(spec.get("suspend"))
    if form == "Job":
        state = next(
            (
                found["type"]
                for found in status.get("conditions") or []
                if found["type"] in _ENDED and found["status"] == "True"
            ),
            "",
        )
        ended = state != ""
    elif form == "SparkApplication":
        reported = status.get("applicationState") or {}
        state, error = reported.get("state", ""), reported.get("errorMessage", "")
        # With this policy, Kubeflow's operator restarts a stream after any end.
        always = (spec.get("restartPolicy") or {}).get("type") == "Always"
        ended = state in _SPARK_ENDED and not always
    return Workload(
        form=form,
        name=meta["name"],
        work=(meta.get("annotations") or {}).get(names.ANNOTATION_WORK, ""),
        suspended=suspended,
        current=current,
        deleting="deletionTimestamp" in meta,
        ended=ended,
        revision=revision,
        uid=meta.get("uid", ""),
        state=state,
        error=error[:_TEXT_MAX],
    )


def without_pause(made: Json) -> tuple[Json, Json]:
    """Return a workload without the field that pauses it, and that field alone."""
    name = "replicas" if made["kind"] == "StatefulSet" else "suspend"
    spec = dict(made["spec"])
    pause = {name: spec.pop(name)}
    return {**made, "spec": spec}, pause


def pause_of(form: Form, *, suspend: bool) -> Json:
    """Return the part of a workload's spec that pauses or resumes it."""
    return {"replicas": 0 if suspend else 1} if form == "StatefulSet" else {"suspend": suspend}


def status_facts(report: ReportPipeline, previous: Mapping[str, Any], claim: str) -> Json:
    """Return the status without its conditions; a figure stays until a newer one is known."""
    facts = dict(previous)
    facts.pop("driver", None)
    facts |= {"phase": report.phase, "claim": claim}
    if report.pod is not None:
        facts["driver"] = report.pod
    word = report.word
    if word is None:
        return facts
    for name, value in word.figures:
        shown = _shown(name, value)
        if shown is not None:
            facts[_FIGURES[name]] = shown
    if word.result is not None:
        facts["result"] = word.result
    if word.error is not None:
        facts["lastError"] = word.error
    elif word.phase in {"Running", "Finished"}:
        facts.pop("lastError", None)
    return facts


def _shown(name: str, value: Any) -> Any:
    if name == "offsets":
        return _offsets(value)
    return round(value) if isinstance(value, int | float) and 0 <= value < _NUMBER_END else None


def _number(value: Any) -> int:
    """Return a number for a status; the API server accepts integers from 0 to below 2 to the power of 63.

    Raises:
        TypeError, ValueError, OverflowError: the value is not such a number.
    """
    found = int(value)
    if not 0 <= found < _NUMBER_END:
        raise ValueError(f"{found} is out of range")
    return found


def _offsets(value: Any) -> list[Json] | None:
    """Return the offsets in order, at most as many as a status can hold; None if they have another form."""
    try:
        return [
            {"topic": topic, "broker": broker, "queue": _number(queue), "offset": _number(offset)}
            for topic, broker, queue, offset in islice(_entries(value), QUEUES_MAX)
        ]
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def _entries(value: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Yield topic, broker, queue and offset of a limited number of entries, so that long reports cost no more time."""
    room = QUEUES_MAX
    for topic, brokers in _first(value):
        for broker, queues in _first(brokers):
            room -= 1
            if room < 0:
                return
            for queue, offset in _first(queues, int):
                yield topic, broker, queue, offset


def _first(table: Any, order: Callable[[str], Any] = str) -> list[tuple[str, Any]]:
    some = islice(table.items(), QUEUES_MAX)
    return sorted(some, key=lambda entry: order(entry[0]))


def _text(value: Any) -> str | None:
    return value[:_TEXT_MAX] if isinstance(value, str) and value else None
