"""Damaged backups are refused, regardless of the damaged part, and the restore leaves nothing behind."""

import asyncio
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from orderlymq import Producer
from orderlymq_backup import catalogue
from orderlymq_backup.command import backup as backup_commands
from orderlymq_backup.errors import BackupDamaged, BackupError, BackupNotFound, TargetRefused
from orderlymq_backup.manifest import Backup, blob_key, manifest_key
from orderlymq_backup.restore import (
    TERM_STEP,
    Target,
    is_restored,
    refuse_early,
    restore,
    verify,
)
from orderlymq_backup.storage import Folder
from orderlymq_broker.doctor.state import examine
from orderlymq_broker.server.restoredgroups import RestoredGroups
from orderlymq_broker.settings import Address, StorageSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.replica import Identity, open_replica, read_identity
from orderlymq_broker.store.rocks import DirectoryInUse, RocksStore
from orderlymq_raft import Membership
from orderlymq_raft.types import HardState, Index, NodeId, Term
from orderlymq_testing.cluster import Cluster
from tests.backup.clusters import back_up
from tests.broker.processors.driver import settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

NOW_MS = 4_000_000_000_000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with two backups of a small cluster."""
    folder = tmp_path_factory.mktemp("original")

    async def make() -> None:
        with Cluster(folder / "cluster") as cluster:
            cluster.create_topic("orders")
            for _ in range(2):
                async with Producer("shop", cluster.name_server) as producer:
                    await producer.send("orders", "x", key="k")
                await back_up(cluster.name_server, Folder(folder / "backups"))

    asyncio.run(make())
    return folder / "backups"


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder that may be damaged."""
    shutil.copytree(original, tmp_path / "backups")
    return tmp_path / "backups"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("damage", [flip, shorten, lengthen, Path.unlink])
def test_a_damaged_file_is_found(
    place: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Law: a file that changes, is missing or is added causes a refusal, and the directory stays empty."""
    storage = Folder(place)
    newest = catalogue.read(storage, None)
    (part,) = newest.parts
    target = Target(
        tmp_path / "replica", Identity("new", "new-0", 1), frozenset({1}), frozenset({"new-0"})
    )

    for file in part.files:
        path = place / blob_key(file.sha256)
        if not file.size and damage in (flip, shorten):
            continue
        kept = path.read_bytes()
        damage(path)
        with pytest.raises(BackupDamaged):
            restore(storage, part, target)
        assert [each.name for each in target.data_dir.iterdir()] == ["replica.lock"]
        path.write_bytes(kept)

    verify(storage, newest, tmp_path)
    restore(storage, part, target)
    assert examine(target.data_dir).findings == []


def test_a_store_that_is_not_the_manifests_is_found(place: Path, tmp_path: Path) -> None:
    """Law: a store of another group, node or position is refused, although all digests match."""
    storage = Folder(place)
    newest = catalogue.read(storage, None)
    (part,) = newest.parts
    current = hashlib.sha256(b"../../elsewhere\n").hexdigest()
    (place / blob_key(current)).parent.mkdir(exist_ok=True)
    (place / blob_key(current)).write_bytes(b"../../elsewhere\n")

    for wrong in (
        msgspec.structs.replace(part, cluster="other"),
        msgspec.structs.replace(part, group="other"),
        msgspec.structs.replace(part, node=2),
        msgspec.structs.replace(part, index=part.index + 1),
        msgspec.structs.replace(part, term=part.term + 1),
        msgspec.structs.replace(part, physical_end=part.physical_end - 1),
        msgspec.structs.replace(
            part, files=part.files[1:] if part.files[0].size else part.files[2:]
        ),
        msgspec.structs.replace(
            part,
            files=tuple(
                msgspec.structs.replace(file, sha256=current, size=16)
                if file.name == "CURRENT"
                else file
                for file in part.files
            ),
        ),
    ):
        with pytest.raises(BackupDamaged):
            verify(storage, msgspec.structs.replace(newest, parts=(wrong,)), tmp_path)


def test_a_damaged_manifest_hides_no_other_backup(place: Path) -> None:
    """Law: each backup depends on its own manifest only; the list shows a damaged one, and others stay usable."""
    storage = Folder(place)
    first, second = catalogue.ids(storage)
    flip(place / manifest_key(second))

    with pytest.raises(BackupDamaged):
        catalogue.read(storage, None)
    assert catalogue.read(storage, first).id == first
    with pytest.raises(BackupDamaged, match=f"{second}.*no backup is deleted"):
        catalogue.prune(storage, 1, NOW_MS, lambda _: None)
    (place / manifest_key(second)).unlink()
    assert catalogue.ids(storage) == [first]
    for unknown in (second, "../../etc/passwd", ""):
        with pytest.raises(BackupNotFound):
            catalogue.read(storage, unknown)


def test_a_list_leaves_out_what_is_deleted_meanwhile(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a list that is made during a deletion shows the backups that are left."""
    known = catalogue.ids(Folder(place))
    monkeypatch.setattr(catalogue, "ids", lambda storage: [catalogue.new_id(0), *known])

    done = CliRunner().invoke(backup_commands, ["list", "--from", str(place), "--output", "json"])

    assert done.exit_code == 0, done.output
    assert [each["id"] for each in msgspec.json.decode(done.stdout)] == known


def test_of_several_damaged_manifests_each_can_be_deleted(place: Path) -> None:
    """Law: files stay while the needs of another damaged backup are unknown, and go with the last damaged manifest."""
    storage = Folder(place)
    first, second = catalogue.ids(storage)
    third = catalogue.new_id(NOW_MS)
    (place / manifest_key(third)).write_bytes((place / manifest_key(second)).read_bytes())
    for each in (second, third):
        flip(place / manifest_key(each))
    blobs = [key for key, _ in storage.list("blobs")]
    told: list[str] = []

    assert catalogue.delete(storage, third, NOW_MS, told.append)

    assert catalogue.ids(storage) == [first, second]
    assert [key for key, _ in storage.list("blobs")] == blobs
    assert (
        told[-1]
        == f"no other data is deleted, because the files that {second} needs are unknown; delete it with `orderlymq backup delete`, too"
    )

    assert catalogue.delete(storage, second, NOW_MS, told.append)

    needed = {
        blob_key(file.sha256)
        for part in catalogue.read(storage, first).parts
        for file in part.files
    }
    assert {key for key, _ in storage.list("blobs")} == needed != set(blobs)


def test_a_directory_that_holds_a_replica_is_never_touched(place: Path, tmp_path: Path) -> None:
    """Law: a second restore into the same directory is refused, and the files there stay unchanged."""
    storage = Folder(place)
    (part,) = catalogue.read(storage, None).parts
    target = Target(
        tmp_path / "replica", Identity("new", "new-0", 1), frozenset({1}), frozenset({"new-0"})
    )
    restore(storage, part, target)
    before = sorted(
        (path, path.read_bytes()) for path in target.data_dir.rglob("*") if path.is_file()
    )

    with pytest.raises(TargetRefused, match="holds a replica"):
        restore(storage, part, target)

    after = sorted(
        (path, path.read_bytes()) for path in target.data_dir.rglob("*") if path.is_file()
    )
    assert after == before


def test_a_restore_that_retention_would_delete_immediately_is_refused(
    place: Path, tmp_path: Path
) -> None:
    """Law: a restore is refused if retention would delete its messages; a small difference is allowed."""
    (part,) = catalogue.read(Folder(place), None).parts
    target = Target(
        tmp_path / "replica", Identity("new", "new-0", 1), frozenset({1}), frozenset({"new-0"})
    )
    size = part.physical_end

    with pytest.raises(
        TargetRefused,
        match=rf"keeps only the newest {size // 2}.*so that it keeps {size} .*three fifths",
    ):
        restore(Folder(place), part, replace(target, retention_size=size // 2))
    left = sorted(each.name for each in target.data_dir.iterdir())
    restore(Folder(place), part, replace(target, retention_size=size - size // 20))

    assert left == ["replica.lock"]


def test_a_restored_replica_is_of_the_new_cluster_alone(place: Path, tmp_path: Path) -> None:
    """Law: it has the new members, no former address, vote or promise, and a log newer than any of the former cluster."""
    (part,) = catalogue.read(Folder(place), None).parts
    target = Target(
        tmp_path / "replica",
        Identity("new", "new-0", 2),
        frozenset({1, 2, 3}),
        frozenset({"new-0", "new-1"}),
    )
    began_ms = time.time_ns() // 1_000_000
    restore(Folder(place), part, target)
    store = RocksStore(target.data_dir / "store")
    try:
        log = RaftLogStore(store, 0)
        hard_state, membership = log.initial_state()
        of_former = (layout.META_PEERS, layout.META_RECOVERY, layout.META_STICKINESS)
        kept = store.multi_get(Family.META, of_former)
        identity = read_identity(store, target.data_dir)
        last = (log.last_index(), log.term(log.last_index()))
        restored_ms = BrokerState(store).restored_ms
        names = RestoredGroups(lambda: store, []).names
    finally:
        store.close()

    term = part.term + TERM_STEP
    assert (hard_state, last) == (
        HardState(Term(term), None, Index(part.index)),
        (part.index, term),
    )
    assert membership == Membership(frozenset({NodeId(1), NodeId(2), NodeId(3)}))
    assert kept == [None] * 3
    assert names == "new-0;new-1", "name servers wait until both have registered"
    assert restored_ms >= began_ms
    assert identity == target.identity


def test_pruning_keeps_what_the_newest_needs(place: Path, tmp_path: Path) -> None:
    """Law: remaining backups can be restored, unneeded files are deleted, and pruning refuses while a backup is made."""
    storage = Folder(place)
    first, second = (catalogue.read(storage, each) for each in catalogue.ids(storage))

    with catalogue.running(storage, catalogue.new_id(NOW_MS), NOW_MS), pytest.raises(BackupError):
        catalogue.prune(storage, 1, NOW_MS, lambda _: None)
    gone = catalogue.prune(storage, 1, NOW_MS, lambda _: None)

    assert gone == [first.id]
    assert catalogue.ids(storage) == [second.id]
    assert {key for key, _ in storage.list("blobs")} == _keys(second)
    verify(storage, second, tmp_path)


def test_one_backup_is_deleted_with_what_only_it_needed(place: Path, tmp_path: Path) -> None:
    """Law: any backup can be deleted, even the newest; the others can be restored; a second deletion changes nothing."""
    storage = Folder(place)
    first, second = (catalogue.read(storage, each) for each in catalogue.ids(storage))

    with catalogue.running(storage, catalogue.new_id(NOW_MS), NOW_MS), pytest.raises(BackupError):
        catalogue.delete(storage, second.id, NOW_MS, lambda _: None)
    gone = [catalogue.delete(storage, second.id, NOW_MS, lambda _: None) for _ in range(2)]

    assert gone == [True, False]
    assert catalogue.ids(storage) == [first.id]
    assert {key for key, _ in storage.list("blobs")} == _keys(first)
    verify(storage, first, tmp_path)


def test_a_restored_replica_is_known_until_it_starts(place: Path, tmp_path: Path) -> None:
    """Law: a restore that is repeated after a crash recognises its own replica of this backup and no other."""
    storage = Folder(place)
    first, second = (catalogue.read(storage, each).parts[0] for each in catalogue.ids(storage))
    target = Target(
        tmp_path / "replica", Identity("other", "other-0", 1), frozenset({1}), frozenset({"new-0"})
    )
    before = is_restored(second, target)
    restore(storage, second, target)
    neighbour = replace(target, identity=Identity("other", "other-0", 2))
    found = [
        is_restored(second, target),
        is_restored(first, target),
        is_restored(second, neighbour),
    ]
    store = RocksStore(target.data_dir / "store")
    batch = Batch()
    batch.put(
        Family.META,
        layout.META_APPLIED,
        layout.encode_applied(layout.Applied(second.index + 1, second.term + TERM_STEP, 0, 0)),
    )
    store.write(batch, sync=True)
    store.close()

    assert not before
    assert found == [True, False, False]
    assert not is_restored(second, target)


def test_a_restore_that_was_killed_between_two_renames_is_ended(
    place: Path, tmp_path: Path
) -> None:
    """Law: a complete store under a temporary name counts as the replica's store and is renamed."""
    (part,) = catalogue.read(Folder(place), None).parts
    target = Target(
        tmp_path / "replica", Identity("new", "new-0", 1), frozenset({1}), frozenset({"new-0"})
    )
    restore(Folder(place), part, target)
    found = []
    for name in ("store.new", "store.old"):
        (target.data_dir / "store").rename(target.data_dir / name)
        found.append(is_restored(part, target))

    assert found == [True, True]
    assert sorted(path.name for path in target.data_dir.iterdir()) == ["replica.lock", "store"]


def test_a_restore_has_the_directory_to_itself(place: Path, tmp_path: Path) -> None:
    """Law: during a restore, no broker and no other restore can use the directory; a running replica is not inspected."""
    (part,) = catalogue.read(Folder(place), None).parts
    identity = Identity("new", "new-0", 1)
    target = Target(tmp_path / "replica", identity, frozenset({1}), frozenset({"new-0"}))
    others: tuple[Callable[[], object], ...] = (
        lambda: open_replica(target.data_dir, identity),
        lambda: restore(Folder(place), part, target),
        lambda: is_restored(part, target),
    )
    refused = []

    class Beside(Folder):
        def read(self, key: str) -> Iterator[bytes]:
            for other in others:
                with pytest.raises(DirectoryInUse):
                    other()
                refused.append(other)
            return super().read(key)

    restore(Beside(place), part, target)
    replica = open_replica(target.data_dir, identity)
    for other in others[1:]:
        with pytest.raises(DirectoryInUse):
            other()
    replica.close()

    assert set(refused) == set(others)


def restore_shop(
    place: Path, folder: Path, nodes: tuple[int, ...], *more: str, kept: int | None = None
) -> Result:
    """Restore replicas of a group of two below *folder* with the command."""
    words = ["restore", "--from", str(place), "--groups", "shop-0", *more]
    for node in nodes:
        path = folder / f"{node}.json"
        said = settings(
            cluster="shop",
            group="shop-0",
            node_id=node,
            peers={each: Address("127.0.0.1", 7000 + each) for each in (1, 2)},
            data_dir=folder / f"replica-{node}",
            storage=StorageSettings(retention_size=kept),
        )
        path.write_bytes(msgspec.json.encode(said, enc_hook=str))
        words += ["--settings", str(path)]
    return CliRunner().invoke(backup_commands, words)


def test_a_clock_before_the_backup_refuses_its_restore(place: Path, tmp_path: Path) -> None:
    """Law: retention counts ages from the restore, so a clock that is behind is refused, unless another clock was ahead."""
    storage, hour_ms = Folder(place), 3_600_000
    former = catalogue.read(storage, None)
    parts = tuple(
        msgspec.structs.replace(part, taken_ms=part.taken_ms + hour_ms) for part in former.parts
    )
    later = msgspec.structs.replace(
        former, ended_ms=former.ended_ms + hour_ms, parts=parts, id=catalogue.new_id(NOW_MS)
    )
    catalogue.write(storage, later)

    refused = restore_shop(place, tmp_path, (1, 2))
    left = list(tmp_path.glob("replica-*/store"))
    refuse_early(later, later.ended_ms)
    refuse_early(msgspec.structs.replace(later, ended_ms=former.ended_ms), former.ended_ms)

    assert (refused.exit_code, left) == (1, [])
    assert "the clock of this machine is" in refused.output


def test_replicas_of_a_group_begin_with_one_backup(place: Path, tmp_path: Path) -> None:
    """Law: a restore of only some replicas must name the backup, because a newer one may be made; limits are in settings."""
    invoke = partial(restore_shop, place, tmp_path)
    newest = catalogue.ids(Folder(place))[-1]
    refused = invoke((1,))
    small = invoke((1,), "--id", newest, kept=1)
    left = list(tmp_path.glob("replica-*/store"))
    one = invoke((1,), "--id", newest)
    both = invoke((1, 2), "--resume")

    assert (refused.exit_code, small.exit_code, left) == (1, 1, [])
    assert f"--id; the newest is now {newest}" in refused.output
    assert "storage.retention_size" in small.output
    assert (one.exit_code, both.exit_code) == (0, 0), (one.output, both.output)
    assert len(list(tmp_path.glob("replica-*/store"))) == 2


def _keys(backup: Backup) -> set[str]:
    return {blob_key(file.sha256) for part in backup.parts for file in part.files}


def test_a_damaged_backup_says_how_to_restore_another(place: Path, tmp_path: Path) -> None:
    """Law: the refusal names the two ways to restore another backup, and no directory is left."""
    part = catalogue.read(Folder(place), None).parts[0]
    flip(place / blob_key(max(part.files, key=lambda file: file.size).sha256))

    done = restore_shop(place, tmp_path, (1, 2))

    assert done.exit_code == 1
    assert "Name one with --id, or as PLACE@ID to `orderlymq up --from-backup`" in done.stderr
    assert not (tmp_path / "replica-1" / "store").exists()


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ("", "name the broker groups"),
        ("shop-0,,shop-1", "name the broker groups"),
        (" shop-0 , shop-1", "replicas of shop-1 are not restored"),
        ("shop-0,shop-0", ""),
    ],
)
def test_groups_are_names_between_commas(
    place: Path, tmp_path: Path, groups: str, told: str
) -> None:
    """Law: spaces are no part of a broker group's name, a name is not empty, and a name counts once."""
    done = restore_shop(place, tmp_path, (1, 2), "--groups", groups)

    assert told in done.stderr
    assert (done.exit_code == 0) == (told == "")
