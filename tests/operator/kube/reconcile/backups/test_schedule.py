"""Reconciles of ScheduledBackups in virtual time: each Backup is made once at its time, and old ones are deleted."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backups.schedule import ScheduleReconciler
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import BACKUPS, SCHEDULED_BACKUPS, Json
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, custom

KEY = (NAMESPACE, "nightly")
SPEC: Json = {
    "clusterRef": {"name": "demo"},
    "destination": {"pvc": {"claimName": "backups", "path": "shop"}},
    "schedule": "30 2 * * *",
    "retention": {"keepLast": 2},
}


@dataclass
class World:
    """An API server with the schedule `nightly`, and a clock that only the tests move."""

    server: ObjectServer
    inventory: Inventory
    now: datetime
    schedules: ScheduleReconciler
    metrics: OperatorMetrics

    def put(self, **spec: Any) -> None:
        before = self.server.find(SCHEDULED_BACKUPS, *KEY) or {}
        made = custom("ScheduledBackup", "nightly", status=before.get("status", {}))
        self.server.put(SCHEDULED_BACKUPS, {**made, "spec": {**SPEC, **spec}})

    async def look(self, **passed: float) -> float | None:
        self.now += timedelta(**passed)
        self.inventory.invalidate()
        return await self.schedules.reconcile(KEY)

    def backups(self) -> list[str]:
        return sorted(
            found["metadata"]["name"]
            for found in self.server.objects.values()
            if found.get("kind") == "Backup"
        )

    def end(self, name: str, phase: str = "Complete") -> None:
        found = self.server.find(BACKUPS, NAMESPACE, name)
        assert found is not None
        meta = {**found["metadata"], "creationTimestamp": self.now.strftime("%Y-%m-%dT%H:%M:%SZ")}
        status = {"phase": phase, "completedAt": meta["creationTimestamp"]}
        self.server.put(BACKUPS, {**found, "metadata": meta, "status": status})

    def status(self) -> Json:
        found = self.server.find(SCHEDULED_BACKUPS, *KEY)
        assert found is not None
        return dict(found["status"])

    def reason(self) -> str:
        ready = condition_of(self.status(), "Ready")
        assert ready is not None
        return str(ready["reason"])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    server, metrics = ObjectServer(), OperatorMetrics()
    metrics.set_leading(leads=True)
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        begin = datetime(2026, 1, 1, 12, tzinfo=UTC)
        made: list[World] = []
        schedules = ScheduleReconciler(api, inventory, metrics, lambda: made[0].now)
        made.append(World(server, inventory, begin, schedules, metrics))
        made[0].put()
        yield made[0]


async def test_a_backup_is_made_at_its_time_once(world: World) -> None:
    """Law: a new schedule makes no Backup immediately; later it makes one for each time, however often the operator looks."""
    await world.look()
    early = world.backups()
    await world.look(hours=14, minutes=30)
    await world.look(seconds=1)
    made = world.backups()
    spec = (world.server.find(BACKUPS, NAMESPACE, made[0]) or {})["spec"]

    assert early == []
    assert made == ["nightly-202601020230"]
    assert spec["destination"] == SPEC["destination"]
    assert spec["clusterRef"] == SPEC["clusterRef"]
    assert world.status()["nextScheduleTime"] == "2026-01-03T02:30:00Z"
    assert world.reason() == "Scheduled"


async def test_one_is_made_twice_by_nobody(world: World) -> None:
    """Law: an operator that ended before it noted a Backup makes no second one after its restart,
    and reports none as overdue.
    """
    await world.look()
    before = world.server.find(SCHEDULED_BACKUPS, *KEY)
    await world.look(hours=14, minutes=30)
    assert before is not None
    world.server.put(SCHEDULED_BACKUPS, before)
    await world.look()
    during = (world.reason(), world.status()["nextScheduleTime"], world.status()["lastBackup"])
    world.server.put(SCHEDULED_BACKUPS, before)
    world.end("nightly-202601020230")
    await world.look()

    assert world.backups() == ["nightly-202601020230"]
    assert during == ("Scheduled", "2026-01-03T02:30:00Z", "nightly-202601020230")


async def test_a_schedule_goes_on_after_a_clock_was_ahead(world: World) -> None:
    """Law: if the operator's clock was a month ahead for a while, no night is left out afterwards and no Backup is made
    twice.
    """
    await world.look()
    await world.look(days=30)
    ahead = world.status()["nextScheduleTime"]
    (made,) = world.backups()
    world.end(made)
    await world.look(days=-29, seconds=-2)
    back = (world.reason(), world.status()["nextScheduleTime"])
    await world.look(days=1)

    assert ahead == "2026-02-01T02:30:00Z"
    assert back == ("Scheduled", "2026-01-03T02:30:00Z")
    assert world.backups() == ["nightly-202601030230", made]


async def test_the_next_waits_for_the_end_of_one_that_runs(world: World) -> None:
    await world.look()
    await world.look(hours=14, minutes=30)
    await world.look(days=3)
    waits = world.backups()
    world.end(waits[0])
    await world.look()

    assert waits == ["nightly-202601020230"]
    assert world.backups() == ["nightly-202601020230", "nightly-202601050230"]


async def test_one_that_has_not_ended_when_the_next_is_due_is_reported(world: World) -> None:
    """Law: if a Backup still runs when the next one is due, the schedule's condition says that none is made, and why."""
    await world.look()
    await world.look(hours=14, minutes=30)
    await world.look(hours=23, minutes=59)
    early = world.reason()
    await world.look(minutes=1)
    late = condition_of(world.status(), "Ready") or {}
    world.end("nightly-202601020230")
    await world.look()

    assert early == "Scheduled"
    assert (late["status"], late["reason"]) == ("False", "BackupOverdue")
    assert late["message"].startswith("Backup nightly-202601020230 has not ended")
    assert "2026-01-03T02:30:00Z" in late["message"]
    assert world.reason() == "Scheduled"


async def test_prometheus_hears_of_the_last_backup_and_of_one_that_failed(world: World) -> None:
    """Law: metrics show how old the newest complete Backup is and whether one failed, until the schedule is deleted."""

    def shown(name: str) -> float | None:
        labels = {"namespace": NAMESPACE, "scheduled_backup": "nightly"}
        found = f"orderlymq_operator_scheduled_backup_{name}"
        return world.metrics.registry.get_sample_value(found, labels)

    last = "last_complete_timestamp_seconds"
    await world.look()
    early = [shown("ready"), shown(last)]
    seen = []
    for phase in ("Complete", "Failed", "Complete"):
        await world.look(days=1)
        world.end(world.backups()[-1], phase)
        await world.look()
        seen.append((shown("ready"), shown(last)))
    begun = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    world.server.drop(SCHEDULED_BACKUPS, *KEY)
    await world.look()

    assert early == [1, None]
    day = 86_400
    assert seen == [(1, begun + day), (0, begun + day), (1, begun + 3 * day)]
    assert [shown("ready"), shown(last)] == [None, None]


async def test_old_ones_go_with_what_is_stored(world: World) -> None:
    """Law: the newest `keepLast` complete Backups stay; older ones go with their data.

    A failed Backup removes none of them.
    """
    await world.look()
    await world.look(hours=14, minutes=30)
    for night in range(6):
        world.end(world.backups()[-1], "Failed" if night == 3 else "Complete")
        if night == 3:
            await world.look()
            assert world.reason() == "BackupFailed"
        await world.look(days=1)
    names = world.backups()
    patched = [
        path for verb, path, *_ in world.server.asked if verb == "PATCH" and "/backups/" in path
    ]

    complete = [
        name
        for name in names
        if ((world.server.find(BACKUPS, NAMESPACE, name) or {}).get("status") or {}).get("phase")
        == "Complete"
    ]
    assert len(complete) in {2, 3}
    assert "nightly-202601020230" not in names
    assert any(path.endswith("nightly-202601020230") for path in patched), "its data is to go, too"


@pytest.mark.parametrize("unseen", ["keeps more", "deleted another"])
async def test_none_goes_by_what_a_silent_watch_showed(world: World, unseen: str) -> None:
    """Law: the operator reads schedule and Backups again before it deletes one, because its watch may be late."""
    await world.look()
    for hours in (14.5, 24, 24):
        await world.look(hours=hours)
        world.end(world.backups()[-1])
    first, second, third = world.backups()
    if unseen == "keeps more":
        world.put(retention={"keepLast": 5})
    else:
        world.server.drop(BACKUPS, NAMESPACE, second)
    ended = world.server.find(BACKUPS, NAMESPACE, third)
    assert ended is not None
    assert world.inventory.shown(BACKUPS, ended, gone=False)

    await world.schedules.reconcile(KEY)

    assert first in world.backups()


async def test_an_old_one_that_somebody_deletes_first_is_no_failure(world: World) -> None:
    """Law: it is no failure if somebody deletes an old Backup first; no condition changes."""
    await world.look()
    for _ in range(3):
        await world.look(days=1)
        world.end(world.backups()[-1])
    world.inventory.invalidate()
    await world.inventory.refresh()
    world.server.drop(BACKUPS, NAMESPACE, world.backups()[0])

    await world.schedules.reconcile(KEY)

    assert world.reason() == "Scheduled"


async def test_a_suspended_schedule_makes_none_and_makes_up_for_none(world: World) -> None:
    await world.look()
    world.put(suspend=True)
    await world.look(days=5)
    asleep = (world.reason(), world.status().get("nextScheduleTime"))
    world.put()
    await world.look()

    assert asleep == ("Suspended", None)
    assert world.backups() == []
    assert world.status()["nextScheduleTime"] == "2026-01-07T02:30:00Z"


@pytest.mark.parametrize(
    "spec", [{"schedule": "61 * * * *"}, {"timeZone": "Europe/Atlantis"}, {"schedule": "never"}]
)
async def test_an_invalid_schedule_is_reported(world: World, spec: Json) -> None:
    world.put(**spec)
    await world.look()

    assert world.reason() == "Invalid"
    assert world.backups() == []


@pytest.mark.parametrize(
    ("status", "looks", "reason"),
    [(403, 1, "ApiRefused"), (422, 1, "ApiRefused"), (500, 4, "ApiRefused")],
)
async def test_a_backup_that_the_api_server_refuses_is_reported(
    world: World, status: int, looks: int, reason: str
) -> None:
    """Law: a schedule whose Backup the API server refuses is not Ready; its condition has the API server's own sentence."""
    await world.look()
    world.server.refused[f"POST {BACKUPS.path(NAMESPACE)}"] = (status, "exceeded quota: backups")
    told: list[str] = []
    for _ in range(looks):
        with pytest.raises(ApiError):
            await world.look(days=0 if told else 1)
        told.append(world.reason())
    message = (condition_of(world.status(), "Ready") or {})["message"]
    world.server.refused.clear()
    await world.look()

    assert told == ["Scheduled"] * (looks - 1) + [reason]
    assert "exceeded quota: backups" in message
    assert (world.reason(), len(world.backups())) == ("Scheduled", 1)


async def test_what_a_former_schedule_of_the_name_has_stored_stays(world: World) -> None:
    """Law: a new schedule does not delete the Backups of a former one of its name, which may stay for a while or be kept."""
    await world.look()
    for _ in range(2):
        await world.look(days=1)
        world.end(world.backups()[-1])
    former = world.backups()
    gone = world.server.drop(SCHEDULED_BACKUPS, *KEY)
    spec = {**SPEC, "retention": {"keepLast": 1}}
    world.server.put(
        SCHEDULED_BACKUPS, custom("ScheduledBackup", "nightly", uid="new", spec={**spec})
    )
    world.server.writes()
    await world.look(minutes=1)
    deleted = [path for method, path, *_ in world.server.writes() if method == "DELETE"]

    assert gone["metadata"]["uid"] != "new"
    assert (len(former), world.backups(), deleted) == (2, former, [])
    assert world.status()["kept"] == 0
