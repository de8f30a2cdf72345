"""An ordered topic for tests of its changes."""

import pytest

from orderlymq_broker.state.records import GroupSet, TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, heartbeat, lock


@pytest.fixture
def topic() -> Shell:
    """An ordered topic with four queues, and an ordered group whose member holds their locks."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing", orderly=True))
    heartbeat(shell, "one@1")
    lock(shell, "one@1", 0, 1, 2, 3)
    return shell
