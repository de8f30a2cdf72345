"""
Observed state of a Job of `orderlymq backup`: whether it runs or has ended, and the reports of its pods.

Pure. The report of a pod is its container's termination message, or the end of its log if it was killed. A Job that is
being deleted counts as running while one of its pods runs.
"""

from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.job import CONTAINER
from orderlymq_operator.kube.objects.ownership import owners
from orderlymq_operator.kube.observe.pods import IMAGE_UNAVAILABLE, container_status, pod_facts
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.backups.lifecycle import JobFacts, JobState
from orderlymq_operator.plan.backups.report import BackupReport, FailureReport, read_report

_LINE_MAX: Final = 300


def job_facts(
    job: Json | None, pods: list[Json], image_form: str, refused_pod: str = ""
) -> JobFacts:
    """Return the facts about a Job; of *pods*, only its own count. *image_form* is the form of the image of new Jobs.

    *refused_pod* is why it has no living pod; empty if it has one or no event explains it.
    """
    if job is None:
        return JobFacts()
    uid = job["metadata"].get("uid")
    own = sorted(
        (pod for pod in pods if uid in owners(pod, "Job")),
        key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")),
    )
    ended = {
        found["type"]
        for found in (job.get("status") or {}).get("conditions") or []
        if found["status"] == "True" and found["type"] in {"Complete", "Failed"}
    }
    state: JobState = "Running"
    if ended:
        state = "Complete" if "Complete" in ended else "Failed"
    elif "deletionTimestamp" in job["metadata"] and all(terminated(pod) for pod in own):
        state = "Missing"
    report, error = None, ""
    for pod in own:
        last = terminated(pod)
        said = None if last is None else word_of(last)
        if isinstance(said, BackupReport):
            report = said
        elif said is not None:
            error = said
    troubles = [facts.trouble for facts in map(pod_facts, own) if facts.trouble is not None]
    notes = job["metadata"].get("annotations") or {}
    return JobFacts(
        state=state,
        failed=int((job.get("status") or {}).get("failed") or 0),
        report=report,
        error=error or _reason(job),
        trouble=(troubles[-1].text if troubles else refused_pod) if state == "Running" else "",
        name=job["metadata"]["name"],
        uid=str(uid or ""),
        in_vain=state == "Running"
        and any(trouble.reason == IMAGE_UNAVAILABLE for trouble in troubles)
        and notes.get(names.ANNOTATION_REVISION) != image_form,
    )


def terminated(
    pod: Json, container: str = CONTAINER, kind: str = "containerStatuses"
) -> Json | None:
    """Return the last end of a container, even if it was restarted since; None if it has not ended yet."""
    status = container_status(pod, (container,), kind)
    for state in ("state", "lastState"):
        found = (status.get(state) or {}).get("terminated")
        if found:
            return dict(found)
    return None


def word_of(ended: Json) -> BackupReport | str:
    """Return the report of a container that has ended, or why it failed."""
    text = (ended.get("message") or "").strip()
    said = read_report(text)
    if isinstance(said, FailureReport):
        return said.error
    if said is not None and ended.get("exitCode") == 0:
        return said
    lines = text.splitlines()
    why = ended.get("reason") or "Error"
    last = f": {lines[-1][:_LINE_MAX]}" if lines and said is None else ""
    return f"the pod ended with {ended.get('exitCode')} ({why}){last}"


def _reason(job: Json) -> str:
    for found in (job.get("status") or {}).get("conditions") or []:
        if found["type"] == "Failed" and found["status"] == "True":
            return f"{found.get('reason', 'Failed')}: {found.get('message', '')}".strip(": ")
    return ""
