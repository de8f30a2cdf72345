"""
Pipeline lag: the lag of consumer groups in messages and time, and how long messages take to be stored.

Rule: the time lag of a queue is now minus the store time of its first unconsumed message. That time is looked up,
never interpolated. If a message's born time is after its store time, its producer has a wrong clock. Such messages are
counted and excluded from the quantiles.
"""

import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from orderlymq_runtime.wallclock import machine_ms
from orderlymq_spark.cluster.access import ClusterAccess, access_to
from orderlymq_spark.frames import read_batch
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import LagSpec


def run(_name: str, spec: LagSpec, spark: SparkStarter) -> Outcome:
    """Measure the lag once."""
    rows = lags(access_to(spec.connect), spec.topic, spec.groups)
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


def lags(access: ClusterAccess, topic: str, groups: Iterable[str]) -> list[dict[str, Any]]:
    """Return the lag of each consumer group in each queue."""
    queues = access.queues([topic])
    rows: list[dict[str, Any]] = []
    for group in groups:
        # Read offsets before the ends, because a running consumer group also consumes messages that arrive meanwhile.
        committed = access.committed(group, queues)
        lanes = {
            (each.broker_name, each.queue_id): each for each in access.lanes(group, topic).queues
        }
        lows, highs = access.bounds(queues)
        for queue, offset in committed.items():
            lane = lanes.get((queue.broker_name, queue.queue_id))
            first = max(lows[queue], offset or 0)
            # If the topic was recreated meanwhile, it may end before this offset.
            waiting = max(0, highs[queue] - first)
            if lane is not None:
                # A consumer group by key has also consumed messages after its first unconsumed one.
                waiting = lane.owed + max(0, highs[queue] - max(lane.scanned, lows[queue]))
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
    return rows


def _latency(spec: LagSpec, spark: SparkStarter) -> dict[str, Any]:
    frame = read_batch(
        spark(), **spec.connect.to_options(), topic=spec.topic, columns="born_ts,store_ts"
    ).select((F.unix_millis("store_ts") - F.unix_millis("born_ts")).alias("ms"))
    # Exact quantiles: an approximation could be off by some rows, and one table is small enough.
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
