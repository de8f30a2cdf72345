"""The planner of Pipelines: one driver at a time, the right one, and nothing twice."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orderlymq_operator.kube.objects.pipeline import work_of
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.pipelines import (
    ApplyDriver,
    DriverPod,
    DriverReport,
    Form,
    ObservedPipeline,
    PipelineAction,
    ReportPipeline,
    StopDriver,
    SuspendDriver,
    Workload,
    form_of,
    plan_pipeline,
)
from orderlymq_operator.resources.conditions.table import BY_NAME
from orderlymq_operator.resources.kinds import Pipeline
from tests.operator.examples import pipeline

STREAM: dict[str, Any] = {"trigger": "5s"}
NIGHTLY: dict[str, Any] = {"schedule": "0 3 * * *"}
FOREIGN: dict[str, Any] = {"backend": "sparkApplication"}


def steps(found: list[PipelineAction]) -> list[PipelineAction]:
    return found[:-1]


def report(found: list[PipelineAction]) -> ReportPipeline:
    last = found[-1]
    assert isinstance(last, ReportPipeline)
    return last


def plan(wanted: Pipeline, seen: ObservedPipeline) -> list[PipelineAction]:
    return plan_pipeline(wanted, work_of(wanted), seen)


def present(wanted: Pipeline, **facts: Any) -> Workload:
    return Workload(form_of(wanted.spec), "made", work_of(wanted), **facts)


def driver(wanted: Pipeline, name: str = "pod-0", **facts: Any) -> DriverPod:
    return DriverPod(name, form_of(wanted.spec), work_of(wanted), **facts)


@pytest.mark.parametrize(
    ("spec", "form"),
    [({}, "Job"), (STREAM, "StatefulSet"), (NIGHTLY, "CronJob"), (FOREIGN, "SparkApplication")],
)
def test_what_is_missing_is_made(spec: dict[str, Any], form: Form) -> None:
    """A stream gets a StatefulSet, a run that ends a Job, one with a schedule a CronJob."""
    found = plan(pipeline(**spec), ObservedPipeline(definition_found=True))

    assert steps(found) == [ApplyDriver(form)]
    assert report(found).phase == "Starting"


@pytest.mark.parametrize(
    ("current", "reason", "step"),
    [
        (False, "ImageUnavailable", StopDriver("StatefulSet", "made")),
        (False, "PodFailing", ApplyDriver("StatefulSet")),
        (True, "ImageUnavailable", None),
    ],
)
def test_a_stream_that_lacks_its_image_is_made_again_in_another_form(
    current: bool, reason: str, step: PipelineAction | None
) -> None:
    """Kubernetes replaces a pod that runs, and none that never did: another pull secret would not reach it."""
    wanted = pipeline(**STREAM)
    pod = driver(wanted, trouble=ConditionReport("False", reason, "no"))
    found = plan(wanted, ObservedPipeline((present(wanted, current=current),), (pod,)))

    assert steps(found) == [each for each in [step] if each is not None]
    gone = ObservedPipeline((), (pod,))
    assert steps(plan(wanted, gone)) == [ApplyDriver("StatefulSet")]


@pytest.mark.parametrize(
    ("facts", "reason", "stops"),
    [
        ({"current": False}, "ImageUnavailable", True),
        ({"current": False}, "PodFailing", False),
        ({"current": True}, "ImageUnavailable", False),
        ({"current": False, "deleting": True}, "ImageUnavailable", False),
    ],
)
def test_a_run_that_lacks_its_image_holds_no_schedule_back(
    facts: dict[str, Any], reason: str, stops: bool
) -> None:
    """A run never takes over what its schedule says now, and while it waits no other one begins."""
    wanted = pipeline(**NIGHTLY)
    pod = driver(wanted, trouble=ConditionReport("False", reason, "no"))
    run = Workload("Job", "run", work_of(wanted), **facts)
    changed = ObservedPipeline((present(wanted, current=False),), (pod,), runs=(run,))
    applied = ObservedPipeline((present(wanted),), (pod,), runs=(run,))
    stop = [StopDriver("Job", "run")] if stops else []

    assert steps(plan(wanted, changed)) == [ApplyDriver("CronJob"), *stop]
    assert steps(plan(wanted, applied)) == stop


@pytest.mark.parametrize("spec", [{}, STREAM, NIGHTLY, FOREIGN])
def test_what_is_right_is_left_alone(spec: dict[str, Any]) -> None:
    """An object that is as it should be gives no step, however often one looks."""
    wanted = pipeline(**spec)
    seen = ObservedPipeline((present(wanted),), definition_found=True)

    assert steps(plan(wanted, seen)) == []


@pytest.mark.parametrize("former", [{}, STREAM, NIGHTLY, FOREIGN])
@pytest.mark.parametrize("spec", [{}, STREAM, NIGHTLY, FOREIGN])
def test_a_driver_of_another_kind_ends_before_the_next_one_is_made(
    former: dict[str, Any], spec: dict[str, Any]
) -> None:
    """First its workload goes, then its pods are waited for, then the new one comes."""
    before, after = pipeline(**former), pipeline(**spec)
    if form_of(before.spec) == form_of(after.spec):
        return
    seen = ObservedPipeline(
        (present(before),), (driver(before, ready=True),), definition_found=True
    )

    stopped = plan(after, seen)
    leaving = replace(seen, workloads=(present(before, deleting=True),))
    lingering = replace(seen, workloads=())
    gone = replace(seen, workloads=(), pods=(driver(before, ended=True),))

    assert steps(stopped) == [StopDriver(form_of(before.spec), "made")]
    assert steps(plan(after, leaving)) == steps(plan(after, lingering)) == []
    assert report(plan(after, lingering)).condition.reason == "PreviousDriverTerminating"
    assert steps(plan(after, gone)) == [ApplyDriver(form_of(after.spec))]


def test_a_run_that_has_ended_is_repeated_only_for_other_work() -> None:
    """Neither more memory nor a new image brings a redrive back; another topic is another run."""
    wanted = pipeline()
    ended = present(wanted, ended=True, state="Complete", current=False)
    other = pipeline(source={"topic": "payments"}, checkpoint="other")

    assert steps(plan(wanted, ObservedPipeline((ended,)))) == []
    assert steps(plan(other, ObservedPipeline((ended,)))) == [StopDriver("Job", "made")]
    assert work_of(pipeline(image="new:1", spark={"memory": "4g"})) == work_of(wanted)


def test_a_job_that_cannot_change_is_made_again_while_it_has_not_ended() -> None:
    """A wrong image is cured by the right one."""
    wanted = pipeline()

    found = plan(wanted, ObservedPipeline((present(wanted, current=False),)))

    assert steps(found) == [StopDriver("Job", "made")]


@pytest.mark.parametrize("spec", [{}, STREAM, NIGHTLY, FOREIGN])
def test_suspending_ends_the_driver_and_resuming_brings_it_back(spec: dict[str, Any]) -> None:
    """Nothing is deleted: the checkpoint and what makes the driver stay."""
    wanted, paused = pipeline(**spec), pipeline(**spec, suspend=True)
    form = form_of(wanted.spec)
    runs = ObservedPipeline(
        (present(wanted),), (driver(wanted, ready=True),), definition_found=True
    )
    rests = ObservedPipeline((present(wanted, suspended=True),), definition_found=True)

    assert steps(plan(paused, runs)) == [SuspendDriver(form, "made", True)]
    assert report(plan(paused, runs)).condition.message == "pod-0 is ending"
    assert steps(plan(paused, rests)) == []
    assert report(plan(paused, rests)).phase == "Suspended"
    assert steps(plan(wanted, rests)) == [SuspendDriver(form, "made", False)]


def test_without_its_cluster_a_pipeline_waits_and_what_runs_goes_on() -> None:
    """A Cluster that is made again under its name finds its pipelines running."""
    wanted = pipeline(**STREAM)
    runs = ObservedPipeline(
        (present(wanted, current=False),), (driver(wanted, ready=True),), cluster_found=False
    )

    found = plan(wanted, runs)

    assert steps(found) == []
    assert report(found).condition == ConditionReport(
        "False", "ClusterNotFound", "there is no Cluster 'demo' in namespace 'shop'"
    )


def test_a_spark_application_without_its_definition_is_refused() -> None:
    """Nothing is written, and what runs by another backend goes on."""
    before, wanted = pipeline(**STREAM), pipeline(**FOREIGN)
    seen = ObservedPipeline((present(before),), (driver(before, ready=True),))

    found = plan(wanted, seen)

    assert steps(found) == []
    assert report(found).condition.reason == "DefinitionMissing"
    seen = ObservedPipeline(definition_found=True, unknown_fields=("spec.suspend",))
    assert steps(plan(wanted, seen)) == []
    assert report(plan(wanted, seen)).condition == ConditionReport(
        "False",
        "DefinitionTooOld",
        "the API server's definition of SparkApplication has no spec.suspend",
    )


FAILED = DriverReport("Failed", error="the disk is full")
TROUBLE = ConditionReport("False", "ImageUnavailable", "no image")
FINDINGS = DriverReport("Finished", "2 findings", passed=False)


@pytest.mark.parametrize(
    ("spec", "workload", "pod", "phase", "status", "reason"),
    [
        (STREAM, {}, {"ready": True}, "Running", "True", "DriverRunning"),
        (STREAM, {}, {}, "Starting", "False", "Progressing"),
        (STREAM, {}, {"trouble": TROUBLE}, "Failed", "False", "ImageUnavailable"),
        (STREAM, {}, {"word": FAILED, "trouble": TROUBLE}, "Failed", "False", "DriverFailed"),
        ({}, {}, {"ready": True}, "Running", "False", "Progressing"),
        (
            {},
            {"ended": True, "state": "Complete"},
            {"ended": True, "succeeded": True},
            "Finished",
            "True",
            "Finished",
        ),
        (
            {},
            {"ended": True, "state": "Failed"},
            {"ended": True, "word": FAILED},
            "Failed",
            "False",
            "DriverFailed",
        ),
        ({}, {}, {"ended": True, "word": FAILED}, "Failed", "False", "DriverFailed"),
        (
            {},
            {"ended": True, "state": "Failed"},
            {"ended": True, "word": FINDINGS},
            "Finished",
            "False",
            "FindingsFound",
        ),
        (NIGHTLY, {}, {"ended": True, "succeeded": True}, "Scheduled", "True", "Scheduled"),
        (NIGHTLY, {}, {"ended": True, "word": FAILED}, "Failed", "False", "DriverFailed"),
        (NIGHTLY, {}, {"ready": True}, "Running", "True", "Scheduled"),
        (FOREIGN, {"state": "RUNNING"}, {}, "Running", "True", "DriverRunning"),
        (FOREIGN, {"state": "COMPLETED"}, {}, "Finished", "True", "Finished"),
        (FOREIGN, {"state": "FAILED", "error": "x"}, {}, "Failed", "False", "DriverFailed"),
        (FOREIGN, {"state": "FAILED"}, {"word": FINDINGS}, "Finished", "False", "FindingsFound"),
        (FOREIGN, {"state": "SUBMITTED"}, {}, "Starting", "False", "Progressing"),
    ],
)
def test_the_condition_says_how_the_driver_is(
    spec: dict[str, Any],
    workload: dict[str, Any],
    pod: dict[str, Any],
    phase: str,
    status: str,
    reason: str,
) -> None:
    """Ready is true while a stream runs, when a run has ended well, and while a schedule is kept."""
    wanted = pipeline(**spec)
    seen = ObservedPipeline(
        (present(wanted, **workload),), (driver(wanted, **pod),), definition_found=True
    )

    told = report(plan(wanted, seen))

    assert (told.phase, told.condition.status, told.condition.reason) == (phase, status, reason)
    assert "Pipeline" in BY_NAME[reason].kinds


def test_between_two_attempts_the_error_of_the_last_one_stays() -> None:
    """A condition that came and went with every attempt would help nobody."""
    wanted = pipeline()
    before = driver(wanted, "a", created="1", ended=True, word=FAILED)

    for now, reason in (
        ({}, "DriverFailed"),
        ({"ready": True}, "Progressing"),
        ({"trouble": TROUBLE}, "ImageUnavailable"),
    ):
        pods = (before, driver(wanted, "b", created="2", **now))
        told = report(plan(wanted, ObservedPipeline((present(wanted),), pods)))
        assert told.condition.reason == reason


def test_a_run_that_goes_on_is_reported_before_one_that_has_ended() -> None:
    """The youngest pod that lives, else the youngest of all."""
    wanted = pipeline()
    pods = (
        driver(wanted, "b", created="2", ended=True, word=FAILED),
        driver(wanted, "a", created="1", ended=True, word=FAILED),
        driver(wanted, "c", created="0", word=DriverReport("Running")),
    )

    told = report(plan(wanted, ObservedPipeline((present(wanted),), pods)))
    rest = report(plan(wanted, ObservedPipeline((present(wanted),), pods[:2])))

    assert (told.pod, told.word) == ("c", DriverReport("Running"))
    assert (rest.pod, rest.word) == (None, FAILED)


# -- a small Kubernetes


@dataclass
class World:
    """Workloads that make pods, pods that take their time to end, and somebody who edits the spec."""

    chance: random.Random
    wanted: Pipeline
    workloads: dict[Form, Workload] = field(default_factory=dict)
    pods: dict[str, DriverPod] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)
    count: int = 0

    def seen(self) -> ObservedPipeline:
        work = work_of(self.wanted)
        found = tuple(replace(each, current=each.work == work) for each in self.workloads.values())
        return ObservedPipeline(found, tuple(self.pods.values()), definition_found=True)

    def perform(self, action: PipelineAction) -> None:
        match action:
            case StopDriver(form, _):
                self.workloads[form] = replace(self.workloads[form], deleting=True)
            case ApplyDriver(form):
                self.workloads[form] = Workload(
                    form, form, work_of(self.wanted), suspended=self.wanted.spec.suspend
                )
            case SuspendDriver(form, _, suspend):
                self.workloads[form] = replace(self.workloads[form], suspended=suspend)

    def pass_time(self) -> None:
        """Let Kubernetes do something, or not yet."""
        for form, each in list(self.workloads.items()):
            mine = [pod for pod in self.pods.values() if pod.form == form and not pod.ended]
            if each.deleting:
                self.ending |= {pod.name for pod in mine}
                if self.chance.random() < 0.5:
                    del self.workloads[form]
            elif each.suspended:
                self.ending |= {pod.name for pod in mine}
            elif mine and form == "StatefulSet" and mine[0].work != each.work:
                self.ending.add(mine[0].name)
            elif not mine and not each.ended and self.chance.random() < 0.5:
                self.count += 1
                name = f"pod-{self.count}"
                self.pods[name] = DriverPod(name, form, each.work, created=f"{self.count:09}")
            elif mine and form != "StatefulSet" and self.chance.random() < 0.2:
                self.pods[mine[0].name] = replace(mine[0], ended=True, succeeded=True)
                if form == "Job":
                    self.workloads[form] = replace(each, ended=True, state="Complete")
        for name in sorted(self.ending):
            if self.chance.random() < 0.4:
                self.pods.pop(name, None)
                self.ending.discard(name)

    def edit(self) -> None:
        spec = dict(self.chance.choice([{}, STREAM, NIGHTLY]))
        topic = self.chance.choice(["orders", "payments"])
        spec |= {"source": {"topic": topic}, "suspend": self.chance.random() < 0.3}
        self.wanted = pipeline(**spec)

    def living(self) -> list[DriverPod]:
        return [pod for pod in self.pods.values() if not pod.ended]


@pytest.mark.parametrize("seed", range(40))
def test_two_drivers_never_live_at_once_whatever_is_edited_when(seed: int) -> None:
    """And when the editing ends, what is wanted comes about and nothing is left to do."""
    world = World(random.Random(seed), pipeline())
    for _ in range(200):
        if world.chance.random() < 0.1:
            world.edit()
        for action in plan(world.wanted, world.seen()):
            world.perform(action)
        world.pass_time()
        assert len(world.living()) <= 1, world

    for _ in range(60):
        for action in plan(world.wanted, world.seen()):
            world.perform(action)
        world.pass_time()

    assert steps(plan(world.wanted, world.seen())) == []
    (only,) = world.workloads.values()
    assert (only.form, only.work) == (form_of(world.wanted.spec), work_of(world.wanted))
    assert only.suspended == world.wanted.spec.suspend or only.ended
    if world.wanted.spec.suspend:
        assert world.living() == []
