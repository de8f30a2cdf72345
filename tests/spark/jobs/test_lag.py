"""The pipeline lag shows what consumer groups have not consumed, and how long storing took."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from orderlymq.blocking import LitePullConsumer
from orderlymq.message import Message
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.jobs import lag
from orderlymq_spark.options import Connect
from orderlymq_spark.specs import LagSpec
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbers(topic: str, count: int) -> list[Message]:
    return [Message(topic=topic, body=str(number).encode()) for number in range(count)]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_what_a_group_has_not_consumed_is_its_lag(spark: "SparkSession", topics: Topics) -> None:
    """A group that has consumed nothing lags by the whole topic; a queue without messages has no lag in time."""
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


@pytest.mark.cluster
def test_a_group_that_goes_on_has_nothing_before_it(topics: Topics) -> None:
    """Law: a lag is never negative, even if the group consumes new messages while the report is made."""
    topic = topics.make(queues=1)
    topics.fill(topic, numbers(topic, 5))
    access, (queue,) = access_to(Connect(topics.bootstrap)), topics.queues(topic)

    def consuming() -> Iterator[str]:
        topics.fill(topic, numbers(topic, 3))
        access.commit("ahead", {queue: 8})
        yield "ahead"

    (row,) = lag.lags(access, topic, consuming())

    assert (row["committed"], row["end"], row["lag"], row["lagMs"]) == (8, 8, 0, 0)
