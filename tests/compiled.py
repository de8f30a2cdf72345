"""
Whether the compiled copy is what runs: ``make test-compiled`` asks this before it runs the tests on it.

The simulator does not run on the copy: it watches log and state machine from subclasses, which a compiled class has not.
"""

import importlib
import sys

from rich.console import Console

from tests.broker.test_compile import MODULES


def main() -> int:
    """Return 0 when every module that should be compiled is."""
    names = [
        module.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for module in MODULES
    ]
    files = {name: str(importlib.import_module(name).__file__) for name in names}
    sources = [name for name, file in files.items() if not file.endswith(".so")]
    console = Console(soft_wrap=True)
    if sources:
        console.print(f"not compiled: {', '.join(sources)}")
        console.print("PYTHONPATH must name the copy that make compiled makes")
        return 1
    console.print(f"{len(names)} compiled modules")

    return 0


if __name__ == "__main__":
    sys.exit(main())
