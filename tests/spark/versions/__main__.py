"""
`make spark-versions`: an environment for each version of Spark, the trial in it, and the page of what passed.

An environment has that pyspark and what it needs; everything else comes from the environment of the tests. One is made,
used and removed at a time: each has 500 MB. `--version 4.0.5` tries one and prints; `--keep` leaves it in build/.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from tests.cluster.processes import Group
from tests.spark.faults.kills import ROOT
from tests.spark.versions.page import CELLS, PAGE, Tried, page

VERSIONS: Final = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
SESSIONS: Final = ("classic", "connect")
_FOLDER: Final = ROOT / "build" / "spark-versions"


@contextmanager
def environment(version: str, *, keep: bool) -> Iterator[Path]:
    """Make an environment with a version of Spark; return its Python."""
    folder = _FOLDER / version
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "-q"]
        install = [
            "--disable-pip-version-check",
            "install",
            "--no-cache-dir",
            f"pyspark=={version}",
        ]
        subprocess.run([*pip, *install], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        # Workers would read the same modules from the archive, which every process compiles again.
        (site / "pyspark" / "python" / "lib" / "pyspark.zip").unlink()
        ours = sysconfig.get_path("purelib")
        (site / "tests.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    try:
        yield python
    finally:
        if not keep:
            shutil.rmtree(folder)


def tried(
    python: Path, version: str, session: str, bootstrap: str, minutes: float, cells: list[str]
) -> Tried:
    """Run the trial in an environment; cells without a result when the time is over were not run."""
    with tempfile.TemporaryDirectory(prefix="spark-versions-") as folder:
        settings = {
            "master": "connect" if session == "connect" else "local[2]",
            "bootstrap": bootstrap,
            "folder": folder,
            "prefix": f"{session}-{version.replace('.', '-')}",
            "cells": ";".join(cells),
        }
        with (Path(folder) / "told").open("w+") as told:
            process = subprocess.Popen(
                [python, "-m", "tests.spark.versions.trial", json.dumps(settings)],
                cwd=ROOT,
                # On a busy machine, a Python takes longer to start than Spark's 15 s; and a short run ends before
                # Java's second compiler pays off.
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": str(python),
                    "SPARK_AUTH_SOCKET_TIMEOUT": "600",
                    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                },
                stdout=told,
            )
            try:
                process.wait(minutes * 60)
            except subprocess.TimeoutExpired:
                for each in psutil.Process(process.pid).children(recursive=True):
                    each.kill()
                process.kill()
                process.wait()
            told.seek(0)
            return Tried(version, session, tuple(json.loads(line) for line in told))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", action="append", help="only this one; prints, writes no page")
    parser.add_argument("--session", action="append", choices=SESSIONS)
    parser.add_argument("--cell", action="append", choices=CELLS, default=[])
    parser.add_argument("--minutes", type=float, default=60.0, help="for each trial at most")
    parser.add_argument("--keep", action="store_true", help="leave the environments in build/")
    given = parser.parse_args()
    found: list[Tried] = []
    with (
        tempfile.TemporaryDirectory(prefix="spark-versions-") as folder,
        Group(Path(folder) / "cluster", 1) as group,
    ):
        for version in given.version or VERSIONS:
            with environment(version, keep=given.keep) as python:
                for session in given.session or SESSIONS:
                    address = group.name_server_address
                    each = tried(python, version, session, address, given.minutes, given.cell)
                    sys.stdout.write(f"{each}\n")
                    sys.stdout.flush()
                    found.append(each)
                    if not (given.version or given.session or given.cell):
                        PAGE.write_text(page(found, datetime.now(UTC).date()))
    return 0 if all(each.passed for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
