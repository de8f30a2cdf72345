"""Fixtures: a leader whose invariants are checked when the test ends."""

from collections.abc import Iterator

import pytest

from tests.broker.processors.adminshell import AdminShell
from tests.broker.processors.driver import Shell


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A leader of a new broker; at the end its state, its store and its log must agree."""
    leader = Shell().lead()
    yield leader
    leader.settle()
    leader.replay()
    leader.restart()


@pytest.fixture
def admin() -> Iterator[AdminShell]:
    """The same as *shell*, but it serves administrators too."""
    leader = AdminShell()
    leader.lead()
    yield leader
    leader.settle()
    leader.replay()
    leader.restart()
