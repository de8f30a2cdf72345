"""An archive continues where it stopped, or refuses to run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pytest

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.jobs import archive
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.offsets import to_json
from orderlymq_spark.options import START_FILE, parse_source
from orderlymq_spark.specs import ArchiveSpec, Source
from orderlymq_spark.tables import delta
from orderlymq_spark.tables.parquet import PartFile, parts_folder, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE = MessageQueue("orders", "g", 0)
Form = Literal["parquet", "delta"]


def spec_of(folder: Path, form: Form, **options: Any) -> ArchiveSpec:
    return ArchiveSpec(
        type="archive",
        source=Source(topic="orders", bootstrap="127.0.0.1:1", options=options),
        checkpoint=location(folder / "checkpoint"),
        path=location(folder / "mounted"),
        format=form,
    )


def read_up_to(spec: ArchiveSpec, end: int) -> None:
    """Write the checkpoint, with Spark's files and ours, of a stream that began at offset 5."""
    began = {"what was asked for": {}, "where it began": to_json({QUEUE: 5})}
    (spec.checkpoint / START_FILE).write(json.dumps(began))
    offsets = json.dumps(to_json({QUEUE: end}))
    (spec.checkpoint / "spark" / "offsets" / "0").write(f"v1\n{{}}\n{offsets}")
    (spec.checkpoint / "spark" / "commits" / "0").write("v1\n{}")


def put(spec: ArchiveSpec) -> None:
    """Archive the messages 5 to 8."""
    rows = pa.RecordBatch.from_pydict({"queue_offset": [5, 6, 7, 8]})
    folder = parts_folder(spec.folder, "keep", 0) if spec.format == "parquet" else spec.folder
    file = PartFile(folder / "a.parquet", QUEUE, rows.schema, "none")
    file.write(rows, "")
    (publish if spec.format == "parquet" else delta.append_files)(
        spec.folder, "keep", 0, [file.close()]
    )


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_an_archive_does_not_go_on_where_nothing_of_it_is(form: Form, tmp_path: Path) -> None:
    """If the archive's disk is not mounted, new files would be written below the mount point and be missing later."""
    spec = spec_of(tmp_path, form)
    read_up_to(spec, 9)

    with pytest.raises(
        SinkConflict, match=r"has archived orders g:0 \[5, 9\).*mount the missing file system"
    ):
        archive.run("keep", spec, lambda: cast("SparkSession", None))
    assert not spec.folder.exists()

    put(spec)
    archive.check_place_kept(spec, parse_source(spec.source.all_options()))


@pytest.mark.parametrize(
    ("end", "options"), [(None, {}), (5, {}), (9, {"tags": "a"}), (9, {"failOnDataLoss": False})]
)
def test_a_checkpoint_of_which_nothing_need_be_there_is_no_conflict(
    end: int | None, options: dict[str, Any], tmp_path: Path
) -> None:
    """The checkpoint is new, or has read nothing, or all messages may have been filtered out or lost."""
    spec = spec_of(tmp_path, "parquet", **options)
    if end is not None:
        read_up_to(spec, end)

    archive.check_place_kept(spec, parse_source(spec.source.all_options()))
