"""A sample of hostile requests against the cores; `make hostile` sends millions."""

import pytest

from tests.hostile.cases import Generator
from tests.hostile.findings import Findings
from tests.hostile.inprocess import BLOCK, InProcess

_SAMPLE = 3 * BLOCK


@pytest.mark.parametrize("seed", [11, 12])
def test_no_request_breaks_a_core(seed: int) -> None:
    """Law: a core never raises, what it proposes can be applied anywhere, and everybody is answered."""
    findings = Findings()
    runner = InProcess(seed, findings)
    chance = Generator(seed).systematic

    list(runner.run(0, _SAMPLE))
    list(runner.run(chance - chance % BLOCK + BLOCK, BLOCK))

    assert [(each.law, each.where, each.repeat) for each in findings] == []
