"""Nothing changes for ten minutes."""

import os
import time

import pytest

from e2e.installed import Operator
from e2e.space import Property, Space

IDLE_S = float(os.environ.get("ORDERLYMQ_E2E_IDLE_S", "600"))
_SETTLED_S = 30.0  # after Ready: what follows it, as the first coarse look at lag, is over


@pytest.mark.timeout(900)
def test_nothing_is_written_while_nothing_changes(
    space: Space, operator: Operator, record_property: Property
) -> None:
    """The operator looks again and again, and asks the API server for no write; its lease does not count."""
    space.example("quickstart.yaml")
    space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
    time.sleep(_SETTLED_S)
    before = operator.writes()

    time.sleep(IDLE_S)

    record_property("idle_s", IDLE_S)
    record_property("writes", operator.writes() - before)
    assert operator.writes() == before
