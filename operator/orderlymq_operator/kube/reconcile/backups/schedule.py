"""
One reconcile of one ScheduledBackup: make the Backup that is due, delete those that are not kept, report.

Rules: a Backup is named after its time, so that it is made once, even if another operator tries again. The status
contains the next time before it comes. Backups are deleted with their schedule, but their stored data stays. Backups
that the retention does not keep are deleted with their stored data, but only after the schedule and its Backups were
read.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ConflictError, NotFoundError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.ownership import owned
from orderlymq_operator.kube.observe.inventory import Inventory, Item, Key
from orderlymq_operator.kube.reconcile.backups.times import Due, Schedule, ScheduleInvalid, due
from orderlymq_operator.kube.reconcile.status import previous_facts
from orderlymq_operator.kube.reconcile.writer import StatusWriter
from orderlymq_operator.kube.resources import BACKUPS, SCHEDULED_BACKUPS, TIME_FORMAT, Json
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.backups.lifecycle import ENDED
from orderlymq_operator.plan.backups.retention import MadeBackup, surplus
from orderlymq_operator.resources.backups.scheduledbackup import ScheduledBackup

_log = logging.getLogger(__name__)

# The pause while a Backup runs, because its end does not wake this reconcile.
BUSY_S: Final = 10.0
# The longest pause, so that the operator notices a changed clock.
_PAUSE_MAX_S: Final = 300.0


class ScheduleReconciler:
    """Reconciles ScheduledBackups; `reconcile` is called for one key at a time."""

    def __init__(
        self,
        api: Api,
        inventory: Inventory,
        metrics: OperatorMetrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._metrics = metrics
        self._now = now
        self._writer = StatusWriter(api, inventory, metrics)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile once; return the seconds until the next reconcile is due, or None if none is planned.

        Raises:
            ApiError: the API server could not be read or written; try again.
        """
        with self._metrics.reconciles.time():
            await self._inventory.refresh(key)
            item = self._inventory.item("ScheduledBackup", key)
            if item is None or item.deleting_since is not None:
                self._writer.failures.forget(key)
                self._metrics.forget_schedule(key)
                return None
            wanted = item.manifest
            if not isinstance(wanted, ScheduledBackup):
                await self._writer.not_ready(item, "Invalid", item.error)
                return None
            if item.is_paused:
                return None
            try:
                schedule = Schedule.parse(wanted.spec.schedule, wanted.spec.time_zone)
            except ScheduleInvalid as error:
                await self._writer.not_ready(item, "Invalid", str(error))
                return None
            async with self._writer.saying_refusals(item):
                return await self._advance(item, wanted, schedule)

    async def _advance(
        self, item: Item, wanted: ScheduledBackup, schedule: Schedule
    ) -> float | None:
        now, made = self._now(), made_by(item, self._inventory.items("Backup"))
        busy = any(each.phase not in ENDED for each in made)
        noted, suspended = _moment(item.status.get("nextScheduleTime")), wanted.spec.suspend
        found = due(schedule, noted, now, suspended=suspended, busy=False)
        # The due Backup may exist already without a note in the status; then nothing is overdue.
        is_made = found.at is not None and _name(wanted, found.at) in {each.name for each in made}
        if busy and not is_made:
            found = due(schedule, noted, now, suspended=suspended, busy=True)
        facts = previous_facts(item)
        if found.at is not None:
            name = await self._make(item, wanted, found.at)
            facts |= {"lastBackup": name, "lastScheduleTime": found.at.strftime(TIME_FORMAT)}
        facts.pop("nextScheduleTime", None)
        if found.following is not None:
            facts["nextScheduleTime"] = found.following.strftime(TIME_FORMAT)
        for name in await self._surplus(item, wanted, now):
            await self._drop(item.namespace, name)
        self._metrics.set_last_complete(item.key, self._last_complete(item))
        facts["kept"] = sum(each.phase == "Complete" for each in made)
        await self._writer.write(item, {"Ready": _condition(wanted, made, found, now)}, facts)
        return _pause_s(found, now, busy=busy)

    # -- the Backups ---------------------------------------------------------------------------------

    def _last_complete(self, item: Item) -> datetime | None:
        """Return when the newest complete Backup of a schedule ended; None if there is none."""
        ends = [
            _moment(each.status.get("completedAt"))
            for each in self._inventory.items("Backup")
            if item.uid in each.owners and each.status.get("phase") == "Complete"
        ]
        return max((each for each in ends if each is not None), default=None)

    async def _make(self, item: Item, wanted: ScheduledBackup, at: datetime) -> str:
        made = backup_of(wanted, at)
        name = str(made["metadata"]["name"])
        try:
            found = await self._api.create(BACKUPS, item.namespace, made)
        except ConflictError:
            _log.info("%s/%s: Backup %s exists already", item.namespace, item.name, name)
            return name
        self._inventory.written(BACKUPS, found)
        _log.info("%s/%s: created Backup %s", item.namespace, item.name, name)
        return name

    async def _surplus(self, item: Item, wanted: ScheduledBackup, now: datetime) -> list[str]:
        """Return the Backups that the retention does not keep, from a fresh read.

        State from watches may be out of date: a user may have changed the retention or deleted other Backups.
        """
        made = made_by(item, self._inventory.items("Backup"))
        if not surplus(made, wanted.spec.retention, now):
            return []
        self._inventory.invalidate(BACKUPS.kind)
        await self._inventory.refresh(item.key)
        read = await self._inventory.read(SCHEDULED_BACKUPS, item.key)
        if read is None or read.uid != item.uid or not isinstance(read.manifest, ScheduledBackup):
            return []
        made = made_by(read, self._inventory.items("Backup"))
        return surplus(made, read.manifest.spec.retention, now)

    async def _drop(self, namespace: str, name: str) -> None:
        """Delete a Backup together with its stored data."""
        found = self._inventory.item("Backup", (namespace, name))
        if found is None:
            return
        change: Json = {
            "metadata": {
                "uid": found.uid,
                "finalizers": sorted({*found.finalizers, names.BACKUP_FINALIZER}),
            },
            "spec": {"deletionPolicy": "Delete"},
        }
        self._inventory.invalidate("Backup")
        with suppress(NotFoundError):  # it is deleted already, and no watch has shown that yet
            await self._api.patch(BACKUPS, namespace, name, change)
        await self._api.delete(BACKUPS, namespace, name, uid=found.uid)
        _log.info("%s: Backup %s is no longer kept", namespace, name)


def made_by(item: Item, backups: Iterable[Item]) -> list[MadeBackup]:
    """Return the Backups of exactly this schedule that are not being deleted.

    The Backups of a former schedule of the same name stay, independent of this schedule's retention.
    """
    return [
        MadeBackup(each.name, datetime.fromisoformat(each.created), each.status.get("phase"))
        for each in backups
        if each.namespace == item.namespace
        and item.uid in each.owners
        and each.deleting_since is None
    ]


def backup_of(wanted: ScheduledBackup, at: datetime) -> Json:
    """Return the Backup object for the time *at*."""
    labels = {names.LABEL_SCHEDULE: wanted.metadata.name}
    said: dict[str, Any] = wanted.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    kept = ("clusterRef", "destination", "verify", "scratch", "resources", "deadline")
    spec = {key: said[key] for key in kept if key in said}
    return owned(wanted.kind, wanted.metadata, BACKUPS, _name(wanted, at), labels, spec=spec)


def _name(wanted: ScheduledBackup, at: datetime) -> str:
    return f"{wanted.metadata.name}-{at:%Y%m%d%H%M}"


def _condition(
    wanted: ScheduledBackup, made: list[MadeBackup], found: Due, now: datetime
) -> ConditionReport:
    if found.following is None:
        return ConditionReport("False", "Suspended", "spec.suspend is true: no Backup begins")
    running = [each.name for each in made if each.phase not in ENDED]
    if running and found.following <= now:
        text = f"Backup {running[0]} has not ended, and the next one has been due since {found.following:{TIME_FORMAT}}"
        return ConditionReport("False", "BackupOverdue", text)
    ended = [each for each in sorted(made, key=lambda each: each.at) if each.phase in ENDED]
    if ended and ended[-1].phase == "Failed":
        text = f"Backup {ended[-1].name} failed; the next one is due at {found.following:{TIME_FORMAT}}"
        return ConditionReport("False", "BackupFailed", text)
    text = f"by {wanted.spec.schedule!r} in {wanted.spec.time_zone}"
    return ConditionReport("True", "Scheduled", text)


def _pause_s(found: Due, now: datetime, *, busy: bool) -> float | None:
    if busy or found.at is not None:
        return BUSY_S
    if found.following is None:
        return None
    return min(_PAUSE_MAX_S, max(0.0, (found.following - now).total_seconds()))


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
