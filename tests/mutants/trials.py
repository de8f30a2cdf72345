"""
Trials: one forked process for each mutant, from a parent that has already loaded and collected everything.

A child plants its mutant, runs the tests that are likely to notice first, and stops at the first failure. If no test
notices, it continues with seeds of the simulator, if there are any. Only tests that call the mutated function are
run. Its cost is bounded: CPU time, memory, and the time that a single test may hang.
"""

import gc
import json
import os
import resource
import select
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from time import process_time
from types import CodeType, FrameType
from typing import Any, Final

import pytest

from tests.mutants.baseline import Baseline
from tests.mutants.mutant import Mutant
from tests.mutants.patch import NotPlanted, plant

# A mutant that loops takes CPU time, or memory, without end. A test's baseline is its time with the tracer.
CPU_PER_BASELINE: Final = 5
CPU_LEAST_S: Final = 1
SEED_CPU_S: Final = 20
MEMORY_MAX: Final = 4 << 30
# An explained mutant is unlikely to be noticed. This time finds nearly every test that states a rule of its function.
EXPLAINED_CPU_S: Final = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a mutant's trial: what noticed it, or that nothing did.

    Attributes:
        key: the mutant's.
        noticed: ``tests``, ``seeds``, ``time``, ``crash``, ``no`` or ``void`` (it could not be planted).
        by: the test, or the seed and the law.
        seeds: how many seeds were tried.
        commit: the commit of the run.
        date: the moment of the run.
    """

    key: str
    noticed: str
    by: str = ""
    seeds: int = 0
    commit: str = ""
    date: str = ""


@dataclass(slots=True)
class Order:
    """
    The tests that are tried, and their order.

    A test that never calls the mutated function cannot notice the change. Tests that noticed mutants of the same
    function or module come first, then those of the module's own test file, then the quick ones.

    Attributes:
        took_s: CPU time of each test without a mutant.
        callers: the tests that call each function, named by its path and qualified name.
    """

    took_s: dict[str, float] = field(default_factory=dict)
    callers: dict[str, set[str]] = field(default_factory=dict)
    _noticed: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _seeds: Counter[int] = field(default_factory=Counter)

    def learn(self, mutant: Mutant, verdict: Verdict) -> None:
        """Remember which test or seed noticed."""
        if verdict.noticed == "tests":
            self._noticed[mutant.path][verdict.by] += 1
            self._noticed[mutant.path + mutant.function][verdict.by] += 1
        elif verdict.noticed == "seeds":
            self._seeds[int(verdict.by.split(":")[0])] += 1

    def tests(self, mutant: Mutant, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the tests that can notice a mutant, in the order in which to run them."""
        near = self._noticed[mutant.path + mutant.function]
        same = self._noticed[mutant.path]

        own = f"test_{Path(mutant.path).name}"

        def place(item: pytest.Item) -> tuple[int, int, bool, float]:
            name = item.nodeid
            return -near[name], -same[name], item.path.name != own, self.took_s.get(name, 0.0)

        callers = self.callers.get(mutant.path + mutant.function, set())
        return sorted((item for item in items if item.nodeid in callers), key=place)

    def seeds(self, sound: Sequence[int]) -> list[int]:
        """Return the *sound* seeds of the simulator: those that have noticed something first."""
        return sorted(sound, key=lambda seed: -self._seeds[seed])


class Calls:
    """The functions below a folder that were called since the last `take`."""

    def __init__(self, root: Path) -> None:
        self._prefix = f"{root}{os.sep}"
        self._called: set[CodeType] = set()
        sys.settrace(self._start)
        threading.settrace(self._start)

    def take(self) -> set[str]:
        """Return their paths and qualified names, and begin again."""
        called, self._called = self._called, set()
        return {
            # A function that is defined inside another belongs to it.
            code.co_filename.removeprefix(self._prefix) + code.co_qualname.split(".<locals>")[0]
            for code in called
            if code.co_filename.startswith(self._prefix)
        }

    def _start(self, frame: FrameType, _event: str, _argument: object) -> None:
        # No tracer for the lines of the function.
        self._called.add(frame.f_code)


class Trials:
    """A pytest plugin that forks children to run the tests that it has collected.

    Args:
        jobs: how many children at a time.
        seeds: how many seeds are tried if no test has noticed.
        simulate: runs one seed and returns the law that it broke.
        baseline: what is known of the tests without a mutant.
        explained: returns whether a mutant is not expected to be noticed.
        done: takes each verdict.
    """

    def __init__(
        self,
        mutants: Iterable[Mutant],
        root: Path,
        *,
        jobs: int,
        seeds: int,
        simulate: Callable[[int], str],
        baseline: Baseline,
        explained: Callable[[Mutant], bool],
        done: Callable[[Mutant, Verdict], None],
    ) -> None:
        self._mutants = iter(mutants)
        self._root = root
        self._jobs = jobs
        self._seeds: Sequence[int] = range(seeds)
        self._simulate = simulate
        self._done = done
        self._baseline = baseline
        self._explained = explained
        self._order = Order()
        self._failed: list[str] = []

    # -- pytest's hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run each mutant's tests in its own child."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        gc.collect()
        gc.freeze()
        self._measure(session)
        running: dict[int, tuple[Mutant, int]] = {}
        while True:
            while len(running) < self._jobs and (following := next(self._mutants, None)):
                reader, pid = self._fork(partial(self._try, session, following))
                running[reader] = following, pid
            if not running:
                return True
            for reader in select.select(list(running), [], [])[0]:
                mutant, pid = running.pop(reader)
                verdict = self._verdict(mutant, reader, pid)
                self._order.learn(mutant, verdict)
                self._done(mutant, verdict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed:
            self._failed.append(report.nodeid)

    # -- in the parent

    def _measure(self, session: pytest.Session) -> None:
        """Run all tests without a mutant: they must pass; record how long each takes and what it calls.

        Tests of a module that was measured before are not run again while the module is unchanged. A seed that breaks
        a law without a mutant says nothing about mutants, so it is left out.
        """
        unknown = self._baseline.unknown(session.items)

        def timed() -> dict[str, Any]:
            took: dict[str, float] = {}
            calls = Calls(self._root)
            callers: defaultdict[str, list[str]] = defaultdict(list)
            began = process_time()
            for item in self._run(unknown):
                took[item.nodeid] = process_time() - began
                for function in calls.take():
                    callers[function].append(item.nodeid)
                began = process_time()
            sys.settrace(None)
            sound = [seed for seed in self._seeds if not self._simulate(seed)]
            return {"took": took, "callers": callers, "failed": self._failed, "sound": sound}

        reader, pid = self._fork(timed)
        told = self._told(reader)
        os.waitpid(pid, 0)
        if "took" not in told or told["failed"]:
            raise RuntimeError(f"the tests fail without a mutant: {told}")
        self._baseline.learn(told["took"], told["callers"])
        self._seeds = told["sound"]
        self._order.took_s = self._baseline.took_s
        self._order.callers = self._baseline.callers

    def _fork(self, work: Callable[[], dict[str, Any]]) -> tuple[int, int]:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writer)
            return reader, pid
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(work()).encode())
        finally:
            os._exit(0)

    @staticmethod
    def _told(reader: int) -> dict[str, Any]:
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read()
        told: dict[str, Any] = json.loads(text) if text else {}
        return told

    def _verdict(self, mutant: Mutant, reader: int, pid: int) -> Verdict:
        told = self._told(reader)
        _, status = os.waitpid(pid, 0)
        if told:
            return Verdict(mutant.key, **told)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            return Verdict(mutant.key, "time")
        return Verdict(mutant.key, "crash", f"status {status}")

    # -- in a child

    def _try(self, session: pytest.Session, mutant: Mutant) -> dict[str, Any]:
        try:
            plant(mutant, self._root)
        except NotPlanted as error:
            return {"noticed": "void", "by": str(error)}
        explained, began = self._explained(mutant), process_time()
        tests = self._order.tests(mutant, session.items)
        for item in self._run(tests, self._limit):
            if self._failed:
                return {"noticed": "tests", "by": item.nodeid}
            if explained and process_time() - began > EXPLAINED_CPU_S:
                return {"noticed": "no"}
        for tried, seed in enumerate(self._order.seeds(self._seeds), start=1):
            signal.setitimer(signal.ITIMER_PROF, SEED_CPU_S)
            law = self._simulate(seed)
            if law:
                return {"noticed": "seeds", "by": f"{seed}: {law}", "seeds": tried}
        return {"noticed": "no", "seeds": len(self._seeds)}

    def _limit(self, item: pytest.Item) -> None:
        took_s = self._order.took_s.get(item.nodeid, 0.0)
        signal.setitimer(signal.ITIMER_PROF, CPU_LEAST_S + CPU_PER_BASELINE * took_s)

    @staticmethod
    def _run(
        items: Sequence[pytest.Item], before: Callable[[pytest.Item], None] = lambda item: None
    ) -> Iterator[pytest.Item]:
        """Run tests one after the other; yield each when it is over."""
        for item, following in zip_longest(items, items[1:]):
            before(item)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item
