"""
Pipeline archive: writes topics to files that hold every offset once, in order.

The source and the archive sink do the work. This module connects them, and at the end checks the archive by its file
names. Spark carries ranges of queues; the tasks that write also read the messages (`source.queuereader`).
"""

import json

from orderlymq_protocol.plurals import counted
from orderlymq_spark.errors import CatalogUnavailable, OptionError, SinkConflict
from orderlymq_spark.frames import read_stream
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange, describe_missing, from_json
from orderlymq_spark.options import START_FILE, SourceOptions, as_texts, parse_source
from orderlymq_spark.run.checkpoint import last_end
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.run.stream import run_stream
from orderlymq_spark.source.bounds import start_in
from orderlymq_spark.source.queuereader import message_schema
from orderlymq_spark.specs import ArchiveSpec
from orderlymq_spark.tables.archive import check_place
from orderlymq_spark.tables.manifests import MANIFESTS, settled
from orderlymq_spark.tables.parquet import holes, published


def run(name: str, spec: ArchiveSpec, spark: SparkStarter) -> Outcome:
    """Archive messages until the trigger ends the stream."""
    options = spec.source.all_options()
    parsed = parse_source(options)
    check_place(parsed.columns)
    place = {"path": str(spec.folder)} if spec.catalog is None else _iceberg_place(spec, parsed)
    session = spark()

    status = run_stream(
        name,
        spec,
        lambda: (
            read_stream(session, spec.checkpoint, **options, rangesOnly=True)
            .writeStream.format("orderlymq_archive")
            .options(**place)
            .option("appId", name)
            .option("format", spec.format)
            .option("codec", spec.codec)
            .option("source", json.dumps(options))
            .outputMode("append")
        ),
        begin=lambda: check_place_kept(spec, parsed),
        counts_offsets=True,
    )
    data = {"rows": status.rows, "batches": status.batches, "path": place["path"]}
    text = f"{counted(status.rows, 'message')} in {counted(status.batches, 'batch', 'batches')} archived to {spec.place}"
    if spec.format == "parquet":
        found = settled(spec.folder, lambda: published(spec.folder))
        missing = holes(found)
        data |= {"files": len(found), "messages": sum(each.size for each in found)}
        text += f"; {len(found)} files hold {data['messages']} offsets"
        if missing:
            # A tag filter leaves holes on purpose; without one, holes were already reported as lost messages.
            data["holes"] = [str(each) for each in missing]
            text += f"; missing: {describe_missing(missing)}"
    return Outcome(text, data)


def check_place_kept(spec: ArchiveSpec, options: SourceOptions) -> None:
    """Refuse to continue in a folder that has nothing of what the checkpoint has read; Iceberg's sink checks its own table.

    Raises:
        SinkConflict: The folder was emptied or its file system is not mounted: the archive would have a hole.
    """
    file = spec.checkpoint / START_FILE
    done = last_end(spec.checkpoint / "spark")
    # With tags, or if messages were lost, an archive may be empty although ranges were read.
    if done is None or options.tags != "*" or not options.fail_on_data_loss or not file.exists():
        return
    began = from_json(start_in(file))
    read = [
        QueueRange(q, began[q], end)
        for q, end in from_json(done).items()
        if end > began.get(q, end)
    ]
    if not read or spec.path is None or _has_commits(spec.path, spec.format):
        return
    raise SinkConflict(
        f"the checkpoint {spec.checkpoint} has archived {read[0]}, but {spec.path} has no archive: mount the missing file system, or restore the "
        "removed files; for a new archive, give this pipeline a new checkpoint"
    )


def _has_commits(path: Location, form: str) -> bool:
    if form == "parquet":
        return bool((path / MANIFESTS).names())
    from orderlymq_spark.tables import delta  # noqa: PLC0415 - only this format needs it

    return delta.is_table(path)


def _iceberg_place(spec: ArchiveSpec, options: SourceOptions) -> dict[str, str]:
    """Return the sink options that name the Iceberg table; create the table if it does not exist.

    Raises:
        OptionError: pyiceberg is missing, or the catalogue refuses the table.
        CatalogUnavailable: The catalogue does not answer or failed.
    """
    try:
        from orderlymq_spark.tables import iceberg  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise OptionError(
            f"format: iceberg needs {error.name}: pip install 'orderlymq-spark[iceberg]'"
        ) from error
    assert spec.catalog is not None
    assert spec.table is not None
    properties = as_texts(spec.catalog.properties)
    try:
        catalog = iceberg.open_catalog(spec.catalog.name, properties)
        table = iceberg.open_table(catalog, spec.table, message_schema(options))
        folder = iceberg.data_folder(table)
    except Exception as error:  # any error of the catalogue's and the storage's libraries
        kind = OptionError if isinstance(error, iceberg.REFUSALS) else CatalogUnavailable
        raise kind(
            f"the catalogue {spec.catalog.name} does not give {spec.place}: {error}"
        ) from error
    named = json.dumps({"name": spec.catalog.name, "properties": properties})
    return {"path": str(folder), "catalog": named, "table": spec.table}
