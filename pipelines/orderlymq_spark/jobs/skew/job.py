"""
Pipeline skew-report: load by queue, minute and key, and how many queues the topic should have.

Counting is Spark's, the advice `model`'s. The present loads are counted and simulated; where they differ
messages lie elsewhere than their key's hash says, and the report tells how many.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from orderlymq_spark.atomicfile import write_atomically
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.frames import read_batch
from orderlymq_spark.jobs.skew.model import Advice, Loads, advise
from orderlymq_spark.jobs.skew.page import page
from orderlymq_spark.options import Connect
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import SkewSpec


def run(name: str, spec: SkewSpec, spark: SparkStarter) -> Outcome:
    """Measure and advise."""
    columns = {"columns": "broker,queue_id,sharding_key,store_ts"}
    rows = read_batch(spark(), **spec.source.all_options(**columns))
    minute = F.floor(F.col("store_ts").cast("double") / 60).alias("minute")
    table: Any = rows.groupBy("broker", "queue_id", minute, "sharding_key").count().toPandas()
    present = sorted(set(zip(table["broker"], table["queue_id"], strict=True)))
    counted = [
        int(table["count"][(table["broker"] == broker) & (table["queue_id"] == number)].sum())
        for broker, number in present
    ]
    keyed = table[table["sharding_key"].notna()]
    codes, keys = keyed["sharding_key"].factorize()
    first = int(table["minute"].min()) if len(table) else 0
    loads = Loads(
        tuple(keys),
        keyed["minute"].to_numpy(dtype=np.int64) - first,
        codes.astype(np.int64),
        keyed["count"].to_numpy(dtype=np.int64),
    )
    total = int(table["count"].sum())
    queues = len(access_to(Connect(spec.source.bootstrap)).publish_queues(spec.source.topic))
    advice = advise(
        loads,
        spec.candidates,
        present=queues,
        capacity=spec.capacity_per_queue,
        target_use=spec.target_use,
    )
    data = _data(
        spec, advice, loads, total, queues, dict(zip(map(_label, present), counted, strict=True))
    )
    if spec.html is not None:
        write_atomically(spec.html, page(name, data))
    return Outcome(_text(data, spec), data)


def _label(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}"


def _data(
    spec: SkewSpec,
    advice: Advice,
    loads: Loads,
    total: int,
    queues: int,
    counted: dict[str, int],
) -> dict[str, Any]:
    by_key = loads.by_key()
    order = np.argsort(-by_key)[: spec.top]
    present = next(each for each in advice.candidates if each.queues == queues)
    per_minute = (
        np.bincount(loads.minute, weights=loads.count) if len(loads.minute) else np.zeros(0)
    )
    return {
        "topic": spec.source.topic,
        "messages": total,
        "withoutKey": total - int(by_key.sum()),
        "keys": len(loads.keys),
        "gini": round(advice.gini, 4),
        "queues": queues,
        "counted": counted,
        "simulated": list(present.loads),
        "offHash": _difference(sorted(counted.values()), sorted(present.loads)),
        "maxToMean": round(present.max_to_mean, 3),
        "hottestKey": advice.hottest,
        "floor": round(advice.floor, 4),
        "targetUse": spec.target_use,
        "capacityPerQueue": spec.capacity_per_queue,
        "recommended": advice.queues,
        "topKeys": [{"key": loads.keys[each], "messages": int(by_key[each])} for each in order],
        "perMinute": [int(each) for each in per_minute],
        "candidates": [
            {
                "queues": each.queues,
                "busyRate": round(each.busy_rate, 3),
                "maxToMean": round(each.max_to_mean, 3),
                "moved": round(each.moved, 4),
                "fits": each.fits,
                "loads": list(each.loads),
            }
            for each in advice.candidates
        ],
    }


def _difference(counted: Sequence[int], simulated: Sequence[int]) -> int:
    """Return how many messages lie elsewhere than the hash says, at least."""
    largest_first = sorted(counted, reverse=True), sorted(simulated, reverse=True)
    return sum(abs(a - b) for a, b in zip_longest(*largest_first, fillvalue=0)) // 2


def _text(data: dict[str, Any], spec: SkewSpec) -> str:
    lines = [
        f"{data['topic']}: {data['messages']} messages, {data['keys']} keys, Gini {data['gini']}, "
        f"{data['queues']} queues with max/mean {data['maxToMean']}",
        f"hottest key {data['hottestKey']}: alone {data['floor']:.1%} of one queue's capacity",
    ]
    if data["recommended"] is not None:
        chosen = next(c for c in data["candidates"] if c["queues"] == data["recommended"])
        lines.append(
            f"recommended: {data['recommended']} queues (busy minutes {chosen['busyRate']:g} messages/s a "
            f"queue, target {spec.capacity_per_queue * spec.target_use:g}); changing would move "
            f"{chosen['moved']:.1%} of the messages to another queue: drain the topic first"
        )
    elif data["floor"] > spec.target_use:
        lines.append(
            "no number of queues is enough: the hottest key alone is beyond the target; split it"
        )
    else:
        lines.append("none of the candidates is enough; add larger ones")
    if spec.html is not None:
        lines.append(f"report: {spec.html}")
    return "\n".join(lines)
