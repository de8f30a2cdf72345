"""
Build one wheel for each distribution: ``python -m release.wheels FOLDER``.

Each is built in a folder of its own that holds links to the sources and a pyproject.toml made from
``distributions.py``, by the same build backend as the repository's own.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from release.distributions import ROOT, Distribution, distributions, metadata


def toml(table: dict[str, Any]) -> str:
    """Return *table* as TOML; every value is an inline JSON-like value of its key."""
    return "".join(f"{line}\n" for line in _lines(table, ()))


def _lines(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if path:
        yield f"[{'.'.join(json.dumps(key) for key in path)}]"
    for key, value in plain.items():
        yield f"{json.dumps(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _lines(value, (*path, key))


def _value(value: object) -> str:
    # Strings, numbers and lists of JSON are those of TOML; lists may hold tables (authors).
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items())
        return "{" + pairs + "}"
    return json.dumps(value, ensure_ascii=False)


def stage(distribution: Distribution, folder: Path) -> None:
    """Lay out what the build backend needs for *distribution* in *folder*."""
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    targets = [_place(package) for package in distribution.packages]
    wheel: dict[str, Any] = {"packages": [str(target) for target in targets]}
    if distribution.exclude:
        wheel["exclude"] = distribution.exclude
    for package, target in zip(distribution.packages, targets, strict=True):
        shutil.copytree(
            ROOT / package,
            folder / target,
            ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        )
    for name in (root["project"]["readme"], *root["project"]["license-files"]):
        shutil.copy(ROOT / name, folder)
    if any(len(target.parts) > 1 for target in targets):
        # A part of a package whose rest another distribution has: its folder stays as it is.
        wheel = {"only-include": wheel["packages"]}
    whole = {
        "build-system": root["build-system"],
        "project": metadata(distribution),
        "tool": {"hatch": {"build": {"targets": {"wheel": wheel}}}},
    }
    (folder / "pyproject.toml").write_text(toml(whole), encoding="utf-8")


def _place(package: str) -> Path:
    """Return where a package lies inside a wheel: its path below the folder of its subject."""
    return Path(*Path(package).parts[1:])


def build(distribution: Distribution, into: Path) -> None:
    """Build the wheel of *distribution*; raises CalledProcessError with what pip printed."""
    with tempfile.TemporaryDirectory() as folder:
        stage(distribution, Path(folder))
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "wheel"),
                *("--no-deps", "--wheel-dir", str(into), folder),
            ],
            check=True,
        )


def main() -> None:
    """Build all wheels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    into = parser.parse_args().folder
    into.mkdir(parents=True, exist_ok=True)
    for distribution in distributions():
        print(f"{distribution.name}: building", flush=True)
        build(distribution, into)


if __name__ == "__main__":
    main()
