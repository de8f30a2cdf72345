"""Consumers over which tests loop."""

from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from tests.client.fakecluster import FakeCluster

SOON = ConsumerSettings(suspend_current_queue_time=0.01)


def consumer_of(cluster: FakeCluster, *, ordered: bool = True) -> Consumer:
    return Consumer(
        "G", cluster.address, topics="T", ordered=ordered, consume_from="first", settings=SOON
    )


async def fail_at(consumer: Consumer, text: str, texts: list[str]) -> None:
    """Loop until a message has *text*, then leave the loop by an exception."""
    async for message in consumer:
        texts.append(message.text)
        if message.text == text:
            raise ValueError("no")
