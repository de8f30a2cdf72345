"""Commits of an archive, with a writer that dies at each of its requests, and with two writers by mistake."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict, StoreFailed
from orderlymq_spark.jobs import compact
from orderlymq_spark.locations import objects
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.local import LocalLocation
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.specs import CompactSpec
from orderlymq_spark.tables import manifests
from orderlymq_spark.tables.manifests import Added, Manifest, settled
from orderlymq_spark.tables.parquet import (
    Part,
    PartFile,
    below,
    parts_folder,
    path_of,
    publish,
    published,
    rows_of,
)
from tests.spark.s3 import BUCKET, S3, Fate, Request

QUEUES = [MessageQueue("orders", "demo-0", number) for number in range(2)]
SCHEMA = pa.schema([pa.field("queue_offset", pa.int64(), nullable=False)])


def written(
    root: Location, app: str, batch: int, start: int, end: int, name: str, queues: int = 2
) -> list[Part]:
    """Write the parts of a batch, as its tasks do; *name* distinguishes the tries."""
    found = []
    for queue in QUEUES[:queues]:
        path = parts_folder(root, app, batch) / f"{name}-{queue.queue_id}.part"
        file = PartFile(path, queue, SCHEMA, "none")
        file.write(pa.RecordBatch.from_pydict({"queue_offset": range(start, end)}, SCHEMA), "")
        found.append(file.close())
    return found


def offsets(root: Location) -> dict[int, list[int]]:
    """Return the offsets that a reader of the archive finds, by queue."""
    found: dict[int, list[int]] = {queue.queue_id: [] for queue in QUEUES}
    for part in published(root):
        with pq.ParquetFile(path_of(root, part).open()) as file:
            found[part.queue.queue_id] += file.read()["queue_offset"].to_pylist()
    return found


def whole(end: int) -> dict[int, list[int]]:
    return {queue.queue_id: list(range(end)) for queue in QUEUES}


def archive_batches(root: Location, name: str) -> None:
    """Archive and compact two batches of a queue, continuing where the former writer stopped: a writer's whole work."""
    for batch, (start, end) in enumerate(((0, 4), (4, 7))):
        publish(root, "app", batch, written(root, "app", batch, start, end, name, queues=1))
    compact.run("c", CompactSpec(type="compact", path=root), None)  # type: ignore[arg-type]  # needs no Spark


class Cut:
    """Serves a number of changing requests and then none: a writer that has died."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.reached = False

    def __call__(self, request: Request) -> Fate:
        if request.method not in {"GET", "HEAD"}:
            self.left -= 1
        self.reached = self.reached or self.left < 0
        return "cut" if self.reached else "served"


@pytest.mark.timeout(900)
def test_a_writer_may_die_behind_every_request(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next writer ends with each offset once and no leftovers; no reader sees a row twice in between."""
    monkeypatch.setitem(objects._RETRY, "max_retries", 0)
    objects.store_of.cache_clear()
    number, reached = 0, True
    while reached:
        root = location(f"s3a://{BUCKET}/killed-{number}")
        s3.decide = cut = Cut(number)
        with suppress(StoreFailed):
            archive_batches(root, "first")
        reached = cut.reached
        s3.reset()
        found = offsets(root)[0]
        assert sorted(set(found)) == sorted(found), number

        archive_batches(root, "second")

        assert offsets(root)[0] == list(range(7)), number
        assert list((root / "_parts").files()) == [], number
        number += 1
    objects.store_of.cache_clear()
    assert number > 15  # as many deaths


def test_every_manifest_is_carried_out_before_the_next(root: Location) -> None:
    """A writer died between its commit and the renames of its files."""
    parts = written(root, "app", 0, 0, 4, "first")
    moved = manifests._carry_out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "_carry_out", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            publish(root, "app", 0, parts)
    assert moved is manifests._carry_out
    assert published(root) == []

    publish(root, "app", 1, written(root, "app", 1, 4, 7, "second"))

    assert offsets(root) == whole(7)


@pytest.mark.parametrize(
    ("app", "batch", "start", "end", "refused"),
    [("app", 0, 0, 4, False), ("other", 8, 4, 7, False), ("other", 7, 2, 9, True)],
    ids=["the same batch", "another range", "an overlap"],
)
def test_a_writer_that_was_overtaken_looks_again(
    root: Location, app: str, batch: int, start: int, end: int, *, refused: bool
) -> None:
    """Another writer commits between its look and its commit: it continues or is refused, and no row is stored twice."""
    mine = written(root, "app", 0, 0, 4, "mine")
    theirs = [written(root, app, batch, start, end, "theirs")]

    def interrupt() -> None:
        if theirs:
            publish(root, app, batch, theirs.pop())

    original = manifests.Manifest.to_text

    def to_text(self: manifests.Manifest) -> str:
        interrupt()
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests.Manifest, "to_text", to_text)
        if refused:
            with pytest.raises(SinkConflict, match="from another checkpoint"):
                publish(root, "app", 0, mine)
        else:
            publish(root, "app", 0, mine)

    assert theirs == []
    first = start if refused else 0
    assert offsets(root) == {queue.queue_id: list(range(first, end)) for queue in QUEUES}


def test_a_driver_that_removes_anothers_parts_does_not_make_it_lose_them(root: Location) -> None:
    """Two drivers have one name and different checkpoints; the other's batch has a higher number."""
    mine = written(root, "app", 0, 0, 4, "mine")
    publish(root, "app", 5, [])
    theirs = written(root, "app", 5, 4, 7, "theirs")
    publish(root, "app", 5, theirs)

    with pytest.raises(SinkConflict, match="another driver of app"):
        publish(root, "app", 0, mine)

    publish(root, "app", 0, written(root, "app", 0, 0, 4, "repeated"))
    assert offsets(root) == whole(7)


def test_a_compaction_beside_another_takes_no_file_twice(root: Location) -> None:
    for batch, (start, end) in enumerate(((0, 4), (4, 7))):
        publish(root, "app", batch, written(root, "app", batch, start, end, "x"))
    parts = [part for part in published(root) if part.queue == QUEUES[0]]
    first, second = compact.write_draft(root, parts), compact.write_draft(root, parts)

    assert (compact.take_place(root, first), compact.take_place(root, second)) == (True, False)

    assert offsets(root) == whole(7)
    assert QueueRange(QUEUES[0], 0, 7) in published(root)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"appId": "a", "batch": 0, "files": [], "removed": ["../outside.parquet"]}',
        '{"appId": "a", "batch": 0, "files": [{"path": "/etc/x", "part": "p"}], "removed": []}',
        '{"appId": "a", "batch": 0, "files": [{"path": "x", "part": 1}], "removed": []}',
    ],
)
def test_a_manifest_of_somebody_else_moves_and_removes_nothing(root: Location, text: str) -> None:
    """A manifest may name any file, and one outside the archive could be lost."""
    outside = root.parent / "outside.parquet"
    outside.write("kept")
    (root / manifests.MANIFESTS / f"{0:020}.json").write(text)

    with pytest.raises(SinkConflict, match="not written by a pipeline"):
        manifests.finish(root)
    assert outside.read_text() == "kept"


class Watched(LocalLocation):
    """A folder whose reader may not write, and in which another process acts at each look."""

    meanwhile: ClassVar[list[Callable[[], None]]] = []

    def __truediv__(self, name: str) -> "Watched":
        return Watched(str(super().__truediv__(name)))

    def exists(self) -> bool:
        while self.meanwhile:
            self.meanwhile.pop()()
        return super().exists()

    def delete(self) -> None:
        raise PermissionError("this is for reading")

    def move(self, target: LocalLocation) -> None:
        raise PermissionError("this is for reading")


def half_compacted(root: Location, end: int) -> None:
    """Compact files of two offsets each, but die after the commit and the removal of the old files."""
    for batch in range(end // 2):
        start = 2 * batch
        publish(root, "app", batch, written(root, "app", batch, start, start + 2, "x", queues=1))
    draft = compact.write_draft(root, published(root))
    old = [below(root, str(path_of(root, part))) for part in draft.old]
    made = Manifest(
        "_compact",
        None,
        (Added(below(root, str(path_of(root, draft.whole))), below(root, str(draft.path))),),
        tuple(old),
    )
    assert (root / manifests.MANIFESTS / f"{end // 2:020}.json").create(made.to_text())
    for name in old:
        (root / name).delete()


def test_a_look_at_an_archive_never_falls_between_the_steps_of_a_commit(root: Location) -> None:
    """A compaction died before it named its new file: the next reader of the archive completes it."""
    half_compacted(root, 6)
    assert published(root) == []

    assert settled(root, lambda: published(root)) == [QueueRange(QUEUES[0], 0, 6)]


@pytest.mark.parametrize("compacted", [True, False])
def test_a_look_is_repeated_when_somebody_takes_files_away_meanwhile(
    tmp_path: Path, *, compacted: bool
) -> None:
    """A look may have seen only a part of the removal; an archive that only grows is seen at the first look."""
    root = location(tmp_path)
    for batch in range(2):
        start = 2 * batch
        publish(root, "app", batch, written(root, "app", batch, start, start + 2, "x", queues=1))
    seen: list[list[QueueRange]] = []

    def look() -> list[QueueRange]:
        seen.append(published(root))
        if len(seen) == 1 and compacted:
            compact.run("c", CompactSpec(type="compact", path=root), None)  # type: ignore[arg-type]  # needs no Spark
        elif len(seen) == 1:
            publish(root, "app", 2, written(root, "app", 2, 4, 6, "x", queues=1))
        return seen[-1]

    assert settled(root, look) == seen[-1]
    assert [len(each) for each in seen] == ([2, 1] if compacted else [2])


def test_a_reader_that_may_not_write_waits_for_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only reader reads completed commits as usual; a commit that nobody completes is an error, not a finding."""
    monkeypatch.setattr(manifests, "_LOOK_AGAIN_S", 0.0)
    root, reader = location(tmp_path), Watched(str(tmp_path))
    half_compacted(root, 6)
    with pytest.raises(SinkConflict, match="this is for reading"):
        settled(reader, lambda: published(reader))

    Watched.meanwhile.append(lambda: manifests.finish(root))

    assert settled(reader, lambda: published(reader)) == [QueueRange(QUEUES[0], 0, 6)]
    assert settled(reader, lambda: published(reader)) == [QueueRange(QUEUES[0], 0, 6)]


@pytest.mark.parametrize("read", range(4))
def test_rows_are_read_once_whatever_is_compacted_meanwhile(root: Location, read: int) -> None:
    """Listed files may be gone before they are read; the larger file has rows that were read already."""
    for batch, start in enumerate(range(0, 6, 2)):
        publish(root, "app", batch, written(root, "app", batch, start, start + 2, "x", queues=1))
    rows = rows_of(root, published(root), ["queue_offset"])
    found = [next(rows).column("queue_offset").to_pylist() for _ in range(min(read, 3))]

    compact.run("c", CompactSpec(type="compact", path=root), None)  # type: ignore[arg-type]  # needs no Spark
    found += [each.column("queue_offset").to_pylist() for each in rows]

    assert [offset for each in found for offset in each] == list(range(6))
