"""Three simulated replicas."""

from collections.abc import Iterator

import pytest

from tests.broker.replication.simulation import SimulatedGroup


@pytest.fixture
def group() -> Iterator[SimulatedGroup]:
    """Return three replicas; their states agree and hold their invariants in the end."""
    made = SimulatedGroup()
    yield made
    made.check()
