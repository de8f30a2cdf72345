"""A Pipeline's status from the reports of objects, pods and drivers."""

import json
from typing import Any

import pytest

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.drift import stamped
from orderlymq_operator.kube.objects.pipeline import DriverEnvironment, pipeline_workload
from orderlymq_operator.kube.observe.drivers import (
    driver_pod,
    pause_of,
    read_report,
    status_facts,
    without_pause,
    workload_of,
)
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.pipelines import DriverReport, ReportPipeline
from orderlymq_operator.resources.pipelines.pipeline import PipelineStatus
from tests.operator.examples import pipeline
from tests.operator.kube.samples import pod

AROUND = DriverEnvironment("orderlymq-spark:1", "IfNotPresent")
WORD = {
    "phase": "Running",
    "ready": True,
    "last_batch": 7,
    "rows": 1234,
    "rows_per_second": 98.6,
    "lag": 5,
    "offsets": {"orders": {"demo-0": {"10": 3, "2": 4}}},
}


def driver(**status: Any) -> Json:
    made = pod("orders-archive-pipeline-0", **status)
    made["metadata"] |= {
        "labels": {names.LABEL_FORM: "StatefulSet"},
        "annotations": {names.ANNOTATION_WORK: "abc"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return made


def ended(code: int, message: str = "", reason: str = "Error") -> Json:
    state = {"exitCode": code, "message": message, "reason": reason}
    return {"name": "driver", "state": {"terminated": state}}


def test_a_driver_that_ended_has_said_why() -> None:
    """Law: a pod's termination message is the last report of its driver."""
    message = json.dumps({"phase": "Failed", "last_error": "the disk is full", "last_batch": 3})

    other = {"name": "agent", "state": {"terminated": {"exitCode": 0}}}
    statuses = [other, ended(1, message)]
    found = driver_pod(driver(phase="Failed", containerStatuses=statuses))

    assert (found.form, found.work, found.ended, found.succeeded) == (
        *("StatefulSet", "abc"),
        *(True, False),
    )
    assert found.word == DriverReport(
        "Failed", error="the disk is full", figures=(("last_batch", 3),)
    )


@pytest.mark.parametrize(
    ("terminated", "error"),
    [
        (ended(137, "", "OOMKilled"), "the driver ended with 137 (OOMKilled)"),
        (ended(1, "java: not found\n"), "the driver ended with 1 (Error): java: not found"),
        (ended(1, "[1, 2]"), "the driver ended with 1 (Error): [1, 2]"),
    ],
)
def test_a_driver_that_could_not_say_why_is_reported_by_how_it_ended(
    terminated: Json, error: str
) -> None:
    """Law: a driver without such a message is reported by its signal or its last log lines."""
    found = driver_pod(driver(phase="Failed", containerStatuses=[terminated]))

    assert found.word == DriverReport("Failed", error=error)


def test_a_driver_that_begins_again_and_again_is_reported_with_its_last_end() -> None:
    """Law: a driver that restarts again and again is reported with its last end."""
    message = json.dumps({"phase": "Failed", "last_error": "no such topic"})
    waiting = {
        "name": "driver",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": ended(1, message)["state"],
    }

    found = driver_pod(driver(containerStatuses=[waiting]))

    assert not found.ended
    assert found.word == DriverReport("Failed", error="no such topic")
    assert found.trouble is not None
    assert found.trouble.reason == "PodFailing"


def test_the_form_of_a_pod_is_known_when_its_statefulset_has_been_looked_at() -> None:
    """Law: a pod's form is known only when the StatefulSet's controller has seen the last change."""
    made = driver()
    made["metadata"]["labels"]["controller-revision-hash"] = "a"
    live = pipeline_workload(pipeline(trigger="5s"), AROUND)
    live["metadata"]["generation"] = 2
    live["status"] = {"observedGeneration": 1, "updateRevision": "a"}

    assert driver_pod(made).revision == "a"
    assert workload_of(live, None).revision == ""
    live["status"] = {"observedGeneration": 2, "updateRevision": "b"}
    assert workload_of(live, None).revision == "b"


def test_the_status_shows_the_figures_of_the_driver() -> None:
    """Law: the status has offsets by queue number and whole rows per second, as the schema wants."""
    word = read_report(json.dumps(WORD))
    assert word is not None
    report = ReportPipeline("Running", ConditionReport("True", "DriverRunning", "x"), word, "pod-0")

    facts = status_facts(report, {}, "claim")

    assert facts == {
        "phase": "Running",
        "driver": "pod-0",
        "claim": "claim",
        "lastBatch": 7,
        "rows": 1234,
        "rowsPerSecond": 99,
        "lag": 5,
        "offsets": [
            {"topic": "orders", "broker": "demo-0", "queue": 2, "offset": 4},
            {"topic": "orders", "broker": "demo-0", "queue": 10, "offset": 3},
        ],
    }
    PipelineStatus.model_validate(facts)


def test_a_figure_stays_until_a_newer_one_is_known() -> None:
    """Law: a figure stays until a newer one is known, because a starting driver knows none."""
    former = {"lastBatch": 7, "lag": 5, "driver": "pod-0", "phase": "Running"}
    report = ReportPipeline("Suspended", ConditionReport("False", "Suspended", "x"))

    assert status_facts(report, former, "claim") == {
        "lastBatch": 7,
        "lag": 5,
        "phase": "Suspended",
        "claim": "claim",
    }


def test_an_error_goes_when_a_driver_runs_again() -> None:
    """Law: lastError goes when a driver runs again."""
    condition = ConditionReport("True", "DriverRunning", "x")
    failed = ReportPipeline("Failed", condition, DriverReport("Failed", error="full"))
    runs = ReportPipeline("Running", condition, DriverReport("Running"))

    after = status_facts(failed, {}, "claim")

    assert after["lastError"] == "full"
    assert "lastError" not in status_facts(runs, after, "claim")


@pytest.mark.parametrize(
    ("offsets", "count"),
    [
        ({"b": {"x": {str(queue): queue for queue in range(5000)}}, "a": {"x": {"1": 1}}}, 4096),
        ({"a": {str(number): {} for number in range(9000)}}, 0),
        ({str(number): {"b": {"0": 1}} for number in range(9000)}, 4096),
    ],
)
def test_a_status_has_the_first_of_many_offsets(offsets: Any, count: int) -> None:
    """Law: of many offsets the status has the first ones, sorted."""
    word = read_report(json.dumps({"phase": "Running", "offsets": offsets}))
    report = ReportPipeline("Running", ConditionReport("True", "DriverRunning", "x"), word)

    found = status_facts(report, {}, "claim")["offsets"]

    assert len(found) == count
    assert found == sorted(found, key=lambda each: (each["topic"], each["broker"], each["queue"]))


@pytest.mark.parametrize("text", ["", "no", "[]", "{}", '{"phase": 1}', "[" * 4096])
def test_what_is_no_report_says_nothing(text: str) -> None:
    """Law: any other text on the port or in the message is no report."""
    assert read_report(text) is None


@pytest.mark.parametrize(
    "figures",
    [
        {"offsets": [1]},
        {"offsets": {"t": {"b": {"x": 1}}}},
        {"offsets": {"t": {"b": {"1": float("inf")}}}},
        {"offsets": {"t": {"b": {"1": 1 << 63}}}},
        {"offsets": {"t": {"b": {"1": -1}}}},
        {"lag": -1},
        {"lag": float("inf")},
        {"lag": float("nan")},
        {"rows": 1e300},
        {"rows": "x"},
    ],
)
def test_a_figure_of_another_form_is_left_out(figures: dict[str, Any]) -> None:
    """Law: a figure of another type is omitted, because the schema would refuse the whole status."""
    word = read_report(json.dumps({"phase": "Running", **figures}))
    report = ReportPipeline("Running", ConditionReport("True", "DriverRunning", "x"), word)

    assert status_facts(report, {}, "claim") == {"phase": "Running", "claim": "claim"}


@pytest.mark.parametrize("spec", [{}, {"trigger": "5s"}, {"schedule": "@daily"}])
def test_a_workload_is_as_it_should_be_whether_it_is_paused_or_not(spec: dict[str, Any]) -> None:
    """Law: a paused workload counts as right; the operator checks the pause separately."""
    made, pause = without_pause(pipeline_workload(pipeline(**spec), AROUND))
    wanted = stamped(made)
    form = made["kind"]
    for suspend in (False, True):
        assert pause.keys() == pause_of(form, suspend=suspend).keys()
        live = {**wanted, "spec": {**wanted["spec"], **pause_of(form, suspend=suspend)}}

        found = workload_of(live, wanted)

        assert (found.current, found.suspended, found.form) == (True, suspend, form)
    newer = DriverEnvironment("orderlymq-spark:2", "IfNotPresent")
    other, _ = without_pause(pipeline_workload(pipeline(**spec), newer))
    assert not workload_of(live, stamped(other)).current


def test_two_drivers_by_hand_are_put_right() -> None:
    """Law: a StatefulSet scaled to two by hand is put right, because two drivers would wait for one lock."""
    made, _ = without_pause(pipeline_workload(pipeline(trigger="5s"), AROUND))
    wanted = stamped(made)

    assert not workload_of({**wanted, "spec": {**wanted["spec"], "replicas": 2}}, wanted).current


@pytest.mark.parametrize(
    ("conditions", "ended", "state"),
    [
        ([], False, ""),
        ([{"type": "Suspended", "status": "True"}], False, ""),
        ([{"type": "Complete", "status": "True"}], True, "Complete"),
        (
            [{"type": "FailureTarget", "status": "True"}, {"type": "Failed", "status": "True"}],
            True,
            "Failed",
        ),
    ],
)
def test_a_job_has_ended_when_it_says_so(conditions: list[Json], ended: bool, state: str) -> None:
    """Law: a Job has ended when its conditions say so; until then its pods may live."""
    live = {
        "kind": "Job",
        "metadata": {"name": "job", "annotations": {names.ANNOTATION_WORK: "abc"}},
        "spec": {},
        "status": {"conditions": conditions},
    }

    found = workload_of(live, None)

    assert (found.ended, found.state, found.work) == (ended, state, "abc")


@pytest.mark.parametrize("state", ["", "RUNNING", "COMPLETED", "FAILED", "SUBMISSION_FAILED"])
@pytest.mark.parametrize("again", ["Always", "OnFailure"])
def test_a_spark_application_has_ended_when_nobody_begins_it_again(state: str, again: str) -> None:
    """Law: a SparkApplication has ended only if Kubeflow's operator will not start it again."""
    live = {
        "kind": "SparkApplication",
        "metadata": {"name": "application"},
        "spec": {"restartPolicy": {"type": again}},
        "status": {"applicationState": {"state": state}},
    }

    found = workload_of(live, None)

    over = again == "OnFailure" and state in {"COMPLETED", "FAILED"}
    assert (found.ended, found.state) == (over, state)
