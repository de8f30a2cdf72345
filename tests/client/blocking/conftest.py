"""A cluster for the blocking clients."""

from collections.abc import Iterator

import pytest

from orderlymq.blocking import LoopThread
from tests.client.fakecluster import FakeCluster, running


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A fake cluster on its own event loop, as it would be elsewhere."""
    thread = LoopThread("fake cluster")
    context = running(topics={"T": 2}, ordered=True)
    try:
        yield thread.run(context.__aenter__())
        thread.run(context.__aexit__(None, None, None))
    finally:
        thread.close()
