"""Everything works from a Spark Connect client, with a server that is a process of its own."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from tests.ports import free_ports
from tests.spark.faults.kills import ROOT
from tests.spark.topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_START_TIMEOUT_S = 300.0  # on a machine that has other things to do
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Return the address of a Spark Connect server."""
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
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + _START_TIMEOUT_S
        while process.poll() is None and time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.kill()
        process.kill()
        process.wait()


def test_frames_sink_archive_and_audits_work_from_a_client(
    server: str, topics: Topics, tmp_path: Path
) -> None:
    """The same numbers as from a classic session; the copy is in order per key."""
    topic, target = topics.make(), topics.make(queues=3)
    topics.numbered(topic, 60)
    settings = {
        "master": server,
        "bootstrap": topics.bootstrap,
        "topic": topic,
        "target": target,
        "folder": str(tmp_path),
    }

    client = subprocess.run(
        [sys.executable, "-m", "tests.spark.connected", json.dumps(settings)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert client.returncode == 0, client.stderr[-4000:]
    assert json.loads(client.stdout.splitlines()[-1]) == {
        "remote": True,
        "rows": 60,
        "archived": 60,
        "audits": {"topic": 60, "archive": 60, "stream": 60},
    }
    for key in range(5):
        numbers = [
            int(message.properties["n"])
            for messages in topics.read(target).values()
            for message in messages
            if message.key == f"key-{key}"
        ]
        assert numbers == list(range(12))
