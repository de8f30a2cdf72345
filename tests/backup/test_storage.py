"""Places of backups: a folder and a bucket follow the same rules."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from orderlymq import Producer
from orderlymq.cli.exitcodes import ExitCode
from orderlymq_backup import catalogue
from orderlymq_backup.command import backup
from orderlymq_backup.errors import BackupError, StorageFailed
from orderlymq_backup.restore import verify
from orderlymq_backup.storage import GROUP_ACCESS, Bucket, Folder, Storage, failed, open_storage
from orderlymq_testing.cluster import Cluster
from tests.backup.clusters import back_up, restore_group
from tests.backup.s3server import NoServer, s3_server
from tests.trouble.smalldisk import mounted

BUCKET = "backups"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    try:
        with s3_server(BUCKET) as address:
            yield address
    except NoServer as error:
        pytest.skip(f"moto's server cannot be installed: {error}")


# The time is the test's alone: where the server is missing, its installation comes first.
@pytest.fixture(
    params=[
        "folder",
        pytest.param("bucket", marks=[pytest.mark.long, pytest.mark.timeout(180, func_only=True)]),
    ]
)
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    if request.param == "folder":
        return open_storage(str(tmp_path / "place"))
    for name, value in {
        "AWS_ENDPOINT_URL": request.getfixturevalue("endpoint"),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return open_storage(f"s3://{BUCKET}/{tmp_path.name}")


def put(storage: Storage, key: str, data: bytes) -> None:
    catalogue.put_text(storage, key, data)


def test_what_is_put_is_read_listed_and_deleted(storage: Storage) -> None:
    """Law: a key holds the complete last value, or nothing."""
    large = os.urandom(9 << 20)
    put(storage, "blobs/ab/abc", b"first")
    put(storage, "blobs/ab/abc", large)
    put(storage, "blobs/cd/cde", b"")
    put(storage, "backups/x", b"1")

    assert b"".join(storage.read("blobs/ab/abc")) == large
    assert b"".join(storage.read("blobs/cd/cde")) == b""
    assert dict(storage.list("blobs")) == {"blobs/ab/abc": len(large), "blobs/cd/cde": 0}
    storage.delete("blobs/ab/abc")
    storage.delete("blobs/ab/abc")
    assert dict(storage.list("blobs")) == {"blobs/cd/cde": 0}
    assert list(storage.list("nothing")) == []
    with pytest.raises(KeyError):
        list(storage.read("blobs/ab/abc"))


def test_a_list_passes_over_what_another_program_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two prunes, or a backup that ends during a prune, removes its own marks meanwhile."""
    place = Folder(tmp_path)
    for mark in ("first", "gone", "removed", "zlast"):
        put(place, f"marks/{mark}", b"1")
    look = Path.stat

    def looked_at_and_removed(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = look(path, follow_symlinks=follow_symlinks)
        if path.name == "removed":
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "stat", looked_at_and_removed)
    found = [next(listed := place.list("marks"))]
    place.delete("marks/gone")
    found.extend(listed)

    assert {key for key, _ in found} - {"marks/removed"} == {"marks/first", "marks/zlast"}


@pytest.mark.cluster
@pytest.mark.timeout(180)
async def test_a_backup_goes_there_and_comes_back(storage: Storage, tmp_path: Path) -> None:
    """Law: a backup can be made, listed, verified, restored and pruned in both places."""
    with Cluster(tmp_path / "former") as former:
        former.create_topic("orders")
        for _ in range(2):
            async with Producer("shop", former.name_server) as producer:
                sent = await producer.send("orders", "paid", key="k")
            await back_up(former.name_server, storage)
    known = catalogue.ids(storage)
    newest = catalogue.read(storage, None)
    verify(storage, newest, tmp_path)
    catalogue.prune(storage, 1, newest.ended_ms, lambda _: None)
    restore_group(storage, newest.parts[0], tmp_path / "new")
    with Cluster(tmp_path / "new") as new:
        async with Producer("shop", new.name_server) as producer:
            again = await producer.send("orders", "shipped", key="k")

    assert len(known) == 2
    assert catalogue.ids(storage) == [newest.id] == known[1:]
    assert (again.queue, again.queue_offset) == (sent.queue, sent.queue_offset + 1)
    assert list(storage.list("running")) == []


def test_a_folder_of_backups_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Law: a new folder is private, because backups hold secrets; the mode of an existing folder is not changed."""
    (tmp_path / "open").mkdir(mode=0o750)
    for path in (tmp_path / "new" / "one", tmp_path / "open"):
        storage = Folder(path)
        put(storage, "blobs/ab/abc", b"x")
        copied = tmp_path / "copied"
        copied.write_bytes(b"y")
        copied.chmod(0o644)
        storage.put("backups/x", copied)

    made = [tmp_path / "new", *(tmp_path / "new").rglob("*"), *(tmp_path / "open").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o750


def test_a_folder_of_backups_may_be_for_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: other users of the folder's group can read and delete backups with any umask; nobody else can."""
    monkeypatch.setenv(GROUP_ACCESS, "true")
    former = os.umask(0o077)
    try:
        storage = Folder(tmp_path / "new" / "one")
        put(storage, "blobs/ab/abc", b"x")
        catalogue.put_text(storage, "backups/x", b"y")
    finally:
        os.umask(former)

    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o770}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o660}


def test_a_place_is_named_by_a_path_or_a_url(tmp_path: Path) -> None:
    """Any other text is refused, with examples of valid places."""
    assert [str(open_storage(each)) for each in ("a/b", "file:///a/b")] == ["a/b", "/a/b"]
    for wrong in ("", "s3://", "http://x/y", "file://host/a", "gs://x"):
        with pytest.raises(BackupError, match="is not a place"):
            open_storage(wrong)


@pytest.mark.parametrize(
    "words", [["list"], ["show"], ["verify"], ["prune", "--keep", "1"], ["delete", "--id", "1"]]
)
def test_a_place_that_does_not_exist_is_no_place_without_backups(
    tmp_path: Path, words: list[str]
) -> None:
    """Law: a command that looks for backups in a folder that does not exist fails, and makes no folder."""
    done = CliRunner().invoke(backup, [*words, "--from", str(tmp_path / "typo")])

    assert done.exit_code == ExitCode.NOT_FOUND
    assert f"the folder {tmp_path / 'typo'} does not exist" in done.output
    assert not (tmp_path / "typo").exists()


def test_a_file_or_a_data_directory_is_no_place_for_backups(tmp_path: Path) -> None:
    """Law: a file and the data directory of a cluster or a replica are refused as a place, before anything is written."""
    (tmp_path / "cluster.json").touch()
    (tmp_path / "replica" / "store").mkdir(parents=True)

    with pytest.raises(BackupError, match=r"cluster\.json is a file; name a folder"):
        open_storage(str(tmp_path / "cluster.json"))
    for folder in (tmp_path, tmp_path / "replica"):
        with pytest.raises(BackupError, match=f"{folder} is a data directory; name a folder of"):
            open_storage(str(folder))


def test_an_error_of_an_object_store_is_one_sentence_with_advice() -> None:
    """Law: an object store's error keeps its cause, without the library's own pages; missing credentials are named."""
    url = "http://169.254.169.254/latest/api/token"
    error = OSError(
        f"Generic S3 error: PUT {url}:\n 403\n\nDebug source:\nGeneric {{\n  retries: 0\n}}"
    )

    assert str(failed("s3://a/b", error)) == (
        f"s3://a/b: Generic S3 error: PUT {url}: 403; set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or give this machine a role"
    )


@pytest.mark.long
def test_a_place_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: errors of the file system and of the network are reported as one error that names the place."""
    (tmp_path / "file").write_bytes(b"")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{probe.getsockname()[1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    storages: tuple[Storage, ...] = (Folder(tmp_path / "file"), Bucket("s3://nobody/x"))

    for storage in storages:
        with pytest.raises((StorageFailed, OSError)):
            put(storage, "blobs/ab/abc", b"x")
        with pytest.raises(StorageFailed):
            list(storage.read("blobs/ab/abc"))


def test_a_full_place_is_named(tmp_path: Path) -> None:
    """The system's error does not say which disk is full or what to do; ours does, and leaves nothing there."""
    disk = tmp_path / "disk"
    with mounted(disk, mib=1):
        place = Folder(disk / "backups")

        with (
            pytest.raises(StorageFailed, match=r"/disk/backups/incoming: .*; make room there"),
            catalogue.spooled(place) as folder,
        ):
            (folder / "blob").write_bytes(bytes(4 << 20))

        assert list((disk / "backups" / "incoming").iterdir()) == []
