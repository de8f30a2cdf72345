"""A standalone Spark cluster from pyspark's jars; its Python lacks our packages, which are passed as a zip file."""

import os
import subprocess
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import psutil
import pyspark
from release.distributions import distributions

from tests.ports import free_ports
from tests.spark.faults.kills import ROOT

_START_TIMEOUT_S: Final = 300.0  # on a busy machine
_DEPLOY: Final = "org.apache.spark.deploy"
_BIN: Final = Path(pyspark.__file__).parent / "bin"


@dataclass(frozen=True)
class Standalone:
    """A master, a worker, and a way to submit programs to them."""

    master: str
    python: Path
    folder: Path

    def submit(self, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program as a user of the cluster does."""
        ours = str(packages(self.folder / "orderlymq.zip"))
        command = [str(_BIN / "spark-submit"), "--master", self.master, "--py-files", ours]
        for name, value in {
            "spark.driver.memory": "700m",
            "spark.executor.memory": "700m",
            "spark.python.authenticate.socketTimeout": "600s",
        }.items():
            command += ["--conf", f"{name}={value}"]
        return subprocess.run(
            [*command, str(program), *arguments],
            cwd=self.folder,
            # Spark passes --py-files to executors and the program, but not to the process that plans a stream.
            env=_environment(self.python) | {"PYTHONPATH": ours},
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Standalone]:
    """Start a cluster that works in *folder*, and end it with all its child processes."""
    python = bare_python(folder / "python")
    port, master_page, worker_page = free_ports(3)
    address = f"spark://127.0.0.1:{port}"
    pages = {"master": master_page, "worker": worker_page}
    roles = {
        "master": ["master.Master", "--port", str(port)],
        "worker": [
            "worker.Worker",
            "--cores",
            "2",
            "--memory",
            "1g",
            "--work-dir",
            "work",
            address,
        ],
    }
    with ExitStack() as stack:
        for role, (kind, *words) in roles.items():
            command = [str(_BIN / "spark-class"), f"{_DEPLOY}.{kind}", "--host", "127.0.0.1"]
            command += ["--webui-port", str(pages[role]), *words]
            log = stack.enter_context((folder / f"{role}.log").open("wb"))
            process = subprocess.Popen(
                command, cwd=folder, env=_environment(python), stdout=log, stderr=log
            )
            stack.callback(_end, process)
        _await_worker(master_page)
        yield Standalone(address, python, folder)


def packages(path: Path) -> Path:
    """Write the contents of the wheels `orderlymq` and `orderlymq-spark` into one file; return its path."""
    with ZipFile(path, "w") as file:
        for each in distributions():
            if each.name not in ("orderlymq", "orderlymq-spark"):
                continue
            for package in (ROOT / name for name in each.packages):
                for source in package.rglob("*"):
                    if source.is_file() and source.suffix not in (".pyc", ".so"):
                        file.write(source, str(source.relative_to(package.parent)))
    return path


def bare_python(folder: Path) -> Path:
    """Return a Python with the packages of this one, except those installed from this checkout."""
    venv.create(folder)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    # It does not read the *.pth files of that folder, one of which names our sources.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _environment(python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Its default port 6066 may be in use.
    master = "-Dspark.master.rest.enabled=false"
    own = {
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_OPTS": master,
    }
    return kept | own


def _await_worker(page: int) -> None:
    end = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                if b'"ALIVE"' in answer.read().split(b'"workers"')[1]:
                    return
        except (OSError, IndexError):
            pass
        time.sleep(0.2)
    raise AssertionError("the standalone cluster has no worker")


def _end(process: "subprocess.Popen[bytes]") -> None:
    for each in psutil.Process(process.pid).children(recursive=True):
        each.kill()
    process.kill()
    process.wait()
