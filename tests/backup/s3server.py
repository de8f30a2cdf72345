"""
A real S3 server in its own process: moto's, from a separate virtual environment.

Its libraries conflict with ours: botocore and the Kubernetes client need different releases of one package. The
environment is in ``build/`` and is made if it is missing.
"""

import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from tests.alone import alone
from tests.ports import free_row

ROOT: Final = Path(__file__).parents[2]
REQUIREMENT: Final = "moto[s3,server]==5.2.5"
START_S: Final = 60.0


class NoServer(Exception):  # noqa: N818 - named for what the caller must know
    """The server cannot be installed here; the text is pip's error."""


def _program() -> Path:
    folder = ROOT / "build" / "s3-server"
    program = folder / "bin" / "moto_server"
    with alone(folder):
        if not program.exists():
            venv.create(folder)
            pip = [sys.executable, "-m", "pip", "-q", "--python", str(folder / "bin" / "python")]
            install = [*pip, "install", "--no-compile", REQUIREMENT]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoServer(done.stderr.strip().splitlines()[-1])
    return program


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """Yield the address of a server that has *bucket*.

    Raises:
        NoServer: it cannot be installed here.
    """
    program, port = _program(), free_row(1)
    process = subprocess.Popen(
        [str(program), "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _make(f"{endpoint}/{bucket}")
        yield endpoint
    finally:
        process.terminate()
        process.wait()


def _make(url: str) -> None:
    end = monotonic() + START_S
    while True:
        try:
            request = urllib.request.Request(url, method="PUT")
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            if monotonic() > end:
                raise
            sleep(0.1)
