"""The planner of Pipelines: one driver at a time, of the right form, and nothing twice."""

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
    """Law: a stream gets a StatefulSet, a run a Job, and a schedule a CronJob."""
    found = plan(pipeline(**spec), ObservedPipeline(definition_found=True))

    assert steps(found) == [ApplyDriver(form)]
    assert report(found).phase == "Starting"


@pytest.mark.parametrize(
    ("pod", "revision", "stops"),
    [
        ({"revision": "a"}, "b", True),
        ({"revision": "a", "trouble": ConditionReport("False", "Unschedulable", "no")}, "b", True),
        ({"revision": "b"}, "b", False),
        ({"revision": "a", "ready": True}, "b", False),
        ({"revision": "a", "ending": True}, "b", False),
        ({"revision": "a", "ended": True}, "b", False),
        ({"revision": "a"}, "", False),
        ({}, "b", False),
    ],
)
def test_a_stream_whose_pod_never_ran_is_made_again_in_another_form(
    pod: dict[str, Any], revision: str, stops: bool
) -> None:
    """Law: a stream whose pod never ran is made again when corrected, because Kubernetes replaces only a ready pod."""
    wanted = pipeline(**STREAM)
    pods = (driver(wanted, **pod),)
    corrected = present(wanted, revision=revision)

    assert steps(plan(wanted, ObservedPipeline((corrected,), pods))) == (
        [StopDriver("StatefulSet", "made")] if stops else []
    )
    assert steps(plan(wanted, ObservedPipeline((), pods))) == [ApplyDriver("StatefulSet")]


def test_a_stream_that_is_made_again_waits_for_the_garbage_collector() -> None:
    """Law: a remaining pod of a deleted StatefulSet does not cause the deletion of the new one."""
    wanted = pipeline(**STREAM)
    left = (driver(wanted, revision="a", maker="former"),)
    own = (driver(wanted, revision="a", maker="corrected"),)
    corrected = present(wanted, revision="b", uid="corrected")

    assert steps(plan(wanted, ObservedPipeline((corrected,), left))) == []
    assert steps(plan(wanted, ObservedPipeline((corrected,), own))) != []


@pytest.mark.parametrize("reason", ["ImageUnavailable", "Unschedulable", "PodFailing"])
@pytest.mark.parametrize(
    ("facts", "pod", "stops"),
    [
        ({"current": False}, {}, True),
        ({"current": False}, {"ready": True}, False),
        ({"current": True}, {}, False),
        ({"current": False, "deleting": True}, {}, False),
        ({"current": False, "ended": True}, {}, False),
        ({"current": False}, {"ending": True}, False),
    ],
)
def test_a_run_that_does_not_begin_holds_no_schedule_back(
    facts: dict[str, Any], pod: dict[str, Any], reason: str, stops: bool
) -> None:
    """Law: a run that cannot begin is removed, because it would never get its schedule's new form and would block other
    runs.
    """
    wanted = pipeline(**NIGHTLY)
    waits = driver(wanted, trouble=ConditionReport("False", reason, "no"), **pod)
    run = Workload("Job", "run", work_of(wanted), **facts)
    changed = ObservedPipeline((present(wanted, current=False),), (waits,), runs=(run,))
    applied = ObservedPipeline((present(wanted),), (waits,), runs=(run,))
    stop = [StopDriver("Job", "run")] if stops else []

    assert steps(plan(wanted, changed)) == [ApplyDriver("CronJob"), *stop]
    assert steps(plan(wanted, applied)) == stop


@pytest.mark.parametrize("spec", [{}, STREAM, NIGHTLY, FOREIGN])
def test_what_is_right_is_left_alone(spec: dict[str, Any]) -> None:
    """Law: objects that are as they should be give no step."""
    wanted = pipeline(**spec)
    seen = ObservedPipeline((present(wanted),), definition_found=True)

    assert steps(plan(wanted, seen)) == []


@pytest.mark.parametrize("former", [{}, STREAM, NIGHTLY, FOREIGN])
@pytest.mark.parametrize("spec", [{}, STREAM, NIGHTLY, FOREIGN])
def test_a_driver_of_another_kind_ends_before_the_next_one_is_made(
    former: dict[str, Any], spec: dict[str, Any]
) -> None:
    """Law: a driver of another form is made only after the former workload is deleted and its pods have ended."""
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


@pytest.mark.parametrize("spec", [{}, FOREIGN])
def test_a_run_that_has_ended_is_repeated_only_for_other_work(spec: dict[str, Any]) -> None:
    """Law: an ended run is repeated only for other work (another topic), not for more memory or a new image."""
    wanted = pipeline(**spec)
    ended = present(wanted, ended=True, state="Complete", current=False)
    other = pipeline(**spec, source={"topic": "payments"}, checkpoint="other")
    seen = ObservedPipeline((ended,), definition_found=True)

    assert steps(plan(wanted, seen)) == []
    assert steps(plan(other, seen)) == [StopDriver(form_of(wanted.spec), "made")]
    assert work_of(pipeline(image="new:1", spark={"memory": "4g"})) == work_of(wanted)


@pytest.mark.parametrize("spec", [{}, STREAM, NIGHTLY, FOREIGN])
def test_nobody_takes_the_workload_of_a_former_pipeline_of_the_name(spec: dict[str, Any]) -> None:
    """Law: the workload of a former Pipeline with the same name is not taken over; it goes and the work is done again."""
    wanted = pipeline(**spec)
    ended = present(wanted, former=True, ended=True, state="Complete")
    seen = ObservedPipeline((ended,), definition_found=True)

    assert steps(plan(wanted, seen)) == [StopDriver(form_of(wanted.spec), "made")]
    assert report(plan(wanted, seen)).phase == "Starting"


def test_a_job_that_cannot_change_is_made_again_while_it_has_not_ended() -> None:
    """Law: a Job that has not ended is made again if it must change, because Jobs cannot be changed."""
    wanted = pipeline()

    found = plan(wanted, ObservedPipeline((present(wanted, current=False),)))

    assert steps(found) == [StopDriver("Job", "made")]


@pytest.mark.parametrize("spec", [{}, STREAM, NIGHTLY])
def test_a_run_of_a_schedule_that_is_gone_ends_before_another_driver_is_made(
    spec: dict[str, Any],
) -> None:
    """Law: the last run of a removed schedule ends before another driver is made,
    even if it has no pod between two attempts.
    """
    before, after = pipeline(**NIGHTLY), pipeline(**spec)
    run, ended = Workload("Job", "run", work_of(before)), driver(before, ended=True)
    waits = plan(after, ObservedPipeline((), (ended,), runs=(run,)))
    over = replace(run, ended=True)

    assert steps(waits) == [StopDriver("Job", "run")]
    assert report(waits).condition.reason == "PreviousDriverTerminating"
    leaves = ObservedPipeline((), (ended,), runs=(replace(run, deleting=True),))
    assert steps(plan(after, leaves)) == []
    lingers = ObservedPipeline((), (driver(before, ready=True),))
    assert steps(plan(after, lingers)) == []
    gone = ObservedPipeline((), (ended,), runs=(over,))
    assert steps(plan(after, gone)) == [ApplyDriver(form_of(after.spec))]


def test_suspending_a_schedule_suspends_the_run_that_it_has_begun() -> None:
    """Law: suspending a schedule also suspends its running Job; Kubernetes would suspend only future runs."""
    wanted, paused = pipeline(**NIGHTLY), pipeline(**NIGHTLY, suspend=True)
    pods = (driver(wanted, ready=True),)
    run = Workload("Job", "run", work_of(wanted))
    over, leaves = replace(run, ended=True), replace(run, deleting=True)
    stopped = replace(run, suspended=True)
    rests = present(wanted, suspended=True)

    def said(spec: Pipeline, *seen: Workload) -> list[PipelineAction]:
        return steps(plan(spec, ObservedPipeline(seen[:1], pods, runs=seen[1:])))

    pauses = [SuspendDriver("CronJob", "made", True), SuspendDriver("Job", "run", True)]
    assert said(paused, present(wanted), run) == pauses
    assert said(paused, rests, stopped, over, leaves) == []
    assert said(wanted, rests, stopped, over) == [
        SuspendDriver("CronJob", "made", False),
        SuspendDriver("Job", "run", False),
    ]


@pytest.mark.parametrize("spec", [{}, STREAM, NIGHTLY, FOREIGN])
def test_suspending_ends_the_driver_and_resuming_brings_it_back(spec: dict[str, Any]) -> None:
    """Law: suspending ends the driver's pod, and resuming brings it back; nothing is deleted."""
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
    """Law: without its Cluster a new Pipeline waits, and a running one goes on."""
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
    """Law: a SparkApplication is refused while its definition is missing or too old;
    a running driver of another kind goes on.
    """
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
    """Law: Ready is True while a stream runs, after a run has ended well, and while a schedule exists."""
    wanted = pipeline(**spec)
    seen = ObservedPipeline(
        (present(wanted, **workload),), (driver(wanted, **pod),), definition_found=True
    )

    told = report(plan(wanted, seen))

    assert (told.phase, told.condition.status, told.condition.reason) == (phase, status, reason)
    assert "Pipeline" in BY_NAME[reason].kinds


def test_between_two_attempts_the_error_of_the_last_one_stays() -> None:
    """Law: between two attempts the last one's error stays in the condition."""
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
    """Law: the report is about the youngest living pod, or else the youngest one."""
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


GOOD, BAD = "spark:1", "typo:1"


@dataclass
class World:
    """
    Workloads that make pods, pods that begin and end slowly, and a person who edits the spec.

    It follows Kubernetes' difficult rules: a StatefulSet replaces only a ready pod. A schedule makes Jobs that neither its
    suspension nor an edit reaches, and that are deleted late. A Job makes attempts with pauses between them. A pod without its
    image never begins.

    Attributes:
        images: the image of each workload.
        owners: a pod's workload, or a run's schedule, by UID.
    """

    chance: random.Random
    wanted: Pipeline
    workloads: dict[Form, Workload] = field(default_factory=dict)
    runs: dict[str, Workload] = field(default_factory=dict)
    pods: dict[str, DriverPod] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    count: int = 0
    work: str = field(init=False)

    def __post_init__(self) -> None:
        self.work = work_of(self.wanted)

    def plan(self) -> list[PipelineAction]:
        return plan_pipeline(self.wanted, self.work, self.seen())

    def seen(self) -> ObservedPipeline:
        found = tuple(
            replace(each, current=self.is_current(each), uid=self.uids[form])
            for form, each in self.workloads.items()
        )
        runs = tuple(replace(each, current=self.is_current(each)) for each in self.runs.values())
        return ObservedPipeline(found, tuple(self.pods.values()), definition_found=True, runs=runs)

    def is_current(self, each: Workload) -> bool:
        return (each.work, self.images[each.name]) == (self.work, self.wanted.spec.image)

    def perform(self, action: PipelineAction) -> None:
        match action:
            case StopDriver(form, name):
                self.change(form, name, deleting=True)
            case ApplyDriver(form):
                if form not in self.workloads:
                    self.uids[form] = self.next("uid")
                self.images[form] = str(self.wanted.spec.image)
                self.workloads[form] = Workload(
                    form, form, self.work, suspended=self.wanted.spec.suspend
                )
            case SuspendDriver(form, name, suspend):
                self.change(form, name, suspended=suspend)

    def change(self, form: Form, name: str, **facts: Any) -> None:
        if name in self.runs:
            self.runs[name] = replace(self.runs[name], **facts)
        else:
            self.workloads[form] = replace(self.workloads[form], **facts)

    def next(self, what: str) -> str:
        self.count += 1
        return f"{what}-{self.count:09}"

    def happens(self, chance: float) -> bool:
        return self.chance.random() < chance

    def pass_time(self) -> None:
        """Let Kubernetes do something, or nothing."""
        for form, each in list(self.workloads.items()):
            if each.deleting:
                if self.happens(0.5):
                    del self.workloads[form], self.uids[form]
            elif form == "StatefulSet":
                self.keep_one(each)
            elif form == "CronJob":
                self.keep_schedule(each)
            else:
                self.attempt(each, form)
        for name, run in list(self.runs.items()):
            if run.deleting or self.owners[name] not in self.uids.values():
                if self.happens(0.3):
                    del self.runs[name], self.uids[name]
            else:
                self.attempt(run, "CronJob")
        self.pass_time_of_pods()

    def pass_time_of_pods(self) -> None:
        for name, pod in list(self.pods.items()):
            # Garbage is collected late.
            if self.owners[name] not in self.uids.values() and self.happens(0.3):
                self.end(name)
            if self.pods[name].ending and self.happens(0.4):
                del self.pods[name]
            elif not pod.ended and self.images[name] == GOOD and self.happens(0.5):
                self.pods[name] = replace(self.pods[name], ready=not self.pods[name].ending)

    def end(self, name: str) -> None:
        self.pods[name] = replace(self.pods[name], ending=True, ready=False)

    def begin(self, maker: Workload, form: Form, **facts: Any) -> None:
        name = self.next("pod")
        image = self.images[name] = self.images[maker.name]
        self.owners[name] = self.uids[maker.name]
        trouble = None if image == GOOD else TROUBLE
        self.pods[name] = DriverPod(
            name, form, maker.work, name, maker=self.owners[name], trouble=trouble, **facts
        )

    def keep_one(self, each: Workload) -> None:
        revision = f"{each.work} {self.images[each.name]}"
        self.workloads["StatefulSet"] = replace(each, revision=revision)
        # The pod's name is fixed, so a new one waits until the former one is gone.
        living = [pod for pod in self.living() if pod.form == "StatefulSet"]
        for pod in living:
            if each.suspended or (pod.ready and pod.revision != revision):
                self.end(pod.name)
        if not living and not each.suspended and self.happens(0.5):
            self.begin(each, "StatefulSet", revision=revision)

    def keep_schedule(self, each: Workload) -> None:
        mine = (run for name, run in self.runs.items() if self.owners[name] == self.uids["CronJob"])
        if not each.suspended and all(run.ended for run in mine) and self.happens(0.3):
            name = self.next("run")
            self.owners[name], self.uids[name] = self.uids["CronJob"], name
            self.images[name] = self.images["CronJob"]
            self.runs[name] = Workload("Job", name, each.work)

    def attempt(self, job: Workload, form: Form) -> None:
        mine = [pod for pod in self.living() if self.owners[pod.name] == self.uids[job.name]]
        for pod in mine:
            if job.suspended:
                self.end(pod.name)
            elif pod.ready and self.happens(0.3):
                succeeded = self.happens(0.5)
                self.pods[pod.name] = replace(pod, ended=True, ready=False, succeeded=succeeded)
                if succeeded:
                    self.change(form, job.name, ended=True, state="Complete")
        if not mine and not job.suspended and not job.ended and self.happens(0.5):
            self.begin(job, form)

    def edit(self) -> None:
        spec = dict(self.chance.choice([{}, STREAM, NIGHTLY]))
        topic, image = self.chance.choice(["orders", "payments"]), self.chance.choice([GOOD, BAD])
        spec |= {"source": {"topic": topic}, "image": image, "suspend": self.happens(0.3)}
        self.wanted = pipeline(**spec)
        self.work = work_of(self.wanted)

    def drivers(self) -> list[DriverPod]:
        """Return the pods that have begun, or may begin."""
        return [pod for pod in self.living() if self.images[pod.name] == GOOD]

    def living(self) -> list[DriverPod]:
        return [pod for pod in self.pods.values() if not pod.ended]


@pytest.mark.parametrize("seed", range(60))
def test_two_drivers_never_live_at_once_whatever_is_edited_when(seed: int) -> None:
    """Law: two drivers never run at once, whatever is edited; after the last edit the wanted form comes and no step is
    left.
    """
    world = World(random.Random(seed), pipeline(image=GOOD))
    for _ in range(200):
        if world.happens(0.1):
            world.edit()
        for action in world.plan():
            world.perform(action)
        world.pass_time()
        assert len(world.drivers()) <= 1, world

    stops = 0
    for _ in range(100):
        for action in world.plan():
            stops += isinstance(action, StopDriver) and action.form == "StatefulSet"
            world.perform(action)
        world.pass_time()

    assert stops <= 1, "a stream is made again once"
    assert steps(world.plan()) == []
    (only,) = world.workloads.values()
    assert (only.form, only.work) == (form_of(world.wanted.spec), world.work)
    runs = [run for run in world.runs.values() if not run.ended]
    assert all(each.suspended == world.wanted.spec.suspend or each.ended for each in [only, *runs])
    assert all(
        world.images[pod.name] == world.wanted.spec.image and pod.work == only.work
        for pod in world.living()
    )
    if world.wanted.spec.suspend:
        assert world.living() == []
