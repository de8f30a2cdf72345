"""Commits to Iceberg tables of a catalogue in SQLite: each batch is stored once, despite other writers and kills."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table

from orderlymq.errors import OrderlyMQError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import CatalogUnavailable, OptionError, SinkConflict
from orderlymq_spark.jobs import archive, compact
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.specs import ArchiveSpec, Catalog, CompactSpec, Source
from orderlymq_spark.tables.iceberg import (
    append_files,
    data_folder,
    open_table,
    snapshot_with,
)
from orderlymq_spark.tables.parquet import Part, PartFile
from tests.spark.s3 import BUCKET, S3

NAME = "shop.orders"
QUEUE = MessageQueue("orders", "g", 0)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("message_id", pa.string()),
        ("store_ts", pa.timestamp("us", tz="UTC")),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)


class Disturbed(SqlCatalog):
    """A catalogue that calls a function before or after the next commit."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def commit_table(self, *args: Any, **options: Any) -> CommitTableResponse:
        """Commit, with the calls around the first commit."""
        before, after = self.before, self.after
        self.before = self.after = None
        if before is not None:
            before()
        done = super().commit_table(*args, **options)
        if after is not None:
            after()
        return done


class Lake:
    """A table, and files for it."""

    def __init__(self, folder: Path, warehouse: str, **settings: str) -> None:
        self._settings = {
            "uri": f"sqlite:///{folder}/lake.db",
            "warehouse": warehouse,
            **settings,
        }
        self.catalog = Disturbed("lake", **self._settings)
        self.folder = data_folder(open_table(self.catalog, NAME, SCHEMA))

    def another(self) -> "Lake":
        """Return the table as another process opens it."""
        other = Lake.__new__(Lake)
        other._settings, other.folder = self._settings, self.folder
        other.catalog = Disturbed("lake", **self._settings)
        return other

    @property
    def table(self) -> Table:
        """Return the table's present state."""
        return self.catalog.load_table(NAME)

    def write(
        self,
        start: int,
        end: int,
        queue: MessageQueue = QUEUE,
        *,
        life: str = "a",
        schema: pa.Schema = SCHEMA,
    ) -> Part:
        """Write a file as a task does."""
        file = PartFile(self.folder / f"{uuid4()}.parquet", queue, schema, "none")
        known: dict[str, Callable[[int], Any]] = {
            "topic": lambda _: queue.topic,
            "broker": lambda _: queue.broker_name,
            "queue_id": lambda _: queue.queue_id,
            "queue_offset": lambda at: at,
            "message_id": lambda at: f"{life}{at}",
            "store_ts": lambda _: datetime(2026, 1, 1, tzinfo=UTC),
            "keys": lambda at: [f"k{at}"],
            "properties": lambda at: [("n", str(at))],
            "tags": lambda _: "red",
        }
        rows = [{name: known[name](at) for name in schema.names} for at in range(start, end)]
        file.write(pa.RecordBatch.from_pylist(rows, schema), "")
        return file.close()

    def append(self, batch: int, *parts: Part, app: str = "app") -> None:
        """Commit as the driver does."""
        append_files(self.catalog, NAME, app, batch, parts)

    def offsets(self, queue: int = 0) -> list[int]:
        """Return the offsets of a queue in the table."""
        rows = self.table.scan(row_filter=f"queue_id = {queue}").to_arrow()
        found: list[int] = sorted(rows["queue_offset"].to_pylist())
        return found

    def expire_all(self) -> None:
        """Expire every snapshot except the current one."""
        table = self.table
        current = table.current_snapshot()
        for each in table.snapshots():
            if current is not None and each.snapshot_id != current.snapshot_id:
                table.maintenance.expire_snapshots().by_id(each.snapshot_id).commit()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, f"{tmp_path}/warehouse")


def killed() -> None:
    raise SystemExit("killed")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_batch_that_is_repeated_is_in_the_table_once(tmp_path: Path, scheme: str) -> None:
    """A batch is committed, again with new files, and an older one again: every reader finds each offset once."""
    lake = Lake(tmp_path, f"{scheme}{tmp_path}/warehouse")
    lake.append(0, lake.write(0, 5))
    lake.append(1, lake.write(5, 9))
    lake.append(1, lake.write(5, 9))
    lake.append(0, lake.write(0, 5))

    assert lake.offsets() == list(range(9))
    assert len(lake.table.snapshots()) == 2
    rows = lake.table.scan().to_arrow()  # DuckDB finds it by its name
    assert duckdb.connect().execute("select count(distinct message_id) from rows").fetchall() == [
        (9,)
    ]
    assert rows.sort_by("queue_offset")["properties"].to_pylist()[3] == [("n", "3")]
    # The files are plain Parquet; files that no commit names are left over from the repeats.
    named = [task.file.file_path for task in lake.table.scan().plan_files()]
    query = f"select count(*) from read_parquet({[each.removeprefix('file://') for each in named]})"
    assert duckdb.connect().execute(query).fetchall() == [(9,)]
    assert all(each.startswith(f"{scheme}{tmp_path}/") for each in named)


def test_a_table_may_be_in_an_object_store(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks find the store by environment variables; pyiceberg needs a property for an endpoint other than Amazon's."""
    # Bypass the proxy, which runs in this process.
    endpoint = f"http://{s3.backend}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    lake = Lake(tmp_path, f"s3://{BUCKET}/{uuid4().hex}", **{"s3.endpoint": endpoint})
    lake.append(0, lake.write(0, 5))
    lake.append(1, lake.write(5, 9))
    lake.append(1, lake.write(5, 9))

    assert lake.offsets() == list(range(9))


def test_another_checkpoint_under_the_same_name_is_refused(lake: Lake) -> None:
    """A new checkpoint's batches have known numbers: they would be taken for repeats, or repeat stored messages."""
    lake.append(0, lake.write(0, 5))
    lake.append(1, lake.write(5, 9))
    # Commits of another writer are in between.
    lake.append(0, lake.write(0, 1, MessageQueue("orders", "g", 3)), app="other")

    with pytest.raises(SinkConflict, match="from another checkpoint"):
        lake.append(0, lake.write(0, 12))
    with pytest.raises(SinkConflict, match=r"orders g:0 \[4, 12\)"):
        lake.append(2, lake.write(4, 12))

    assert lake.offsets() == list(range(9))
    lake.append(2, lake.write(9, 12))
    assert lake.offsets() == list(range(12))


def test_two_pipelines_do_not_write_the_same_messages(lake: Lake) -> None:
    """Once, a copied manifest with another name wrote each message a second time."""
    lake.append(0, lake.write(0, 5))

    with pytest.raises(SinkConflict, match="another pipeline has the queue up to 5"):
        lake.append(0, lake.write(0, 3), app="copy")
    lake.append(0, lake.write(8, 9), app="copy")
    lake.append(1, lake.write(0, 1, MessageQueue("orders", "g", 3)))
    with pytest.raises(SinkConflict, match=r"app brings orders g:0 \[5, 10\)"):
        lake.append(2, lake.write(5, 10))
    assert lake.offsets() == [0, 1, 2, 3, 4, 8]


def test_a_queue_that_has_nothing_in_a_batch_is_not_forgotten(lake: Lake) -> None:
    """The progress of an application is known for every queue, whichever batch brought it."""
    other = MessageQueue("orders", "g", 1)
    lake.append(0, lake.write(0, 5), lake.write(0, 2, other))
    lake.append(1, lake.write(5, 9))

    with pytest.raises(SinkConflict, match="orders g:1"):
        lake.append(2, lake.write(0, 2, other))


def test_a_new_life_of_a_topic_is_not_taken_for_a_repeat(lake: Lake) -> None:
    """A new checkpoint counts its batches from 0, and the new messages have the offsets of old ones."""
    lake.append(0, lake.write(0, 5))

    with pytest.raises(SinkConflict, match="with other messages"):
        lake.append(0, lake.write(0, 3, life="b"))
    lake.append(0, lake.write(0, 5))
    assert lake.offsets() == list(range(5))


def test_a_commit_that_has_lost_against_the_same_batch_adds_nothing(lake: Lake) -> None:
    """Two drivers both see a table without the batch; the library alone would add the loser's commit, too."""
    other = lake.another()
    lake.append(0, lake.write(0, 5))
    lake.catalog.before = lambda: other.append(1, other.write(5, 9))

    lake.append(1, lake.write(5, 9))

    assert lake.offsets() == list(range(9))


def test_a_commit_that_has_lost_against_another_checkpoint_is_refused(lake: Lake) -> None:
    """The writer checks the winner's rows before its next attempt."""
    other = lake.another()
    lake.append(0, lake.write(0, 5))
    lake.catalog.before = lambda: other.append(1, other.write(5, 12))

    with pytest.raises(SinkConflict, match="from another checkpoint"):
        lake.append(2, lake.write(5, 9))

    assert lake.offsets() == list(range(12))


def test_a_commit_that_has_lost_against_somebody_else_is_made_again(lake: Lake) -> None:
    """Both commits are in the table, with their properties."""
    other = lake.another()
    queue = MessageQueue("orders", "g", 1)
    lake.catalog.before = lambda: other.append(0, other.write(0, 3, queue), app="other")

    lake.append(0, lake.write(0, 5))

    assert (lake.offsets(), lake.offsets(1)) == ([0, 1, 2, 3, 4], [0, 1, 2])
    lake.append(0, lake.write(0, 3, queue), app="other")
    lake.append(0, lake.write(0, 5))
    assert (lake.offsets(), lake.offsets(1)) == ([0, 1, 2, 3, 4], [0, 1, 2])


def test_writers_that_commit_all_the_time_lose_nothing(lake: Lake) -> None:
    """Two pipelines and a second driver of the first one commit in parallel."""

    def work(app: str, queue: int) -> None:
        own = lake.another()
        for batch in range(6):
            part = own.write(5 * batch, 5 * batch + 5, MessageQueue("orders", "g", queue))
            own.append(batch, part, app=app)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, ("one", "one", "two"), (0, 0, 1)))

    assert lake.offsets(0) == lake.offsets(1) == list(range(30))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_is_killed_around_its_commit_repeats_the_batch(
    lake: Lake, moment: str
) -> None:
    """If only the files were written, the next driver commits; if the commit was made, it finds it."""
    lake.append(0, lake.write(0, 5))
    setattr(lake.catalog, moment, killed)
    with pytest.raises(SystemExit):
        lake.append(1, lake.write(5, 9))

    later = lake.another()
    later.append(1, later.write(5, 9))

    assert later.offsets() == list(range(9))
    assert len(later.table.snapshots()) == 2
    later.append(2, later.write(9, 12))
    assert later.offsets() == list(range(12))


def test_expired_snapshots_take_no_knowledge_away(lake: Lake) -> None:
    """The last commit of a quiet pipeline is gone: repeats and other checkpoints are still recognised."""
    lake.append(0, lake.write(0, 5))
    lake.append(1, lake.write(5, 9))
    lake.append(0, lake.write(0, 1, MessageQueue("orders", "g", 3)), app="other")
    lake.expire_all()
    assert len(lake.table.snapshots()) == 1

    lake.append(1, lake.write(5, 9))
    with pytest.raises(SinkConflict, match="from another checkpoint"):
        lake.append(0, lake.write(0, 12))
    with pytest.raises(SinkConflict, match="from another checkpoint"):
        lake.append(2, lake.write(8, 9))
    lake.append(2, lake.write(9, 12))
    assert lake.offsets() == list(range(12))


def test_what_a_rollback_took_away_is_archived_again_with_its_batch(lake: Lake) -> None:
    """The present branch counts, not the former commits."""
    lake.append(0, lake.write(0, 5))
    first = lake.table.current_snapshot()
    lake.append(1, lake.write(5, 9))
    assert first is not None
    lake.table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()

    lake.append(1, lake.write(5, 9))

    assert lake.offsets() == list(range(9))


def test_new_columns_come_with_their_rows(lake: Lake) -> None:
    """Earlier rows have null in them; files without a column are accepted, too."""
    lake.append(0, lake.write(0, 2))
    wider = SCHEMA.append(pa.field("tags", pa.string(), nullable=False))
    lake.append(1, lake.write(2, 4, schema=wider))
    lake.append(2, lake.write(4, 6, schema=SCHEMA.remove(SCHEMA.get_field_index("keys"))))

    rows = lake.table.scan().to_arrow().sort_by("queue_offset")
    assert rows["tags"].to_pylist() == [None, None, "red", "red", None, None]
    assert rows["keys"].to_pylist() == [["k0"], ["k1"], ["k2"], ["k3"], None, None]
    assert len(lake.table.snapshots()) == 3


def test_a_table_that_is_partitioned_by_queue_takes_the_files(lake: Lake) -> None:
    """Each file has the rows of one queue; partitions by time would need other files."""
    with lake.table.update_spec() as partitions:
        partitions.add_identity("topic")
        partitions.add_identity("broker")
        partitions.add_identity("queue_id")
    lake.append(0, lake.write(0, 5), lake.write(0, 3, MessageQueue("orders", "g", 1)))

    assert (lake.offsets(0), lake.offsets(1)) == (list(range(5)), list(range(3)))
    files = lake.table.scan(row_filter="queue_id = 1").plan_files()
    assert [task.file.partition[2] for task in files] == [1]


def test_a_table_with_other_types_is_refused(lake: Lake) -> None:
    """Another program made a column with a type that ours does not fit; nothing is changed."""
    at = SCHEMA.get_field_index("message_id")
    others = SCHEMA.set(at, pa.field("message_id", pa.date32()))
    catalog = lake.catalog
    open_table(catalog, "shop.theirs", others)

    with pytest.raises(SinkConflict, match=r"shop\.theirs does not take the files"):
        append_files(catalog, "shop.theirs", "app", 0, [lake.write(0, 5)])

    assert catalog.load_table("shop.theirs").current_snapshot() is None


def test_the_snapshot_that_brought_an_offset_is_found(lake: Lake) -> None:
    """A reader gets the table as it was when it first had a message, even if older snapshots have expired."""
    other = MessageQueue("orders", "g", 1)
    lake.append(0, lake.write(0, 5))
    lake.append(1, lake.write(0, 3, other))
    lake.append(0, lake.write(0, 1, MessageQueue("orders", "g", 3)), app="other")
    lake.append(2, lake.write(5, 9))

    def rows(queue: MessageQueue, offset: int) -> int | None:
        found = snapshot_with(lake.table, queue, offset, "app")
        if found is None:
            return None
        return int(lake.table.scan(snapshot_id=found.snapshot_id).to_arrow().num_rows)

    assert [rows(QUEUE, at) for at in (0, 4, 5, 8, 9)] == [5, 5, 13, 13, None]
    assert [rows(other, at) for at in (2, 3)] == [8, None]
    lake.expire_all()
    assert rows(QUEUE, 0) == 13


def test_a_checkpoint_goes_on_in_no_table_that_lacks_its_beginning(lake: Lake) -> None:
    """A table of the same name in another catalogue, or one that was made again, lacks the first batches."""
    with pytest.raises(SinkConflict, match=r"batch 7 of app .* none of the batches before"):
        lake.append(7, lake.write(5000, 5005))
    with pytest.raises(SinkConflict, match="none of the batches before"):
        lake.append(7)

    assert lake.table.current_snapshot() is None


def test_a_first_batch_without_rows_is_a_beginning(lake: Lake) -> None:
    """A filter may leave no rows of it; no snapshot is made for it."""
    lake.append(0)
    assert lake.table.current_snapshot() is None
    lake.append(0)
    lake.append(1)

    lake.append(2, lake.write(5, 8))
    lake.append(2, lake.write(5, 8))
    lake.append(3)

    assert lake.offsets() == [5, 6, 7]


def test_the_files_of_a_table_are_not_compacted_behind_its_back(lake: Lake) -> None:
    """A compaction of files would find no archive; the error names the tool that does it correctly."""
    lake.append(0, lake.write(0, 5))

    for path in (lake.folder, lake.folder.parent):
        with pytest.raises(OptionError, match=r"rewrite_data_files .* 'sort'"):
            compact.run("c", CompactSpec(type="compact", path=path), never)


def never() -> Any:
    raise AssertionError("it needs no Spark")


@pytest.mark.parametrize(
    ("properties", "words", "kind"),
    [
        ({"type": "cupboard"}, "'cupboard' is not a valid", OptionError),
        ({}, "URI missing", OptionError),
        ({"uri": "sqlite:////not/there.db"}, "unable to open database file", CatalogUnavailable),
        ({"uri": "http://127.0.0.1:1"}, "Connection refused", CatalogUnavailable),
    ],
)
def test_a_catalogue_that_gives_no_table_is_reported_before_anything_starts(
    properties: dict[str, str | int | bool], words: str, kind: type[OrderlyMQError]
) -> None:
    """The error is one sentence with pyiceberg's reason; it asks for another run only if no given value is wrong."""
    spec = ArchiveSpec(
        type="archive",
        source=Source(topic="orders"),
        checkpoint=location("checkpoint"),
        format="iceberg",
        catalog=Catalog(name="lake", properties=properties),
        table=NAME,
    )

    with pytest.raises(kind, match=f"(?s)lake does not give the Iceberg table .*{words}"):
        archive.run("a", spec, never)
