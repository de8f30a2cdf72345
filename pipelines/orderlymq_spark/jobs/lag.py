"""
Pipeline lag: how far groups are behind, in messages and in time, and how long messages take to be stored.

Rule: the time lag of a queue is now minus the store time of its first unconsumed message, looked up, never
interpolated. Messages whose born time lies after their store time have a producer with a wrong clock: they
are counted and left out of the quantiles.
"""

import json
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from orderlymq_runtime.wallclock import machine_ms
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.frames import read_batch
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import LagSpec


def run(_name: str, spec: LagSpec, spark: SparkStarter) -> Outcome:
    """Measure once."""
    access = access_to(spec.connect)
    queues = access.queues([spec.topic])
    lows, highs = access.bounds(queues)
    rows: list[dict[str, Any]] = []
    for group in spec.groups:
        for queue, offset in access.committed(group, queues).items():
            first = max(lows[queue], offset or 0)
            waiting = highs[queue] - first
            stored_ms = access.stored_at(queue, first) if waiting else None
            now_ms = machine_ms()
            rows.append(
                {
                    "group": group,
                    "queue": f"{queue.broker_name}:{queue.queue_id}",
                    "committed": offset,
                    "end": highs[queue],
                    "lag": waiting,
                    "lagMs": 0 if stored_ms is None else max(0, now_ms - stored_ms),
                }
            )
    latency = _latency(spec, spark)
    lines = [
        f"{row['group']} {row['queue']}: {row['lag']} messages, {row['lagMs'] / 1000:.1f} s behind"
        for row in rows
    ]
    lines.append(f"born to stored, ms: {json.dumps(latency['quantilesMs'])}")
    if latency["skewed"]:
        lines.append(
            f"clock of the producer ahead: {latency['skewed']} messages, not counted above"
        )
    return Outcome("\n".join(lines), {"topic": spec.topic, "queues": rows, "latency": latency})


def _latency(spec: LagSpec, spark: SparkStarter) -> dict[str, Any]:
    frame = read_batch(
        spark(), **spec.connect.to_options(), topic=spec.topic, columns="born_ts,store_ts"
    ).select((F.unix_millis("store_ts") - F.unix_millis("born_ts")).alias("ms"))
    # Exact: the accuracy is the number of rows a quantile may be off, and one table is small enough.
    row = frame.agg(
        F.percentile(
            F.when(F.col("ms") >= 0, F.col("ms")), F.array(*map(F.lit, spec.quantiles))
        ).alias("q"),
        F.sum((F.col("ms") < 0).cast("int")).alias("skewed"),
        F.count("*").alias("count"),
    ).first()
    assert row is not None
    values = row["q"] or [None] * len(spec.quantiles)
    return {
        "messages": row["count"],
        "skewed": row["skewed"] or 0,
        "quantilesMs": dict(zip(map(str, spec.quantiles), values, strict=True)),
    }
