"""
Fuzz every decoder for a share of `--seconds`, one after the other: `make fuzz SECONDS=60`.

Each has a process of its own, with a bound of memory and of time per input. The exit code is 1 when an input broke a
law; the table names the file and the command that repeats it. What was learned stays in build/fuzz for the next run.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import track
from rich.table import Table

_PLACE: Final = Path("build/fuzz")


def main() -> int:
    """Fuzz and report; return 0 if no law was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--decoder", help="this one alone")
    parser.add_argument(
        "--input", type=Path, help="read this file with --decoder, without a fuzzer"
    )
    options = parser.parse_args()
    return _repeat(options) if options.input else _fuzz(options)


def _repeat(options: argparse.Namespace) -> int:
    from tests.fuzz.decoders import decoders  # noqa: PLC0415 - the engine would import it otherwise

    decoders()[options.decoder].survives(options.input.read_bytes())
    return 0


def _fuzz(options: argparse.Namespace) -> int:
    # The first import of the sources, because it instruments them; only `make fuzz` installs atheris.
    from tests.fuzz.engine import decoders, fuzz  # noqa: PLC0415

    chosen = [options.decoder] if options.decoder else sorted(decoders())
    share_s = max(1, options.seconds // len(chosen))
    console = Console(stderr=True)
    table = Table("decoder", "inputs", "broken by", "repeat")
    broken = 0
    for name in track(chosen, f"fuzzing for {share_s} s each", console=console):
        decoder = decoders()[name]
        place = _PLACE / name.replace(" ", "-")
        for folder in ("corpus", "broken"):
            (place / folder).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(decoder.seeds):
            (place / "corpus" / f"seed-{number}").write_bytes(data)
        before = set((place / "broken").iterdir())
        runs, error = fuzz(decoder, place, share_s, options.seed)
        new = sorted(set((place / "broken").iterdir()) - before)
        repeat = f"python -m tests.fuzz --decoder '{name}' --input {new[-1]}" if new else ""
        broken += bool(error)
        table.add_row(name, runs, error, repeat)
    console.print(table)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
