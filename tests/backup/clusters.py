"""Clusters in this process that are backed up, and clusters that are restored from the backups."""

from pathlib import Path

from orderlymq.admin.client import AdminClient
from orderlymq_backup.create import create
from orderlymq_backup.manifest import Backup, Part
from orderlymq_backup.restore import Target, restore
from orderlymq_backup.storage import Storage
from orderlymq_broker.store.replica import Identity

# The names that `orderlymq_testing` gives its cluster and its broker group.
CLUSTER, GROUP = "test", "broker-a"


async def back_up(name_server: str, storage: Storage) -> Backup:
    """Back up the cluster that *name_server* knows."""
    async with AdminClient(name_server) as admin:
        return await create(admin, storage)


def restore_group(storage: Storage, part: Part, directory: Path, replicas: int = 1) -> None:
    """Restore all replicas of a testing cluster below *directory*."""
    nodes = range(1, replicas + 1)
    for node in nodes:
        identity = Identity(CLUSTER, GROUP, node)
        target = Target(
            directory / f"replica-{node}", identity, frozenset(nodes), frozenset({identity.group})
        )
        restore(storage, part, target)
