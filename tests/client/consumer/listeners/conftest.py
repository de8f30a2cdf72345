"""What all tests of listeners and loops share."""

from collections.abc import AsyncIterator

import pytest

from tests.client.fakecluster import FakeCluster, running


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 2}, ordered=True) as found:
        yield found
