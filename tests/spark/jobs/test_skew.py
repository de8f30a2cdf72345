"""The skew report: histograms give the same result as all numbers, and Spark's counts equal a simple model's."""

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq.producer.selectors import hash_index
from orderlymq_spark.jobs.skew.counting import Counted, count
from orderlymq_spark.jobs.skew.model import (
    BUSY,
    Loads,
    Simulated,
    advise,
    busy,
    gini,
    place_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = st.lists(st.integers(1, 9), max_size=200)


@given(NUMBERS, st.integers(0, 200))
def test_histograms_say_what_all_numbers_say(numbers: list[int], zeros: int) -> None:
    """The model is numpy's quantile of all numbers, including keys without messages, and the mean of all differences."""
    every = [*numbers, *[0] * zeros]
    expected = int(np.quantile(every, BUSY, method="higher")) if every else 0
    assert busy(Counter(numbers), len(every)) == expected
    if numbers:
        spread = np.abs(np.subtract.outer(numbers, numbers)).mean() / 2 / np.mean(numbers)
        assert gini(Counter(numbers)) == pytest.approx(spread)


def test_a_key_has_the_queue_that_clients_choose() -> None:
    """One of the keys has a hash without an absolute value in Java."""
    keys = ["", "a", "customer-0", "polygenelubricants", "\U0001f600"]

    assert [place_of(key) % 7 for key in keys] == [hash_index(key, 7) for key in keys]
    assert place_of("polygenelubricants") == 0


def test_the_least_number_that_fits_is_the_advice() -> None:
    """The advice never rises with the capacity; no number of queues can divide the load of one key."""
    simulated = {2: Simulated([60, 60], {60: 2}, 0), 4: Simulated([60, 0, 60, 0], {60: 2}, 60)}
    loads = Loads([120], {60: 2}, "a", {60: 1}, simulated)

    assert [advise(loads, capacity=each, target_use=0.5).queues for each in (1.9, 2.0, 3.0)] == [
        None,
        2,
        2,
    ]
    found = advise(loads, capacity=2.0, target_use=0.5)
    assert (found.floor, found.gini, found.candidates[1].moved) == (0.5, 0.0, 0.5)
    empty = Loads([], {}, "", {}, {1: Simulated([0], {}, 0)})
    assert advise(empty, capacity=1.0, target_use=0.5).candidates[0].max_to_mean == 1.0


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_counts_what_a_loop_over_all_rows_counts(spark: "SparkSession") -> None:
    """Messages without a key count for their queue only; a key may be in several queues, as after an expansion."""
    chance = Random(5)
    rows = [
        (
            "b",
            chance.randrange(3),
            chance.choice([None, *(f"key-{int(chance.paretovariate(1))}" for _ in range(4))]),
            600 + chance.randrange(300),
        )
        for _ in range(2000)
    ]
    frame = spark.createDataFrame(rows, "broker string, queue_id int, key string, at bigint")
    frame = frame.selectExpr(
        "broker", "queue_id", "key as sharding_key", "timestamp_seconds(at) as store_ts"
    )

    found = count(frame, [2, 3], present=3, top=4)

    keyed = [(key, at // 60) for _, _, key, at in rows if key is not None]
    by_key = Counter(key for key, _ in keyed)
    top = sorted(by_key.items(), key=lambda each: (-each[1], each[0]))[:4]
    simulated = {}
    for size in (2, 3):
        loads = Counter(hash_index(key, size) for key, _ in keyed)
        cells = Counter((hash_index(key, size), minute) for key, minute in keyed)
        moved = sum(hash_index(key, size) != hash_index(key, 3) for key, _ in keyed)
        simulated[size] = Simulated(
            [loads[each] for each in range(size)], Counter(cells.values()), moved
        )
    minutes = Counter(minute for _, minute in keyed)
    hottest = Counter(minute for key, minute in keyed if key == top[0][0])
    assert found == Counted(
        dict(sorted(Counter((broker, queue) for broker, queue, _, _ in rows).items())),
        len(by_key),
        top,
        Loads(
            [minutes[each] for each in range(10, 15)],
            Counter(by_key.values()),
            top[0][0],
            Counter(hottest.values()),
            simulated,
        ),
    )
