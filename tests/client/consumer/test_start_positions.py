"""Start positions of groups without an offset at real brokers, whose answers may differ from a stand-in's."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from orderlymq import (
    AdminClient,
    ConcurrentContext,
    Consumer,
    ConsumerSettings,
    Producer,
    ReceivedMessage,
)
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import retry_topic
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster

__all__ = ["orderlymq_cluster"]

AN_HOUR_AGO = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() - 3_600))
IN_AN_HOUR = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() + 3_600))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("first", ["older", "old", "new"]),
        ("last", ["older", "old", "new"]),
        # For a time behind the end, the nearest message is the last one, as RocketMQ answers.
        ("timestamp", ["old", "new"]),
    ],
)
async def test_a_new_group_of_a_young_topic_misses_only_what_a_time_excludes(
    orderlymq_cluster: Cluster, where: str, expected: list[str], *, ordered: bool
) -> None:
    """Law: LAST skips nothing in a queue that still has its first message; a time does. The start is kept."""
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
        ):
            async with asyncio.timeout(20):
                # Earlier, the consumer may not have asked yet where it begins.
                while len(seen) < len(expected) - 1:  # noqa: ASYNC110 - the listener only notes
                    await asyncio.sleep(0.02)
                await producer.send(topic, "new", key="k")
                while len(seen) < len(expected):  # noqa: ASYNC110 - the same
                    await asyncio.sleep(0.02)

    assert seen == expected


@pytest.mark.parametrize("where", ["first", "last", "timestamp"])
async def test_what_a_group_handed_back_is_owed_wherever_it_begins(
    orderlymq_cluster: Cluster, where: str
) -> None:
    """Law: a returned message comes again, even if nobody had read the retry topic before."""
    topic, group = f"owed-{where}", f"owing-{where}"
    await asyncio.to_thread(orderlymq_cluster.create_topic, topic, queues=1)
    failed = asyncio.Event()
    tries: list[int] = []

    async def failing(_: object, context: ConcurrentContext) -> None:
        context.delay_level_when_next_consume = 1
        failed.set()
        raise ValueError("not now")

    async def listener(messages: Sequence[ReceivedMessage], _: object) -> None:
        tries.extend(message.reconsume_times for message in messages)

    settings = ConsumerSettings(consume_timestamp=AN_HOUR_AGO)
    given = {"topics": topic, "consume_from": where, "settings": settings}
    async with Consumer(group, listener=failing, **given), asyncio.timeout(20):  # type: ignore[arg-type]
        async with Producer() as producer:
            await producer.send(topic, "one")
        await failed.wait()
    retries = retry_topic(group)
    async with AdminClient(orderlymq_cluster.name_server) as admin, asyncio.timeout(20):
        reader = QueueReader(admin.instance, group)
        queue = MessageQueue(retries, "broker-a", 0)
        while await reader.max_offset(queue) == 0:  # noqa: ASYNC110 - the broker hands it on when its delay is over
            await asyncio.sleep(0.1)

    async with Consumer(group, listener=listener, **given), asyncio.timeout(20):  # type: ignore[arg-type]
        while not tries:  # noqa: ASYNC110 - the listener only notes
            await asyncio.sleep(0.02)

    assert tries == [1]
