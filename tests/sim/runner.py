"""Many seeds at a time: a process pool, and the sum of what all runs have reached."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.sim.world import Result, simulate


@dataclass(slots=True)
class Summary:
    """The sum of many runs."""

    seeds: int = 0
    steps: int = 0
    simulated_s: float = 0.0
    took_s: float = 0.0
    failed: list[Result] = field(default_factory=list)
    coverage: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        """Add one run."""
        self.seeds += 1
        self.steps += result.steps
        self.simulated_s += result.simulated_s
        self.took_s += result.took_s
        self.coverage.update(result.coverage)
        self.counts.update(result.counts)
        if not result.ok:
            self.failed.append(result)


def run_seeds(seeds: Iterable[int], jobs: int | None = None) -> Iterator[Result]:
    """Yield the results of all seeds in their order, from *jobs* processes (default: one per core)."""
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from map(simulate, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(simulate, seeds, chunksize=4)


def summarise(results: Iterable[Result]) -> Summary:
    """Return the sum of all results."""
    summary = Summary()
    for result in results:
        summary.add(result)
    return summary
