"""A backup from the disks of a broker group that has lost its majority."""

import random
from pathlib import Path

import msgspec
import pytest

from orderlymq import Producer
from orderlymq.admin.client import AdminClient
from orderlymq.oracle.verdict import Kind
from orderlymq_backup import catalogue
from orderlymq_backup.errors import BackupError, GroupsDiffer
from orderlymq_backup.restore import verify
from orderlymq_backup.salvage import look, salvage
from orderlymq_backup.storage import Folder
from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.store.kv import Batch
from orderlymq_broker.store.replica import open_replica
from orderlymq_broker.store.rocks import DirectoryInUse, NoReplica, RocksStore
from orderlymq_broker.store.snapshot import store_path
from orderlymq_runtime.wallclock import machine_ms
from orderlymq_testing.cluster import Cluster
from tests.backup.clusters import GROUP, back_up, restore_group

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

TOPIC = "orders"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("seed", range(2))
async def test_what_the_newest_survivor_has_goes_on(tmp_path: Path, seed: int) -> None:
    """Law: everything in a survivor's log is in the new cluster at the same offset, and the disks stay unchanged."""
    chance = random.Random(seed)
    storage = Folder(tmp_path / "backups")
    with Cluster(tmp_path / "former", replicas=3) as former:
        former.create_topic(TOPIC, queues=2)
        async with Producer("shop", former.name_server) as producer:
            for number in range(chance.randrange(5, 40)):
                await producer.send(TOPIC, str(number), key=str(number % 3))
        acknowledged = [e for e in former.recording.events if e.kind is Kind.ACK]
    disks = [tmp_path / "former" / f"replica-{node}" for node in (1, 2, 3)]
    newest = max(disks, key=lambda disk: (look(disk).term, look(disk).last))
    before = contents(tmp_path / "former")

    made = salvage(storage, disks, lambda _: None)

    assert contents(tmp_path / "former") == before
    assert (made.salvaged, made.parts[0].index) == (True, look(newest).last)
    verify(storage, made, tmp_path)
    restore_group(storage, made.parts[0], tmp_path / "new")
    with Cluster(tmp_path / "new") as new:
        async with AdminClient(new.name_server) as admin:
            route = await admin.route(TOPIC)
            ends = {
                f"{queue.broker_name}:{queue.queue_id}": await admin.max_offset(queue)
                for queue in route.subscribe
            }
        async with Producer("shop", new.name_server) as producer:
            await producer.send(TOPIC, "again", key="0")
    assert sum(ends.values()) == len(acknowledged)
    assert all(each.offset < ends[each.queue] for each in acknowledged)


async def test_a_damaged_survivor_is_named_and_another_one_is_taken(tmp_path: Path) -> None:
    """Law: a damaged value could not be restored, so a salvaged backup is read completely before it counts."""
    storage, body = Folder(tmp_path / "backups"), random.Random(0).randbytes(5_000)
    with Cluster(tmp_path / "former", replicas=3) as former:
        former.create_topic(TOPIC)
        async with Producer("shop", former.name_server) as producer:
            await producer.send(TOPIC, body, key="k")
    disks = [tmp_path / "former" / f"replica-{node}" for node in (1, 2, 3)]
    newest = max(disks, key=lambda disk: (look(disk).term, look(disk).last))
    store = RocksStore(store_path(newest))
    store.flush()
    store.close()
    (table,) = (
        path for path in store_path(newest).glob("*.sst") if body[1_000:1_100] in path.read_bytes()
    )
    table.write_bytes(table.read_bytes().replace(body[1_000:1_100], body[1_000:1_100][::-1]))

    with pytest.raises(BackupError, match=f"{newest} is damaged.*name another survivor"):
        salvage(storage, disks, lambda _: None)
    assert catalogue.ids(storage) == []

    disks.remove(newest)
    verify(storage, salvage(storage, disks, lambda _: None), tmp_path)


async def test_a_replica_that_runs_or_is_none_is_refused(tmp_path: Path) -> None:
    """Law: a directory in use or an empty one gives no backup."""
    storage = Folder(tmp_path / "backups")
    with Cluster(tmp_path / "former") as former:
        former.create_topic(TOPIC)
        with pytest.raises(DirectoryInUse):
            salvage(storage, [tmp_path / "former" / "replica-1"], lambda _: None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoReplica):
        salvage(storage, [tmp_path / "empty"], lambda _: None)
    survivor = look(tmp_path / "former" / "replica-1")
    other = open_replica(tmp_path / "other", survivor.identity)
    other.close()
    with pytest.raises(BackupError, match="no log"):
        salvage(storage, [tmp_path / "other"], lambda _: None)

    assert catalogue.ids(storage) == []


async def test_an_empty_group_that_began_meanwhile_beats_no_disk_with_data(tmp_path: Path) -> None:
    """Law: replaced disks elect leaders in ever newer terms, but a disk that proves more data is never dropped for them."""
    storage = Folder(tmp_path / "backups")
    with Cluster(tmp_path / "former") as former:
        former.create_topic(TOPIC)
        async with Producer("shop", former.name_server) as producer:
            for number in range(20):
                await producer.send(TOPIC, str(number), key="k")
    for _ in range(4):
        with Cluster(tmp_path / "replaced"):
            pass
    disk, empty = (tmp_path / each / "replica-1" for each in ("former", "replaced"))

    with pytest.raises(
        BackupError, match=f"{empty} has the newest log.*{disk} proves.*one history"
    ):
        salvage(storage, [disk, empty], lambda _: None)
    mark_as_recovering(empty)
    for each in (
        disk,
        empty,
    ):  # as if both had been killed while a snapshot replaced a store
        store_path(each).rename(each / "store.new")
    made = salvage(storage, [empty, disk], lambda _: None)

    assert look(empty).term > look(disk).term
    assert made.parts[0].index == look(disk).last
    assert catalogue.ids(storage) == [made.id]


async def test_a_group_of_the_newest_backup_is_not_forgotten(tmp_path: Path) -> None:
    """Law: a group without a disk is left out only after the user has named the groups of the cluster."""
    storage = Folder(tmp_path / "backups")
    with Cluster(tmp_path / "former") as former:
        former.create_topic(TOPIC)
        made = await back_up(former.name_server, storage)
    (part,) = made.parts
    wider = msgspec.structs.replace(
        made,
        id=catalogue.new_id(machine_ms()),
        parts=(part, msgspec.structs.replace(part, group="broker-b")),
    )
    catalogue.write(storage, wider)
    disks = [tmp_path / "former" / "replica-1"]

    with pytest.raises(GroupsDiffer, match=f"{wider.id}.*broker-b.*--groups {GROUP}"):
        salvage(storage, disks, lambda _: None)
    with pytest.raises(GroupsDiffer, match="broker-b"):
        salvage(storage, disks, lambda _: None, groups=[GROUP, "broker-b"])
    salvaged = salvage(storage, disks, lambda _: None, groups=[GROUP])
    with pytest.raises(GroupsDiffer, match="broker-b"):
        salvage(storage, disks, lambda _: None)

    assert catalogue.ids(storage) == [made.id, wider.id, salvaged.id]


def mark_as_recovering(disk: Path) -> None:
    """Mark the replica as one that lost its disk and has not caught up yet."""
    store, batch = RocksStore(store_path(disk)), Batch()
    Recovery.begin(batch)
    store.write(batch, sync=True)
    store.close()
