"""
A check that the compiled copy is what runs, and does what the sources do; ``make test-compiled`` begins with it.

Every module that should be compiled is, and the simulator comes to the same digests of all that happened,
seed by seed, on the copy and on the sources.
"""

import importlib
import os
import subprocess
import sys
from typing import Final

from rich.console import Console

from tests.broker.test_compile import MODULES
from tests.sim.runner import run_seeds

SEEDS: Final = range(1_000, 1_000 + int(os.environ.get("ORDERLYMQ_SEEDS", "20")))
BROKEN: Final = "broken:"


def main() -> int:
    """Return 0 when both is so."""
    console = Console(soft_wrap=True)
    if sys.argv[1:] == ["--digests"]:
        console.print("\n".join(digests()), highlight=False)
        return 0
    if sources := interpreted():
        console.print(f"not compiled: {', '.join(sources)}")
        console.print("PYTHONPATH must name the copy that make compiled makes")
        return 1
    differing = [
        seed
        for seed, one, other in zip(SEEDS, digests(), digests_of_sources(), strict=True)
        if one != other or one.startswith(BROKEN)
    ]
    if differing:
        console.print(
            f"a law broke, or copy and sources do different things, with seeds {differing};"
        )
        console.print("compare what python -m tests.sim --replay --seed prints with each")
        return 1
    console.print(f"{len(MODULES)} compiled modules, {len(SEEDS)} equal simulations")
    return 0


def interpreted() -> list[str]:
    """Return the modules that Python would interpret."""
    names = [
        module.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for module in MODULES
    ]
    files = {name: str(importlib.import_module(name).__file__) for name in names}
    return [name for name, file in files.items() if not file.endswith(".so")]


def digests() -> list[str]:
    """Return what comes of the seeds here: a digest each, or the law that was broken."""
    results = run_seeds(SEEDS)
    return [result.digest if result.ok else f"{BROKEN} {result.check}" for result in results]


def digests_of_sources() -> list[str]:
    """Return the same of the sources, which another process runs."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "tests.compiled", "--digests"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
