"""A location keeps the same promises on a file system and in an S3 store that is slow, refuses or loses answers."""

import os
import pickle
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlymq_spark.errors import StoreFailed
from orderlymq_spark.locations import objects
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from tests.spark.s3 import BUCKET, S3, Fate, Request


def test_a_file_is_what_was_last_written(root: Location) -> None:
    """A file has its complete last content, a missing one raises an error, and locations can be pickled."""
    place: Location = pickle.loads(pickle.dumps(root / "a" / "b.txt"))
    assert not place.exists()
    with pytest.raises(FileNotFoundError):
        place.read_bytes()
    with pytest.raises(FileNotFoundError):
        place.size()

    place.write("first")
    place.write(b"second one")

    assert (place.read_text(), place.size(), place.exists()) == ("second one", 10, True)
    place.delete()
    place.delete()
    assert not place.exists()


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    """As after an NFS failure: once, an audit passed over such a queue and reported that its order was kept."""
    (tmp_path / "file").write_text("x")
    place = location(tmp_path)
    assert list((place / "absent").files()) == list((place / "file").files()) == []

    for listed in (place / ("x" * 300)).files, (place / ("x" * 300)).names:
        with pytest.raises(OSError, match="too long"):
            list(listed())


def create(place: Location) -> None:
    assert place.create("content")


def write_again(place: Location) -> None:
    place.write("before")
    place.write("content")


def move_here(place: Location) -> None:
    other = place.parent.parent / "other"
    other.write("content")
    other.move(place)


def create_what_a_dead_writer_has_left(place: Location) -> None:
    (place.parent / "other").write("other")
    Path(str(place)).write_text("content")
    assert place.create("content")


def move_what_a_dead_writer_has_moved(place: Location) -> None:
    (place.parent / "other").write("other")
    Path(str(place)).write_text("content")
    (place.parent / "gone").move(place)


def let_arrow_write(place: Location) -> None:
    output = place.begin()
    Path(output.target).write_text("content")
    output.close()


@pytest.mark.parametrize(
    "make",
    [
        write_again,
        create,
        create_what_a_dead_writer_has_left,
        move_here,
        move_what_a_dead_writer_has_moved,
        let_arrow_write,
    ],
)
def test_a_name_is_on_the_disk_when_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Location], None]
) -> None:
    """Law: names survive a power cut, so every folder with a new name in it is synced, and the parent of a new folder, too."""
    last: dict[str, dict[str, int]] = {}

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            last[str(path)] = {each.name: each.stat().st_ino for each in path.iterdir()}

    monkeypatch.setattr(os, "fsync", sync)
    folders = [tmp_path, tmp_path / "new", tmp_path / "new" / "deeper"]
    file = folders[-1] / "file"

    make(location(file))

    assert file.read_text() == "content"
    for folder, made in zip(folders, [*folders[1:], file], strict=True):
        assert last[str(folder)].get(made.name) == made.stat().st_ino


def test_of_many_who_create_a_file_one_wins(root: Location) -> None:
    """A writer whose content equals the winner's succeeds; none changes the file."""
    for number in range(5):
        place = root / "commits" / f"{number}"
        won: list[str] = []

        def create(content: str, place: Location = place, won: list[str] = won) -> None:
            if place.create(content):
                won.append(content)

        threads = [threading.Thread(target=create, args=(f"writer {each}",)) for each in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert won == [place.read_text()]
        assert place.create(won[0])
        assert not place.create("another")
        assert place.read_text() == won[0]
    assert (root / "commits").names() == ["0", "1", "2", "3", "4"]


def test_listings_name_what_is_there(root: Location) -> None:
    """A listing has files and folders directly below, or all files below with their sizes; a missing folder has none."""
    for path in ("x/1.txt", "x/y/2.txt", "xz/3.txt", "4.txt"):
        place = root
        for name in path.split("/"):
            place = place / name
        place.write(path)

    assert root.names() == ["4.txt", "x", "xz"]
    assert (root / "x").names() == ["1.txt", "y"]
    assert sorted((root / "x").files()) == [("1.txt", 7), ("y/2.txt", 9)]
    assert ((root / "none").names(), list((root / "none").files())) == ([], [])


def test_a_file_moves_once_however_often_it_is_asked(root: Location) -> None:
    (root / "a").write("content")

    (root / "a").move(root / "folder" / "b")
    (root / "a").move(root / "folder" / "b")

    assert (root / "folder" / "b").read_text() == "content"
    assert not (root / "a").exists()


def test_a_file_that_the_store_does_not_copy_moves_all_the_same(s3: S3) -> None:
    """S3 copies at most 5 GiB in a request; a commit with a larger part must still be carried out."""
    folder = location(f"s3a://{BUCKET}/large")
    content = bytes(range(256)) * (20 << 12)
    (folder / "a").write(content)
    s3.decide = lambda request: "refused" if request.copies else "served"

    (folder / "a").move(folder / "b")
    (folder / "a").move(folder / "b")

    assert (folder / "b").read_bytes() == content
    assert folder.names() == ["b"]


def test_a_file_whose_copy_the_store_only_claims_moves_all_the_same(s3: S3) -> None:
    """Law: committed data is deleted only after its copy exists; an S3 answer with 200 may contain an error."""
    folder = location(f"s3a://{BUCKET}/claimed")
    (folder / "a").write(b"content")
    s3.decide = lambda request: "claimed" if request.copies else "served"

    (folder / "a").move(folder / "b")
    (folder / "a").move(folder / "b")

    assert (folder / "b").read_bytes() == b"content"
    assert folder.names() == ["b"]


def test_a_move_that_comes_too_late_leaves_what_another_has_moved(s3: S3) -> None:
    """Two writers carry out one commit: one removes the part while the other reads it."""
    folder = location(f"s3a://{BUCKET}/twice")
    content = bytes(range(256)) * (20 << 12)
    (folder / "a").write(content)
    (folder / "b").write(content)

    def decide(request: Request) -> Fate:
        if request.method == "GET":
            (folder / "a").delete()
        return "refused" if request.copies else "served"

    s3.decide = decide
    (folder / "a").move(folder / "b")

    assert (folder / "b").read_bytes() == content
    assert folder.names() == ["b"]


@pytest.mark.parametrize("rows", [10, 3_000_000], ids=["one request", "in pieces"])
def test_arrow_writes_and_reads_a_file(root: Location, rows: int) -> None:
    """A discarded file is never visible."""
    table = pa.table({"a": pa.array(range(rows), pa.int64())})
    for name, kept in (("kept", True), ("gone", False)):
        output = (root / name).begin()
        with pq.ParquetWriter(
            output.target, table.schema, use_dictionary=False, compression="none"
        ) as writer:
            writer.write_table(table)
        if kept:
            assert output.close() == (root / name).size()
        else:
            output.discard()

    assert root.names() == ["kept"]
    with pq.ParquetFile((root / "kept").open()) as file:
        assert file.read().equals(table)


class Once:
    """Gives a fate to the first matching requests."""

    def __init__(self, fate: Fate, count: int, **wanted: Any) -> None:
        self.fate, self.left, self.wanted = fate, count, wanted

    def __call__(self, request: Request) -> Fate:
        if self.left and all(
            getattr(request, name) == value for name, value in self.wanted.items()
        ):
            self.left -= 1
            return self.fate
        return "served"


@pytest.mark.parametrize("fate", ["busy", "slow", "answer lost", "cut"])
def test_a_commit_is_won_whatever_becomes_of_its_answer(s3: S3, fate: Fate) -> None:
    """If the store did carry it out, the repeated request finds its own content."""
    place = location(f"s3a://{BUCKET}/{fate}/commit".replace(" ", "-"))
    s3.decide = Once(fate, 1 if fate == "cut" else 3, conditional=True)

    assert place.create("mine")

    assert place.read_text() == "mine"
    assert not place.create("another's")


def test_a_commit_beside_one_that_failed_is_won(s3: S3) -> None:
    """A conflict does not prove another commit: if no file exists afterwards, the writer tries again."""
    place = location(f"s3a://{BUCKET}/conflict/commit")
    s3.decide = Once("conflict", 2, conditional=True)

    assert place.create("mine")

    assert place.read_text() == "mine"
    assert not place.create("another's")


def test_a_commit_that_another_has_won_is_lost_also_without_an_answer(s3: S3) -> None:
    place = location(f"s3a://{BUCKET}/lost/commit")
    place.create("another's")
    s3.decide = Once("busy", 2, conditional=True)

    assert not place.create("mine")


@pytest.mark.parametrize("fate", ["busy", "slow", "answer lost", "reset"])
def test_writes_reads_copies_and_deletions_are_tried_again(s3: S3, fate: Fate) -> None:
    place = location(f"s3a://{BUCKET}/again/{fate}".replace(" ", "-"))
    seen: set[str] = set()

    def first_of_each(request: Request) -> Fate:
        kind = f"{request}"
        fresh = kind not in seen
        seen.add(kind)
        return fate if fresh else "served"

    s3.decide = first_of_each
    (place / "a").write("content")
    (place / "a").move(place / "b")

    assert (place / "b").read_text() == "content"
    assert place.names() == ["b"]


def test_a_store_that_comes_back_in_time_is_no_error_however_often_it_was_asked(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is a time, because random pauses may be short ten times in a row."""
    pause = timedelta(milliseconds=1)
    short = {"init_backoff": pause, "max_backoff": 2 * pause, "base": 2}
    monkeypatch.setitem(objects._RETRY, "backoff", short)
    objects.store_of.cache_clear()
    s3.decide = Once("busy", 40)
    place = location(f"s3a://{BUCKET}/back/x")
    try:
        place.write("content")
    finally:
        objects.store_of.cache_clear()

    assert place.read_text() == "content"


def test_a_store_that_stays_away_is_an_error_with_the_place(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes in time and is no traceback of a library."""
    monkeypatch.setitem(objects._RETRY, "max_retries", 1)
    objects.store_of.cache_clear()
    s3.decide = lambda _: "busy"
    place = location(f"s3a://{BUCKET}/away/x")
    try:
        for work in (
            place.read_bytes,
            place.exists,
            place.names,
            lambda: place.create("x"),
            lambda: place.write("x"),
        ):
            with pytest.raises(
                StoreFailed, match=rf"the object store did not .* s3a://{BUCKET}/away/x"
            ):
                work()
    finally:
        objects.store_of.cache_clear()
