"""
The pytest plugin: `orderlymq_cluster` is an empty cluster, ready for each test that asks for it.

Rule: a test fails at its end if the oracle finds that the order was broken or a message was lost. Clients need no
address: the fixture sets ORDERLYMQ_NAME_SERVER for the duration of the test.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from orderlymq_testing.cluster import Cluster


@pytest.fixture
def orderlymq_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> "Iterator[Cluster]":
    """Yield a cluster; `@pytest.mark.parametrize("orderlymq_cluster", [3], indirect=True)` gives it three replicas."""
    # The import of brokers takes a second; a run whose tests need none does not wait for it.
    from orderlymq_testing.cluster import Cluster  # noqa: PLC0415

    with Cluster(tmp_path / "orderlymq", replicas=getattr(request, "param", 1)) as cluster:
        monkeypatch.setenv("ORDERLYMQ_NAME_SERVER", cluster.name_server)
        yield cluster
        cluster.assert_kept()
