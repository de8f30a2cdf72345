"""The pipeline lag shows what groups have before them, and how long messages took to be stored."""

from typing import TYPE_CHECKING

import pytest

from orderlymq.blocking import LitePullConsumer
from orderlymq.message import Message
from orderlymq_spark.jobs import lag
from orderlymq_spark.specs import LagSpec
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def numbers(topic: str, count: int) -> list[Message]:
    return [Message(topic=topic, body=str(number).encode()) for number in range(count)]


def test_what_a_group_has_not_consumed_is_its_lag(spark: "SparkSession", topics: Topics) -> None:
    """A group that has consumed nothing has all before it; a queue without messages has no lag in time."""
    topic = topics.make(queues=2)
    topics.fill(topic, numbers(topic, 20), queue=0)
    consumer = LitePullConsumer("billing-lag", topics.bootstrap, consume_from="first")
    consumer.subscribe(topic)
    with consumer:
        seen = 0
        while seen < 20:
            seen += len(consumer.poll(5))
        consumer.commit()
    topics.fill(topic, numbers(topic, 10), queue=0)

    spec = LagSpec(
        type="lag", bootstrap=topics.bootstrap, topic=topic, groups=["billing-lag", "nobody"]
    )
    outcome = lag.run("lag", spec, lambda: spark)

    rows = {(row["group"], row["queue"][-1]): row for row in outcome.data["queues"]}
    waiting = {where: row["lag"] for where, row in rows.items()}
    assert waiting == {
        ("billing-lag", "0"): 10,
        ("billing-lag", "1"): 0,
        ("nobody", "0"): 30,
        ("nobody", "1"): 0,
    }
    assert rows["nobody", "0"]["lagMs"] >= rows["billing-lag", "0"]["lagMs"] >= 0
    assert rows["billing-lag", "1"]["lagMs"] == 0
    assert outcome.data["latency"]["messages"] == 30
    assert "billing-lag " in outcome.text
    assert "born to stored, ms: " in outcome.text
