"""`make run`, with stand-in programs that only report that they run."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

_ROOT = Path(__file__).parents[2]
_PATIENCE_S = 20.0
_PYTHON = """#!/bin/sh
case "$*" in
*--of*) echo $$ >compiling && exec sleep 300 ;;
*--digest*) echo sources ;;
*) exit 1 ;;
esac
"""


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _checkout(place: Path) -> None:
    shutil.copy(_ROOT / "Makefile", place)
    programs = place / ".venv" / "bin"
    programs.mkdir(parents=True)
    (place / "requirements").mkdir()
    for name in ("requirements/run.lock", "requirements/compile.lock", "pyproject.toml"):
        (place / name).touch()
    for name, text in (
        ("python", _PYTHON),
        ("pip", "#!/bin/sh\n"),
        ("orderlymq", "#!/bin/sh\necho $$ >running && exec sleep 300\n"),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in (".run", ".compile"):
        (place / ".venv" / name).touch()


def _pid(file: Path) -> int:
    _until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_cluster_and_what_compiles_beside_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Law: a signal to `make run` ends the cluster and a running compilation, and does not wait for the latter."""
    _checkout(tmp_path)
    environment = {**os.environ, "CC": "true", "MAKEFLAGS": ""}
    make = subprocess.Popen(["make", "run"], cwd=tmp_path, env=environment, start_new_session=True)
    cluster, compiler = _pid(tmp_path / "running"), _pid(tmp_path / "compiling")
    try:
        if number == signal.SIGINT:
            os.killpg(make.pid, number)  # As Ctrl-C in a terminal.
        else:
            make.send_signal(number)
        make.wait(_PATIENCE_S)
        _until(lambda: not psutil.pid_exists(cluster))
        _until(lambda: not psutil.pid_exists(compiler))
    finally:
        for pid in (make.pid, cluster, compiler):
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        make.wait()
