"""A snapshot is taken while writes go on, and replaces a store completely or not at all."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from orderlymq_broker.store import layout, snapshot
from orderlymq_broker.store.entry import encode_entry
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import Applied
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.replica import Identity, Replica, WrongDirectory, open_replica
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.snapshot import (
    Manifest,
    SnapshotFile,
    SnapshotRefused,
    export_snapshot,
    finish_import,
    import_snapshot,
    verify_files,
)
from orderlymq_raft.types import Entry, HardState, Index, Membership, NodeId, SnapshotMeta, Term

LEADER = Identity("east", "group-a", 1)
FOLLOWER = Identity("east", "group-a", 2)
MEMBERS = Membership(frozenset({NodeId(1), NodeId(2)}))
SIZE = 200


def fill(store: RocksStore, entries: int, applied: int) -> None:
    """Append *entries* of one message each; the tables hold the first *applied* of them."""
    log = RaftLogStore(store, 1 << 20)
    for _ in range(entries):
        batch = Batch()
        index = log.last_index() + 1
        body = SIZE.to_bytes(4, "big") + bytes((index % 256,)) * (SIZE - 4)
        data = encode_entry(b"", [body], log.physical_end(), index)
        log.append(batch, [Entry(Term(3), Index(index), data)], HardState(Term(3), NodeId(1)))
        log.set_membership(batch, MEMBERS)
        position = Applied(min(index, applied), 3, physical_end=min(index, applied) * SIZE)
        batch.put(Family.META, layout.META_APPLIED, layout.encode_applied(position))
        batch.put(Family.TABLES, b"count", layout.encode_u64(position.index))
        store.write(batch, sync=False)


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Manifest]:
    """A snapshot of a leader with 30 entries, 25 of them applied."""
    leader = open_replica(tmp_path / "leader", LEADER)
    fill(leader.store, 30, 25)
    manifest = export_snapshot(leader.store, tmp_path / "export")
    leader.close()

    return tmp_path / "export", manifest


def test_a_store_of_more_files_than_one_header_names_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a store with more files than a header can name is refused with an error that says what to do."""
    monkeypatch.setattr(snapshot, "FILES_MAX", 2)
    leader = open_replica(tmp_path / "leader", LEADER)
    fill(leader.store, 3, 3)

    with pytest.raises(SnapshotRefused, match="can have at most 2: let retention keep fewer"):
        export_snapshot(leader.store, tmp_path / "export")
    leader.close()


def test_a_follower_takes_the_state_and_keeps_its_own_name_and_vote(
    tmp_path: Path, exported: tuple[Path, Manifest]
) -> None:
    """Law: a follower takes tables and messages from the snapshot and keeps its own identity, term and vote."""
    directory, manifest = exported
    follower = open_replica(tmp_path / "follower", FOLLOWER)
    fill(follower.store, 3, 3)

    verify_files(directory, manifest)
    follower.replace(directory, HardState(Term(7), NodeId(2), Index(3)))

    log = RaftLogStore(follower.store, 0)
    assert manifest.meta == SnapshotMeta(Index(25), Term(3), MEMBERS)
    assert log.initial_state() == (HardState(Term(7), NodeId(2), Index(25)), MEMBERS)
    assert (log.first_index(), log.last_index(), log.term(Index(25))) == (26, 25, 3)
    assert log.physical_end() == manifest.physical_end == 25 * SIZE
    assert follower.store.get(Family.TABLES, b"count") == layout.encode_u64(25)
    messages = follower.store.scan(Family.MESSAGES, b"\x00", layout.U64_END, limit=99)
    assert [key for key, _ in messages] == [layout.message_key(at * SIZE) for at in range(25)]
    fill(follower.store, 1, 26)
    assert RaftLogStore(follower.store, 0).last_index() == 26
    follower.close()
    open_replica(tmp_path / "follower", FOLLOWER).close()
    assert sorted(path.name for path in (tmp_path / "follower").iterdir()) == [
        "identity.json",
        "replica.lock",
        "store",
    ]


def test_what_a_snapshot_replaces_is_deleted_beside_the_store_in_use(
    tmp_path: Path, exported: tuple[Path, Manifest]
) -> None:
    """Law: the replaced store is deleted while the new one serves; the next snapshot can be installed even if that has
    not ended.
    """
    directory, _ = exported
    shutil.copytree(directory, tmp_path / "next")
    follower = open_replica(tmp_path / "follower", FOLLOWER)
    fill(follower.store, 3, 3)

    follower.replace(directory, HardState())
    assert (tmp_path / "follower" / "store.old").is_dir()
    follower.replace(tmp_path / "next", HardState())
    follower.remove_replaced()

    assert follower.store.get(Family.TABLES, b"count") == layout.encode_u64(25)
    assert not (tmp_path / "follower" / "store.old").exists()
    follower.close()


def test_what_cannot_be_deleted_keeps_no_replica_from_its_work(
    tmp_path: Path,
    exported: tuple[Path, Manifest],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: if the replaced store cannot be deleted, the replica works on; each start tries again."""
    follower = open_replica(tmp_path / "follower", FOLLOWER)
    fill(follower.store, 3, 3)
    follower.replace(exported[0], HardState())

    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", refuse)
        follower.remove_replaced()
        follower.close()
        open_replica(tmp_path / "follower", FOLLOWER).close()

    assert caplog.text.count("store.old is not needed but could not be deleted") == 2
    open_replica(tmp_path / "follower", FOLLOWER).close()
    assert not (tmp_path / "follower" / "store.old").exists()


@pytest.mark.parametrize("group", ["group-a", "group-b"])
def test_a_store_that_a_full_disk_keeps_from_its_end_is_replaced_all_the_same(
    tmp_path: Path, exported: tuple[Path, Manifest], group: str
) -> None:
    """Law: a store that cannot be closed properly because its disk is full is replaced anyway.

    If the snapshot is refused, the store is as after a crash.
    """
    directory, _ = exported
    follower = open_replica(tmp_path / "follower", Identity("east", group, 2))
    fill(follower.store, 3, 3)

    class Full:
        def flush(self) -> None:
            raise OSError("IO error: No space left on device")

    follower.store._columns.append(cast("Any", Full()))
    with suppress(WrongDirectory):
        follower.replace(directory, HardState())

    count = follower.store.get(Family.TABLES, b"count")
    follower.close()
    assert count == layout.encode_u64(25 if group == "group-a" else 3)


@pytest.mark.parametrize("recovering", [True, False])
def test_a_replica_that_has_lost_its_disk_remembers_that_beside_a_snapshot(
    tmp_path: Path, exported: tuple[Path, Manifest], recovering: bool
) -> None:
    """Law: the mark of a replica that lost its disk survives a snapshot, and a sender's mark is not taken over."""
    batch = Batch()
    batch.put(Family.META, layout.META_RECOVERY, b"\x01")
    if not recovering:  # else the sender has the mark
        sender = RocksStore(exported[0])
        sender.write(batch, sync=True)
        sender.close()
    follower = open_replica(tmp_path / "follower", FOLLOWER)
    if recovering:
        follower.store.write(batch, sync=True)

    follower.replace(exported[0], HardState())

    assert (follower.store.get(Family.META, layout.META_RECOVERY) is not None) == recovering
    follower.close()


def test_a_newer_term_of_the_snapshot_has_no_vote(
    tmp_path: Path, exported: tuple[Path, Manifest]
) -> None:
    """Law: if the snapshot's term is newer, the vote is cleared, because a vote counts for its own term only."""
    follower = open_replica(tmp_path / "follower", FOLLOWER)

    follower.replace(exported[0], HardState(Term(1), NodeId(2)))

    assert RaftLogStore(follower.store, 0).initial_state()[0] == HardState(Term(3), None, Index(25))
    follower.close()


def test_a_snapshot_taken_beside_writes_is_one_moment(tmp_path: Path) -> None:
    """Law: a snapshot taken while writes go on holds entries, messages and tables of the same moment."""
    leader = open_replica(tmp_path / "leader", LEADER)
    fill(leader.store, 10, 10)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            fill(leader.store, 5, 1 << 30)

    writer = threading.Thread(target=write)
    writer.start()
    manifests = [export_snapshot(leader.store, tmp_path / f"export-{n}") for n in range(5)]
    stop.set()
    writer.join()
    leader.close()

    for number, manifest in enumerate(manifests):
        copy = RocksStore(tmp_path / f"export-{number}", read_only=True)
        log = RaftLogStore(copy, 0)
        count = len(copy.scan(Family.MESSAGES, b"\x00", layout.U64_END, limit=1 << 40))
        tables = copy.get(Family.TABLES, b"count")
        copy.close()
        assert (log.last_index(), count, tables) == (
            manifest.index,
            manifest.index,
            layout.encode_u64(manifest.index),
        )


class Crash(Exception):  # noqa: N818 - named by what it stands for
    """Stands for SIGKILL at a certain step."""


def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the *step*-th rename or removal of a directory fail before it does anything."""
    count = 0

    def before(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == step:
                raise Crash
            return function(*args, **options)

        return call

    monkeypatch.setattr(Path, "rename", before(Path.rename))
    monkeypatch.setattr(shutil, "rmtree", before(shutil.rmtree))
    monkeypatch.setattr(os, "fsync", before(os.fsync))


def test_a_crash_while_importing_leaves_the_old_or_the_new_replica(
    tmp_path: Path, exported: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: after a crash at any step of an import, the next start finds either the old or the new replica, complete."""
    follower = open_replica(tmp_path / "follower", FOLLOWER)
    fill(follower.store, 3, 3)
    follower.close()
    found: list[tuple[int, int, int]] = []
    crashed = True
    while crashed:
        directory = tmp_path / f"step-{len(found)}"
        data_dir = shutil.copytree(tmp_path / "follower", directory / "data")
        shutil.copytree(exported[0], directory / "received")
        with monkeypatch.context() as patch:
            crash_at(len(found) + 1, patch)
            try:
                import_snapshot(
                    directory / "received",
                    data_dir,
                    HardState(Term(7), NodeId(2), Index(3)),
                    own={layout.META_IDENTITY: msgspec.json.encode(FOLLOWER)},
                )
                crashed = False
            except Crash:
                crashed = True

        follower = open_replica(data_dir, FOLLOWER)
        log = RaftLogStore(follower.store, 0)
        counted = layout.decode_u64(follower.store.get(Family.TABLES, b"count") or b"")
        found.append((counted, log.last_index(), log.initial_state()[0].term))
        follower.close()
        assert sorted(path.name for path in data_dir.iterdir()) == [
            "identity.json",
            "replica.lock",
            "store",
        ]

    assert set(found) == {(3, 3, 3), (25, 25, 7)}
    assert found == sorted(found), "once it is the new replica it stays the new one"


def test_a_snapshot_of_another_group_is_refused_and_the_old_store_stays(
    tmp_path: Path, exported: tuple[Path, Manifest]
) -> None:
    """Law: a snapshot of another broker group is refused, and the old store stays in use."""
    stranger = open_replica(tmp_path / "stranger", Identity("east", "group-b", 2))
    fill(stranger.store, 3, 3)

    with pytest.raises(WrongDirectory, match=r"'group-a'.*'group-b'"):
        stranger.replace(exported[0], HardState())

    assert stranger.store.get(Family.TABLES, b"count") == layout.encode_u64(3)
    stranger.close()


def test_an_empty_replica_has_nothing_to_send(tmp_path: Path) -> None:
    """Law: a replica that has applied nothing sends no snapshot, which would erase the receiver."""
    replica: Replica = open_replica(tmp_path / "new", LEADER)

    with pytest.raises(SnapshotRefused, match="nothing was applied yet"):
        export_snapshot(replica.store, tmp_path / "export")

    replica.close()


@pytest.mark.parametrize("damage", ["missing", "short", "outside"])
def test_an_incomplete_snapshot_is_refused(
    exported: tuple[Path, Manifest], tmp_path: Path, damage: str
) -> None:
    """Law: a snapshot with missing, short or oddly named files is refused before it is opened."""
    directory, manifest = exported
    file = directory / manifest.files[0].name
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        os.truncate(file, 1)
    else:
        (tmp_path / "secret").write_bytes(b"x")
        manifest = msgspec.structs.replace(manifest, files=(SnapshotFile("../secret", 1),))

    with pytest.raises(SnapshotRefused):
        verify_files(directory, manifest)


def test_completing_nothing_changes_nothing(tmp_path: Path) -> None:
    """Law: finishing an import when there is none changes nothing."""
    open_replica(tmp_path, LEADER).close()
    before = sorted(path.name for path in tmp_path.rglob("*"))

    finish_import(tmp_path)

    assert sorted(path.name for path in tmp_path.rglob("*")) == before
