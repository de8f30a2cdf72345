"""The client of the cluster: hooks around everything that it says."""

from collections.abc import AsyncIterator

import pytest

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.assignment import AveragelyByCircle
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.producer.producer import Producer
from orderlymq_protocol.frame.command import RemotingCommand
from tests.client.fakecluster import FakeCluster, running, until
from tests.client.inbox import Inbox, fill


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 2}, ordered=True) as found:
        yield found


async def test_an_rpc_hook_sees_every_request_and_every_answer(cluster: FakeCluster) -> None:
    """TRC-04, CFG-C11, PSH-01: with a strategy, a producer and a consumer on one client; what it adds is sent."""
    fill(cluster, 1)
    asked: list[int] = []
    answered: list[tuple[int, int]] = []

    def before(_address: str, command: RemotingCommand) -> None:
        command.ext["tenant"] = "blue"
        asked.append(command.code)

    def after(_address: str, command: RemotingCommand, answer: RemotingCommand) -> None:
        answered.append((command.code, answer.code))

    instance = ClientInstance(cluster.address, before_request=before, after_response=after)
    inbox = Inbox()
    settings = ConsumerSettings(allocate_message_queue_strategy=AveragelyByCircle())
    consumer = Consumer(
        "G",
        topics="T",
        ordered=True,
        consume_from="first",
        listener=inbox.ordered,
        settings=settings,
        instance=instance,
    )
    async with Producer("P", instance=instance) as producer, consumer:
        await producer.send("T", "sent", key="k")
        await producer.send_oneway("T", "thrown", key="k")
        await until(lambda: len(inbox.seen) == 3)

    assert sorted(asked) == sorted(cluster.codes())
    assert all(each.ext["tenant"] == "blue" for each in cluster.seen)
    assert {105, 34, 38, 41, 14, 310, 11, 42, 35} <= {code for code, _ in answered}
