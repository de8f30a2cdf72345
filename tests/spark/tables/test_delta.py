"""Commits to Delta tables, on a file system and in an object store: each batch is stored once, whatever is repeated."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.tables.delta import append_files, read_table
from orderlymq_spark.tables.parquet import Part, PartFile
from tests.spark.s3 import S3

QUEUE = MessageQueue("orders", "g", 0)


@pytest.fixture(autouse=True)
def _straight_to_the_server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bypass the proxy: deltalake holds the interpreter's lock while it waits, and the proxy runs in this process."""
    if request.node.callspec.params["root"] == "s3":
        server: S3 = request.getfixturevalue("s3_server")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.backend}")


def write(root: Location, name: str, start: int, end: int, tags: pa.Array | None = None) -> Part:
    rows = {"queue_offset": pa.array(range(start, end), pa.int64())}
    batch = pa.RecordBatch.from_pydict(rows if tags is None else {**rows, "tags": tags})
    file = PartFile(root / f"{name}.parquet", QUEUE, batch.schema, "none")
    file.write(batch, "")
    return file.close()


def test_a_batch_that_is_repeated_is_in_the_table_once(root: Location) -> None:
    """A batch is committed, committed again with new files, and an older one again: every offset is there once."""
    first, second = (0, 5), (5, 9)

    append_files(root, "app", 0, [write(root, "a", *first)])
    append_files(root, "app", 1, [write(root, "b", *second)])
    append_files(root, "app", 1, [write(root, "c", *second)])
    append_files(root, "app", 0, [write(root, "d", *first)])

    table = read_table(root)
    assert sorted(table.to_pyarrow_table()["queue_offset"].to_pylist()) == list(range(9))
    assert table.version() == 1


def test_a_column_that_comes_later_is_in_the_table(root: Location) -> None:
    """Earlier rows have null in it; a batch without it is accepted, and one with another type for it is refused."""
    append_files(root, "app", 0, [write(root, "a", 0, 2)])
    for batch, (start, end, extra) in enumerate(
        [(2, 4, pa.array(["x", "y"])), (4, 5, None), (5, 6, pa.array(["z"]))], 1
    ):
        append_files(root, "app", batch, [write(root, f"b{batch}", start, end, extra)])

    rows = read_table(root).to_pyarrow_table().sort_by("queue_offset").to_pylist()
    assert [row["tags"] for row in rows] == [None, None, "x", "y", None, "z"]
    with pytest.raises(SinkConflict, match="tags"):
        append_files(root, "app", 4, [write(root, "c", 6, 7, pa.array([1]))])


def partitioned(root: Location, *names: str) -> Part:
    """Make an empty table with these partition columns, and a file of a queue with its partition values."""
    values = {"topic": "orders", "broker": "g", "queue_id": 0, "day": "monday"}
    kinds = {"queue_id": pa.int32(), "queue_offset": pa.int64()}
    columns = {name: pa.array([each] * 2, kinds.get(name)) for name, each in values.items()}
    batch = pa.RecordBatch.from_pydict({**columns, "queue_offset": pa.array([0, 1], pa.int64())})
    write_deltalake(str(root), batch.slice(0, 0), partition_by=[*names])
    file = PartFile(root / "a.parquet", QUEUE, batch.schema, "none")
    file.write(batch, "")
    return file.close()


@pytest.mark.parametrize("root", ["local"], indirect=True)
@pytest.mark.parametrize("names", [("topic",), ("queue_id", "broker")])
def test_rows_of_a_table_that_is_partitioned_by_queue_say_where_they_are_from(
    root: Location, names: tuple[str, ...]
) -> None:
    """Readers take a partition column from the commit, not from the file: once, it was null in every row."""
    part = partitioned(root, *names)

    append_files(root, "app", 0, [part])
    append_files(root, "app", 0, [part])

    rows = read_table(root).to_pyarrow_table().to_pylist()
    assert {(row["topic"], row["broker"], row["queue_id"]) for row in rows} == {("orders", "g", 0)}
    assert len(rows) == 2
    with pytest.raises(SinkConflict, match=r"g:0.*already"):
        append_files(root, "app", 1, [part])


@pytest.mark.parametrize("root", ["local"], indirect=True)
def test_a_table_that_is_partitioned_by_what_differs_within_a_queue_is_refused(
    root: Location,
) -> None:
    """A file has one value of a partition column, but rows of several days."""
    with pytest.raises(SinkConflict, match="partitioned by day"):
        append_files(root, "app", 0, [partitioned(root, "topic", "day")])

    assert read_table(root).version() == 0


def offsets_in(root: Location) -> list[int]:
    found: list[int] = read_table(root).to_pyarrow_table()["queue_offset"].to_pylist()
    return found


def test_another_checkpoint_under_the_same_name_is_refused(root: Location) -> None:
    """A new checkpoint's batches have known numbers: they would be taken for repeats, or repeat stored messages."""
    append_files(root, "app", 0, [write(root, "a", 0, 5)])
    append_files(root, "app", 1, [write(root, "b", 5, 9)])
    # Commits of another writer are in between.
    append_files(root, "other", 7, [_of_another_queue(root)])

    with pytest.raises(SinkConflict, match="from another checkpoint"):
        append_files(root, "app", 0, [write(root, "d", 0, 12)])
    with pytest.raises(SinkConflict, match=r"orders g:0 \[4, 12\)"):
        append_files(root, "app", 2, [write(root, "e", 4, 12)])

    assert sorted(offsets_in(root)) == sorted([*range(9), 0, 1])
    append_files(root, "app", 2, [write(root, "f", 9, 12)])
    assert sorted(offsets_in(root)) == sorted([*range(12), 0, 1])


def test_two_pipelines_do_not_write_the_same_messages(root: Location) -> None:
    """Once, a copied manifest with another name wrote each message a second time."""
    append_files(root, "app", 0, [write(root, "a", 0, 5)])

    with pytest.raises(SinkConflict, match=r"another pipeline has the queue up to 5"):
        append_files(root, "copy", 0, [write(root, "b", 0, 3)])
    append_files(root, "copy", 0, [write(root, "c", 8, 9)])
    # The first one's commit is known, however many of its own it has made since.
    for at in (5, 6):
        append_files(root, "app", at, [_of_another_queue(root, at)])
    with pytest.raises(SinkConflict, match=r"app brings orders g:0 \[5, 10\)"):
        append_files(root, "app", 7, [write(root, "d", 5, 10)])
    assert sorted(offsets_in(root)) == [0, 0, 0, 1, 1, 1, 2, 3, 4, 8]


def test_a_queue_that_has_nothing_in_a_batch_is_not_forgotten(root: Location) -> None:
    """The progress of an application is known for every queue, whichever batch brought it."""
    other = _of_another_queue(root)
    append_files(root, "app", 0, [write(root, "a", 0, 5), other])
    append_files(root, "app", 1, [write(root, "b", 5, 9)])

    with pytest.raises(SinkConflict, match="orders g:1"):
        append_files(root, "app", 2, [_of_another_queue(root)])


def test_a_repeated_batch_with_a_queue_of_others_is_refused(root: Location) -> None:
    """No batch of the application ever had this queue, so its messages would be dropped as repeated."""
    append_files(root, "app", 0, [write(root, "a", 0, 5)])

    with pytest.raises(SinkConflict, match="orders g:1"):
        append_files(root, "app", 0, [_of_another_queue(root)])


def _of_another_queue(root: Location, queue_id: int = 1) -> Part:
    part = write(root, f"z{queue_id}", 0, 2)
    queue = MessageQueue("orders", "g", queue_id)
    return replace(part, part=QueueRange(queue, 0, 2))


def commit_of_another(root: Location, app: str, version: int) -> None:
    """Commit without recorded ends, as other programs do."""
    properties = CommitProperties(app_transactions=[Transaction(app, version)])
    table = read_table(root)
    table.create_write_transaction(
        [], mode="append", schema=table.schema(), commit_properties=properties
    )


@pytest.mark.parametrize("root", ["local"], indirect=True)
def test_commits_of_others_do_not_hide_another_checkpoint(root: Location) -> None:
    """After any number of such commits, known messages are neither added again nor taken for another batch."""
    append_files(root, "app", 0, [write(root, "a", 0, 5)])
    for number in range(60):
        commit_of_another(root, "other", number)

    with pytest.raises(SinkConflict, match="from another checkpoint"):
        append_files(root, "app", 0, [write(root, "b", 0, 12)])
    with pytest.raises(SinkConflict, match="from another checkpoint"):
        append_files(root, "app", 1, [write(root, "c", 0, 5)])
    append_files(root, "app", 1, [write(root, "d", 5, 9)])
    assert sorted(offsets_in(root)) == list(range(9))


def clean_up(root: Location) -> None:
    """Remove the commits before a checkpoint, as other programs do sooner or later."""
    read_table(root).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    commit_of_another(root, "other", 100)
    read_table(root).create_checkpoint()
    read_table(root).cleanup_metadata()
    assert len(read_table(root).history()) == 1


@pytest.mark.parametrize("root", ["local"], indirect=True)
@pytest.mark.parametrize("batch", [2, 7], ids=["the next one", "empty ones between"])
def test_a_table_whose_log_was_cleaned_up_is_continued(root: Location, batch: int) -> None:
    """The last commit of a quiet topic is gone from the log, so repeated and later batches are recognised by the rows."""
    append_files(root, "app", 0, [write(root, "a", 0, 5)])
    append_files(root, "app", 1, [write(root, "b", 5, 9)])
    clean_up(root)

    append_files(root, "app", 1, [write(root, "c", 5, 9)])
    append_files(root, "app", batch, [write(root, "d", 9, 12)])
    assert sorted(offsets_in(root)) == list(range(12))
    # The ends are recorded again.
    commit_of_another(root, "other", 101)
    with pytest.raises(SinkConflict, match=r"orders g:0 \[11, 15\)"):
        append_files(root, "app", batch + 1, [write(root, "e", 11, 15)])
    append_files(root, "app", batch + 1, [write(root, "f", 12, 15)])
    assert sorted(offsets_in(root)) == list(range(15))


@pytest.mark.parametrize("root", ["local"], indirect=True)
def test_another_pipeline_adds_nothing_twice_to_a_table_whose_log_was_cleaned_up(
    root: Location,
) -> None:
    """Law: messages in the rows are known, even if no commit says any more who brought them."""
    append_files(root, "app", 0, [write(root, "a", 0, 5)])
    clean_up(root)

    with pytest.raises(SinkConflict):
        append_files(root, "another", 0, [write(root, "b", 0, 5)])
    append_files(root, "another", 0, [write(root, "c", 5, 9)])

    assert sorted(offsets_in(root)) == list(range(9))


@pytest.mark.parametrize("root", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("batch", "start", "end"),
    [(0, 0, 12), (1, 9, 12), (2, 4, 12), (2, 8, 9)],
    ids=["more in an old one", "others in the last one", "some again", "the last one again"],
)
def test_another_checkpoint_is_refused_also_when_the_log_was_cleaned_up(
    root: Location, batch: int, start: int, end: int
) -> None:
    """The rows of a queue contradict it: it would drop messages or store them twice."""
    append_files(root, "app", 0, [write(root, "a", 0, 5)])
    append_files(root, "app", 1, [write(root, "b", 5, 9)])
    clean_up(root)

    with pytest.raises(SinkConflict, match="from another checkpoint"):
        append_files(root, "app", batch, [write(root, "c", start, end)])
    assert sorted(offsets_in(root)) == list(range(9))


@pytest.mark.parametrize("root", ["local"], indirect=True)
@pytest.mark.parametrize("cleaned", [False, True], ids=["log", "cleaned log"])
def test_a_new_life_of_a_topic_is_not_taken_for_a_repeat(root: Location, *, cleaned: bool) -> None:
    """A new checkpoint counts its batches from 0, and the new messages have the offsets of old ones."""

    def life(name: str, start: int, end: int) -> Part:
        schema = pa.schema(
            [
                ("topic", pa.string()),
                ("broker", pa.string()),
                ("queue_id", pa.int32()),
                ("queue_offset", pa.int64()),
                ("message_id", pa.string()),
                ("store_ts", pa.timestamp("us", tz="UTC")),
            ]
        )
        file = PartFile(root / f"{name}-{start}.parquet", QUEUE, schema, "none")
        ids = [f"{name[0]}{each}" for each in range(start, end)]
        count = end - start
        said: dict[str, Any] = {"topic": ["orders"] * count, "broker": ["g"] * count}
        said |= {"queue_id": [0] * count, "queue_offset": range(start, end), "message_id": ids}
        said["store_ts"] = [datetime(2026, 1, 1, tzinfo=UTC)] * count
        file.write(pa.RecordBatch.from_pydict(said, schema), "")
        return file.close()

    append_files(root, "app", 0, [life("a", 0, 5)])
    append_files(root, "app", 1, [life("a", 5, 9)])
    if cleaned:
        clean_up(root)

    with pytest.raises(SinkConflict, match="with other messages"):
        append_files(root, "app", 0, [life("b", 0, 3)])
    append_files(root, "app", 1, [life("a-again", 5, 9)])
    assert sorted(offsets_in(root)) == list(range(9))
