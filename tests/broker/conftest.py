"""Fixtures: a leader whose invariants are checked when a test ends."""

from collections.abc import Iterator

import pytest

from tests.broker.processors.adminshell import AdminShell
from tests.broker.processors.driver import Shell


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A leader of a fresh broker; at the end its state is sound, in its store and in its log."""
    leader = Shell().lead()
    yield leader
    leader.settle()
    leader.replay()
    leader.restart()


@pytest.fixture
def admin() -> Iterator[AdminShell]:
    """As *shell*, serving administrators too."""
    leader = AdminShell()
    leader.lead()
    yield leader
    leader.settle()
    leader.replay()
    leader.restart()
