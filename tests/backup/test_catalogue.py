"""Deletions and creations in one place: the later one refuses or waits, and finished backups stay complete."""

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from orderlymq import Producer
from orderlymq.admin.client import AdminClient
from orderlymq_backup import catalogue
from orderlymq_backup.create import create
from orderlymq_backup.errors import (
    BackupDamaged,
    BackupError,
    BackupNotFound,
    BackupNotNamed,
    PlaceBusy,
    StorageFailed,
)
from orderlymq_backup.manifest import Backup, BackupFile, Part, blob_key, manifest_key
from orderlymq_backup.restore import verify
from orderlymq_backup.salvage import salvage
from orderlymq_backup.storage import Folder, Storage
from orderlymq_runtime.wallclock import machine_ms
from orderlymq_testing.cluster import Cluster
from tests.backup.clusters import back_up

NOW_MS = 4_000_000_000_000
HOUR_MS = 3_600_000


class Interrupted(Folder):
    """A folder that calls *then* once, when a manifest is read or a blob is deleted."""

    def __init__(self, path: Path, *, at: str, then: Callable[[], object]) -> None:
        super().__init__(path)
        self._at = at
        self._then: Callable[[], object] | None = then

    def read(self, key: str) -> Iterator[bytes]:
        self._reach(f"read {key}")
        return super().read(key)

    def delete(self, key: str) -> None:
        self._reach(f"delete {key}")
        super().delete(key)

    def _reach(self, step: str) -> None:
        then = self._then
        if then is not None and step.startswith(self._at):
            self._then = None
            then()


def made(
    storage: Storage,
    wall_ms: int,
    *contents: bytes,
    cluster: str = "demo",
    salvaged: bool = False,
) -> Backup:
    """Store a backup of files with these contents, without a mark, as if its creator had ended before."""
    files = []
    for number, data in enumerate(contents):
        digest = hashlib.sha256(data).hexdigest()
        catalogue.put_text(storage, blob_key(digest), data)
        name = f"{number}.sst" if number else "CURRENT"
        files.append(BackupFile(name=name, size=len(data), sha256=digest, tail=digest))
    part = Part(
        cluster=cluster,
        group="demo-0",
        node=1,
        index=1,
        term=1,
        physical_end=0,
        taken_ms=wall_ms,
        files=tuple(files),
    )
    backup = Backup(
        id=catalogue.new_id(wall_ms),
        cluster=cluster,
        began_ms=wall_ms,
        ended_ms=wall_ms,
        release="1",
        new_bytes=0,
        salvaged=salvaged,
        parts=(part,),
    )
    catalogue.write(storage, backup)
    return backup


def is_whole(storage: Storage, backup: Backup) -> bool:
    present = dict(storage.list("blobs"))
    return all(
        present.get(blob_key(file.sha256)) == file.size
        for part in backup.parts
        for file in part.files
    )


def marks(storage: Storage) -> list[str]:
    return [key for folder in ("running", "deleting") for key, _ in storage.list(folder)]


def remove_first(storage: Storage, way: str) -> None:
    """Delete the older of two backups."""
    if way == "prune":
        catalogue.prune(storage, 1, NOW_MS, lambda _: None)
    else:
        catalogue.delete(storage, catalogue.ids(storage)[0], NOW_MS, lambda _: None)


def test_a_backup_that_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    """Law: a manifest that is too large to be read again is refused, and the other backups stay readable."""
    place = Folder(tmp_path)
    former = made(place, NOW_MS - 1, b"current")
    (part,) = former.parts
    (current,) = part.files
    tables = (
        msgspec.structs.replace(current, name=f"{number:020}.sst") for number in range(90_000)
    )
    files = (current, *tables)
    parts = tuple(
        msgspec.structs.replace(part, group=f"demo-{number}", files=files) for number in range(4)
    )
    large = msgspec.structs.replace(former, id=catalogue.new_id(NOW_MS), parts=parts)

    with pytest.raises(BackupDamaged, match="the manifest is larger than"):
        catalogue.write(place, large)

    assert catalogue.read(place, None) == former


def test_clusters_that_share_a_place_keep_their_own_newest(tmp_path: Path) -> None:
    """Law: no cluster loses its last backup because of another's, or takes another's backup for its newest."""
    place = Folder(tmp_path)
    lone = made(place, NOW_MS - 4, b"current", b"a", cluster="a")
    newest = catalogue.read(place, None)
    own = [made(place, NOW_MS - age_ms, b"current", b"b", cluster="b") for age_ms in (3, 2, 1)]

    with pytest.raises(BackupNotNamed, match="of the clusters a, b: choose one by its id"):
        catalogue.read(place, None)
    gone = catalogue.prune(place, 2, NOW_MS, lambda _: None)

    assert newest == lone
    assert gone == [own[0].id]
    assert catalogue.ids(place) == [lone.id, own[1].id, own[2].id]
    assert all(is_whole(place, each) for each in (lone, *own[1:]))


def test_a_salvaged_backup_takes_the_place_of_no_other(tmp_path: Path) -> None:
    """Law: a salvaged backup may be incomplete, so pruning counts it only among other salvaged ones."""
    place = Folder(tmp_path)
    kinds = (True, False, True, False, True, True)
    backups = [
        made(place, NOW_MS - 10 + number, b"current", salvaged=salvaged)
        for number, salvaged in enumerate(kinds)
    ]
    known = [each.id for each in backups]
    lone = made(place, NOW_MS, b"current", cluster="lone", salvaged=True)

    assert catalogue.newest_of(place, "demo") == backups[3]
    assert catalogue.newest_of(place, "lone") is None
    assert catalogue.prune(place, 3, NOW_MS, lambda _: None) == []
    assert catalogue.prune(place, 2, NOW_MS, lambda _: None) == known[:1]
    assert catalogue.prune(place, 1, NOW_MS, lambda _: None) == known[1:3]
    assert catalogue.ids(place) == [*known[3:], lone.id]


@pytest.mark.parametrize("way", ["prune", "delete"])
def test_a_backup_that_was_made_meanwhile_keeps_its_files(tmp_path: Path, way: str) -> None:
    """Law: a finished backup stays complete, even if it has no mark any more and reuses files of a backup being deleted."""
    place = Folder(tmp_path)
    made(place, NOW_MS - 3, b"current", b"old table")
    kept = made(place, NOW_MS - 2, b"current", b"new table")
    new: list[Backup] = []
    storage = Interrupted(
        tmp_path,
        at="read backups/",
        then=lambda: new.append(made(place, NOW_MS - 1, b"current", b"old table", b"own table")),
    )

    with pytest.raises(PlaceBusy, match="try again"):
        remove_first(storage, way)

    assert is_whole(place, kept)
    assert is_whole(place, new[0])
    assert marks(place) == []
    assert catalogue.prune(place, 2, NOW_MS, lambda _: None) == []
    assert is_whole(place, new[0])


@pytest.mark.parametrize("way", ["prune", "delete"])
def test_what_is_no_backups_stays(tmp_path: Path, way: str) -> None:
    """Law: a bucket without a prefix may hold other files, an image layout or another place of backups; these are kept."""
    place, digest = Folder(tmp_path), "ab" * 32
    former = made(place, NOW_MS - 3, b"current", b"old table")
    made(place, NOW_MS - 2, b"current")
    others = [
        f"blobs/sha256/{digest}",
        f"blobs/{digest}",
        f"blobs/cd/{digest}",
        f"blobs/ab/{digest}.json",
        f"blobs/blobs/ab/{digest}",
        "blobs/backups/20261125T184314123Z-0badcafe.manifest",
    ]
    for key in others:
        catalogue.put_text(place, key, b"theirs")

    remove_first(place, way)

    assert {key for key, _ in place.list("blobs")} >= set(others)
    assert not is_whole(place, former)


@pytest.mark.parametrize("way", ["prune", "delete"])
def test_a_deletion_is_marked_while_it_deletes(tmp_path: Path, way: str) -> None:
    """Law: a creation sees the mark from before the deletion looks for backups until it has deleted everything."""
    place = Folder(tmp_path)
    seen: list[str | None] = []
    for at in ("read backups/", "delete backups/", "delete blobs/"):
        made(place, NOW_MS - 3, b"current", b"old table")
        kept = made(place, NOW_MS - 2, b"current", b"new table")
        look = Interrupted(
            tmp_path, at=at, then=lambda: seen.append(catalogue.deletion(place, NOW_MS))
        )
        remove_first(look, way)
        assert is_whole(place, kept)
        catalogue.delete(place, kept.id, NOW_MS, lambda _: None)

    assert len(seen) == 3
    assert None not in seen
    assert catalogue.deletion(place, NOW_MS) is None
    assert marks(place) == []


def test_a_mark_of_a_deletion_that_was_killed_counts_no_more(tmp_path: Path) -> None:
    """Law: a mark counts longer than a deletion may take, but not for ever; a deletion that takes too long ends itself."""
    place = Folder(tmp_path)
    first = made(place, NOW_MS - 3, b"current", b"old table")
    kept = made(place, NOW_MS - 2, b"current", b"new table")
    catalogue.put_text(place, f"deleting/{catalogue.new_id(NOW_MS)}", b"")

    counts = [
        catalogue.deletion(place, NOW_MS + hours * HOUR_MS) is not None for hours in (0, 1, 3)
    ]
    # A deletion that began in 2001 has exceeded its time limit.
    with pytest.raises(BackupError, match="run it again"):
        catalogue.delete(place, first.id, 1_000_000_000_000, lambda _: None)

    assert counts == [True, True, False]
    assert is_whole(place, kept)
    assert catalogue.deletion(place, NOW_MS + 3 * HOUR_MS) is None


@pytest.mark.parametrize("way", ["prune", "delete"])
def test_a_deletion_removes_what_killed_programs_left(tmp_path: Path, way: str) -> None:
    """Law: unfinished files are deleted when no program can still use them; nothing is deleted while a backup is made."""
    place = Folder(tmp_path)
    for age_ms in (3, 2):
        made(place, NOW_MS - age_ms, b"current")
    for name, age_hours in (("killed", 25), ("young", 23), ("written", 25)):
        folder = tmp_path / "incoming" / f"orderlymq-backup-{name}"
        (folder / "store").mkdir(parents=True)
        (folder / "store" / "1.sst").write_bytes(b"x")
        for path in (folder / "store" / "1.sst", folder / "store", folder):
            at = (NOW_MS - age_hours * HOUR_MS) / 1000
            os.utime(path, (at, at))
    os.utime(
        tmp_path / "incoming" / "orderlymq-backup-written" / "store" / "1.sst", (NOW_MS / 1000,) * 2
    )
    (tmp_path / "incoming" / "of somebody else").mkdir()

    with catalogue.running(place, catalogue.new_id(NOW_MS), NOW_MS), pytest.raises(PlaceBusy):
        remove_first(place, way)
    before = len(list((tmp_path / "incoming").iterdir()))
    remove_first(place, way)

    assert before == 4
    assert sorted(path.name for path in (tmp_path / "incoming").iterdir()) == [
        "of somebody else",
        "orderlymq-backup-written",
        "orderlymq-backup-young",
    ]


@pytest.mark.parametrize("trouble", ["damaged", "missing"])
def test_what_is_stored_again_meanwhile_stays(tmp_path: Path, trouble: str) -> None:
    """Law: a damaged or missing file is removed only if its bytes are still wrong directly before the removal."""
    place = Folder(tmp_path)
    backup = made(place, NOW_MS, b"current", b"old table")
    first, last = (tmp_path / blob_key(file.sha256) for file in backup.parts[0].files)
    last.write_bytes(b"OLD TABLE")
    if trouble == "damaged":
        first.write_bytes(b"CURRENT")
    else:
        first.unlink()
    again = Interrupted(
        tmp_path,
        at=f"read {last.relative_to(tmp_path)}",
        then=lambda: first.write_bytes(b"current"),
    )

    told = catalogue.remove_damaged(again, backup)

    assert "2 files damaged or missing" in told
    assert first.read_bytes() == b"current"
    assert not last.exists()
    assert marks(place) == []


def test_nothing_damaged_is_removed_while_a_backup_is_made(tmp_path: Path) -> None:
    """Law: another backup may be storing the file again; the message says so.

    The verified backup's own mark does not count.
    """
    place = Folder(tmp_path)
    backup = made(place, NOW_MS, b"current")
    damaged = tmp_path / blob_key(backup.parts[0].files[0].sha256)
    damaged.write_bytes(b"CURRENT")
    now_ms = machine_ms()
    other = catalogue.new_id(now_ms)

    with catalogue.running(place, other, now_ms):
        told = catalogue.remove_damaged(place, backup)
    kept = damaged.exists()
    with catalogue.running(place, backup.id, now_ms):
        catalogue.remove_damaged(place, backup)

    assert (
        f"none was removed, because a running backup may be storing it again: backup {other}"
        in told
    )
    assert kept
    assert not damaged.exists()
    assert marks(place) == []


def test_what_takes_longer_than_a_mark_counts_renews_it(tmp_path: Path) -> None:
    """Law: the mark of a long creation is renewed, so deletions are refused; its own verification ignores its marks."""
    place = Folder(tmp_path)
    now_ms = time.time_ns() // 1_000_000
    backup = made(place, now_ms - 25 * HOUR_MS, b"current")
    (damaged,) = (tmp_path / blob_key(file.sha256) for file in backup.parts[0].files)
    damaged.write_bytes(b"CURRENT")

    with catalogue.running(place, backup.id, now_ms - 25 * HOUR_MS, every_s=0.001) as refuse_late:
        deadline = time.monotonic() + 30
        while len(marks(place)) < 3 and time.monotonic() < deadline:
            pass
        refuse_late()
        with pytest.raises(PlaceBusy, match="is being made"):
            catalogue.prune(place, 1, now_ms, lambda _: None)
        catalogue.remove_damaged(place, backup)

    assert not damaged.exists()
    assert marks(place) == []


def test_a_backup_whose_mark_is_too_old_ends_itself(tmp_path: Path) -> None:
    """Law: without a renewed mark, a deletion may have removed files that this backup reuses."""
    began_ms = time.time_ns() // 1_000_000 - 25 * HOUR_MS

    with (
        catalogue.running(Folder(tmp_path), catalogue.new_id(began_ms), began_ms) as refuse_late,
        pytest.raises(BackupError, match="make the backup again"),
    ):
        refuse_late()


@pytest.mark.parametrize("way", ["prune", "delete"])
def test_a_backup_that_is_read_is_not_deleted(tmp_path: Path, way: str) -> None:
    """Law: the reader gets all bytes or no backup, whichever began first; other backups can be deleted."""
    place = Folder(tmp_path)
    now_ms = time.time_ns() // 1_000_000
    old, _ = (made(place, now_ms - age_ms, b"current", bytes(age_ms)) for age_ms in (3, 2))
    other = made(place, now_ms, b"other")
    readers = ExitStack()

    def remove(storage: Storage) -> None:
        if way == "prune":
            catalogue.prune(storage, 2, now_ms, lambda _: None)
        else:
            catalogue.delete(storage, old.id, now_ms, lambda _: None)

    with catalogue.reading(place, old.id) as found:
        with pytest.raises(PlaceBusy, match=f"{old.id} is being restored or verified"):
            remove(place)
        assert catalogue.delete(place, other.id, now_ms, lambda _: None)
        assert (found, is_whole(place, old)) == (old, True)
    made(place, now_ms, b"other")
    meanwhile = Interrupted(
        tmp_path,
        at="delete backups/",
        then=lambda: readers.enter_context(catalogue.reading(place, old.id)),
    )
    with readers, pytest.raises(PlaceBusy, match="is being restored"):
        remove(meanwhile)
    assert is_whole(place, old)
    with pytest.raises(BackupNotFound), catalogue.reading(place, old.id):
        pass

    assert [key for key, _ in place.list("reading")] == []


def test_a_backup_that_is_held_is_not_deleted(tmp_path: Path) -> None:
    """Law: a hold keeps a backup between the restores of two replicas, and ends with the pod that holds it."""
    place = Folder(tmp_path)
    backup = made(place, machine_ms(), b"current")
    words = [sys.executable, "-m", "orderlymq_backup", "hold", "--from", str(place)]

    process = subprocess.Popen([*words, "--id", backup.id], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        told = process.stdout.readline()
        with pytest.raises(PlaceBusy, match="is being restored"):
            catalogue.delete(place, backup.id, machine_ms(), lambda _: None)
        process.terminate()

    assert backup.id in told
    assert process.returncode == 130
    assert catalogue.delete(place, backup.id, machine_ms(), lambda _: None)


def test_a_place_that_only_gives_is_read_without_a_mark(tmp_path: Path) -> None:
    """Law: a backup on a read-only claim can be restored."""
    backup = made(Folder(tmp_path), NOW_MS, b"current")

    class ReadOnly(Folder):
        def put(self, key: str, path: Path) -> None:
            raise StorageFailed(f"{key}: read-only file system")

    with catalogue.reading(ReadOnly(tmp_path), None) as found:
        assert found == backup


def test_a_mark_that_cannot_be_deleted_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: the backup is still made; the mark is reported and expires, and it does not hide an error of the work itself."""

    class Undeletable(Folder):
        def delete(self, key: str) -> None:
            raise StorageFailed(f"{key}: access denied")

    place = Undeletable(tmp_path)
    with catalogue.running(place, catalogue.new_id(machine_ms()), machine_ms()):
        backup = made(place, NOW_MS, b"current")
    (left,) = marks(place)
    with (
        pytest.raises(BackupNotFound, match="the work"),
        catalogue.running(place, catalogue.new_id(machine_ms()), machine_ms()),
    ):
        raise BackupNotFound("the work")

    assert catalogue.ids(place) == [backup.id]
    assert f"{left}: access denied" in caplog.text


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_creation_beside_a_deletion_is_whole(tmp_path: Path) -> None:
    """Law: a creation that begins during a deletion waits until the deletion has refused, and a salvage refuses."""
    place = Folder(tmp_path / "backups")
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.create_topic("orders")
        for _ in range(2):
            asyncio.run(send(cluster.name_server))
            asyncio.run(back_up(cluster.name_server, place))
        newest: list[Backup] = []
        paused = threading.Event()
        told: list[str] = []

        def tell(text: str) -> None:
            told.append(text)
            paused.set()

        async def make() -> None:
            async with AdminClient(cluster.name_server) as admin:
                newest.append(await create(admin, place, tell))

        creator = threading.Thread(target=lambda: asyncio.run(make()))

        def begin() -> None:
            creator.start()
            paused.wait(30)
            if "waiting" not in told[0]:
                creator.join()

        wall_ms = newest_ms(place)
        storage = Interrupted(tmp_path / "backups", at="read backups/", then=begin)
        with pytest.raises(PlaceBusy):
            catalogue.prune(storage, 1, wall_ms, lambda _: None)
        creator.join()

    assert "waiting" in told[0]
    verify(place, newest[0], tmp_path)
    assert marks(place) == []
    catalogue.put_text(place, f"deleting/{catalogue.new_id(wall_ms)}", b"")
    with pytest.raises(PlaceBusy, match="try again"):
        salvage(place, [tmp_path / "cluster" / "replica-1"], told.append)
    assert catalogue.ids(place)[-1] == newest[0].id


async def send(name_server: str) -> None:
    async with Producer("shop", name_server) as producer:
        await producer.send("orders", "paid", key="k")


def newest_ms(storage: Storage) -> int:
    return catalogue.read(storage, None).ended_ms


def test_the_newest_backup_is_the_one_that_was_made_last(tmp_path: Path) -> None:
    """An id from a clock that was a year ahead sorts before later backups, and its mark blocks deletions no longer than usual."""
    place, year_ms = Folder(tmp_path), 365 * 24 * 3_600_000
    ahead = catalogue.next_id(place, NOW_MS + year_ms)
    catalogue.put_text(place, manifest_key(ahead), b"")
    catalogue.put_text(place, f"running/{ahead}", b"")

    following = catalogue.next_id(place, NOW_MS)

    assert catalogue.ids(place) == [ahead]
    assert following > ahead
    with catalogue.running(place, following, NOW_MS), pytest.raises(PlaceBusy):
        catalogue.delete(place, ahead, NOW_MS, lambda _: None)
    assert catalogue.delete(place, ahead, NOW_MS, lambda _: None)
    assert following > catalogue.next_id(place, NOW_MS) > catalogue.new_id(NOW_MS - 1)


def test_no_id_follows_one_that_is_no_time(tmp_path: Path) -> None:
    """The error says what to do about a manifest whose name is not a valid time."""
    place = Folder(tmp_path)
    catalogue.put_text(place, manifest_key("20261399T000000000Z-00000000"), b"")

    with pytest.raises(
        BackupError, match=r"is not a time, .* delete it with `orderlymq backup delete`"
    ):
        catalogue.next_id(place, NOW_MS)
