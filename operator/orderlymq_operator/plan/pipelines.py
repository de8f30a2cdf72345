"""
The planner of Pipelines: the next steps until the right driver runs, and no other driver runs at the same time.

Pure and level-based, like `planner`. Rules: two drivers never work on one checkpoint. A driver of another kind or of
previous work is ended, and its pods are gone, before the next one is made. A run that has ended is repeated only if
its work has changed. If a Pipeline cannot be served, its running driver is left alone; if it is forbidden, its driver
is stopped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.resources.pipelines.pipeline import Pipeline, PipelineSpec

Form = Literal["StatefulSet", "Job", "CronJob", "SparkApplication"]
Phase = Literal["Waiting", "Starting", "Running", "Scheduled", "Suspended", "Finished", "Failed"]


@dataclass(frozen=True, slots=True)
class DriverReport:
    """The present or last report of a driver about itself.

    Attributes:
        passed: False if an audit has found something; None while it runs.
        figures: last batch, rows, rate, lag and offsets, as the driver writes them.
    """

    phase: str
    result: str | None = None
    passed: bool | None = None
    error: str | None = None
    figures: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class DriverPod:
    """A pod of a driver.

    Attributes:
        form: the kind of workload that made it.
        work: the work that it was made for.
        ended: it has succeeded or failed and no longer runs.
        ending: Kubernetes is terminating it.
        revision: the pod revision that a StatefulSet gave it; empty if not known.
        maker: the UID of the object that it is deleted with; empty if not known.
        trouble: why it does not run.
        word: the last report of its driver; None if not known.
        unread: why the driver's report is not read; empty if it is read.
    """

    name: str
    form: Form
    work: str
    created: str = ""
    ended: bool = False
    succeeded: bool = False
    ready: bool = False
    ending: bool = False
    revision: str = ""
    maker: str = ""
    trouble: ConditionReport | None = None
    word: DriverReport | None = None
    unread: str = ""

    @property
    def runs(self) -> str:
        """A sentence that says that the pod runs."""
        return f"{self.name} runs; {self.unread}" if self.unread else f"{self.name} runs"


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that makes drivers, as it is in the API server.

    Attributes:
        work: the work that it was made for.
        current: it is as desired, apart from being suspended.
        former: it was made for an earlier Pipeline of the same name that is gone.
        ended: it makes no more pods: the Job or SparkApplication is complete or has given up.
        revision: the pod revision that a StatefulSet makes now; empty if not known.
        uid: the UID that its pods name as their owner.
        state: the state that it reports: the state of a SparkApplication, otherwise Complete or Failed.
    """

    form: Form
    name: str
    work: str
    suspended: bool = False
    current: bool = True
    former: bool = False
    deleting: bool = False
    ended: bool = False
    revision: str = ""
    uid: str = ""
    state: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class ObservedPipeline:
    """Existing objects of a Pipeline.

    Attributes:
        stale: number of objects, other than the workload, that are not as desired.
        cluster_found: whether the Cluster of clusterRef exists; True if none is named.
        forbidden: why it may not run: its namespace, or a field that would widen its rights.
        definition_found: whether the API server knows SparkApplications.
        unknown_fields: fields that would be written but are missing in the API server's definition.
        runs: Jobs that a schedule has made; `current` means that the schedule would make them in the same form now.
        refused_pod: why a missing driver pod cannot be made; empty if none is missing, or if no reason is reported.
        deleted_claim: name of its own volume claim, if the claim was deleted: it goes with the last pod that uses it.
    """

    workloads: tuple[Workload, ...] = ()
    pods: tuple[DriverPod, ...] = ()
    stale: int = 0
    cluster_found: bool = True
    forbidden: ConditionReport | None = None
    definition_found: bool = False
    unknown_fields: tuple[str, ...] = ()
    runs: tuple[Workload, ...] = ()
    refused_pod: str = ""
    deleted_claim: str = ""


@dataclass(frozen=True, slots=True)
class StopDriver:
    """Delete a workload and let its pods terminate."""

    form: Form
    name: str


@dataclass(frozen=True, slots=True)
class ApplyDriver:
    """Create or correct the workload and the objects that it needs."""

    form: Form


@dataclass(frozen=True, slots=True)
class SuspendDriver:
    """Suspend or resume a workload; nothing else of it changes."""

    form: Form
    name: str
    suspend: bool


@dataclass(frozen=True, slots=True)
class ReportPipeline:
    """Report the state of the Pipeline."""

    phase: Phase
    condition: ConditionReport
    word: DriverReport | None = field(default=None)
    pod: str | None = None


PipelineAction: TypeAlias = StopDriver | ApplyDriver | SuspendDriver | ReportPipeline

# States of Kubeflow's SparkApplications, by their meaning here; in all other states the application is starting.
_SPARK_RUNS: Final = {"RUNNING"}
_SPARK_ENDED: Final = {"COMPLETED"}
_SPARK_FAILED: Final = {"FAILED", "SUBMISSION_FAILED"}


def form_of(spec: PipelineSpec) -> Form:
    """Return the kind of workload that makes the drivers of a pipeline."""
    if spec.backend == "sparkApplication":
        return "SparkApplication"
    if spec.continuous:
        return "StatefulSet"
    return "Job" if spec.schedule is None else "CronJob"


def plan_pipeline(pipeline: Pipeline, work: str, seen: ObservedPipeline) -> list[PipelineAction]:
    """Return the next steps of a Pipeline; the last one always reports its state.

    Args:
        pipeline: the desired Pipeline.
        work: a text that differs if a driver has other work to do.
        seen: the observed objects.
    """
    form = form_of(pipeline.spec)
    if seen.forbidden is not None:
        # A running workload was made before the field or the permission changed.
        stops: list[PipelineAction] = [
            StopDriver(each.form, each.name) for each in seen.workloads if not each.deleting
        ]
        return [*stops, _report("Waiting", seen.forbidden, seen.pods)]
    refusal = _refusal(pipeline, form, seen)
    if refusal is not None:
        return [_report("Waiting", refusal, seen.pods)]
    own = [
        each
        for each in seen.workloads
        if _is_own(each, form, work) and not _keeps_former_pod(each, seen.pods)
    ]
    previous = [each for each in seen.workloads if each not in own]
    if form != "CronJob" or not own:
        # Runs of a removed schedule are stopped too; Kubernetes removes them only later. A run between two attempts
        # has no pod that would show it.
        previous += [run for run in seen.runs if not run.ended]
    if previous:
        stops = [StopDriver(each.form, each.name) for each in previous if not each.deleting]
        return [*stops, _previous(previous[0].name, seen.pods)]
    for pod in seen.pods:
        if not pod.ended and _is_previous(pod, form, work, own):
            return [_previous(pod.name, seen.pods)]
    return [*_steps(pipeline.spec, form, own, seen), _state_report(pipeline.spec, form, own, seen)]


def _refusal(pipeline: Pipeline, form: Form, seen: ObservedPipeline) -> ConditionReport | None:
    reference = pipeline.spec.cluster_ref
    if reference is not None and not seen.cluster_found:
        namespace = reference.namespace or pipeline.metadata.namespace
        text = f"there is no Cluster {reference.name!r} in namespace {namespace!r}"
        return ConditionReport("False", "ClusterNotFound", text)
    if form == "SparkApplication" and not seen.definition_found:
        text = "the API server knows no SparkApplication (sparkoperator.k8s.io/v1beta2)"
        return ConditionReport("False", "DefinitionMissing", text)
    if form == "SparkApplication" and seen.unknown_fields:
        text = f"the API server's definition of SparkApplication has no {', '.join(seen.unknown_fields)}"
        return ConditionReport("False", "DefinitionTooOld", text)
    if seen.deleted_claim:
        text = (
            f"{seen.deleted_claim} was deleted: Kubernetes keeps it while a driver's pod uses it, and the next driver begins "
            "without a checkpoint"
        )
        return ConditionReport("False", "ClaimDeleted", text)
    return None


def _is_own(each: Workload, form: Form, work: str) -> bool:
    """Return whether a workload may become the desired one.

    Of a Job only `suspend` can change; of an ended workload nothing.
    """
    if each.form != form or each.deleting or each.former:
        return False
    if each.ended:
        return each.work == work
    return form != "Job" or (each.work == work and each.current)


def _keeps_former_pod(each: Workload, pods: Sequence[DriverPod]) -> bool:
    """Return whether a StatefulSet has a pod of a former revision that is not ready: Kubernetes replaces only ready pods.

    A pod of an earlier StatefulSet that is gone does not count: the garbage collector ends it sooner or later.
    """
    return each.revision != "" and any(
        (pod.form, pod.maker) == (each.form, each.uid)
        and not (pod.ready or pod.ended or pod.ending)
        and pod.revision not in ("", each.revision)
        for pod in pods
    )


def _waits_in_vain(run: Workload, form: Form, pods: Sequence[DriverPod]) -> bool:
    """Return whether a run of a former form has not begun.

    The pod of a Job that does not run waits for what it was made with, and the Job cannot change.
    """
    return not run.current and any(
        pod.form == form and not (pod.ready or pod.ended or pod.ending) and pod.trouble is not None
        for pod in pods
    )


def _is_previous(pod: DriverPod, form: Form, work: str, own: Sequence[Workload]) -> bool:
    # A StatefulSet replaces its only pod itself, and a run of a CronJob may end in the form in which it began. A pod
    # of a deleted workload may be left while Kubernetes ends it.
    if form == "StatefulSet":
        return pod.form != form
    return pod.form != form or not own or (form == "Job" and pod.work != work)


def _previous(name: str, pods: Sequence[DriverPod]) -> ReportPipeline:
    text = f"{name} of the previous spec is ending"
    return _report("Starting", ConditionReport("False", "PreviousDriverTerminating", text), pods)


def _steps(
    spec: PipelineSpec, form: Form, own: Sequence[Workload], seen: ObservedPipeline
) -> Iterator[PipelineAction]:
    present = own[0] if own else None
    if present is None:
        yield ApplyDriver(form)
        return
    if seen.stale or not (present.current or present.ended):
        yield ApplyDriver(form)
    if not present.ended and present.suspended != spec.suspend:
        yield SuspendDriver(form, present.name, spec.suspend)
    for run in seen.runs:
        if run.ended or run.deleting:
            continue
        # A run that never begins would hold back all later runs, so it is stopped and the schedule goes on.
        if _waits_in_vain(run, form, seen.pods):
            yield StopDriver(run.form, run.name)
        elif run.suspended != spec.suspend:
            # Suspending a schedule only prevents further runs, so each run is suspended too.
            yield SuspendDriver(run.form, run.name, spec.suspend)


# -- reporting -----------------------------------------------------------------------------------


def newest(pods: Sequence[DriverPod]) -> DriverPod | None:
    """Return the pod to report: a pod that has not ended before one that has, then the youngest."""
    return max(pods, key=lambda pod: (not pod.ended, pod.created, pod.name), default=None)


def _state_report(
    spec: PipelineSpec, form: Form, own: Sequence[Workload], seen: ObservedPipeline
) -> ReportPipeline:
    present = own[0] if own else None
    pod = newest([each for each in seen.pods if each.form == form])
    alive = pod is not None and not pod.ended
    over = present is not None and present.ended
    if spec.suspend and not over:
        text = f"{pod.name} is ending" if alive and pod is not None else "no driver runs"
        return _report("Suspended", ConditionReport("False", "Suspended", text), seen.pods)
    if seen.refused_pod and not (alive or over):
        refused = ConditionReport("False", "ApiRefused", seen.refused_pod)
        return _report("Starting", refused, seen.pods)
    if form == "SparkApplication":
        phase, condition = _of_application(present, pod)
    elif form == "Job":
        phase, condition = _of_job(present, pod, _last_failure(seen.pods))
    elif form == "CronJob":
        phase, condition = _of_schedule(present, pod)
    else:
        phase, condition = _of_stream(present, pod)
    return _report(phase, condition, seen.pods)


_Outcome: TypeAlias = tuple[Phase, ConditionReport]


def _last_failure(pods: Sequence[DriverPod]) -> DriverPod | None:
    """Return the attempt before the present one."""
    return newest([pod for pod in pods if pod.form == "Job" and pod.ended and not pod.succeeded])


def _of_stream(present: Workload | None, pod: DriverPod | None) -> _Outcome:
    if present is None or pod is None:
        return _starting("the driver is being created")
    if pod.ready:
        return "Running", ConditionReport("True", "DriverRunning", pod.runs)
    return _trouble(pod) or _starting(f"{pod.name} starts")


def _of_job(present: Workload | None, pod: DriverPod | None, before: DriverPod | None) -> _Outcome:
    if present is None:
        return _starting("the driver is being created")
    if present.ended:
        word = None if pod is None else pod.word
        if present.state == "Complete":
            return _ended_well(word)
        return _found(word) or _failed(word, f"{present.name} has given up")
    return _on_its_way(pod, before)


def _of_schedule(present: Workload | None, pod: DriverPod | None) -> _Outcome:
    if present is None:
        return _starting("the schedule is being created")
    if pod is not None and not pod.ended:
        trouble = _trouble(pod)
        if trouble is not None:
            return trouble
        return "Running", ConditionReport("True", "Scheduled", pod.runs)
    if pod is not None and not pod.succeeded:
        return _found(pod.word) or _failed(pod.word, f"{pod.name} has failed")
    return "Scheduled", ConditionReport("True", "Scheduled", "waits for its scheduled time")


def _of_application(present: Workload | None, pod: DriverPod | None) -> _Outcome:
    if present is None:
        return _starting("the SparkApplication is being created")
    if present.state in _SPARK_RUNS:
        said = f"; {pod.unread}" if pod is not None and pod.unread else ""
        text = f"the SparkApplication runs{said}"
        return "Running", ConditionReport("True", "DriverRunning", text)
    word = None if pod is None else pod.word
    if present.state in _SPARK_ENDED:
        return _ended_well(word)
    if present.state in _SPARK_FAILED:
        text = present.error or f"the SparkApplication is {present.state}"
        return _found(word) or _failed(word, text)
    return _starting(f"the SparkApplication is {present.state or 'new'}")


def _on_its_way(pod: DriverPod | None, before: DriverPod | None) -> _Outcome:
    if pod is None:
        return _starting("the driver's pod is being created")
    if pod.succeeded:
        return _starting(f"{pod.name} has ended")  # the Job has not noticed yet
    if pod.ready and not pod.ended:
        return "Running", ConditionReport("False", "Progressing", pod.runs)
    trouble = None if pod.ended else _trouble(pod)
    if trouble is None and before is not None:
        # Until another attempt runs, report the last one.
        return _found(before.word) or _failed(before.word, f"{before.name} has failed")
    return trouble or _starting(f"{pod.name} starts")


def _ended_well(word: DriverReport | None) -> _Outcome:
    text = (word.result if word is not None else None) or "the run succeeded"
    return "Finished", ConditionReport("True", "Finished", text)


def _found(word: DriverReport | None) -> _Outcome | None:
    if word is None or word.passed is not False:
        return None
    text = word.result or "the audit has findings"
    return "Finished", ConditionReport("False", "FindingsFound", text)


def _failed(word: DriverReport | None, otherwise: str) -> _Outcome:
    text = (word.error if word is not None else None) or otherwise
    return "Failed", ConditionReport("False", "DriverFailed", text)


def _trouble(pod: DriverPod) -> _Outcome | None:
    if pod.word is not None and pod.word.phase == "Failed":
        return _failed(pod.word, f"{pod.name} has failed")
    return None if pod.trouble is None else ("Failed", pod.trouble)


def _starting(text: str) -> _Outcome:
    return "Starting", ConditionReport("False", "Progressing", text)


def _report(phase: Phase, condition: ConditionReport, pods: Sequence[DriverPod]) -> ReportPipeline:
    pod = newest(pods)
    if pod is None:
        return ReportPipeline(phase, condition)
    return ReportPipeline(phase, condition, pod.word, None if pod.ended else pod.name)
