"""Helpers for frames: streams that keep their start, batches, rows for the ordered sink, any stream to Delta."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from orderlymq_spark.datasource import OrderlyMQDataSource
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from orderlymq_spark.options import START_FILE, as_texts

FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""Spark refuses the option pushFilters without it."""


def read_batch(spark: SparkSession, **options: Any) -> DataFrame:
    """Return topics as a frame; pass the format's options as keywords."""
    register(spark)
    return spark.read.format("orderlymq").options(**as_texts(options)).load()


def read_stream(
    spark: SparkSession, checkpoint: str | Path | Location, **options: Any
) -> DataFrame:
    """Return topics as a stream that stores its start next to its checkpoint."""
    start = {"startPath": location(checkpoint) / START_FILE, **options}
    register(spark)
    return spark.readStream.format("orderlymq").options(**as_texts(start)).load()


def ordered(frame: DataFrame, *, tasks: int | None = None, topic: str = "") -> DataFrame:
    """Bring the rows of each (topic, sharding_key) into one task, as the ordered sink requires.

    The sink sorts them by its option orderBy. A frame without the column topic goes to one topic. So does a frame with
    *topic*, the sink's option that overrides the column. A frame without either column goes to one task. If *tasks* is
    None, there are as many tasks as Spark has cores. With Spark Connect, where only the server knows the cores,
    `spark.sql.shuffle.partitions` decides.
    """
    names = [name for name in ("topic", "sharding_key") if name in frame.columns]
    if topic:
        names = [name for name in names if name != "topic"]
    if not names:
        return frame.repartition(1)
    if tasks is None:
        context = context_of(frame.sparkSession)
        if context is None:
            return frame.repartition(*names)
        tasks = context.defaultParallelism
    return frame.repartition(tasks, *names)


def delta_batches(path: str | Path | Location, app_id: str) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that adds each batch of a stream, with any columns, to a Delta table once.

    A batch passes through the driver's memory. *app_id* names the stream in the table's transactions: use one name per
    checkpoint.
    """
    root = location(path)

    def append(frame: DataFrame, batch: int) -> None:
        from orderlymq_spark.tables import delta  # noqa: PLC0415 - only this format needs it

        context = context_of(frame.sparkSession)
        # The id of the calling query, which its checkpoint stores; Spark Connect does not report it.
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        delta.append_rows(root, app_id, batch, frame.toArrow(), query)

    return append


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the context of a classic session; None with Spark Connect."""
    return None if is_remote_session(spark) else spark.sparkContext


def is_remote_session(spark: SparkSession) -> bool:
    """Return whether a session belongs to a Spark Connect client."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


_REGISTERED: Final[WeakSet[SparkSession]] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the format in a session, only once, so that a different format registered later is kept."""
    if spark in _REGISTERED:
        return
    try:
        spark.dataSource.register(OrderlyMQDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses a format that it has found itself (`pyspark_orderlymq`); it is the same one.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _REGISTERED.add(spark)
