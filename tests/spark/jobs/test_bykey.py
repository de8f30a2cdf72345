"""Consumer groups that process by key: they have consumed messages after the first pending one."""

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

import pytest

from orderlymq.blocking import Consumer
from orderlymq.consumer.core.events import OrderedResult
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings
from orderlymq.message import Message, ReceivedMessage
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.properties import SHARDING_KEY
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.jobs import lag, redrive
from orderlymq_spark.jobs.deadletters import Consumed
from orderlymq_spark.options import Connect
from orderlymq_spark.specs import RedriveSpec
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def consuming_by_key(
    topics: Topics, topic: str, group: str, *, bad: Collection[str] = (), count: int
) -> Iterator[None]:
    """Keep the message `slow` in progress; those named in *bad* become dead letters, and *count* others are done."""
    done: list[str] = []
    lock, ends = Lock(), Event()

    def listen(messages: list[ReceivedMessage], _context: object) -> OrderedResult:
        (message,) = messages
        if message.text == "slow":
            ends.wait(60)
        if message.text in bad:
            return OrderedResult.SUSPEND
        with lock:
            done.append(message.text)
        return OrderedResult.SUCCESS

    settings = ConsumerSettings(
        consume_from=ConsumeFrom.FIRST, max_reconsume_times=0, consume_message_batch_max_size=1
    )
    consumer = Consumer(
        group,
        topics.bootstrap,
        topics={topic: "*"},
        ordered="key",
        concurrency=4,
        listener=listen,
        settings=settings,
    )
    with consumer:
        wait_until(lambda: len(done) == count)

        def is_judged() -> bool:
            table = access_to(Connect(topics.bootstrap)).lanes(group, topic)
            return [row.owed for row in table.queues] == [1]

        wait_until(is_judged)
        try:
            yield
        finally:
            ends.set()


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_key_is_consumed_up_to_what_is_owed_of_it() -> None:
    """Keys without pending messages are consumed up to the offset that the group has reached in the queue."""
    queue = MessageQueue("orders", "b", 0)
    consumed = Consumed({queue: 10}, {(queue, "a"): 4, (queue, "b"): 12})

    assert [consumed.end(queue, key) for key in ("a", "b", "c", None)] == [4, 10, 10, 10]
    assert consumed.end(MessageQueue("orders", "b", 1), "a") == 0


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_the_lag_of_a_group_by_key_is_what_it_has_not_consumed(topics: Topics) -> None:
    """Lanes that went on after a pending message do not count; the time is that of the first pending message."""
    topic = topics.make(queues=1)
    group = f"lanes-{topic}"
    topics.admin.set_group(SubscriptionGroupConfig(group, concurrency="Key"))
    texts = ["slow", "one", "two", "three"]
    topics.fill(topic, [Message(topic=topic, body=text.encode(), key=text) for text in texts])

    with consuming_by_key(topics, topic, group, count=3):
        (row,) = lag.lags(access_to(Connect(topics.bootstrap)), topic, [group])

    assert (row["committed"], row["end"], row["lag"]) == (0, 4, 1)
    assert row["lagMs"] > 0


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("key_property", [SHARDING_KEY, "customer"])
def test_a_letter_is_overtaken_also_behind_what_the_group_owes_of_another_key(
    spark: "SparkSession", topics: Topics, tmp_path: Path, key_property: str
) -> None:
    """Law: a redrive sends no letter after its successors, whichever property holds the keys of the group."""
    topic = topics.make(queues=1)
    group = f"lanes-{topic}"
    topics.admin.set_group(
        SubscriptionGroupConfig(group, concurrency="Key", lane_key_property=key_property)
    )
    told = [("b", "slow"), ("a", "bad"), ("a", "later"), ("c", "bad too"), ("d", "other")]
    topics.fill(
        topic,
        [
            Message(
                topic=topic,
                body=text.encode(),
                key=key if key_property == SHARDING_KEY else text,
                properties={"customer": key},
            )
            for key, text in told
        ],
    )
    spec = RedriveSpec(
        type="redrive", plan=tmp_path / "plan.json", bootstrap=topics.bootstrap, group=group
    )

    with consuming_by_key(topics, topic, group, bad={"bad", "bad too"}, count=2):
        redrive.run("r", spec, lambda: spark)

    plan = redrive.Plan.from_json(json.loads(spec.plan.read_text()))
    assert [(item.key, item.decision) for item in plan.items] == [("a", "hold"), ("c", "send")]
