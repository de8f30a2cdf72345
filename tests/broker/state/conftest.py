"""Fixtures: a replica whose invariants are checked when the test ends."""

from collections.abc import Iterator

import pytest

from tests.broker.state.entries import Replica


@pytest.fixture
def replica() -> Iterator[Replica]:
    """A replica of an empty log; at the end its state is consistent and survives a restart."""
    fresh = Replica()
    yield fresh
    fresh.state.check_invariants()
    again = fresh.restarted()
    assert again.state.digest() == fresh.state.digest()
    again.state.check_invariants()
