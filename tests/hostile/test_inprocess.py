"""A sample of hostile requests against the cores; `make hostile` sends millions."""

import gc

import pytest

from tests.hostile.cases import Generator
from tests.hostile.findings import Findings
from tests.hostile.inprocess import BLOCK, InProcess

_SAMPLE = 3 * BLOCK


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_no_request_breaks_a_core(seed: int) -> None:
    """Law: a core never raises, what it proposes can be applied anywhere, and everybody is answered."""
    findings = Findings()
    runner = InProcess(seed, findings)
    chance = Generator(seed).systematic

    list(runner.run(0, _SAMPLE))
    list(runner.run(chance - chance % BLOCK + BLOCK, BLOCK))

    assert [(each.law, each.where, each.repeat) for each in findings] == []


def test_refused_requests_leave_nothing_to_the_collector() -> None:
    """An exception that something holds keeps its frames, with the body of each request on the way; the collector stops the loop."""
    runner = InProcess(11, Findings())
    chance = Generator(11).systematic
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        list(runner.run(chance - chance % BLOCK, 2 * BLOCK))
        gc.collect()
        left = [repr(each) for each in gc.garbage if isinstance(each, BaseException)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()

    assert left == []
