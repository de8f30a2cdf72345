"""
The life of a Backup (waiting, running, complete or failed), and of its stored data when the Backup is deleted.

Pure and level-based. Rules: one Backup of a Cluster runs at a time, the oldest first. A Backup that has ended never
runs again, even if its Job disappears. A Cluster that does not exist or does not serve costs no attempt.
"""

from dataclasses import dataclass
from typing import Final, Literal

from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.backups.report import BackupReport

Phase = Literal["Waiting", "Running", "Complete", "Failed"]
JobState = Literal["Missing", "Running", "Complete", "Failed"]
ENDED: Final = frozenset({"Complete", "Failed"})


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The observed state of a Job.

    Attributes:
        failed: number of pods that have failed.
        report: report of the pod that succeeded.
        error: error of the last pod that failed.
        trouble: why its pod does not run.
        in_vain: its pod lacks an image, and a new pod would be made in another form.
    """

    state: JobState = "Missing"
    failed: int = 0
    report: BackupReport | None = None
    error: str = ""
    trouble: str = ""
    name: str = ""
    uid: str = ""
    in_vain: bool = False


@dataclass(frozen=True, slots=True)
class ObservedBackup:
    """Existing objects of a Backup.

    Attributes:
        phase: the phase in its status; None before the first reconcile.
        cluster: name of its Cluster.
        cluster_found: whether the Cluster exists.
        cluster_problem: why the Cluster does not serve; empty if it does.
        ahead: the earlier Backup of the same Cluster that runs first; empty if it is this one's turn.
    """

    cluster: str
    phase: str | None = None
    job: JobFacts = JobFacts()
    cluster_found: bool = True
    cluster_problem: str = ""
    ahead: str = ""


@dataclass(frozen=True, slots=True)
class BackupStep:
    """The next step of a Backup, and its status.

    Attributes:
        start: create its Job.
        report: what has been stored, if that has just become known.
        attempts: number of pods that have failed.
        error: why the last pod failed.
    """

    phase: Phase
    condition: ConditionReport
    start: bool = False
    report: BackupReport | None = None
    attempts: int = 0
    error: str = ""


def next_step(seen: ObservedBackup) -> BackupStep | None:
    """Return the next step; None for a Backup that has ended."""
    if seen.phase in ENDED:
        return None
    job = seen.job
    match job.state:
        case "Missing":
            return _before(seen)
        case "Running":
            return _running(job)
        case "Complete" if job.report is not None:
            text = f"backup {job.report.id} is stored" + (
                " and was read back" if job.report.verified else ""
            )
            done = ConditionReport("True", "BackupComplete", text)
            return BackupStep("Complete", done, report=job.report, attempts=job.failed)
        case _:
            error = job.error or "its pod is gone, and its result is not known"
            return failure(error, job.failed)


def failure(error: str, attempts: int = 0) -> BackupStep:
    """Return the final step of a Backup that has failed."""
    condition = ConditionReport("False", "BackupFailed", f"{error}; a new Backup tries again")
    return BackupStep("Failed", condition, attempts=attempts, error=error)


def _before(seen: ObservedBackup) -> BackupStep:
    if not seen.cluster_found:
        text = f"there is no Cluster {seen.cluster!r} in this namespace"
        return BackupStep("Waiting", ConditionReport("False", "ClusterNotFound", text))
    for text in (
        f"Backup {seen.ahead!r} of the same Cluster comes first" if seen.ahead else "",
        f"Cluster {seen.cluster!r} does not serve: {seen.cluster_problem}"
        if seen.cluster_problem
        else "",
    ):
        if text:
            return BackupStep("Waiting", ConditionReport("False", "BackupWaiting", text))
    text = "the Job is being created"
    return BackupStep("Running", ConditionReport("False", "BackupRunning", text), start=True)


def _running(job: JobFacts) -> BackupStep:
    text = "the Job runs"
    if job.failed:
        text = f"{job.failed} attempts have failed, the last one because {job.error or 'of its pod'}; the operator tries again"
    elif job.trouble:
        text = job.trouble
    running = ConditionReport("False", "BackupRunning", text)
    return BackupStep("Running", running, attempts=job.failed, error=job.error)


@dataclass(frozen=True, slots=True)
class Removal:
    """The next step of a Backup that is being deleted with its data.

    Attributes:
        start: create the Job that deletes.
        retry: delete that Job, which has given up, so that another one is made.
        release: let the Backup object be deleted.
        condition: the condition to report meanwhile.
    """

    start: bool = False
    retry: bool = False
    release: bool = False
    condition: ConditionReport | None = None


def next_removal(backup_id: str | None, maker: JobFacts, remover: JobFacts) -> Removal:
    """Return the next step of a deletion; *backup_id* is None if nothing has been stored.

    A Job that still makes the backup may store it at any moment, so the deletion waits for that Job.
    """
    if maker.state == "Running":
        text = "its Job still runs; the data that it stores is deleted afterwards"
        return Removal(condition=ConditionReport("False", "BackupRunning", text))
    if maker.report is not None:
        backup_id = maker.report.id
    if backup_id is None or remover.state == "Complete":
        return Removal(release=True)
    match remover.state:
        case "Missing":
            return Removal(start=True, condition=_deleting("the Job is being created"))
        case "Failed":
            text = f"{remover.error}; the operator tries again. To keep the stored data, set deletionPolicy to Retain"
            report = ConditionReport("False", "DeletionFailed", text)
            return Removal(retry=True, condition=report)
        case _:
            return Removal(condition=_deleting(remover.error or remover.trouble or "the Job runs"))


def _deleting(text: str) -> ConditionReport:
    return ConditionReport("False", "DeletingStored", text)
