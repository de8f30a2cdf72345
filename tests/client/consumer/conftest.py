"""The cluster of most tests of consumers: one ordered topic `T` with two queues."""

from collections.abc import AsyncIterator

import pytest

from tests.client.fakecluster import FakeCluster, running


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 2}, ordered=True) as found:
        yield found
