"""The end of blocking clients."""

from collections.abc import Callable

import pytest

from orderlymq import blocking
from tests.client.fakecluster import FakeCluster
from tests.client.test_blocking import cluster  # noqa: F401 - a fixture


@pytest.mark.parametrize(
    "make",
    [
        lambda address: blocking.Producer("P", address),
        lambda address: blocking.Consumer("G", address, topics="T"),
        lambda address: blocking.PullConsumer("G", address),
        lambda address: blocking.LitePullConsumer("G", address),
        blocking.AdminClient,
    ],
    ids=["producer", "push", "pull", "lite", "admin"],
)
def test_a_second_close_does_nothing(
    cluster: FakeCluster,  # noqa: F811
    make: Callable[..., blocking.Producer],
) -> None:
    """As with asyncio: also inside a `with` block, whose end closes, too."""
    with make(cluster.address) as client:
        client.close()
        client.close()

    client.close()
