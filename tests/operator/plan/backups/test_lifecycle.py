"""The life of a Backup as rules over observations."""

from dataclasses import replace

import pytest

from orderlymq_operator.plan.backups.lifecycle import (
    JobFacts,
    ObservedBackup,
    Removal,
    next_removal,
    next_step,
)
from orderlymq_operator.plan.backups.report import BackupReport

ID = "20260101T000000000Z-00000000"
REPORT = BackupReport.model_validate_json(
    f'{{"id": "{ID}", "cluster": "demo", "beganMs": 1, "endedMs": 2, "spreadMs": 0, "salvaged": false,'
    '"verified": true, "sizeBytes": 3, "newBytes": 3, "files": 1, "groups": [["0", 7, 1, 3]]}'
)
NEW = ObservedBackup(cluster="demo")
RUNNING = JobFacts("Running")
DONE = JobFacts("Complete", report=REPORT)


def test_a_job_is_made_once_when_it_is_its_turn() -> None:
    """Law: a Backup makes one Job, once nothing delays it."""
    blocked = [
        replace(NEW, cluster_found=False),
        replace(NEW, ahead="older"),
        replace(NEW, cluster_problem="demo-0 has no leader"),
        replace(NEW, job=RUNNING),
    ]
    steps = [next_step(each) for each in (NEW, *blocked)]

    assert [step.start for step in steps if step] == [True, False, False, False, False]
    assert [step.condition.reason for step in steps if step] == [
        "BackupRunning",
        "ClusterNotFound",
        "BackupWaiting",
        "BackupWaiting",
        "BackupRunning",
    ]


@pytest.mark.parametrize("phase", ["Complete", "Failed"])
@pytest.mark.parametrize("job", [JobFacts(), RUNNING, DONE, JobFacts("Failed")])
def test_what_has_ended_is_never_run_again(phase: str, job: JobFacts) -> None:
    """Law: a Backup that has ended is never run again, whatever happens to its Job."""
    assert next_step(replace(NEW, phase=phase, job=job)) is None


def test_a_job_that_ends_ends_the_backup() -> None:
    """Law: a Backup is complete if its pod reports what is stored, and failed otherwise, with the pod's own words."""
    ends = [DONE, JobFacts("Failed", 4, error="no room"), JobFacts("Complete")]
    found = [next_step(replace(NEW, phase="Running", job=job)) for job in ends]

    assert [step.phase for step in found if step] == ["Complete", "Failed", "Failed"]
    assert found[0] is not None
    assert found[0].report == REPORT
    assert found[1] is not None
    assert found[1].condition.message.startswith("no room; ")
    assert found[1].attempts == 4


def test_what_is_stored_goes_before_its_backup() -> None:
    """Law: a deleted Backup waits for its running Job, then its data is deleted, with retries, before it goes."""
    failed = JobFacts("Failed", error="the store refuses")
    gone = JobFacts()

    assert next_removal(None, gone, gone) == Removal(release=True)
    assert next_removal(ID, gone, JobFacts("Complete")) == Removal(release=True)
    assert not next_removal(None, RUNNING, gone).release
    assert not next_removal(None, RUNNING, gone).start
    # Its status may not yet have what its Job has stored.
    assert next_removal(None, DONE, gone).start
    assert next_removal(ID, gone, gone).start
    assert next_removal(ID, gone, failed).retry
    assert next_removal(ID, gone, RUNNING) == replace(
        next_removal(ID, gone, RUNNING), start=False, retry=False, release=False
    )
