"""A data directory belongs to one replica, and one process uses it at a time."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family, StoreFailed
from orderlymq_broker.store.replica import Identity, WrongDirectory, open_replica
from orderlymq_broker.store.rocks import DirectoryInUse, FormatTooNew, RocksStore
from orderlymq_broker.store.snapshot import store_path

OWNER = Identity("east", "group-a", 1)


def test_the_owner_finds_its_directory_again(tmp_path: Path) -> None:
    """Law: a restart finds the directory that the first start made."""
    replica = open_replica(tmp_path / "data", OWNER)
    batch = Batch()
    batch.put(Family.TABLES, b"k", b"v")
    replica.store.write(batch, sync=True)
    replica.close()

    replica = open_replica(tmp_path / "data", OWNER)

    assert replica.store.get(Family.TABLES, b"k") == b"v"
    replica.close()


@pytest.mark.parametrize(
    "other",
    [
        Identity("west", "group-a", 1),
        Identity("east", "group-b", 1),
        Identity("east", "group-a", 2),
    ],
)
def test_a_directory_of_another_replica_is_refused_untouched(
    tmp_path: Path, other: Identity
) -> None:
    """Law: a directory with another cluster, group or node is refused unchanged; the error names both."""
    open_replica(tmp_path, OWNER).close()

    with pytest.raises(WrongDirectory) as refusal:
        open_replica(tmp_path, other)

    assert str(refusal.value) == (
        f"{tmp_path} belongs to node 1 of group 'group-a' in cluster 'east', but was to be used "
        f"for {other}; name the right directory, or an empty one to copy the state from the peers"
    )
    open_replica(tmp_path, OWNER).close()


@pytest.mark.parametrize("damaged", [b"nothing", b'{"cluster":"\xff"}', b"[" * 100_000])
def test_an_identity_that_means_nothing_is_said_so(tmp_path: Path, damaged: bytes) -> None:
    """Law: a damaged identity gives an error that says what to do. The identity in the store decides, not the file."""
    open_replica(tmp_path, OWNER).close()
    (tmp_path / "identity.json").write_bytes(damaged)
    replica = open_replica(tmp_path, OWNER)
    batch = Batch()
    batch.put(Family.META, layout.META_IDENTITY, damaged)
    replica.store.write(batch, sync=True)
    replica.close()

    with pytest.raises(StoreFailed, match="the identity is damaged"):
        open_replica(tmp_path, OWNER)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """Law: a release refuses a store of a newer format and does not change it."""
    replica = open_replica(tmp_path, OWNER)
    batch = Batch()
    batch.put(Family.META, layout.META_FORMAT, layout.encode_u64(layout.FORMAT_VERSION + 1))
    replica.store.write(batch, sync=True)
    replica.close()

    with pytest.raises(
        FormatTooNew, match="format 2, but this release reads formats up to 1; run the"
    ):
        open_replica(tmp_path, OWNER)


def test_a_directory_in_use_is_refused_with_the_process_that_uses_it(tmp_path: Path) -> None:
    """Law: a directory in use is refused with the process that uses it; when that process ends, it can be opened."""
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from orderlymq_broker.store.replica import Identity, open_replica\n"
        "open_replica(Path(sys.argv[1]), Identity('east', 'group-a', 1))\n"
        "print('open', flush=True)\nsys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()

    with pytest.raises(DirectoryInUse, match=f"in use by process {child.pid}; stop"):
        open_replica(tmp_path, OWNER)

    child.kill()
    child.communicate()
    open_replica(tmp_path, OWNER).close()


def test_a_directory_whose_creation_was_interrupted_is_claimed(tmp_path: Path) -> None:
    """Law: if a crash interrupts the creation before an owner is stored, the next start takes the directory."""
    RocksStore(store_path(tmp_path), create=True).close()

    open_replica(tmp_path, OWNER).close()

    with pytest.raises(WrongDirectory):
        open_replica(tmp_path, Identity("east", "group-a", 2))


def _without_current(data_dir: Path) -> None:
    (store_path(data_dir) / "CURRENT").unlink()


def _without_current_and_identity(data_dir: Path) -> None:
    _without_current(data_dir)
    (data_dir / "identity.json").unlink()


def _without_store(data_dir: Path) -> None:
    shutil.rmtree(store_path(data_dir))


def _without_contents(data_dir: Path) -> None:
    shutil.rmtree(store_path(data_dir))
    RocksStore(store_path(data_dir), create=True).close()


@pytest.mark.parametrize(
    "lose", [_without_current, _without_current_and_identity, _without_store, _without_contents]
)
def test_a_store_that_was_lost_is_not_begun_again(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    """Law: a directory whose store is gone is not started empty: a single replica would forget everything,
    and RocksDB delete the files that are left.
    """
    replica = open_replica(tmp_path, OWNER)
    batch = Batch()
    batch.put(Family.MESSAGES, b"k", b"v")
    replica.store.write(batch, sync=True)
    replica.close()
    for log in store_path(tmp_path).glob("*.log"):
        log.unlink()
    lose(tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*.sst"))

    for _ in range(2):
        with pytest.raises(StoreFailed, match="which is missing or empty; it is not"):
            open_replica(tmp_path, OWNER)

    assert sorted(path.name for path in tmp_path.rglob("*.sst")) == before
