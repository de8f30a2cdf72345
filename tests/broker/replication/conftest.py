"""Three simulated replicas."""

from collections.abc import Iterator

import pytest

from tests.broker.replication.simulation import SimulatedGroup


@pytest.fixture
def group() -> Iterator[SimulatedGroup]:
    """Return three replicas; at the end their states agree and their invariants hold."""
    made = SimulatedGroup()
    yield made
    made.check()
