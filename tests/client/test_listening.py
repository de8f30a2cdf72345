"""Calls of listeners: what they are given."""

from collections.abc import AsyncIterator, Sequence

import pytest

from orderlymq.consumer import Consumer
from orderlymq.contexts import OrderedContext
from orderlymq.events import OrderedResult
from orderlymq.message import ReceivedMessage
from tests.client.fakecluster import FakeCluster, running, until
from tests.client.inbox import fill


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 2}, ordered=True) as found:
        yield found


async def test_the_messages_of_a_call_cannot_be_changed(cluster: FakeCluster) -> None:
    """ODL-10: the listener gets a tuple; neither a message can be put in its place nor one be added."""
    fill(cluster, 1, queues=1)
    refused: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> OrderedResult:
        for change in ("messages[0] = None", "messages.append(None)", "del messages[0]"):
            try:
                exec(change, {"messages": messages})
            except (TypeError, AttributeError):
                refused.append(change)
        return OrderedResult.SUCCESS

    async with Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    ):
        await until(lambda: len(refused) == 3)
