"""
The forecast for objects that use a Cluster as clients do: a Pipeline, a Backup, a ScheduledBackup.

Pure. Rules: the reconcile's own functions decide. The operator's last report counts as the current state. The forecast
does not know the operator's settings, which may forbid more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from pydantic.alias_generators import to_camel

from orderlymq_operator.kube.forecast.change import set_later
from orderlymq_operator.kube.objects import drift, names
from orderlymq_operator.kube.objects.pipeline import (
    DriverEnvironment,
    object_name,
    supporting_objects,
    work_of,
)
from orderlymq_operator.kube.observe.desired import subject_of
from orderlymq_operator.kube.observe.drivers import without_pause
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.kube.reconcile.backups.schedule import made_by
from orderlymq_operator.kube.reconcile.backups.times import Schedule, ScheduleInvalid
from orderlymq_operator.kube.reconcile.pipeline import driver_workload
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import CLAIMS, Json
from orderlymq_operator.plan.actions import Refuse
from orderlymq_operator.plan.backups.lifecycle import ObservedBackup, next_step
from orderlymq_operator.plan.backups.retention import surplus
from orderlymq_operator.plan.forecast.effects import Effect, Forecast, ResourceForecast
from orderlymq_operator.plan.pipelines import (
    ApplyDriver,
    ObservedPipeline,
    ReportPipeline,
    StopDriver,
    SuspendDriver,
    Workload,
    form_of,
    plan_pipeline,
)
from orderlymq_operator.resources.kinds import Backup, Pipeline, ScheduledBackup
from orderlymq_operator.resources.meta import IMMUTABLE, Model
from orderlymq_operator.resources.quantities import Quantity
from orderlymq_protocol.plurals import counted

# Used on both sides of a comparison, so that the operator's real settings do not matter.
_ENVIRONMENT: Final = DriverEnvironment("the operator's image", "IfNotPresent")


def forecast_using(
    before: Item | None,
    after: Item,
    *,
    cluster_found: bool,
    backups: Sequence[Item],
    now: datetime,
) -> Forecast:
    """Return the forecast of replacing *before* by *after*.

    Args:
        before: the existing object; None if it does not exist.
        after: the object after the change.
        cluster_found: whether the Cluster that it uses exists; true if it names none.
        backups: the Backups in its namespace, if it is a ScheduledBackup.
        now: the current time.
    """
    refused = list(_refused(before, after))
    if refused:
        return Forecast(refusals=tuple(refused))
    match after.manifest:
        case Pipeline() as pipeline:
            effects = list(_pipeline(before, pipeline, cluster_found=cluster_found))
        case Backup() as backup:
            effects = list(_backup(before, backup, cluster_found=cluster_found))
        case ScheduledBackup() as schedule:
            effects = list(_schedule(before, after, schedule, backups, now))
            if not cluster_found:
                text = f"its Backups wait: there is no Cluster {schedule.spec.cluster_ref.name!r}"
                effects.insert(0, Effect("Waits", text, (after.name,)))
        case _:
            effects = [Effect("Waits", f"Invalid: {after.error}", (after.name,))]
    if effects and after.is_paused:
        text = f"nothing happens while the annotation {names.ANNOTATION_PAUSE} is set"
        effects.insert(0, Effect("Waits", text, (after.name,)))
    return Forecast((ResourceForecast(subject_of(after), tuple(effects)),))


# -- what the API server refuses, and what differs ---------------------------------------------------------------------


def _refused(before: Item | None, after: Item) -> Iterator[Refuse]:
    """Yield the changes that the schema refuses."""
    if before is None or before.manifest is None or after.manifest is None:
        return
    yield from set_later(before, after)
    for path, was, now, is_fixed in _differing(before.manifest.spec, after.manifest.spec):
        if is_fixed:
            reason = "it cannot be changed"
            advice = "leave it as it is, or create another object"
            yield Refuse(after.kind, subject_of(after).name, path, reason, advice)
        elif path == "spec.storage.size" and _is_less(now, was):
            reason = f"storage never shrinks, and it is {was}"
            advice = "keep the old size, or choose a larger one"
            yield Refuse(after.kind, subject_of(after).name, path, reason, advice)


def _differing(
    old: Model, new: Model, path: str = "spec"
) -> Iterator[tuple[str, object, object, bool]]:
    """Yield the fields that differ, with both values, and whether the schema forbids the change of a set value."""
    for name, field in type(old).model_fields.items():
        was, now = getattr(old, name), getattr(new, name)
        if was == now:
            continue
        here = f"{path}.{to_camel(name)}"
        extra = field.json_schema_extra
        is_fixed = isinstance(extra, dict) and IMMUTABLE.items() <= extra.items()
        if isinstance(was, Model) and isinstance(now, Model) and not is_fixed:
            yield from _differing(was, now, here)
        else:
            yield here, was, now, is_fixed and None not in (was, now)


def _is_less(one: object, other: object) -> bool:
    return (
        isinstance(one, Quantity)
        and isinstance(other, Quantity)
        and one.size_bytes < other.size_bytes
    )


def _changes(old: Model, new: Model) -> Iterator[Effect]:
    for path, was, now, _ in _differing(old, new):
        plain = all(isinstance(each, str | int | float | None) for each in (was, now))
        text = f"{path} changes from {was!r} to {now!r}" if plain else f"{path} changes"
        yield Effect("Changes", text, (path,))


# -- Backups and ScheduledBackups --------------------------------------------------------------------------------------


def _backup(before: Item | None, wanted: Backup, *, cluster_found: bool) -> Iterator[Effect]:
    if before is not None and isinstance(before.manifest, Backup):
        yield from _changes(before.manifest.spec, wanted.spec)
        return
    name = wanted.metadata.name
    step = next_step(ObservedBackup(wanted.spec.cluster_ref.name, cluster_found=cluster_found))
    assert step is not None, "a new Backup has not ended"
    if step.start:
        text = "a Job makes the backup as soon as the Cluster serves and no other Backup of it runs"
        yield Effect("Creates", text, (name,))
    else:
        yield Effect("Waits", f"{step.condition.reason}: {step.condition.message}", (name,))


def _schedule(
    before: Item | None,
    after: Item,
    wanted: ScheduledBackup,
    backups: Sequence[Item],
    now: datetime,
) -> Iterator[Effect]:
    spec = wanted.spec
    try:
        Schedule.parse(spec.schedule, spec.time_zone)
    except ScheduleInvalid as error:
        yield Effect("Waits", f"Invalid: {error}", (after.name,))
        return
    if before is not None and isinstance(before.manifest, ScheduledBackup):
        yield from _changes(before.manifest.spec, spec)
    else:
        begin = "none while spec.suspend is true" if spec.suspend else f"by {spec.schedule!r}"
        text = f"Backups begin in future, {begin} in {spec.time_zone}"
        yield Effect("Creates", text, (after.name,))
    gone = surplus(made_by(after, backups), spec.retention, now)
    if gone:
        text = f"{counted(len(gone), 'Backup')} that the retention does not keep will be deleted immediately, with their stored data: "
        targets = tuple(f"Backup/{name}" for name in gone)
        yield Effect("DeletesData", text + ", ".join(gone), targets)


# -- Pipelines ---------------------------------------------------------------------------------------------------------


def _pipeline(before: Item | None, wanted: Pipeline, *, cluster_found: bool) -> Iterator[Effect]:
    name, form = object_name(wanted), form_of(wanted.spec)
    old = before.manifest if before is not None and isinstance(before.manifest, Pipeline) else None
    if before is not None and (text := _reported_refusal(before)):
        yield Effect("Waits", text, (wanted.metadata.name,))
    present = _workload(before, old, wanted)
    seen = ObservedPipeline(
        workloads=() if present is None else (present,),
        stale=0 if old is None or present is None else _stale(old, wanted),
        cluster_found=cluster_found,
        definition_found=True,
    )
    work = work_of(wanted)
    actions = plan_pipeline(wanted, work, seen)
    if any(isinstance(each, StopDriver) for each in actions) and present is not None:
        text = f"its {present.form} ends with its driver before another one is created"
        yield Effect("Removes", text, (f"{present.form}/{name}",))
        present = None
        actions = plan_pipeline(wanted, work, replace(seen, workloads=()))
    target = (f"{form}/{name}",)
    is_new = present is None
    goes_on = form == "CronJob" or (present is not None and (present.current or present.suspended))
    for action in actions:
        match action:
            case ApplyDriver() if is_new:
                text = "its driver is created" if form != "CronJob" else "its schedule is created"
                suspended = ", and suspended (spec.suspend)" if wanted.spec.suspend else ""
                yield Effect("Creates", f"{text}: a {form}{suspended}", target)
            case ApplyDriver() if goes_on:
                yield Effect("Changes", "its next driver is created in the new form", target)
            case ApplyDriver():
                yield Effect("Restarts", "its driver restarts in the new form", target)
            case SuspendDriver(_, _, True):
                yield Effect("Changes", "its driver ends, until spec.suspend is false", target)
            case SuspendDriver():
                yield Effect("Changes", "its driver is created again", target)
            case ReportPipeline("Waiting", condition):
                text = f"{condition.reason}: {condition.message}"
                yield Effect("Waits", text, (wanted.metadata.name,))
    if old is not None and _is_less(old.spec.storage.size, wanted.spec.storage.size):
        text = f"its volume will grow to {wanted.spec.storage.size}, if the StorageClass lets it"
        yield Effect("Changes", text, (f"PersistentVolumeClaim/{name}",))


def _workload(before: Item | None, old: Pipeline | None, wanted: Pipeline) -> Workload | None:
    """Return the workload that makes the drivers now, by the operator's last report; None if there is none."""
    if before is None or old is None:
        return None
    phase, driver = before.status.get("phase"), before.status.get("driver")
    if phase in (None, "Waiting") and driver is None:
        return None
    form = form_of(old.spec)
    return Workload(
        form,
        object_name(old),
        work_of(old),
        suspended=old.spec.suspend,
        current=form == form_of(wanted.spec) and _form(old) == _form(wanted),
        ended=form != "StatefulSet" and phase in ("Finished", "Failed") and driver is None,
    )


def _form(pipeline: Pipeline) -> Json:
    return without_pause(driver_workload(pipeline, _ENVIRONMENT))[0]


def _stale(old: Pipeline, wanted: Pipeline) -> int:
    """Return how many objects change in addition to the workload, except the volume claim, which only grows."""
    before, after = (supporting_objects(each, _ENVIRONMENT) for each in (old, wanted))
    changed = drift.changes(after, map(drift.stamped, before))
    return sum(each["kind"] != CLAIMS.kind for each in changed)


def _reported_refusal(before: Item) -> str:
    """Return the reported reason why a Pipeline waits, if the forecast cannot see it itself; empty if there is none."""
    ready = condition_of(before.status, "Ready") or {}
    if before.status.get("phase") != "Waiting" or ready.get("reason") == "ClusterNotFound":
        return ""
    return f"last reported, {ready.get('reason')}: {ready.get('message')}"
