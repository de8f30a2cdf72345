"""Short ways to frames and from them: a stream whose beginning is kept, a batch, rows for the ordered sink, any stream to Delta."""

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
    """Return topics as a frame; options as of the format, by keyword."""
    register(spark)
    return spark.read.format("orderlymq").options(**as_texts(options)).load()


def read_stream(
    spark: SparkSession, checkpoint: str | Path | Location, **options: Any
) -> DataFrame:
    """Return topics as a stream that remembers beside its checkpoint where it began."""
    start = {"startPath": location(checkpoint) / START_FILE, **options}
    register(spark)
    return spark.readStream.format("orderlymq").options(**as_texts(start)).load()


def ordered(frame: DataFrame, *, tasks: int | None = None, topic: str = "") -> DataFrame:
    """Bring the rows of each (topic, sharding_key) into one task, as the ordered sink asks.

    The sink sorts them by its option orderBy. A frame without the column topic goes to one topic, and so does one with
    *topic*, the option of the sink that beats the column; one without either column goes to one task. Without *tasks* there are as many as Spark has cores, or, where only a Spark Connect server knows that, as
    `spark.sql.shuffle.partitions` says.
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
    """Return what `foreachBatch` needs to add each batch of a stream, of any columns, to a Delta table once.

    A batch goes through the driver's memory. *app_id* names the stream in the table's transactions: one name for each checkpoint.
    """
    root = location(path)

    def append(frame: DataFrame, batch: int) -> None:
        from orderlymq_spark.tables import delta  # noqa: PLC0415 - only this format needs it

        context = context_of(frame.sparkSession)
        # Of the query that calls, by its checkpoint; Spark Connect does not report it.
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        delta.append_rows(root, app_id, batch, frame.toArrow(), query)

    return append


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the context of a classic session; None with Spark Connect, which has none."""
    return None if is_remote_session(spark) else spark.sparkContext


def is_remote_session(spark: SparkSession) -> bool:
    """Return whether a session belongs to a Spark Connect client."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


_REGISTERED: Final[WeakSet[SparkSession]] = WeakSet()


def register(spark: SparkSession) -> None:
    """Make the format known to a session, once: who registers another one later keeps it."""
    if spark in _REGISTERED:
        return
    try:
        spark.dataSource.register(OrderlyMQDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses what it has found by itself (`pyspark_orderlymq`), which is the same.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _REGISTERED.add(spark)
