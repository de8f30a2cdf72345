"""Short ways to frames: a stream whose beginning is kept, a batch, rows prepared for the ordered sink."""

from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession

from orderlymq_spark.datasource import OrderlyMQDataSource
from orderlymq_spark.locations.location import Location, location
from orderlymq_spark.options import as_texts


def read_batch(spark: SparkSession, **options: Any) -> DataFrame:
    """Return topics as a frame; options as of the format, by keyword."""
    register(spark)
    return spark.read.format("orderlymq").options(**as_texts(options)).load()


def read_stream(
    spark: SparkSession, checkpoint: str | Path | Location, **options: Any
) -> DataFrame:
    """Return topics as a stream that remembers beside its checkpoint where it began."""
    start = {"startPath": location(checkpoint) / "orderlymq-start.json", **options}
    register(spark)
    return spark.readStream.format("orderlymq").options(**as_texts(start)).load()


def ordered(frame: DataFrame, *, tasks: int | None = None) -> DataFrame:
    """Bring the rows of each (topic, sharding_key) into one task, as the ordered sink asks.

    The sink sorts them by its option orderBy. A frame without the column topic goes to one topic.
    """
    names = [name for name in ("topic", "sharding_key") if name in frame.columns]
    if tasks is None:
        tasks = frame.sparkSession.sparkContext.defaultParallelism
    return frame.repartition(tasks, *names)


_REGISTERED: Final[WeakSet[SparkSession]] = WeakSet()


def register(spark: SparkSession) -> None:
    """Make the format known to a session, once: who registers another one later keeps it."""
    if spark not in _REGISTERED:
        spark.dataSource.register(OrderlyMQDataSource)
        _REGISTERED.add(spark)
