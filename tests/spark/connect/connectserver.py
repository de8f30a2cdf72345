"""A Spark Connect server in its own process, with the Spark of the calling Python."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pyspark

from tests.ports import free_ports
from tests.spark.faults.kills import ROOT

_START_TIMEOUT_S: Final = 300.0  # on a busy machine
_SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a server that works in *folder*, yield its address, and end it with all its child processes."""
    (port,) = free_ports(1)
    settings = {
        "spark.driver.memory": "700m",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.python.authenticate.socketTimeout": "600s",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", _SERVER]
    command += ["--master", "local[2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"], cwd=folder, env=environment, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + _START_TIMEOUT_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                said = (folder / "server.log").read_text(errors="replace")[-3000:]
                raise AssertionError(f"the Spark Connect server does not listen:\n{said}")
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
