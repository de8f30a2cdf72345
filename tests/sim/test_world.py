"""The simulator itself: a seed is a run, and the laws hold in those that are tried here."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.coverage import SEEDS_ENOUGH, WANTED, missing
from tests.sim.runner import run_seeds, summarise
from tests.sim.world import simulate

ROOT = Path(__file__).parents[2]
# A few that show that the simulator works; `make sim` runs 600, or as many as you like.
SEEDS = int(os.environ.get("ORDERLYMQ_SIM_SEEDS", "4"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Byte for byte: nothing depends on the order of a hash table, a clock or an address."""
    program = "from tests.sim.world import simulate; print(simulate(3).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4242")
    }

    assert len(digests) == 1


def test_two_seeds_are_two_runs() -> None:
    """A seed decides what happens."""
    assert simulate(1, steps=2_000).digest != simulate(2, steps=2_000).digest


@pytest.mark.timeout(900)
def test_all_laws_hold() -> None:
    """Whatever fails, in every seed that is tried."""
    summary = summarise(run_seeds(range(SEEDS), 2))

    assert [(each.seed, each.check, each.text) for each in summary.failed] == []
    if SEEDS >= SEEDS_ENOUGH:
        assert missing(summary.coverage) == []


def test_what_was_never_reached_is_named() -> None:
    """The suite fails for a situation that no run came to."""
    everything = Counter(WANTED)
    del everything["snapshot installed"]

    assert missing(everything) == ["snapshot installed"]
