"""A small API server with a Cluster that can be backed up, and the operator's part that makes Backups."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.names import BACKUP_FINALIZER
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.backups.backup import (
    BackupReconciler,
)
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import BACKUPS, CLUSTERS, Json
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.reconcile.backups.jobs import ID
from tests.operator.kube.samples import IMAGE, NAMESPACE, custom

SPEC: Json = {
    "clusterRef": {"name": "demo"},
    "destination": {"pvc": {"claimName": "backups"}},
}
SERVES: Json = {
    "conditions": [{"type": "Available", "status": "True", "reason": "AllGroupsAvailable"}],
    "groups": [{"name": "demo-0", "draining": False}],
}


@dataclass
class World:
    """An API server with the Cluster `demo`, and the operator's part that makes Backups."""

    server: ObjectServer
    api: Api
    inventory: Inventory
    backups: BackupReconciler

    def begin_again(self) -> None:
        """Restart the operator as another process."""
        self.inventory = Inventory(self.api, (NAMESPACE,))
        self.backups = _backups(self.api, self.inventory)

    def put(self, name: str, **facts: Any) -> None:
        spec = {**SPEC, **facts.pop("spec", {})}
        self.server.put(BACKUPS, {**custom("Backup", name, **facts), "spec": spec})
        self.inventory.invalidate()

    def put_deleted(self, at: str = "2026-01-01T00:00:00Z") -> None:
        """Store a complete Backup that was deleted at *at* and whose data is deleted first."""
        self.put(
            "monday",
            spec={"deletionPolicy": "Delete"},
            status={"phase": "Complete", "backupId": ID},
            finalizers=[BACKUP_FINALIZER],
            deletionTimestamp=at,
        )

    async def look(self, name: str) -> float | None:
        self.inventory.invalidate()
        return await self.backups.reconcile((NAMESPACE, name))

    def status(self, name: str) -> Json:
        found = self.server.find(BACKUPS, NAMESPACE, name)
        assert found is not None
        return dict(found["status"])

    def reason(self, name: str) -> str:
        ready = condition_of(self.status(name), "Ready")
        assert ready is not None
        return str(ready["reason"])


@asynccontextmanager
async def backing_up() -> AsyncIterator[World]:
    """Serve the API with the Cluster, which can be backed up."""
    server = ObjectServer()
    server.put(CLUSTERS, custom("Cluster", "demo", status=SERVES))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        yield World(server, api, inventory, _backups(api, inventory))


def _backups(api: Api, inventory: Inventory) -> BackupReconciler:
    defaults = Defaults(IMAGE, "IfNotPresent")
    return BackupReconciler(api, inventory, OperatorMetrics(), defaults)
