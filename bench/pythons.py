"""
Ordinary Pythons in one table: the same sends under each interpreter that is here, from the sources and compiled.

``python -m bench.pythons [--write docs/explanation/benchmarks.md]``. The distribution's, those of pyenv and one of uv, if there are any,
get an environment and a compiled copy of their own below build/pythons; then ``bench.sends --quick`` runs in each. What cannot
be had is named with its reason. A run takes a quarter of an hour for each interpreter the first time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.report.figures import shown
from bench.sends import Medians

from bench.report import origin, sections

HERE: Final = Path("build/pythons").resolve()
#: The oldest version that the project supports.
OLDEST: Final = (3, 11)
UV_VERSION: Final = "3.13"
#: The columns: a heading, the work of `bench.sends`, and its figure.
COLUMNS: Final = (
    ("one sender p50, ms", "sends, 1 in flight, 1024 B", "p50_ms"),
    ("p99, ms", "sends, 1 in flight, 1024 B", "p99_ms"),
    ("64 senders, messages/s", "sends, 64 in flight, 1024 B", "rate"),
    ("cluster CPU per message, µs", "sends, 64 in flight, 1024 B", "cpu_us"),
    ("drain by one, messages/s", "drain by 1", "rate"),
)


class AbsentError(RuntimeError):
    """An interpreter cannot be measured; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter on this machine."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one interpreter.

    Attributes:
        python: its version and build, as it reports them.
        works: the medians, by the name of the work.
    """

    name: str
    python: str
    compiled: bool
    works: Mapping[str, Medians]


def table(runs: Sequence[Run], absent: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the table, and a line for each Python that is missing in it."""
    yield f"| Python of | version and build | modules | {' | '.join(title for title, _, _ in COLUMNS)} |"
    yield "|---" * (3 + len(COLUMNS)) + "|"
    for run in runs:
        cells = [
            shown(run.works.get(work, {}).get(figure, float("nan"))) for _, work, figure in COLUMNS
        ]
        modules = "compiled" if run.compiled else "sources"
        yield f"| {run.name} | {run.python} | {modules} | {' | '.join(cells)} |"
    if absent:
        yield ""
        yield from (f"* {name} is left out: {reason}." for name, reason in absent.items())


def section(runs: Sequence[Run], absent: Mapping[str, str], of: str) -> str:
    """Return the section of the results page."""
    head = (
        f"`python -m bench.pythons`: three replicas and the load, which is in Python too, share {os.cpu_count()} CPUs; the figures are medians of two short"
        f" rounds; {of}."
    )
    return "\n".join(["## Ordinary Pythons", "", head, "", *table(runs, absent)])


def found(absent: dict[str, str]) -> Iterator[Interpreter]:
    """Yield the interpreters of this machine that are new enough; record the reasons for missing ones in *absent*."""
    candidates = [("the distribution", Path("/usr/bin/python3"))]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    pyenv = sorted(root.glob("versions/*/bin/python3"))
    candidates += [(f"pyenv, {path.parents[1].name}", path) for path in pyenv]
    if not pyenv:
        absent["pyenv"] = "it is not installed"
    try:
        candidates.append((f"uv, {UV_VERSION}", _of_uv()))
    except AbsentError as error:
        absent["uv"] = str(error)
    asking = f"import sys; sys.exit(sys.version_info < {OLDEST})"
    for name, path in candidates:
        if path.exists() and subprocess.run([path, "-c", asking], check=False).returncode == 0:
            yield Interpreter(name, path)


def _of_uv() -> Path:
    """Return the Python that uv installs."""
    uv = shutil.which("uv")
    if uv is None:
        raise AbsentError("uv is not installed")
    _do([uv, "python", "install", UV_VERSION])
    return Path(_do([uv, "python", "find", "--managed-python", UV_VERSION]).strip())


def prepared(interpreter: Interpreter) -> tuple[Path, Path]:
    """Create an interpreter's environment and compiled copy unless they exist; return its Python and the copy."""
    folder = HERE / "".join(each if each.isalnum() else "-" for each in interpreter.name)
    environment, copy = folder / "venv", folder / "compiled"
    python = environment / "bin" / "python"
    ready = environment / ".compile"
    _do(["make", "-s", f"PYTHON={interpreter.path}", f"VENV={environment}", str(ready)])
    compile_py = [str(python), "broker/compile.py"]
    if subprocess.run([*compile_py, "--current", str(copy)], check=False).returncode:
        shutil.rmtree(copy, ignore_errors=True)
        digest = _do([*compile_py, "--digest"]).strip()
        pip = [str(python), "-m", "pip", "-q", "install", "--no-deps", "--target", str(copy), "."]
        _do(pip)
        _do([*compile_py, "--of", digest, str(copy)])
    return python, copy


def measure(interpreter: Interpreter) -> Iterator[Run]:
    """Yield the results with the sources, then those with the compiled copy."""
    python, copy = prepared(interpreter)
    for compiled in (False, True):
        paths = {"PYTHONPATH": str(copy)} if compiled else {}
        answer = json.loads(_do([str(python), "-m", "bench.sends", "--quick", "--json"], paths))
        yield Run(interpreter.name, answer["python"], compiled, answer["works"])


def _do(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output.

    Raises:
        AbsentError: The command failed.
    """
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise AbsentError(f"`{' '.join(Path(each).name for each in command[:3])}` failed: {last}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, help="also write the section into this page")
    given = parser.parse_args()
    absent: dict[str, str] = {}
    runs: list[Run] = []
    for interpreter in found(absent):
        print(f"{interpreter.name} ...", file=sys.stderr, flush=True)
        try:
            runs += measure(interpreter)
        except AbsentError as error:
            absent[interpreter.name] = str(error)
    text = section(runs, absent, origin.commit())
    print(text)
    if given.write is not None:
        sections.put(given.write, "pythons", text)


if __name__ == "__main__":
    main()
