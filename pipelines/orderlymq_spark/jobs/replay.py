"""
Pipeline replay: copies a topic to another topic, in order per key, each message once.

The target identifies a message by its place at the source. A run that is stopped, killed or restarted with a lost
checkpoint therefore repeats nothing. A key in several topics keeps the order of each topic. Messages without a key
keep the order of their queue. With `speed`, batches wait until their store time has come.
"""

import time
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from orderlymq_protocol.plurals import counted
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import OptionError
from orderlymq_spark.frames import ordered, read_stream
from orderlymq_spark.options import START_FILE, parse_source
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.run.stream import run_stream
from orderlymq_spark.source.bounds import check_one_list
from orderlymq_spark.specs import ReplaySpec

_REACHED: Final = "reached_ts"
ORDER: Final = f"{_REACHED},queue_offset"
_WAIT_MAX_S: Final = 3600.0  # so that a night without messages does not pause the copy for hours


def run(name: str, spec: ReplaySpec, spark: SparkStarter) -> Outcome:
    """Copy messages until the trigger ends the stream.

    Raises:
        OptionError: The target is one of the topics that are read, at one of the source's name servers.
        TopicNotFound: The target does not exist.
        QueueListChanged: The source's queue list has grown within the range to copy.
        PipelineFailed: The list grew during the run; messages after the expansion are not copied.
    """
    target = spec.target_connect
    options = parse_source(spec.source.all_options(startPath=str(spec.checkpoint / START_FILE)))
    source = access_to(options.connect)
    servers, others = (set(each.bootstrap.split(";")) for each in (target, options.connect))
    if servers & others and spec.target in source.topics(options.topics, options.pattern):
        raise OptionError(
            f"replay would copy {spec.target} into itself without end; give another target"
        )
    queues = len(access_to(target).route(spec.target).publish)
    sink = {
        **target.to_options(),
        "topic": spec.target,
        "appId": name,
        "orderBy": ORDER,
    }
    pace = Pace(spec.speed) if spec.speed else None

    def make() -> DataStreamWriter:
        frame = read_stream(spark(), spec.checkpoint, **spec.read_options())
        if spec.keys is not None:
            frame = frame.where(F.col("sharding_key").isin(spec.keys))
        # Messages without a key are ordered by queue, so they keep their queue.
        frame = frame.withColumn("target_queue", F.col("queue_id") % queues)

        def send(rows: DataFrame) -> None:
            found = in_order(rows, sink["topic"])
            found.write.format("orderlymq").options(**sink).mode("append").save()

        def write(rows: DataFrame, _batch: int) -> None:
            if pace is None:
                send(rows)
                return
            rows.persist()  # otherwise Spark reads and counts the rows twice
            try:
                pace.wait(rows)
                send(rows)
            finally:
                rows.unpersist()

        return frame.writeStream.foreachBatch(write)

    status = run_stream(name, spec, make, begin=partial(check_one_list, source, options))
    text = f"{counted(status.rows, 'message')} of {spec.source.topic} read in {counted(status.batches, 'batch', 'batches')} for {spec.target}"
    return Outcome(text, {"rows": status.rows, "batches": status.batches, "target": spec.target})


def in_order(rows: DataFrame, target: str) -> DataFrame:
    """Bring the rows of a key into one task, and add the highest store time so far in their queue.

    RocketMQ's store times may decrease; a clock that was set back must not reverse the order of a queue.
    """
    so_far = Window.partitionBy("topic", "broker", "queue_id", "sharding_key")
    reached = F.max("store_ts").over(so_far.orderBy("queue_offset"))
    return ordered(rows, topic=target).withColumn(_REACHED, reached)


class Pace:
    """A pacer that lets batches pass at the speed at which they were stored, times *speed*."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began: tuple[float, float] | None = None

    def wait(self, rows: DataFrame) -> None:
        """Wait until a batch's last message is due."""
        row = rows.agg(
            F.min("store_ts").cast("double").alias("first"),
            F.max("store_ts").cast("double").alias("last"),
        ).first()
        if row is None or row["first"] is None:
            return
        if self._began is None:
            self._began = time.monotonic(), row["first"]
        began_s, first_s = self._began
        due_s = began_s + (row["last"] - first_s) / self._speed
        time.sleep(min(_WAIT_MAX_S, max(0.0, due_s - time.monotonic())))
