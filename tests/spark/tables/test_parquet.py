"""Publication of an archive's files: the files that exist afterwards, and those that do not."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import OptionError, SinkConflict
from orderlymq_spark.jobs import compact
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.specs import CompactSpec
from orderlymq_spark.tables.manifests import OWN, PARTS
from orderlymq_spark.tables.parquet import (
    Part,
    PartFile,
    parts_folder,
    path_of,
    publish,
    published,
)

QUEUE = MessageQueue("orders", "demo-0", 0)


def part(
    root: Location,
    batch: int,
    name: str,
    where: QueueRange,
    app: str = "kept",
    telling: str = "message_id",
    restored: int | None = None,
) -> Part:
    """Write the part of a batch; messages from the offset *restored* on belong to another life of the topic."""
    file = PartFile(
        parts_folder(root, app, batch) / f"{name}.part",
        where.queue,
        rows(0, 0, telling).schema,
        "none",
    )
    second = where.end if restored is None else restored
    for life, bounds in enumerate(((where.start, second), (second, where.end))):
        if bounds[0] < bounds[1]:
            file.write(rows(*bounds, telling, life), "")
    return file.close()


def rows(start: int, end: int, telling: str, life: int = 0) -> pa.RecordBatch:
    offsets = range(start, end)
    said = {
        "message_id": pa.array([f"{life}-{each}" for each in offsets], pa.string()),
        "store_ts": pa.array(
            [datetime(2026, 1, 1 + life, 0, 0, each, tzinfo=UTC) for each in offsets],
            pa.timestamp("us", tz="UTC"),
        ),
        "body": pa.array([b"%d-%d" % (life, each) for each in offsets], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(
        {"queue_offset": pa.array(offsets, pa.int64()), telling: said[telling]}
    )


def test_what_a_cut_off_task_wrote_for_a_batch_of_before_goes_with_the_next_batch(
    tmp_path: Path,
) -> None:
    """A worker may outlive its driver: the next driver publishes its batch, and its late file is not needed."""
    root = location(tmp_path)
    publish(root, "kept", 0, [part(root, 0, "first", QueueRange(QUEUE, 0, 5))])
    before = path_of(root, QueueRange(QUEUE, 0, 5)).read_bytes()
    part(root, 0, "late", QueueRange(QUEUE, 0, 5))
    other = part(root, 0, "another pipeline's", QueueRange(QUEUE, 0, 5), app="other")
    planned = part(root, 2, "next", QueueRange(QUEUE, 9, 12))

    publish(root, "kept", 1, [part(root, 1, "second", QueueRange(QUEUE, 5, 9))])

    left = sorted(str(path) for path in (tmp_path / PARTS).rglob("*") if path.is_file())
    assert left == sorted([other.path, planned.path])
    assert path_of(root, QueueRange(QUEUE, 0, 5)).read_bytes() == before


@pytest.mark.parametrize("telling", ["message_id", "store_ts", "body"])
@pytest.mark.parametrize("restored", [4, 7])
@pytest.mark.parametrize("compacted", [False, True])
def test_other_messages_with_offsets_that_are_published_are_refused_and_kept(
    root: Location, telling: str, restored: int, *, compacted: bool
) -> None:
    """A topic that was created again, or a cluster that was restored to an earlier state, uses offsets a second time."""
    pieces = [QueueRange(QUEUE, 0, 4), QueueRange(QUEUE, 4, 9)]
    for batch, where in enumerate(pieces):
        publish(root, "kept", batch, [part(root, batch, "first", where, telling=telling)])
    if compacted:
        compact.run("c", CompactSpec(type="compact", path=root), None)  # type: ignore[arg-type]  # needs no Spark
    before = {each: path_of(root, each).read_bytes() for each in published(root)}
    other = part(root, 2, "other", pieces[1], telling=telling, restored=restored)

    with pytest.raises(SinkConflict, match="a path and a checkpoint of its own"):
        publish(root, "kept", 2, [other])

    assert other.path in {f"{root / PARTS}/{path}" for path, _ in (root / PARTS).files()}
    # The same messages again are a repeat.
    publish(root, "kept", 1, [part(root, 1, "again", pieces[1], telling=telling)])
    assert {each: path_of(root, each).read_bytes() for each in published(root)} == before


def test_publishing_again_changes_nothing_and_an_overlap_is_refused(root: Location) -> None:
    """A published range stays, whichever attempt wrote it; another cut of the same range is an error."""
    publish(root, "a", 0, [part(root, 0, "first", QueueRange(QUEUE, 0, 5), "a")])
    before = path_of(root, QueueRange(QUEUE, 0, 5)).read_bytes()
    publish(root, "a", 0, [part(root, 0, "second", QueueRange(QUEUE, 0, 5), "a")])
    with pytest.raises(SinkConflict, match="overlaps the published"):
        publish(root, "a", 1, [part(root, 1, "third", QueueRange(QUEUE, 3, 8), "a")])

    assert path_of(root, QueueRange(QUEUE, 0, 5)).read_bytes() == before
    assert published(root) == [QueueRange(QUEUE, 0, 5)]


def test_a_topic_may_begin_as_the_archives_own_folders_do(tmp_path: Path) -> None:
    """Once, a topic _orders was archived but ignored by audit, compaction and the count of files."""
    root = location(tmp_path)
    queue = QUEUE._replace(topic="_orders")
    for batch in range(2):
        where = QueueRange(queue, batch, batch + 1)
        publish(root, "kept", batch, [part(root, batch, "p", where)])
    assert len(published(root)) == 2

    compact.run("c", CompactSpec(type="compact", path=root, min_files=2), None)  # type: ignore[arg-type]  # needs no Spark

    assert published(root) == [QueueRange(queue, 0, 2)]
    for name in OWN:
        where = QueueRange(QUEUE._replace(topic=name), 0, 1)
        with pytest.raises(OptionError, match=f"the topic {name}"):
            publish(root, "kept", 2, [part(root, 2, name, where)])
