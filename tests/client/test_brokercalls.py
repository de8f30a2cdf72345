"""What a consumer asks brokers: how long it waits for an answer."""

import time
from collections.abc import AsyncIterator

import pytest

from orderlymq_protocol.command import RemotingCommand
from orderlymq_runtime.connection import Connection
from tests.client.fakecluster import FakeCluster, running, until
from tests.client.inbox import Inbox, fill, ordered_consumer


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 2}, ordered=True) as found:
        yield found


async def test_a_lock_request_waits_a_second_for_its_answer(cluster: FakeCluster) -> None:
    """CFG-T4: then it is asked again; RocketMQ waits as long."""
    fill(cluster, 1, queues=1)
    inbox = Inbox()
    asked: list[float] = []

    def once_silent(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        if b'"topic":"T"' not in command.body:
            cluster.faults[41].insert(0, once_silent)  # the retry topic's, which is asked beside
            return cluster.serve(command, conn)
        asked.append(time.monotonic())
        cluster.faults[41].insert(0, seen_again)
        return None

    def seen_again(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        asked.append(time.monotonic())
        return cluster.serve(command, conn)

    cluster.faults[41] = [once_silent]
    async with ordered_consumer(cluster, inbox):
        await until(lambda: inbox.texts == ["m0"], 10)

    assert 1.0 <= asked[1] - asked[0] < 3
