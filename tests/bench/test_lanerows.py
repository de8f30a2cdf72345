"""The rows that lanes read and write for a message do not depend on the backlog of a parked key."""

import pytest
from bench.lanerows import rows_per_message


@pytest.mark.parametrize("deep", [100, 3_000])
def test_a_deep_backlog_of_one_key_costs_others_nothing(deep: int) -> None:
    """The backlog is read once, with two rows for a message and a share of a run; later messages cost as before."""
    once, others = rows_per_message(deep)
    _, shallow = rows_per_message(1)

    assert others == pytest.approx(shallow, rel=0.01)
    assert others < 4
    assert once < 2.3
