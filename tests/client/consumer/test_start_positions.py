"""Where groups without an offset begin at real brokers, which answer otherwise than a stand-in might."""

import asyncio
import time

import pytest

from orderlymq import Consumer, ConsumerSettings, Producer
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster

__all__ = ["orderlymq_cluster"]

IN_AN_HOUR = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() + 3_600))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("first", ["older", "old", "new"]),
        ("last", ["older", "old", "new"]),
        # The message nearest to a time behind the end is the last one, as RocketMQ answers.
        ("timestamp", ["old", "new"]),
    ],
)
async def test_a_new_group_of_a_young_topic_misses_only_what_a_time_excludes(
    orderlymq_cluster: Cluster, where: str, expected: list[str], *, ordered: bool
) -> None:
    """Law: LAST passes over nothing of a queue that keeps its first message, a time does; the start is kept."""
    topic, group = f"{where}-{ordered}", f"group-{where}-{ordered}"
    await asyncio.to_thread(orderlymq_cluster.create_topic, topic, queues=1)
    seen: list[str] = []

    async def listener(messages: object, _: object) -> None:
        seen.extend(message.text for message in messages)  # type: ignore[attr-defined]

    async with Producer() as producer:
        await producer.send(topic, "older", key="k")
        await producer.send(topic, "old", key="k")
        settings = ConsumerSettings(consume_timestamp=IN_AN_HOUR)
        async with Consumer(
            group,
            topics=topic,
            ordered=ordered,
            consume_from=where,
            listener=listener,
            settings=settings,
        ) as consumer:
            async with asyncio.timeout(20):
                while not any(queue.topic == topic for queue in consumer.queues):  # noqa: ASYNC110 - it locks
                    await asyncio.sleep(0.02)
                await producer.send(topic, "new", key="k")
                while len(seen) < len(expected):  # noqa: ASYNC110 - the listener only notes
                    await asyncio.sleep(0.02)

    assert seen == expected
